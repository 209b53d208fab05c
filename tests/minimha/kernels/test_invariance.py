"""Within `batch_invariant`, a sequence has the same bits alone, in any batch and with a cache."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

import minimha as mh
from minimha.functional import cross_entropy, gelu, silu
from minimha.kernels import invariance, threads
from minimha.kernels.attention import layout, tiled
from minimha.transformers import generate

pytest.importorskip("numba")

CONTEXT = 160
SETTINGS = {
    "gpt2": {"tie": True},
    "llama": {
        "norm": "rms", "activation": "swiglu", "bias": False, "rope": mh.positions.Rope(),
        "num_kv_heads": 2,
    },
    "qwen": {  # grouped heads with biases of Q, K and V alone, norms of heads, a tied table
        "norm": "rms", "activation": "swiglu", "bias": False, "attention_bias": "qkv", "tie": True,
        "rope": mh.positions.Rope(base=1e6), "num_kv_heads": 1, "qk_norm": True,
    },
    "mistral": {
        "norm": "rms", "activation": "swiglu", "bias": False, "rope": mh.positions.Rope(),
        "num_kv_heads": 1, "window": 87,
    },
    "bert-like": {"activation": "relu", "norm_of": "both", "dropout": 0.1},
}  # fmt: skip
DRAWS = [pytest.param(seed, marks=pytest.mark.thorough if seed >= 6 else ()) for seed in range(200)]


class Case(NamedTuple):
    """A model, tokens (B, T), and a cotangent of the logits that is 0 except at the first `end`
    positions of one sequence."""

    model: mh.GPT
    tokens: np.ndarray
    cotangent: np.ndarray
    sequence: slice
    end: int


def drawn(kind: str, seed: int) -> Case:
    """With odd and even widths, so that entries are at all places of vectors and blocks."""
    rng = np.random.default_rng(seed)
    heads = int(rng.choice([2, 4, 6]))
    sizes = {"d_model": 2 * heads * int(rng.integers(1, 17)), "hidden": int(rng.integers(2, 300))}
    words, batch, length = (int(rng.integers(*ends)) for ends in ((5, 300), (2, 7), (2, 130)))
    model = mh.GPT(
        words, context=CONTEXT, num_heads=heads, num_layers=2, rng=rng, **sizes, **SETTINGS[kind]
    )
    for p in model.parameters():  # norms and biases differ from 1 and 0, too
        p.data = p.data + 0.1 * rng.standard_normal(p.shape).astype("float32")
    tokens = rng.integers(words, size=(batch, length))
    k, end = int(rng.integers(batch)), int(rng.integers(1, length + 1))
    cotangent = np.zeros((batch, length, words), "float32")
    cotangent[k, :end] = rng.standard_normal((end, words))
    return Case(model, tokens, cotangent, slice(k, k + 1), end)


def logits_and_gradients(model: mh.GPT, tokens: np.ndarray, cotangent: np.ndarray):
    """The logits (B, T, V), and the gradient of each parameter by name."""
    for p in model.parameters():
        p.grad = None
    with mh.batch_invariant():
        logits = model(tokens.copy())
    logits.backward(cotangent.copy())
    return logits.data, {name: p.grad for name, p in model.named_parameters()}


def assert_same_bits(one: dict, other: dict) -> None:
    differ = [name for name in one if one[name].tobytes() != other[name].tobytes()]  # also 0 and −0
    assert differ == []


@pytest.fixture
def small_tiles(monkeypatch):
    """Attention of a short sequence in many tiles and pieces of work."""
    for name, size in {"FORWARD": 96, "BACKWARD": 64, "_IN_CACHE": 160}.items():
        monkeypatch.setattr(tiled, name, size)
    for module in tiled, layout:
        monkeypatch.setattr(module, "QUERIES_IN_ORDER", 96)
    for name, size in {"_MASK_ENTRIES": 2**16, "_THREADS_PAY": 1, "_PIECE": 1}.items():
        monkeypatch.setattr(layout, name, size)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("seed", DRAWS)
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_sequence_has_the_same_bits_alone_in_a_batch_and_cut_off(kind, seed):
    model, tokens, cotangent, one, end = drawn(kind, seed)
    logits, gradients = logits_and_gradients(model, tokens, cotangent)
    alone, of_it = logits_and_gradients(model, tokens[one], cotangent[one])
    np.testing.assert_array_equal(alone, logits[one])
    assert_same_bits(of_it, gradients)
    prefix, of_prefix = logits_and_gradients(model, tokens[one, :end], cotangent[one, :end])
    np.testing.assert_array_equal(prefix, logits[one, :end])
    assert_same_bits(of_prefix, gradients)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("seed", DRAWS)
@pytest.mark.parametrize("kind", SETTINGS)
def test_a_cache_does_not_change_a_bit(kind, seed):
    model, tokens, *_ = drawn(kind, seed)
    rng = np.random.default_rng(seed)
    length = tokens.shape[1]
    cuts = range(1, length) if seed % 4 == 1 else rng.integers(1, length, size=seed % 7)
    edges = sorted({0, *map(int, cuts), length})
    with mh.batch_invariant(), mh.no_grad():
        whole = model(tokens).data
        caches = model.new_caches(reserve=CONTEXT)  # which evicts nothing
        pieces = [model(tokens[:, a:b], caches=caches).data for a, b in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), whole)


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_number_of_threads_does_not_change_a_bit(kind):
    rng = np.random.default_rng(0)
    model = mh.GPT(
        300, context=CONTEXT, d_model=128, num_heads=4, num_layers=1, rng=0, **SETTINGS[kind]
    )
    tokens = rng.integers(300, size=(4, CONTEXT))
    cotangent = rng.standard_normal((*tokens.shape, 300)).astype("float32")
    found = []
    for count in (1, 2):
        with threads.limit(count):
            found.append(logits_and_gradients(model, tokens, cotangent))
            with mh.batch_invariant(), mh.no_grad():
                found[-1][1]["a token"] = model(tokens[:1, :1]).data  # few rows
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert_same_bits(found[0][1], found[1][1])


@pytest.mark.parametrize("left", [None, 1520])
@pytest.mark.parametrize("seed", [
    pytest.param(seed, marks=pytest.mark.thorough if seed >= 2 else ()) for seed in range(20)
])  # fmt: skip
def test_long_attention_has_the_same_bits_alone_cut_off_and_for_the_last_query(seed, left):
    """With more keys than fit into a tile: 1,536 in the forward pass, 384 in the backward pass.
    Outside the block, the height of tiles depends on the number of keys."""
    rng = np.random.default_rng(seed)
    groups, per_group, width = (int(rng.integers(1, n)) for n in (4, 3, 40))
    length = int(rng.integers(1600, 1800))
    end = int(rng.integers(1560, length) if seed % 2 else rng.integers(100, 500))
    heads = groups * per_group
    q, k, v, cotangent = (
        rng.standard_normal((2, n, length, width)).astype("float32")
        for n in (heads, groups, groups, heads)
    )
    cotangent[0] = cotangent[1, :, end:] = 0

    def attended(q, k, v, cotangent=None, offset=0):
        inputs = [mh.Tensor(x, requires_grad=cotangent is not None) for x in (q, k, v)]
        mask = mh.masks.sliding_window(left, 0, offset=offset)
        with mh.batch_invariant():
            out = mh.scaled_dot_product_attention(*inputs, mask=mask)
        if cotangent is not None:
            out.backward(cotangent)
        return [out.data, *(x.grad for x in inputs)]

    whole = attended(q, k, v, cotangent)
    alone = attended(q[1:], k[1:], v[1:], cotangent[1:])
    prefix = attended(*(x[1:, :, :end].copy() for x in (q, k, v, cotangent)))
    for together, own, first in zip(whole, alone, prefix, strict=True):
        np.testing.assert_array_equal(own[0], together[1])
        np.testing.assert_array_equal(first[0], together[1, :, :end])
    last, *_ = attended(q[1:, :, end - 1 : end], k[1:, :, :end], v[1:, :, :end], offset=end - 1)
    np.testing.assert_array_equal(last[0, :, 0], whole[0][1, :, end - 1])


SURE = 100
"""Fewer positions than in any part of a sequence that the next test compares with the whole."""


class Attention(NamedTuple):
    """Inputs of attention and what masks are made of, all with axes (B, …), and a cotangent that is
    0 except at the first `end` positions of one sequence."""

    inputs: dict[str, np.ndarray]
    cotangent: np.ndarray
    softcap: float | None
    left: int  # how far a window reaches back
    documents: np.ndarray  # (B, T), one after another
    mixed: np.ndarray  # (B, T), in any order
    valid: np.ndarray  # (B, T)
    seen: np.ndarray  # (B, H, T, T)
    sequence: slice
    end: int

    @classmethod
    def drawn(cls, seed: int) -> Attention:
        rng = np.random.default_rng(seed)
        batch = 3
        groups, per_group, width, width_v = (int(rng.integers(1, n)) for n in (3, 3, 20, 20))
        heads = groups * per_group
        length = int(rng.integers(200, 450))
        k = int(rng.integers(batch))
        end = int(rng.integers(SURE, length))

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal((batch, *shape)).astype("float32")

        inputs = {
            "query": normal(heads, length, width),
            "key": normal(groups, length, width),
            "value": normal(groups, length, width_v),
        }
        if seed % 3 == 1:
            inputs["bias"] = normal(heads, length, length)
        if seed % 4 == 2:
            inputs["keep"] = rng.random((batch, heads, length, length)) < 0.8
        cotangent = normal(heads, length, width_v)
        cotangent[np.arange(batch) != k] = 0
        cotangent[:, :, end:] = 0
        ids = rng.integers(4, size=(batch, length))
        return cls(
            inputs,
            cotangent,
            softcap=3.0 if seed % 5 == 3 else None,
            left=int(rng.integers(length)),
            documents=np.sort(ids),
            mixed=ids,
            valid=rng.random((batch, length)) < 0.8,
            seen=np.tril(rng.random((batch, heads, length, length)) < 0.5),
            sequence=slice(k, k + 1),
            end=end,
        )

    def results(
        self, kind: str, some: slice, queries: slice, keys: slice, **settings: str
    ) -> dict[str, np.ndarray]:
        """The output and the gradients, for some sequences with some of their queries and keys."""
        axes = {"query": (queries,), "key": (keys,), "value": (keys,)}
        given = {
            name: x[some, :, *axes.get(name, (queries, keys))].copy()
            for name, x in self.inputs.items()
        }
        keep = given.pop("keep", None)
        tensors = {name: mh.Tensor(x, requires_grad=True) for name, x in given.items()}
        mask = KINDS[kind](self, some, queries, keys)
        out = mh.scaled_dot_product_attention(
            **tensors, keep=keep, dropout=0.0 if keep is None else 0.2, softcap=self.softcap,
            mask=mask if mask is None else mask.at(queries.start), **settings,
        )  # fmt: skip
        out.backward(self.cotangent[some, :, queries].copy())
        return {"out": out.data} | {name: x.grad for name, x in tensors.items()}


def window(x: Attention) -> mh.masks.Mask:
    return mh.masks.sliding_window(x.left, 0)


causal = mh.masks.causal()
KINDS = {
    "causal": lambda x, b, t, s: causal,
    "window": lambda x, b, t, s: window(x),
    "window and the first keys": lambda x, b, t, s: causal & (window(x) | mh.masks.prefix(3)),
    "window and padding": lambda x, b, t, s: window(x) & mh.masks.keys(x.valid[b, s]),
    "prefix": lambda x, b, t, s: causal | mh.masks.prefix(SURE),
    "documents": lambda x, b, t, s: causal & mh.masks.documents(x.documents[b, s]),
    "mixed documents": lambda x, b, t, s: causal & mh.masks.documents(x.mixed[b, s]),
    "pairs": lambda x, b, t, s: mh.masks.dense(x.seen[b, :, t, s]),
    "all keys": lambda x, b, t, s: None,
    "all valid keys": lambda x, b, t, s: mh.masks.keys(x.valid[b, s]),
}
"""Masks for the sequences b, queries t and keys s."""


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("seed", DRAWS)
@pytest.mark.parametrize("kind", KINDS)
def test_attention_in_many_tiles_has_the_same_bits_alone_cut_off_and_in_pieces(kind, seed):
    """The result of a query depends on the keys that it sees, not on those that others see."""
    x = Attention.drawn(seed)
    length, end = x.cotangent.shape[2], x.end
    everything = slice(None)
    queries = slice(0, length)
    keys = slice(0, length)
    with threads.limit(1):
        expected = x.results(kind, everything, queries, keys, implementation="microkernel")
        with mh.batch_invariant():
            whole = x.results(kind, everything, queries, keys)
    for name, value in whole.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-4)

    def assert_same(results: dict, first: int, stop: int, keys: slice) -> None:
        """Compare results of queries from `first` to `stop`."""
        of_queries = slice(first, stop)
        cut = {"key": (keys,), "value": (keys,), "bias": (of_queries, keys)}
        part = {name: whole[name][x.sequence, :, *cut.get(name, (of_queries,))] for name in results}
        assert_same_bits(results, part)

    with threads.limit(2), mh.batch_invariant():
        assert_same_bits(x.results(kind, everything, queries, keys), whole)
        assert_same(x.results(kind, x.sequence, queries, keys), 0, length, keys)
        assert_same(x.results(kind, x.sequence, slice(0, end), keys), 0, end, keys)
        if kind.startswith("all"):
            return
        assert_same(
            x.results(kind, x.sequence, slice(0, end), slice(0, end)), 0, end, slice(0, end)
        )
        cuts = np.random.default_rng(seed).integers(SURE, length, 4)
        for first, stop in pairwise(sorted({0, *map(int, cuts), length - 1, length})):
            piece = x.results(kind, x.sequence, slice(first, stop), slice(0, stop))
            assert_same({"out": piece["out"]}, first, stop, keys)


def test_texts_are_the_same_alone_in_a_batch_and_without_a_cache():
    model, tokens, *_ = drawn("llama", 5)
    with mh.batch_invariant():
        together = generate(model, tokens[:, :9], 30, temperature=0)
        apart = [generate(model, row[None, :9], 30, temperature=0)[0] for row in tokens]
        again = generate(model, tokens[:, :9], 30, temperature=0, cache=False)
    np.testing.assert_array_equal(together, np.stack(apart))
    np.testing.assert_array_equal(together, again)


def test_a_loss_has_the_same_bits_alone_and_in_a_batch():
    model, tokens, _, one, _ = drawn("gpt2", 3)

    def loss(logits, targets):
        with mh.batch_invariant():
            return cross_entropy(logits, targets).item()

    with mh.batch_invariant(), mh.no_grad():
        together, alone = model(tokens), model(tokens[one])
    assert loss(together[one], tokens[one]) == loss(alone, tokens[one])


def test_backward_inside_and_after_the_block_give_the_same_bits():
    model, tokens, cotangent, *_ = drawn("gpt2", 1)
    _, after = logits_and_gradients(model, tokens, cotangent)
    for p in model.parameters():
        p.grad = None
    with mh.batch_invariant():
        model(tokens).backward(cotangent)
    assert_same_bits(after, {name: p.grad for name, p in model.named_parameters()})


@pytest.mark.parametrize("gate", [gelu, silu])
def test_the_place_of_an_entry_in_its_vector_does_not_matter(gate, rng):
    x, dy = rng.standard_normal((2, 300)).astype("float32")
    with mh.batch_invariant():
        y, pull = gate.with_pullback(x)
        (dx,) = pull(dy)
        for start in range(40):
            for stop in (start + 1, start + 17, start + 130, 300):
                part, of_part = gate.with_pullback(x[start:stop].copy())
                np.testing.assert_array_equal(part, y[start:stop])
                np.testing.assert_array_equal(of_part(dy[start:stop].copy())[0], dx[start:stop])


def ordinary(x):
    return mh.Tensor(np.full((2, 3, 4, 8), x, "float32"))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: mh.ops.exp(ordinary(1)), "exp .* computed by NumPy"),
        (lambda: mh.ops.sum(ordinary(1), axis=-1), "sum .* computed by NumPy"),
        (lambda: mh.ops.matmul(ordinary(1), np.ones((8, 2), "float32")), "matmul .* NumPy"),
        (lambda: gelu(mh.Tensor(np.ones(3))), "gelu .* of float64"),
        (
            lambda: mh.functional.softmax(ordinary(1), mask=np.ones(8, bool)),
            "softmax .* no kernel supports these arguments",
        ),
        (lambda: attend(implementation="tiled"), "attention .* 'tiled' is requested"),
        (lambda: attend(return_weights=True), "attention .* the weights"),
        (lambda: attend(sink=np.zeros(3, "float32")), "attention .* sink"),
        (lambda: attend(np.inf), "attention .* not finite"),
        (lambda: mh.linear_attention(*[ordinary(1)] * 3), "linear_attention .* NumPy or BLAS"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
def test_what_would_break_the_promise_is_refused(call, reason):
    call()
    with mh.batch_invariant(), pytest.raises(TypeError, match=reason.replace(" .* ", ".*")):
        call()


def test_on_plain_arrays_attention_and_softmax_are_checked_and_others_are_not():
    x = np.ones((1, 2, 3, 4))
    with mh.batch_invariant():
        mh.ops.exp(x)
        mh.linear_attention(*[x.astype("float32")] * 3)
        for call in (mh.functional.softmax, lambda x: mh.scaled_dot_product_attention(x, x, x)):
            call(x.astype("float32"))
            with pytest.raises(TypeError, match="of float64"):
                call(x)


def test_a_loss_may_be_a_sum_or_mean_of_everything():
    for total in mh.ops.sum, mh.ops.mean:
        x = mh.Tensor(np.arange(24, dtype="float32").reshape(2, 3, 4), requires_grad=True)
        with mh.batch_invariant():
            total(x * x).backward()
        n = 24 if total is mh.ops.mean else 1
        np.testing.assert_array_equal(x.grad, 2 * x.data * np.float32(1 / n))


def attend(x=1.0, **settings):
    return mh.scaled_dot_product_attention(*[ordinary(x)] * 3, **settings)


def test_wrong_arguments_have_their_usual_errors():
    with (
        mh.batch_invariant(),
        pytest.raises(ValueError, match="need the same M and N"),
    ):
        mh.functional.linear(ordinary(1), np.ones((7, 2), "float32"))


def test_another_implementation_around_the_block_is_refused():
    with mh.implementation("reference"), mh.batch_invariant(), pytest.raises(TypeError):
        attend()


def test_without_kernels_the_block_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(invariance, "unavailable", lambda: "numba cannot be imported: no such")
    with pytest.raises(RuntimeError, match=r"needs compiled kernels.*numba cannot be imported"):
        mh.batch_invariant().__enter__()


def test_after_the_block_everything_is_as_before():
    with mh.batch_invariant():
        pass
    assert mh.ops.sum(ordinary(1)).item() == 2 * 3 * 4 * 8
    attend(implementation="reference")


def test_the_gradient_of_a_bias_alone_has_the_same_bits_in_a_batch(rng):
    """With a weight that is not trained, db is not computed beside dw."""
    x, cotangent = rng.standard_normal((2, 5, 40, 30)).astype("float32")
    w = rng.standard_normal((30, 30)).astype("float32")
    cotangent[:3] = cotangent[4:] = 0
    found = []
    for some in (slice(None), slice(3, 4)):
        b = mh.Tensor(np.zeros(30, "float32"), requires_grad=True)
        with mh.batch_invariant():
            y = mh.functional.linear(mh.Tensor(x[some]), w, b)
        y.backward(cotangent[some].copy())
        found.append(b.grad)
    np.testing.assert_array_equal(*found)


def test_the_zeros_of_other_sequences_may_change_the_sign_of_a_zero():
    """A product too small for float32 is -0, and -0 + 0 is 0."""
    x, cotangent = np.array([[[[-1e-30]], [[1]]], [[[1e-30]], [[0]]]], "float32")
    found = []
    for count in (1, 2):
        w = mh.Tensor(np.ones((1, 1), "float32"), requires_grad=True)
        with mh.batch_invariant():
            y = mh.functional.linear(mh.Tensor(x[:count]), w)
        y.backward(cotangent[:count].copy())
        found.append(w.grad)
    assert found[0] == found[1] == 0
    assert np.signbit(found).ravel().tolist() == [True, False]
