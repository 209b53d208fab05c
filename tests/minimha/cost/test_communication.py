"""The bytes and messages of each way to share a model: predicted and counted."""

from contextlib import nullcontext
from functools import partial
from itertools import product

import numpy as np
import pytest

import minimha as mh
from minimha.cost import Sent, communication, training_step, update
from minimha.parallel import Buckets, part, ring_attention, run, share_heads, ulysses_attention
from minimha.training import ParallelTraining
from minimha_autograd import backend

RNG = np.random.default_rng(15)
B, T, M = 2, 13, 7
LETTERS = {"B": B, "T": T, "H": 10, "G": 5, "D": 3, "Dv": 2, "M": M}
MASKS = {
    "none": (None, {}),
    "causal": (mh.masks.causal(), {"causal": True}),
    "window": (mh.masks.sliding_window(3, 0), {"window": 3}),
    "wide window": (mh.masks.sliding_window(5, 0), {"window": 5}),
}


SETTINGS = [(3, "float64", True), (4, "float32", True), (4, "float64", False), (1, "float32", True)]


def predicted(way, ranks, dtype, backward, **settings):
    return communication(way, ranks, dtype=dtype, backward=backward, **settings, **LETTERS)


def counted(ranks, function, *args):
    """What each rank sends while it computes function(comm, *args)."""

    def on_a_rank(comm):
        function(comm, *args)
        return comm.sent

    return run(on_a_rank, ranks)


def attended(comm, dtype, backward, attention, zigzag=False):
    """Attention of this rank's part of the positions, and its gradient."""
    b, t, h, g, d, dv, _ = LETTERS.values()
    whole = (
        RNG.standard_normal(x).astype(dtype) for x in ((b, h, t, d), (b, g, t, d), (b, g, t, dv))
    )
    out = attention(
        comm, *(mh.Tensor(part(x, comm, -2, zigzag), requires_grad=backward) for x in whole)
    )
    if backward:
        out.sum().backward()


ALL = [(*s, zigzag, name) for s, zigzag, name in product(SETTINGS, (False, True), MASKS)]


@pytest.mark.parametrize(
    ("length", "cases"),
    [
        (1024, [(*SETTINGS[0], True, "causal"), (*SETTINGS[1], False, "window")]),
        *(pytest.param(n, ALL, marks=pytest.mark.thorough) for n in (2, 3, 1024)),
    ],
)
def test_the_ring_sends_what_is_predicted(length, cases, monkeypatch):
    monkeypatch.setattr("minimha.parallel.route.LENGTH", length)  # of a piece
    for ranks, dtype, backward, zigzag, name in cases:
        mask, seen = MASKS[name]
        ring = partial(ring_attention, mask=mask, zigzag=zigzag)
        assert counted(ranks, attended, dtype, backward, ring, zigzag) == predicted(
            "ring", ranks, dtype, backward, zigzag=zigzag, **seen
        )


def test_the_ring_sends_as_much_where_numpy_makes_32_bit_integers(monkeypatch):
    asarray = backend.asarray

    def as_in_a_browser(x):
        return np.asarray(x, "int32") if isinstance(x, list) else asarray(x)

    monkeypatch.setattr(backend, "asarray", as_in_a_browser)
    assert counted(2, attended, "float64", False, ring_attention) == predicted(
        "ring", 2, "float64", False
    )


def test_ulysses_sends_what_is_predicted():
    for ranks, dtype, backward in SETTINGS:
        assert counted(ranks, attended, dtype, backward, ulysses_attention) == predicted(
            "ulysses", ranks, dtype, backward
        )


def test_heads_send_what_is_predicted():
    def layer(comm, dtype, backward):
        shared = mh.MultiHeadAttention(M, 10, num_kv_heads=5, head_dim=3, v_head_dim=2, dtype=dtype)
        share_heads(comm, shared)
        x = mh.Tensor(RNG.standard_normal((B, T, M)).astype(dtype), requires_grad=backward)
        with nullcontext() if backward else mh.no_grad():
            out = shared(x)
        if backward:
            out.sum().backward()

    for ranks, dtype, backward in SETTINGS:
        assert counted(ranks, layer, dtype, backward) == predicted("heads", ranks, dtype, backward)


def test_an_update_sends_what_is_predicted():
    def step(comm):
        parameters = [mh.Tensor(np.ones(n), requires_grad=True) for n in (5, 1, 7)]
        for p in parameters:
            p.grad = np.ones(p.shape)
        buckets = Buckets(comm, [{"params": parameters[:1]}, {"params": parameters[1:]}])
        buckets.reduce()
        buckets.gather()

    for ranks in (1, 2, 3, 4):
        assert counted(ranks, step) == update([5, 8], ranks, "float64")


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["data", "heads", "ulysses", "ring"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_step_of_training_sends_what_is_predicted(way, ranks, monkeypatch):
    monkeypatch.setattr("minimha.parallel.data.BUCKET", 1000)  # bytes: several buckets

    def train(comm):
        model = mh.GPT(9, context=11, d_model=8, num_heads=4, num_layers=2)
        tokens = np.arange(100) % 9
        training = ParallelTraining(
            model, tokens, comm=comm, way=way, steps=2, every=2, batch=5, lr=1e-3
        )
        comm.sent = Sent()
        next(iter(training))
        buckets = training._buckets._buckets
        entries = [sum(p.data.size for p in bucket.parameters) for bucket in buckets]
        return entries, comm.sent

    entries, counted = zip(*run(train, ranks), strict=True)
    assert len(entries[0]) > 3
    assert list(counted) == training_step(
        way, ranks, entries[0], layers=2, causal=True, zigzag=True, B=5, T=11, H=4, M=8
    )


@pytest.mark.parametrize(("way", "ranks", "message"), [
    ("heads", 6, "6 ranks need at least 6 heads of keys and values, but there are 5"),
    ("ulysses", 6, "6 ranks need at least 6 heads of keys and values, but there are 5"),
    ("ring", 14, "14 ranks need at least 14 positions, but there are 13"),
    ("rings", 2, "way = 'rings': there are data, heads, ring, ulysses"),
])  # fmt: skip
def test_impossible_settings_are_refused(way, ranks, message):
    with pytest.raises(ValueError, match=message):
        communication(way, ranks, **LETTERS)


def test_the_time_of_messages_is_latency_and_bytes_over_bandwidth():
    assert (Sent(100, 2) + Sent(900, 1) * 2).seconds(0.5, 100.0) == 4 * 0.5 + 19.0
