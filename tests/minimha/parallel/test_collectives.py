"""Collectives on several ranks: their values, their gradients, and what ranks that disagree see."""

import re
import threading
import time

import numpy as np
import pytest

import minimha as mh
from minimha.parallel import CommunicationError, across, parts, run
from minimha_autograd import backend

RNG = np.random.default_rng(13)
LENGTHS = 2, 5, 1  # of the first axis on each rank, where it may differ


def arrays(ranks, shape=(4, 5), uneven=False):
    return [
        RNG.standard_normal((LENGTHS[r], *shape[1:]) if uneven else shape) for r in range(ranks)
    ]


def cut(x, axis, ranks):
    return np.array_split(x, ranks, axis)


def turned(xs):
    """all_to_all of arrays whose columns are split and whose rows are joined."""
    pieces = [cut(x, 1, len(xs)) for x in xs]
    return [np.concatenate([piece[r] for piece in pieces]) for r in range(len(xs))]


COLLECTIVES = {
    "all_reduce": (lambda comm, x: comm.all_reduce(x), lambda xs: [sum(xs)] * len(xs), False),
    "all_gather": (
        lambda comm, x: comm.all_gather(x, -2), lambda xs: [np.concatenate(xs)] * len(xs), True
    ),
    "reduce_scatter": (
        lambda comm, x: comm.reduce_scatter(x, 1), lambda xs: cut(sum(xs), 1, len(xs)), False
    ),
    "all_to_all": (lambda comm, x: comm.all_to_all(x, 1, 0), turned, True),
    "broadcast": (
        lambda comm, x: comm.broadcast(x, comm.size - 1), lambda xs: [xs[-1]] * len(xs), False
    ),
}  # fmt: skip
every_collective = pytest.mark.parametrize("name", COLLECTIVES)


@every_collective
def test_the_pullback_is_the_transpose(name):
    """⟨y, dy⟩ = ⟨x, dx⟩, summed over all ranks, for a linear map and its pullback."""
    function, _, uneven = COLLECTIVES[name]
    xs = arrays(3, uneven=uneven)
    ys, pullback = across(function, 3).with_pullback(*xs)
    dys = [RNG.standard_normal(y.shape) for y in ys]
    pairs = zip([*ys, *xs], [*dys, *(-dx for dx in pullback(*dys))], strict=True)
    assert abs(sum(np.vdot(a, b) for a, b in pairs)) < 1e-13


@every_collective
@pytest.mark.parametrize("ranks", [3, 1, 2])  # other libraries run the first by default
def test_the_value_of_a_collective(name, ranks, place):
    function, expected, uneven = COLLECTIVES[name]
    xs = arrays(ranks, uneven=uneven)
    for y, wanted in zip(across(function, ranks)(*map(place, xs)), expected(xs), strict=True):
        assert type(y) is type(place(wanted))
        np.testing.assert_allclose(backend.to_numpy(y), wanted, rtol=1e-15, atol=1e-15)


def test_all_reduce_of_a_number_and_of_fewer_entries_than_ranks():
    assert run(lambda comm: comm.all_reduce(np.asarray(comm.rank + 1.0)), 3) == [6, 6, 6]
    for y in run(lambda comm: comm.all_reduce(np.array([comm.rank, 1])), 3):
        assert y.tolist() == [3, 3]


def test_sums_are_the_same_bit_for_bit_on_every_rank_and_in_every_run():
    xs = arrays(3, (50, 7))

    def late(comm):
        time.sleep(RNG.uniform(0, 0.003))
        return comm.all_reduce(xs[comm.rank])

    sums = [y for _ in range(5) for y in run(late, 3)]
    assert all(np.array_equal(sums[0], y) for y in sums)


def test_a_message_keeps_the_entries_that_it_was_sent_with():
    def change_after_sending(comm):
        x = np.ones(3)
        comm.send(x, 1 - comm.rank)
        x += 1
        received = comm.recv(1 - comm.rank)
        y = comm.all_gather(x)
        x += 1
        return received, y

    for sent, gathered in run(change_after_sending, 2):
        assert sent.tolist() == [1, 1, 1]
        assert gathered.tolist() == [2] * 6


def test_flush_waits_until_messages_have_been_received():
    def work(comm):
        if comm.rank == 0:
            comm.send(np.ones(2), 1)
            comm.flush()
            return time.monotonic()
        time.sleep(0.02)
        before = time.monotonic()
        comm.recv(0)
        return before

    flushed, received = run(work, 2)
    assert flushed >= received


def test_bytes_and_messages_are_counted():
    x = np.ones((4, 5), "float32")  # 80 bytes

    def sent_by(call):
        def work(comm):
            call(comm)
            return comm.sent.bytes, comm.sent.messages

        return run(work, 2)

    assert sent_by(lambda comm: comm.all_reduce(x)) == [(80, 2)] * 2
    assert sent_by(lambda comm: comm.all_gather(x)) == [(80, 1)] * 2
    assert sent_by(lambda comm: comm.reduce_scatter(x)) == [(40, 1)] * 2
    assert sent_by(lambda comm: comm.all_to_all(x, 0, 1)) == [(40, 1)] * 2
    assert sent_by(lambda comm: comm.broadcast(x)) == [(80, 1), (0, 0)]


def test_parts_are_balanced():
    lengths = [part.stop - part.start for part in parts(11, 4)]
    assert lengths == [3, 3, 3, 2]
    assert parts(2, 3)[2] == slice(2, 2)


def test_settings_of_the_caller_hold_on_every_rank():
    x = mh.Tensor(np.ones(2), requires_grad=True)
    with mh.no_grad():
        assert not any(y.requires_grad for y in run(lambda comm: comm.all_reduce(x), 2))


def otherwise(one, other):
    """A program in which rank 1 does something else than the others."""
    return lambda comm: other(comm) if comm.rank == 1 else one(comm)


def step(number, call):
    def work(comm):
        comm.step = number
        return call(comm)

    return work


DISAGREEMENTS = {
    "shapes": (
        lambda comm: comm.all_reduce(np.ones(3)), lambda comm: comm.all_reduce(np.ones(4)),
        r"all_reduce of float64 \(3\).*all_reduce of float64 \(4\)",
    ),
    "dtypes": (
        lambda comm: comm.all_gather(np.ones(3)), lambda comm: comm.all_gather(np.ones(3, "f4")),
        "float64.*float32",
    ),
    "collectives": (
        lambda comm: comm.all_gather(np.ones(3)), lambda comm: comm.reduce_scatter(np.ones(3)),
        "all_gather.*reduce_scatter",
    ),
    "roots": (
        lambda comm: comm.broadcast(np.ones(3), 0), lambda comm: comm.broadcast(np.ones(3), 1),
        "rank 0 sent to rank 1 at call 1: broadcast from rank 0.*but rank 1 never",
    ),
    "steps": (
        step(4, lambda comm: comm.all_reduce(np.ones(3))),
        step(5, lambda comm: comm.all_reduce(np.ones(3))),
        "step 4, call 1.*step 5, call 1",
    ),
    "numbers of calls": (
        lambda comm: [comm.all_reduce(np.ones(3)) for _ in range(2)],
        lambda comm: comm.all_reduce(np.ones(3)),
        "rank 0 waits for rank 1 at call 3: all_reduce.* but rank 1 has ended",
    ),
    "a backward that one rank leaves out": (
        lambda comm: across_tape(comm).backward(), lambda comm: across_tape(comm),
        "gradient of all_reduce.* but rank 1 has ended",
    ),
}  # fmt: skip


def across_tape(comm):
    return comm.all_reduce(mh.Tensor(np.ones(3), requires_grad=True)).sum()


@pytest.mark.parametrize("about", DISAGREEMENTS)
def test_ranks_that_disagree_see_where_both_are(about):
    one, other, message = DISAGREEMENTS[about]
    started = time.monotonic()
    with pytest.raises(CommunicationError) as caught:
        run(otherwise(one, other), 3)
    assert time.monotonic() - started < 60  # nobody waits for the timeout of 300 s
    first, _, second = message.partition(".*")  # in the order in which that rank sees them
    assert re.search(f"{first}.*{second}|{second}.*{first}", str(caught.value))


def test_a_rank_waits_no_longer_than_the_timeout_for_one_that_computes():
    done = threading.Event()

    def work(comm):
        if comm.rank == 1:
            return done.wait(60)
        try:
            comm.recv(1)
        finally:
            done.set()

    with pytest.raises(
        CommunicationError, match=r"rank 0 waits for rank 1 .*nothing arrived in 0.1 s"
    ):
        run(work, 2, timeout=0.1)


def test_an_error_on_one_rank_stops_the_others():
    def divide(comm):
        comm.all_reduce(np.ones(3))
        if comm.rank == 1:
            raise ZeroDivisionError("on purpose")
        comm.all_reduce(np.ones(3))

    started = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
        run(divide, 3)
    assert caught.value.__notes__ == ["on rank 1 of 3"]
    assert time.monotonic() - started < 60


def test_there_is_no_rank_outside():
    for call in (lambda comm: comm.send(np.ones(1), 2), lambda comm: comm.recv(-1)):
        with pytest.raises(ValueError, match=r"there is no rank (2|-1): there are 0 to 1"):
            run(call, 2)
    with pytest.raises(ValueError, match="at least one rank"):
        run(lambda comm: None, 0)
    with pytest.raises(ValueError, match="3 arrays cannot be divided among 2 ranks"):
        across(lambda comm, x: x, 2)(*arrays(3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["all_reduce", "reduce_scatter"])
def test_a_sum_of_16_bits_over_ranks_is_rounded_once(name, dtype):
    """The first rank has the number from which adding 1 changes nothing, the four others 1."""
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
    call = COLLECTIVES[name][0]
    large = 256 if dtype == "bfloat16" else 2048

    def sums(comm):
        x = np.full((1, 5), 1 if comm.rank else large).astype(dtype)
        leaf = mh.Tensor(x, requires_grad=True)
        y = call(comm, leaf)
        y.backward(np.full(y.shape, 1 if comm.rank else large).astype(dtype))
        return y.data, leaf.grad

    for y, gradient in run(sums, 5):
        assert y.dtype == gradient.dtype == dtype
        assert (y == large + 4).all()
        if name == "all_reduce":
            assert (gradient == large + 4).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_gradients_of_what_every_rank_receives_are_added_in_float32(dtype):
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
    large = 256 if dtype == "bfloat16" else 2048

    def gradients(comm):
        found = []
        for name in ("all_gather", "broadcast"):
            leaf = mh.Tensor(np.ones((2, 2)).astype(dtype), requires_grad=True)
            y = COLLECTIVES[name][0](comm, leaf)
            y.backward(np.full(y.shape, 1 if comm.rank else large).astype(dtype))
            found.append(leaf.grad)
        return found

    for rank, (gathered, sent) in enumerate(run(gradients, 5)):
        assert (gathered == large + 4).all()
        assert (sent == (large + 4 if rank == 4 else 0)).all()


@every_collective
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gradient_of_16_bits_is_rounded_once_when_all_uses_have_been_added(name, dtype):
    """Two uses with large cotangents cancel, though in float16 each part would be infinite; a third
    one stays."""
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
    call = COLLECTIVES[name][0]

    def gradient(comm, kind):
        rng = np.random.default_rng(comm.rank)
        leaf = mh.Tensor(np.ones((4, 5), kind), requires_grad=True)
        ys = [call(comm, leaf) for _ in range(4)]
        small = [rng.uniform(0.5, 1.5, ys[0].shape).astype(dtype).astype(kind) for _ in range(2)]
        large = np.full(ys[0].shape, 30_000, dtype).astype(kind)
        mh.ops.concat(*ys).backward(np.concatenate([*small, large, -large]))
        return leaf.grad

    with np.errstate(over="ignore", invalid="ignore"):
        ours, wide = (run(lambda comm, kind=k: gradient(comm, kind), 3) for k in (dtype, "float32"))
    for x, expected in zip(ours, wide, strict=True):
        np.testing.assert_array_equal(x, expected.astype(dtype))
