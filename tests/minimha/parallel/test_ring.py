"""Attention by ring or by Ulysses on several ranks: equal to that of the whole sequence on one."""

import math
import tracemalloc
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import minimha as mh
from minimha import masks as m
from minimha.parallel import (
    CommunicationError,
    across,
    part,
    positions,
    ring_attention,
    run,
    ulysses_attention,
)
from minimha.parallel.route import Route
from minimha_autograd import backend

RNG = np.random.default_rng(14)
B, H, G, N, D, DV = 2, 6, 3, 13, 5, 4
IDS = np.array([[0] * 3 + [1] * 9 + [2], [4] * 7 + [0] * 6])
MASKS = {
    "none": None,
    "causal": m.causal(),
    "window": m.sliding_window(2, 0),
    "window on both sides": m.sliding_window(2, 3),
    "padding": m.padding([N, 4]),
    "documents": m.documents(IDS),
    "prefix": m.causal() | m.prefix([0, 9]),
    "keys": m.keys(RNG.random((B, N)) < 0.6),
    "dense": m.dense(RNG.random((H, N, N)) < 0.4),
    "a bare array": RNG.random((N, N)) < 0.4,
    "a bare array of heads": RNG.random((1, H, N, N)) < 0.7,
    "inverted": ~m.sliding_window(3, 3),
    "combined": (m.causal() & m.documents(IDS)) | m.prefix(1) & ~m.padding([2, 0]),
    "nothing": m.padding([0, 3]),
    "later keys": m.causal(offset=-3),  # the first queries see nothing
}
every_mask = pytest.mark.parametrize("name", MASKS)


def inputs(n=N, s=None, dtype="float64"):
    """query, key, value and the gradient of the output."""
    s = n if s is None else s
    shapes = (H, n, D), (G, s, D), (G, s, DV), (H, n, DV)
    return [RNG.standard_normal((B, *shape)).astype(dtype) for shape in shapes]


def on_one(q, k, v, dout, mask=None, attend=mh.scaled_dot_product_attention, **settings):
    """The output and the gradients of query, key and value."""
    tensors = [mh.Tensor(x, requires_grad=True) for x in (q, k, v)]
    out = attend(*tensors, mask, **settings)
    out.backward(dout)
    return [out.data, *(x.grad for x in tensors)]


def on_ranks(arrays, ranks, mask=None, zigzag=False, attend=ring_attention, **settings):
    """The same on several ranks, each with its part."""
    settings |= {"zigzag": True} if zigzag else {}

    def on_a_rank(comm):
        *qkv, dout = (part(x, comm, -2, zigzag) for x in arrays)
        return on_one(*qkv, dout, mask, partial(attend, comm), **settings)

    return run(on_a_rank, ranks, timeout=20)


def rank_of(rank, size):
    return SimpleNamespace(rank=rank, size=size)


def assert_equal(
    arrays, ranks, mask=None, zigzag=False, tolerance=1e-12, attend=ring_attention, **settings
):
    whole = on_one(*arrays, mask, **settings)
    for rank, own in enumerate(on_ranks(arrays, ranks, mask, zigzag, attend, **settings)):
        for found, expected in zip(own, whole, strict=True):
            due = part(expected, rank_of(rank, ranks), -2, zigzag)
            np.testing.assert_allclose(found, due, rtol=0, atol=tolerance * max(1, abs(due).max()))


@pytest.mark.parametrize("name", ["none", "causal", "window", "combined", "nothing"])
def test_outputs_and_gradients_are_those_of_the_whole_sequence(name):
    assert_equal(inputs(), 3, MASKS[name], zigzag=len(name) % 2 == 0)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", ["none", "causal", "combined", "dense", "a bare array of heads"])
def test_ulysses_gives_the_same(name, ranks):
    settings = {"attend": ulysses_attention, "softcap": 2.0, "tolerance": 2e-14}
    assert_equal(inputs(), ranks, MASKS[name], **settings)


@pytest.mark.thorough
@every_mask
@pytest.mark.parametrize("zigzag", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_any_number_of_ranks_gives_the_same(name, zigzag, ranks):
    assert_equal(inputs(), ranks, MASKS[name], zigzag)
    assert_equal(inputs(), ranks, MASKS[name], zigzag, scale=0.3, softcap=1.5)


@pytest.mark.thorough
@pytest.mark.parametrize("implementation", ["reference", "loop", "fused", "tiled", "microkernel"])
@pytest.mark.parametrize("name", ["none", "causal", "combined", "dense", "keys"])
def test_every_implementation_can_compute_the_steps(implementation, name):
    with mh.implementation(implementation):
        assert_equal(inputs(), 3, MASKS[name], zigzag=True)
        assert_equal(inputs(dtype="float32"), 3, MASKS[name], tolerance=2e-6)


@pytest.mark.thorough
def test_long_sequences_are_computed_by_kernels():
    long = [RNG.standard_normal((1, 2, 700, 16)) for _ in range(4)]
    for mask in (
        None,
        m.causal(),
        m.sliding_window(90, 0),
        m.documents(np.arange(700)[None] // 99),
    ):
        assert_equal(long, 3, mask, zigzag=True)


def test_keys_that_travel_in_pieces_give_the_same(monkeypatch):
    monkeypatch.setattr("minimha.parallel.route.LENGTH", 3)
    assert_equal(inputs(), 2, MASKS["dense"], zigzag=True)


def test_queries_and_keys_of_two_sequences():
    for mask in (None, m.causal(align="bottom-right"), m.documents(IDS[:, :9], IDS)):
        assert_equal(inputs(n=9, s=13), 4, mask)


def test_heads_and_batch_may_be_absent():
    two = RNG.standard_normal((4, 2, 2))
    assert_equal(two, 2, m.causal())
    assert_equal(RNG.standard_normal((4, 3, 7, 2)), 3, m.causal(), zigzag=True)


def test_hidden_keys_may_be_nan():
    q, k, v, dout = inputs()
    k[:, :, 3:6], v[:, :, 3:6] = np.nan, np.nan
    hidden = m.keys(np.isfinite(k[:, 0, :, 0]))
    assert_equal((q, k, v, dout), 3, hidden & m.causal(), zigzag=True)


def test_a_visible_nan_reaches_the_queries_that_it_reaches_on_one_rank():
    q, k, v, dout = inputs()
    k[0, 0, 5, 0] = v[1, 1, 9, 1] = np.nan
    whole = on_one(q, k, v, dout, m.causal())
    for rank, own in enumerate(on_ranks((q, k, v, dout), 3, m.causal())):
        for found, expected in zip(own, whole, strict=True):
            due = part(expected, rank_of(rank, 3), -2)
            np.testing.assert_allclose(found, due, rtol=0, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("zigzag", [False, True])
def test_the_gradient_of_ring_attention(zigzag):
    def attend(comm, *qkv):
        return ring_attention(comm, *qkv, m.causal(), softcap=2.0, zigzag=zigzag)

    qkv = RNG.standard_normal((3, 2, 5, 2))
    held = [part(x, rank_of(r, 2), -2, zigzag) for r in range(2) for x in qkv]
    mh.gradcheck(across(attend, 2), *held)


@pytest.mark.parametrize("name", ["causal", "documents", "dense"])
def test_arrays_of_every_library_and_of_half_precision(name, place):
    for dtype, tolerance in (("float64", 1e-12), ("float16", 2e-3)):
        if place.name == "array-api-strict" and dtype == "float16":
            continue  # it has none
        arrays, mask = inputs(dtype=dtype)[:3], MASKS[name]
        expected = mh.scaled_dot_product_attention(*arrays, mask)

        def attend(comm, arrays=arrays, mask=mask):
            return ring_attention(comm, *(part(place(x), comm, -2) for x in arrays), mask)

        for rank, y in enumerate(run(attend, 2)):
            assert type(y) is type(place(expected))
            due = part(expected, rank_of(rank, 2), -2)
            np.testing.assert_allclose(backend.to_numpy(y), due, rtol=0, atol=tolerance)


@pytest.mark.parametrize("zigzag", [False, True])
def test_the_parts_of_a_sequence_hold_every_position_once(zigzag):
    for n, ranks in ((1, 1), (5, 4), (8, 4), (13, 3)):
        held = [positions(n, rank_of(r, ranks), zigzag) for r in range(ranks)]
        assert sorted(np.concatenate(held)) == list(range(n))
        assert max(map(len, held)) - min(map(len, held)) <= 1 + zigzag
    x = mh.Tensor(np.arange(24.0).reshape(2, 12), requires_grad=True)
    own = part(x, rank_of(1, 3), -1, zigzag)
    assert own.data[0].tolist() == ([2, 3, 8, 9] if zigzag else [4, 5, 6, 7])
    own.sum().backward()
    assert np.flatnonzero(x.grad[0]).tolist() == own.data[0].astype(int).tolist()


def work(n, ranks, mask, zigzag):
    """The number of visible pairs in the tiles that each rank computes, and whose keys it sees."""

    def on_a_rank(comm):
        x = part(np.empty((1, n, 1)), comm, -2, zigzag)
        route = Route(comm, x, x, mask, zigzag)
        pairs, owners = 0, route.owners
        for owner, piece in product(owners, range(route.pieces)):
            for rows, columns, seen in route.tiles(owner, piece, slice(None)):
                shape = rows.stop - rows.start, columns.stop - columns.start
                pairs += math.prod(shape) if seen is None else seen.array(shape).sum()
        return int(pairs), owners

    return zip(*run(on_a_rank, ranks), strict=True)


def test_zigzag_divides_the_work_under_a_causal_mask_evenly():
    n = 400
    for zigzag in (False, True):
        pairs, _ = work(n, 4, m.causal(), zigzag)
        assert sum(pairs) == n * (n + 1) // 2
        assert max(pairs) / min(pairs) == pytest.approx(1 if zigzag else 7, rel=0.02)


def test_keys_go_only_to_ranks_whose_queries_see_them():
    for mask, expected in (
        (None, [[0, 3, 2, 1], [1, 0, 3, 2], [2, 1, 0, 3], [3, 2, 1, 0]]),
        (m.causal(), [[0], [1, 0], [2, 1, 0], [3, 2, 1, 0]]),
        (m.sliding_window(100, 0), [[0], [1, 0], [2, 1], [3, 2]]),
        (m.sliding_window(101, 0), [[0], [1, 0], [2, 1, 0], [3, 2, 1]]),
        (m.sliding_window(1, 1), [[0, 1], [1, 0, 2], [2, 1, 3], [3, 2]]),
        (m.documents(np.arange(400) // 200), [[0, 1], [1, 0], [2, 3], [3, 2]]),
    ):
        pairs, owners = work(400, 4, mask, zigzag=False)
        assert list(owners) == expected
        seen = np.True_ if mask is None else mask.array((400, 400))
        assert sum(pairs) == np.broadcast_to(seen, (400, 400)).sum()


def test_parts_that_no_rank_can_use_are_refused_on_every_rank():
    def attend(comm, lengths, zigzag):
        x = np.ones((H, lengths[comm.rank], D))
        return ring_attention(comm, x, x, x, zigzag=zigzag)

    for lengths, zigzag, message in (
        ((1, 0), False, "2 ranks need at least 2 queries, but there are 1"),
        ((2, 3), False, "the ranks hold 2, 3 queries, but their parts are 3, 2: .*zigzag=False"),
        ((3, 4, 3), True, "3, 4, 3 queries, but their parts are 3, 3, 4: .*zigzag=True"),
    ):
        with pytest.raises(ValueError, match=message):
            run(attend, len(lengths), lengths, zigzag)


def test_ranks_that_disagree_about_the_attention_are_told():
    def attend(comm):
        x = np.ones((H, 3, D + comm.rank))
        return ring_attention(comm, x, x, x)

    with pytest.raises(CommunicationError, match=r"rank 0 is at [^;]* \(…, 6, ·, 5\)"):
        run(attend, 2)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "backward"), [("none", False), ("causal", True)])
def test_a_rank_needs_little_more_than_its_share_of_the_memory(name, backward):
    mask, ranks, zigzag = MASKS[name], 4, name == "causal"
    arrays = [RNG.standard_normal((1, 4, 16_384, 32)).astype("float32") for _ in range(4)]
    held = [[part(x, rank_of(r, ranks), -2, zigzag) for x in arrays] for r in range(ranks)]

    def attend(function, *qkv, dout):
        tensors = [mh.Tensor(x, requires_grad=backward) for x in qkv]
        out = function(*tensors, mask)
        if backward:
            out.backward(dout)
        return out, [x.grad for x in tensors]

    def on_a_rank(comm):
        def ring(*qkv):
            return ring_attention(comm, *qkv, zigzag=zigzag)

        return attend(ring, *held[comm.rank][:3], dout=held[comm.rank][3])

    def peak(function, *args, **settings):
        tracemalloc.start()
        result = function(*args, **settings)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most, result

    one = mh.scaled_dot_product_attention
    attend(one, *(x[..., :64, :] for x in arrays[:3]), dout=arrays[3][..., :64, :])  # loads kernels
    on_one, _ = peak(attend, one, *arrays[:3], dout=arrays[3])
    on_all, _ = peak(run, on_a_rank, ranks)
    assert on_all / ranks <= 0.35 * on_one
