"""A record for each operation: sample inputs, a reference value, and inputs that must be refused.

The generic tests loop over these records. An operation without one fails the suite.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from references import (
    attended,
    attended_in_heads,
    by_axis,
    cut,
    fused_projections,
    heads,
    likelihood,
    log_of_sum,
    merged_parts,
    normed,
    remembered,
    root_mean_square_normed,
    softmaxed,
    turned,
    variance,
)

import minimha as mh
from minimha import attention, functional, ops
from minimha.attention.merging import merged
from minimha.attention.reference import pair_scores, weighted_sum
from minimha.functional.rope import Llama3
from minimha.parallel import collectives, ring
from minimha_autograd import registry


def not_public() -> str:
    """Which operations are not public, and what to do; "" if all are."""
    rooms = {
        "minimha_autograd.ops": (ops, "autograd/minimha_autograd/ops/__init__.py"),
        "minimha.functional": (functional, "minimha/functional/__init__.py"),
    }
    said = []
    for full, f in registry.items():
        room, where = rooms.get(full.rpartition(".")[0].rpartition(".")[0], (None, ""))
        name = f.__name__
        if room and (getattr(room, name, None) is not f or name not in room.__all__):
            said.append(f"{full}: import {name} in {where} and list it in __all__ there")
    return "\n".join(said)


if not_public():  # or the records below would end in an AttributeError
    raise ImportError(not_public())

RNG = np.random.default_rng(1729)
B, H, T, S, D, DV, M = 2, 3, 5, 4, 6, 7, 8  # all different, so that swapped axes cannot pass


class Case:
    """Inputs of an operation and its settings. A tuple is the shape of a random input."""

    def __init__(self, *inputs: Any, **settings: Any) -> None:
        self.inputs = tuple(normal(*x) if isinstance(x, tuple) else x for x in inputs)
        self.settings = settings

    def but(self, **settings: Any) -> Any:
        """The same inputs with more settings."""
        other = copy.copy(self)
        other.settings = self.settings | settings
        return other

    def __str__(self) -> str:
        shapes = "x".join(str(np.shape(x)).replace(" ", "") for x in self.inputs)
        named = ",".join(f"{k}={v}" for k, v in self.settings.items() if getattr(v, "ndim", 0) < 2)
        return f"{shapes},{named}".strip(",").replace(" ", "")


class Refused(Case):
    """Inputs that must raise this error, with a message that matches the pattern."""

    on_devices = True

    def __init__(self, error: type[Exception], match: str, *inputs: Any, **settings: Any) -> None:
        super().__init__(*inputs, **settings)
        self.error, self.match = error, match


class RefusedOnHost(Refused):
    """Entries that must raise this error, unless a device would have to be read to see them."""

    on_devices = False


@dataclass
class Record:
    """An operation and how to test it.

    reference  the value or values, computed by NumPy or a loop from the same inputs and settings
    analytic   whether the complex step is valid; if so, the check must use it
    zero       the inputs whose true gradient is zero
    products   whether values and gradients are sums of products, which a GPU computes in 16 bits
    short      the reason why no axis of the cases can be thousands of entries long
    """

    operation: Any
    reference: Callable[..., Any]
    analytic: bool = True
    zero: tuple[int, ...] = ()
    products: bool = False
    short: str = ""
    cases: Sequence[Case] = ()
    refused: Sequence[Refused] = ()

    def at(self, *cases: Case) -> Record:
        """Set the cases (distinct sizes, axes of length 0 and 1, broadcasting), and refusals."""
        self.refused = [case for case in cases if isinstance(case, Refused)]
        self.cases = [case for case in cases if case not in self.refused]
        return self


def normal(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape))


def positive(*shape: int) -> np.ndarray:
    return np.asarray(RNG.uniform(0.5, 2, shape))


MASK = RNG.random((B, 1, T, S)) < 0.6
MASK[1, 0, 2] = False  # a query that may attend to nothing
INDICES = np.array([[1, 0, 1], [4, 1, 1]])  # with repeated entries
QKV = normal(B, H, T, D), normal(B, H, S, D), normal(B, H, S, DV)
GROUPED = [  # query, key, weights and value of 9 heads in 3 groups; no axis has another's length
    np.random.default_rng(9).standard_normal(shape)
    for shape in ((B, 9, T, D), (B, 3, S, D), (B, 9, T, S), (B, 3, S, DV))
]
SEQUENCES = normal(B, T, 4), normal(B, S, 4), normal(B, S, 4)  # for multi-head attention, M = 4
WEIGHTS = normal(4, H * 2), normal(4, H * 2), normal(4, H), normal(H, 4)
BIASES = normal(H * 2), normal(H * 2), normal(H), normal(4)


def doubled(x, like):
    """Key heads, each repeated for the query heads of like that read it."""
    return x if x.ndim == 2 else np.repeat(x, like.shape[-3] // x.shape[-3], axis=-3)


def attention_record():
    """Cases for each implementation; small, since a check calls it for each entry."""
    h, g, t, s, d, dv = 4, 2, 3, 5, 2, 1
    qkv = normal(h, t, d), normal(h, s, d), normal(h, s, dv)
    grouped = qkv[0], normal(g, s, d), normal(g, s, dv)
    visible = np.tri(t, s, k=-1, dtype=bool)  # the first query may attend to nothing
    keep = RNG.random((h, t, s)) < 0.7
    cases = [
        Case(*qkv), Case(*qkv, visible, (h, 1, s), scale=0.3), Case(*qkv, visible, None, (h,)),
        Case(*qkv, None, np.where(visible, normal(h, t, s), -np.inf)),
        Case(*qkv, None, None, None, None, 1.5),
        Case(*grouped, visible, (t, s), (h,), (h, 1, 1), positive(t, 1), keep=keep, dropout=0.3),
        Case(*grouped, keep=keep, dropout=1.0), Case((B, 1, 1, d), (B, 1, 1, d), (B, 1, 1, dv)),
        Case((1, d), (1, d), (1, 1)), Case((0, t, d), (0, s, d), (0, s, 1)),
        Refused(ValueError, "query .* is .* key .* is", qkv[0], qkv[2], qkv[1]),
        Refused(TypeError, "mask .*must be (a )?boolean", *qkv, normal(t, s)),
    ]  # fmt: skip
    of_each = ({"return_weights": True, "implementation": x} for x in attention.IMPLEMENTATIONS)
    every = (case.but(**settings) for case, settings in itertools.product(cases, of_each))
    return Record(mh.scaled_dot_product_attention, attended).at(*every)


def entrywise(operation, reference, draw=normal):
    """The record of an elementwise function of one array."""
    return Record(operation, reference).at(
        Case(draw(B, T)), Case(draw(T, 1, M)), Case(draw(0, T)), Case(draw()),
        Refused(TypeError, "x must be an array, not a list", [1.0]),
    )  # fmt: skip


def gate(operation, reference):
    """The record of an activation that may have a second factor."""
    record = entrywise(operation, lambda x, times=1: reference(x) * times)
    return record.at(
        *record.cases, *record.refused, Case((B, T), (B, T)), Case((0, T), (0, T)), Case((), ()),
        Refused(ValueError, "times must have the shape of x", (B, T), (T,)),
        Refused(ValueError, "times must have the shape of x", (B, T), 2.0),
    )  # fmt: skip


def pairwise(operation, reference, first=normal, second=normal):
    """The record of a function of two arrays that broadcast, or an array and a number."""
    return Record(operation, reference).at(
        Case(first(B, 1, T), second(M, 1)), Case(first(T), second(B, T)), Case(first(B, T), 1.7),
        Case(1.7, second(B, T)), Case(first(0, T), second(1)), Case(first(), second()),
        Refused(ValueError, r"\(5, 2\) and \(5,\) do not broadcast.*a column", (T, B), (T,)),
        Refused(TypeError, "is .* of float64.*, b is .* of float32", (T,), SINGLE),
        Refused(TypeError, "b must be an array, not a list", (T,), [1.0]),
    )  # fmt: skip


def reducing(operation, reference, *more):
    """The record of a reduction; with more cases if it accepts empty axes."""
    return Record(operation, reference).at(
        Case((B, T, M)), Case((B, T, M), axis=(0, -1)), Case((B, T), axis=1, keepdims=True),
        Case((B, 1, T), axis=1), *more,
        Refused(IndexError, "axis 2 .* of x, which are from -2 to 1", (B, T), axis=2),
        Refused(ValueError, "names an axis twice", (B, T), axis=(1, -1)),
        Refused(TypeError, "sum|axis must be an integer or a tuple", (B, T), axis="T"),
    )  # fmt: skip


def remembering(operation, reference, *beta):
    """The record of linear attention, or of the gated delta rule, which has a beta."""
    b, t, d, dv = 2, 4, 3, 1
    rows, gates, matrix = ((b, t, d), (b, t, d), (b, t, dv)), [(b, t)] * len(beta), (b, d, dv)
    return Record(operation, reference).at(
        Case(*rows, *gates, (b, t), matrix, chunk=3), Case(*rows, *gates, (b, t), matrix),
        Case(*rows, *gates, (b, t), matrix, form="recurrent"), Case(*rows, *gates, chunk=2),
        Case(*rows, *gates, (b, 1), (1, dv), form="parallel"),
        Case((1, d), (1, d), (1, DV), *[(1,)] * len(beta), form="recurrent"),
        Case((b, 0, d), (b, 0, d), (b, 0, dv), *[(b, 0)] * len(beta), (b, 0)),
        Refused(ValueError, "form must be one of .*, not 'loop'", *rows, *gates, form="loop"),
        Refused(ValueError, "chunk = 0 must be at least 1", *rows, *gates, chunk=0),
        Refused(ValueError, r"query and key must be \(…, H, T, D\)", (b, t, 2), *rows[1:],
                *gates),
        Refused(ValueError, r"must broadcast to \(…, H, T\), here \(2, 4\)", *rows, *gates, (t, b)),
        Refused(ValueError, r"state must broadcast to \(…, H, D, Dv\), here \(2, 3, 1\)", *rows,
                *gates, (b, t), (b, dv, d)),
        Refused(TypeError, "it needs arrays, not numbers .* log_decay is -0.1", *rows, *gates,
                log_decay=-0.1),
    )  # fmt: skip


BITS = RNG.random((B, T)) < 0.5
ORDER = RNG.permutation(B * T).reshape(B, T)  # positions
SINGLE = np.ones(T, "float32")
ROWS = np.array([3, 0, 3, -1])  # one entry twice, and one counted from the end
ALL = slice(None)
SLICES = 1, (0, -1), (..., slice(None, None, -2)), (None, slice(1, 4), None, 1), slice(0, 0)
LISTS = [1, 0, 1], ROWS[:2] % 2, (ALL, ROWS), (ALL, ROWS, slice(1, 3)), BITS, (ALL, BITS[0], 1)
PAIRS = (0, ALL, np.array([[1, 1], [0, 7]])), (np.array([[0], [1]]), ROWS, 2)
EMPTY = Case((0, T), axis=1), Case(())
NONE_SEEN = np.full(T, -np.inf)
ALONE = mh.parallel.Communicator(0, 1)  # a rank with no others

# fmt: off
RECORDS = [
    *[pairwise(getattr(ops, name), getattr(np, name))
      for name in ("add", "subtract", "multiply", "maximum", "minimum")],
    pairwise(ops.divide, np.divide, second=positive),
    pairwise(ops.pow, np.power, first=positive),
    *[entrywise(getattr(ops, name), getattr(np, name))
      for name in ("negative", "abs", "exp", "expm1", "tanh", "sin", "cos")],
    *[entrywise(getattr(ops, name), getattr(np, name), positive)
      for name in ("log", "log1p", "sqrt")],
    entrywise(ops.erf, np.vectorize(math.erf, otypes=[float])),
    Record(ops.where, np.where).at(
        Case(BITS, (T,), (B, 1)), Case(BITS[:, :1], (B, T), 0.5), Case(BITS[0], -1.0, (B, 1)),
        Case(BITS[:0], (0, T), (1,)),
        Refused(TypeError, "condition must be a boolean array, not of dtype", (T,), (T,), (T,)),
        Refused(ValueError, "do not broadcast", BITS, (B,), (B,)),
    ),
    Record(ops.clip, lambda x, min=None, max=None: np.clip(x, min, max)).at(
        Case((B, T), min=-0.5, max=0.8), Case((), max=0.1), Case((0, T), min=0.0),
        Refused(TypeError, "clip: x must be an array", "x", min=0.0),
    ),
    Record(ops.astype, lambda x, dtype: x.astype(dtype), analytic=False).at(
        Case((B, T), dtype="float64"), Case((0, 1), dtype="float64"),
        Refused(TypeError, "float99", (T,), dtype="float99"),
    ),
    reducing(ops.sum, np.sum, *EMPTY),
    reducing(ops.mean, np.mean, *EMPTY),
    reducing(ops.var, variance, *EMPTY),
    reducing(ops.max, np.max),
    reducing(ops.min, np.min),
    reducing(ops.logsumexp, log_of_sum, *EMPTY),
    Record(ops.cumsum, np.cumsum).at(
        Case((B, T, M), axis=1), Case((B, T), axis=-1), Case((T, 1), axis=1), Case((0, T), axis=0),
        Refused(IndexError, "axis -3 is not among the axes", (B, T), axis=-3),
    ),
    Record(ops.matmul, np.matmul, products=True).at(
        Case((B, 1, T, D), (H, D, M)), Case((B, T, D), (D, M)), Case((T, D), (D, M)),
        Case((D,), (D,)), Case((B, T, D), (D,)), Case((D,), (B, D, M)), Case((0, T, D), (D, M)),
        Case((B, T, 0), (0, M)),
        Refused(ValueError, "need the same K, not 6 and 8; b.mT would fit", (T, D), (M, D)),
        Refused(ValueError, "need the same K, not 6 and 5; a.mT would fit", (T, D), (T, M)),
        Refused(ValueError, "do not broadcast", (B, T, D), (H, D, M)),
        Refused((TypeError, ValueError), r"\* multiplies by a number", (T, D), 2.0),
    ),
    Record(ops.einsum, np.einsum).at(
        Case("ij,jk->ik", (T, D), (D, M)), Case("bhtd,bhsd->bhts", (B, H, T, D), (B, H, S, D)),
        Case("...ij,...jk->...ik", (H, B, T), (S, H, T, D)), Case("ijk,k->j", (B, T, M), (M,)),
        Case("ij,ij->", (B, T), (B, T)), Case("ij,kj->ik", (B, 1), (S, T)),
        Case("ij,jk->ik", (T, 0), (0, M)),
        Refused(ValueError, r"a is .* \(2, 5\)", "ij,jk->ik", (B, T), (D, M)),
        Refused(ValueError, "describes 2 arrays, not 1", "ij,jk->ik", (B, T)),
        Refused(ValueError, "ij->k", "ij->k", (B, T)),
        Refused(ValueError, "no letter twice in a term", "ii->i", (B, B)),
        Refused(ValueError, "needs an arrow", "ij,jk", (B, T), (T, M)),
    ),
    Record(ops.outer, np.outer).at(
        Case((T,), (M,)), Case((1,), (0,)), Refused(ValueError, "must be vectors", (T, 1), (M,))
    ),
    Record(ops.reshape, lambda x, shape: np.reshape(x, shape)).at(
        Case((B, T, S), shape=(S, -1)), Case((B, T), shape=-1), Case((1,), shape=()),
        Case((0, T), shape=(T, 0)),
        Refused(ValueError, r"^reshape: .*x is .* \(2, 5\)", (B, T), shape=(3, -1)),
    ),
    Record(ops.permute_dims, np.transpose).at(
        Case((B, T, M), axes=(2, 0, -2)), Case((0, 1), axes=(1, 0)),
        Refused(ValueError, r"^permute_dims: .*x is .* \(2, 5\)", (B, T), axes=(0, 0)),
    ),
    Record(ops.transpose, lambda x, axis1=-2, axis2=-1: np.swapaxes(x, axis1, axis2)).at(
        Case((B, T, M)), Case((B, 1, M), axis1=0, axis2=-1), Case((0, 1)),
        Refused(IndexError, "is not among the axes of x, which are from -1 to 0", (T,)),
    ),
    Record(ops.matrix_transpose, lambda x: np.swapaxes(x, -1, -2)).at(
        Case((B, T, M)), Case((0, 1)), Refused(ValueError, "a matrix has at least two axes", (T,))
    ),
    Record(ops.broadcast_to, np.broadcast_to, short="its shape is a setting").at(
        Case((T, 1), shape=(B, T, M)), Case((), shape=(B,)), Case((1, T), shape=(0, T)),
        Case((T, 1), shape=(T, 9000)),
        Refused(ValueError, r"^broadcast_to: .*x is .* \(5,\)", (T,), shape=(T, B)),
    ),
    Record(ops.expand_dims, lambda x, axis=0: np.expand_dims(x, axis)).at(
        Case((B, T)), Case((B, T), axis=-1), Case((0,), axis=1), Case(()),
        Refused(IndexError, r"^expand_dims: .*x is .* \(2, 5\)", (B, T), axis=3),
    ),
    Record(ops.squeeze, np.squeeze).at(
        Case((1, T, 1)), Case((1, T, 1), axis=-1), Case((B, 1, T, 1), axis=(1, 3)), Case((1, 0)),
        Refused(ValueError, "axis 0 is not of length 1", (B, T), axis=0),
        Refused(IndexError, "axis 2 is not among the axes", (B, 1), axis=2),
        Refused(IndexError, "axes of x, which are none", np.asarray(1.0), axis=0),
    ),
    Record(ops.concat, by_axis(np.concatenate)).at(
        Case((B, T), (B, 1), (B, M), axis=1), Case((B, T), (0, T)), Case((T,), axis=-1),
        Refused(ValueError, r"array 0 is .* \(2, 5\).*, array 1 is .* \(2, 8\)", (B, T), (B, M)),
        Refused(TypeError, "expected an array, got none"),
        Refused(TypeError, "array 1 is .* of float32", (B,), SINGLE),
    ),
    Record(ops.stack, by_axis(np.stack)).at(
        Case((B, T), (B, T), axis=-1), Case((0,), (0,)), Case(()),
        Refused(ValueError, r"array 0 is .* \(2,\).*, array 1 is .* \(5,\)", (B,), (T,)),
    ),
    Record(ops.split, cut).at(
        Case((B, D), sections=3, axis=1), Case((T, M), sections=(1, 1, 3)),
        Case((0, M), sections=2),
        Refused(ValueError, "length 5 cannot be split into 3 equal parts", (T,), sections=3),
    ),
    Record(ops.pad, lambda x, pad_width, value=0.0: np.pad(x, pad_width, constant_values=value)).at(
        Case((B, T), pad_width=((1, 2), (0, 3))), Case((B, 1), pad_width=1, value=2.5),
        Case((0, T), pad_width=(2, 0)),
        Refused(ValueError, "pad_width must be integers of at least 0", (T,), pad_width=-1),
    ),
    Record(ops.flip, np.flip).at(
        Case((B, T), axis=-1), Case((B, T, M)), Case((B, T, M), axis=(0, 2)), Case((0, 1), axis=0),
        Refused(IndexError, "axis 2 is not among", (B, T), axis=2),
    ),
    Record(ops.repeat, np.repeat).at(
        Case((B, T, M), repeats=3, axis=1), Case((B, T), repeats=2),
        Case((1, T), repeats=0, axis=-1), Case((0, T), repeats=2, axis=0),
        Refused(IndexError, "axis 2 is not among", (B, T), repeats=2, axis=2),
    ),
    Record(ops.to_device, lambda x, device: x).at(
        Case((B, T), device="cpu"), Case((0, 1), device="cpu"),
        Refused(ValueError, "no device 'moon': there are", (T,), device="moon"),
    ),
    Record(ops.getitem, lambda x, key: x[key]).at(
        *[Case((B, T, M), key=key) for key in (*SLICES, *LISTS, *PAIRS)],
        Case((0, T), key=np.array([], int)),
        Refused(IndexError, "out of bounds|out of range", (B, T), key=2),
        RefusedOnHost(IndexError, "out of bounds|out of range", (B, T), key=np.array([5])),
        Refused(TypeError, "an index must be integers or booleans, not float64", (T,), key=[0.5]),
        Refused(TypeError, "an index must be integers, slices", (T,), key=1.0),
        Refused(TypeError, "an index must be integers, slices", (T,), key=np.array(True)),
        Refused(IndexError, "boolean|mask|shape", (T,), key=BITS[0][:3]),
    ),
    Record(ops.gather, lambda x, indices, axis=0: np.take(x, indices, axis=axis)).at(
        Case((T, M), INDICES), Case((B, T, M), ROWS, axis=1), Case((T, 1), np.array(2)),
        Case((T, M), np.zeros((0, 3), dtype=int)),
        Refused(TypeError, "indices must be an array of integers", (T,), (T,)),
        RefusedOnHost(IndexError, "out of bounds|out of range", (T,), np.array([T])),
        Refused(IndexError, "axis 1 is not among", (T,), ROWS, axis=1),
    ),
    Record(ops.take_along_axis,
           lambda x, indices, axis=-1: np.take_along_axis(x, indices, axis)).at(
        Case((B, T), INDICES % T), Case((T, M), ROWS[:, None] % 3, axis=0),
        Case((T, 1), ROWS[:, None], axis=0), Case((0, T), np.zeros((0, 2), dtype=int)),
        Refused(ValueError, "the same number of axes", (B, T), ROWS),
        Refused(TypeError, "indices must be an array of integers", (B, T), (B, T)),
        RefusedOnHost(IndexError, "out of bounds|out of range", (B, T), INDICES + T),
    ),
    Record(functional.softmax, lambda x, axis=-1, mask=True: softmaxed(x, axis=axis, mask=mask)).at(
        Case((B, T, S)), Case((B, T), axis=0), Case((B, 0)), Case((B, 1)),
        Case((B, T, S), mask=MASK[:, 0]),
        Refused(IndexError, "axis 2 is not among the axes", (B, T), axis=2),
        Refused(TypeError, "mask must be a boolean array", (B, T), mask=normal(B, T)),
    ),
    Record(functional.sink_softmax, softmaxed).at(
        Case((B, T, S), (B, 1, 1)), Case((B, T, S), (B, T, 1), mask=MASK[:, 0]), Case((B, 0), (1,)),
        Case((B, 1), (B, 1)),
        Refused(TypeError, "mask must be a boolean", (B, T), (1,), mask=normal(T)),
    ),
    attention_record(),
    Record(pair_scores, lambda query, key, mask=True: query @ doubled(key, query).mT).at(
        Case(*GROUPED[:2]), Case((B, 4, T, D), (B, 2, S, D)), Case(*QKV[:2], mask=MASK), Case((T, 1), (0, 1)),
        Refused(ValueError, "query is .* key is", (B, T, D), (B, S, M)),
    ),
    Record(weighted_sum, lambda weights, value, mask=None: weights @ doubled(value, weights)).at(
        Case(*GROUPED[2:]), Case((B, 4, T, S), (B, 2, S, DV)), Case((T, 1), (1, DV)), Case((B, T, 0), (B, 0, 1)),
        Refused(ValueError, "weights is .* value is", (B, T, S), (B, T, DV)),
    ),
    # zero: the key bias adds the same to every score of a query
    Record(mh.multi_head_attention, attended_in_heads, zero=(8,)).at(
        Case(*SEQUENCES, *WEIGHTS, *BIASES, num_heads=H),
        Case(*SEQUENCES, *WEIGHTS, num_heads=H, mask=MASK),
        Refused(ValueError, "num_heads", *SEQUENCES, *WEIGHTS, num_heads=5),
        Refused(
            ValueError, "the same batch", SEQUENCES[0], *(x[:1] for x in SEQUENCES[1:]), *WEIGHTS,
            num_heads=H,
        ),
    ),
    Record(mh.projections.project_in,
           lambda x, w, b=0.0, num_heads=1: heads(x @ w + b, num_heads), products=True).at(
        Case((B, T, M), (M, H * D), (H * D,), num_heads=H), Case((1, M), (M, D), num_heads=1),
        Refused(ValueError, "need the same K|x is", (B, T, M), (T, M), num_heads=1),
    ),
    Record(
        mh.projections.project_self,
        lambda x, w_q, w_k, w_v, b_q=0.0, b_k=0.0, b_v=0.0, num_heads=1, num_kv_heads=1: (
            heads(x @ w_q + b_q, num_heads),
            heads(x @ w_k + b_k, num_kv_heads),
            heads(x @ w_v + b_v, num_kv_heads),
        ),
        products=True,
    ).at(
        Case((B, T, 3), (3, 20), (3, 10), (3, 6), (20,), (10,), (6,), num_heads=4, num_kv_heads=2),
        Case((1, M), (M, D), (M, D), (M, DV), num_heads=1, num_kv_heads=1),
        Refused(ValueError, "x is", (B, T, M), (T, M), (M, D), (M, D), num_heads=1, num_kv_heads=1),
    ),
    Record(mh.projections.project_fused, fused_projections, products=True).at(
        Case((B, T, 3), (3, 50), (50,), num_heads=4, num_kv_heads=2, head_dim=D),
        Case((T, M), (M, 3), num_heads=1, num_kv_heads=1, head_dim=1),
        Refused(ValueError, "x is", (B, T, M), (T, M), num_heads=1, num_kv_heads=1, head_dim=1),
    ),
    Record(
        mh.projections.project_out,
        lambda x, w, b=0.0: np.concatenate([x[:, h] for h in range(x.shape[1])], axis=-1) @ w + b,
        products=True,
    ).at(
        Case((B, H, T, DV), (H * DV, M), (M,)), Case((1, 1, T, D), (D, M)),
        Refused(ValueError, "H·D = 21 rows.* w is", (B, H, T, DV), (T, M)),
    ),
    Record(functional.layer_norm, normed).at(
        Case((B, T, M), (M,), (M,)), Case((0, M), (M,), (M,)), Case((T, M), (M,), eps=0.1),
        Refused(ValueError, "x is .* weight is", (B, T), (M,), (M,)),
    ),
    Record(functional.rms_norm, root_mean_square_normed).at(
        Case((B, T, M), (M,)), Case((M,), (M,), eps=0.0), Case((T, 1), (1,), eps=0.1),
        Case((0, M), (M,)),
        Refused(ValueError, "the same width M.*x is .* weight is", (B, T), (M,)),
        Refused(ValueError, "the same width M, at least 1", (B, 0), (0,)),
        Refused(ValueError, "eps must be at least 0, not -1", (M,), (M,), eps=-1.0),
        Refused(TypeError, "x is .* float32.*weight is .* float64", SINGLE, (M,)),
    ),
    Record(functional.rope, turned).at(
        Case((B, H, T, D)), Case((T, D), offset=7, base=100.0),
        Case((B, H, T, M), positions=np.array([9, 0, 3, 3, -2]), width=4),
        Case((B, H, T, M), positions=ORDER, interleaved=True, width=6),
        Case((B, H, T, D), positions=ORDER[:, None]),
        Case((B, H, T, D), positions=np.arange(H * T).reshape(1, H, T)),
        Case((B, T, D), positions=ORDER.astype("int8"), interleaved=True),
        Case((T, 2 * D), base=50.0, scaling=Llama3(8.0, 1.0, 4.0, 16)),
        Case((H, 1, 2), offset=-3), Case((B, 0, D), interleaved=True), Case((0, T, D)),
        Refused(ValueError, "width = 7 must be even.*; width=6 leaves", (T, DV)),
        Refused(ValueError, "from 2 to D = 6", (T, D), width=8),
        Refused(TypeError, "width must be an integer, not 2.0", (T, D), width=2.0),
        Refused(ValueError, r"at least two axes, \(…, T, D\)", (D,)),
        Refused(TypeError, "x must be an array of floating-point numbers", ORDER),
        Refused(ValueError, "base must be a positive number", (T, D), base=0.0),
        Refused(TypeError, "offset must be an integer, not 0.5", (T, D), offset=0.5),
        Refused(ValueError, "not both", (B, T, D), positions=ORDER, offset=1),
        Refused(TypeError, "positions must be an array of integers", (B, D), positions=normal(B)),
        Refused(ValueError, r"be \(B, T\) or \(H, T\).*None", (B, B, T, D), positions=ORDER),
        Refused(ValueError, r"\(3, 2, 5\) with as many axes", (H, B, T, D), positions=ORDER),
        Refused(ValueError, r"it must be \(T,\) \(4,\)", (B, H, S, D), positions=ORDER),
        Refused(ValueError, r"shape \(\)", (T, D), positions=np.array(3)),
    ),
    Record(functional.dropout, lambda x, keep, p: x * keep / (1 - p) if p < 1 else 0 * x).at(
        Case((B, T), BITS, p=0.3), Case((B, T, M), BITS[..., None], p=0.25),
        Case((B, T), BITS[0], p=0.0), Case((B, T), BITS, p=1.0), Case((0, T), BITS[:0], p=0.5),
        Case((), BITS[0, 0, ...], p=0.5),
        Refused(ValueError, "p must be .* from 0 to 1, not 1.1", (B, T), BITS, p=1.1),
        Refused(ValueError, "from 0 to 1, not nan", (B, T), BITS, p=math.nan),
        Refused(TypeError, "p must be a number .* not a str", (B, T), BITS, p="0.1"),
        Refused(TypeError, "keep must be a boolean array", (B, T), (B, T), p=0.5),
        Refused(ValueError, r"keep \(2, 5\) must broadcast to x \(5,\)", (T,), BITS, p=0.5),
    ),
    gate(functional.gelu,
         lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    Record(functional.linear,
           lambda x, w, b=None: np.einsum("...m,mn->...n", x, w) + (0 if b is None else b), products=True).at(
        Case((B, T, M), (M, D), (D,)), Case((T, M), (M, 1), (1,)), Case((M,), (M, D), (D,)),
        Case((0, T, M), (M, D), (D,)), Case((B, T, M), (M, D)),
        Refused(ValueError, "same M and N", (T, M), (D, M), (M,)),
        Refused(ValueError, "same M and N", (), (M, D), (D,)),
    ),
    entrywise(functional.relu, lambda x: (x + abs(x)) / 2),
    gate(functional.silu, lambda x: x / 2 * (1 + np.tanh(x / 2))),
    Record(functional.embedding, lambda table, k: table[k]).at(
        Case((5, M), INDICES), Case((5, 1), INDICES[:0]),
        RefusedOnHost(IndexError, "from 0 to 4", (5, M), INDICES + 1),
        Refused(TypeError, "array of integers", (5, M), (2,)),
    ),
    Record(functional.cross_entropy, likelihood).at(
        Case((*INDICES.shape, 6), INDICES), Case((1, 6), INDICES[0, :1]),
        Refused(ValueError, "one target for each row", (3, 6), INDICES),
        Refused(TypeError, "targets must be an array", (2, 6), [0, 1]),
        Refused(TypeError, "targets must be an array", (2, 6), (2,)),
        RefusedOnHost(ValueError, "from 0 to 3", (*INDICES.shape, 4), INDICES),
    ),
    Record(merged, merged_parts).at(
        Case((B, T, D), (B, T, D), (B, T), (B, T)),
        Case((T, D), (T, D), (T, D), (T,), (T,), NONE_SEEN), Case((T, 1), (T,)),
        Case((0, D), (0, D), (0,), (0,)),
    ),
    remembering(mh.linear_attention,
                lambda q, k, v, *decay, **_: remembered(q, k, v, None, *decay)),
    remembering(mh.gated_delta_rule, remembered, "beta"),
    *[  # on one rank; on several in tests/minimha/parallel
        Record(function, lambda x, comm, **axes: x).at(
            Case((B, T), comm=ALONE, **axes), Case((0, T), comm=ALONE, **axes),
            *[Refused(ValueError, r"no axis \d", (), comm=ALONE, **axes)] * bool(axes),
        )
        for function, axes in (
            (collectives.all_reduce, {}),
            (collectives.broadcast, {}),
            (collectives.all_gather, {"axis": 1}),
            (collectives.reduce_scatter, {"axis": 1}),
            (collectives.all_to_all, {"split_axis": 1, "concat_axis": 0}),
        )
    ],
    Record(ring.ring, lambda *qkv, comm, **settings: attended(*qkv, **settings)[0]).at(
        Case((2, 3), (4, 3), (4, 1), comm=ALONE),
        Case(*QKV, comm=ALONE, mask=MASK, scale=0.3, softcap=1.5),
        Refused(ValueError, "same number of positions", (T, D), (S, D), (T, D), comm=ALONE),
    ),
]
# fmt: on

SAMPLES = [(record, case) for record in RECORDS for case in record.cases]
FIRST = [(record, record.cases[0]) for record in RECORDS]
REFUSED = [(record, case) for record in RECORDS for case in record.refused]


def named(sample: tuple[Record, Case]) -> str:
    """The operation and its shapes, for the name of a test."""
    return f"{sample[0].operation.__name__}-{sample[1]}"
