"""The ways to get Q, K and V from x: one function in five forms, with conversions.

    form      weights                                  what it is
    per-head  H + 2·G matrices (M, D)                  the paper's picture, in a Python loop
    stacked   w_q (M, H·D), w_k, w_v                   one matmul a role, split into heads after
    fused     w_qkv (M, (H + G)·D + G·Dv)              one matmul for all three roles
    double    first_q (M, M) before w_q, and so on     two products in a row: nothing is gained
    bilinear  w_qk (H, M, M), w_v                      only the products W_i = W_i^Q W_i^Kᵀ

One matmul is enough for many heads, because x [W₀ W₁ …] = [xW₀ xW₁ …]: heads are blocks of columns.
M, Mk, Mv widths of queries, keys and values; H query heads, G key and value heads; D, Dv widths of
a head of Q and K, and of V.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from minimha_autograd import Tensor, backend, ops, widened
from minimha_autograd.backend import Array, Rng, namespace

from ..checks import integer
from ..functional.linear import linear
from ..functional.masked_products import is_finite
from ..nn.module import Module
from .operations import merge_heads, project_fused, project_in, project_out, split_heads

__all__ = [
    "FORMS",
    "Projections",
    "Sizes",
    "merge_heads",
    "project_fused",
    "project_in",
    "project_out",
    "split_heads",
]

Weights = dict[str, Any]
"""By name an array, a list of one a head, or None for a bias that there is not."""

Spectra = list[list[float]]
"""The singular values of each of several matrices, falling."""


@dataclass(frozen=True)
class Sizes:
    """The widths M, Mk, Mv of the inputs, the numbers H, G of heads, the widths D, Dv of a head."""

    d_model: int
    kdim: int
    vdim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int

    def __post_init__(self) -> None:
        for field in fields(self):
            integer(getattr(self, field.name), field.name, least=1)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads = {self.num_heads} must be a multiple of "
                f"num_kv_heads = {self.num_kv_heads}: every key head serves as many query heads"
            )

    def roles(self) -> dict[str, tuple[int, int, int]]:
        """For q, k and v the width of the input, the number of heads and the width of one."""
        return {
            "q": (self.d_model, self.num_heads, self.head_dim),
            "k": (self.kdim, self.num_kv_heads, self.head_dim),
            "v": (self.vdim, self.num_kv_heads, self.v_head_dim),
        }


class Projections(Module):
    """The linear maps of Q, K and V, in one of the `FORMS`.

    d_model, kdim, vdim      M, Mk, Mv: the widths of queries, keys and values. Mk is M, and Mv is
                             Mk, unless said
    num_heads, num_kv_heads  H, and G which divides it; G is H unless said
    head_dim, v_head_dim     D, which is M/H unless said; Dv, which is D unless said
    form                     how the weights are held: `FORMS`
    bias                     whether b_q, b_k and b_v are added
    rng                      a generator or a seed. The stacked weights are normal with variance
                             1/M, and the other forms are converted from them: with one seed all
                             start as the same function
    dtype                    of the weights

    The weights are attributes, named as in the paper; `project` applies them.
    Raises ValueError for sizes that do not go together or that the form cannot hold.
    """

    truncation_error = 0.0

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        form: str = "stacked",
        bias: bool = True,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        integer(d_model, "d_model"), integer(num_heads, "num_heads")
        if head_dim is None:
            if d_model < 1 or num_heads < 1 or d_model % num_heads:
                raise ValueError(
                    f"d_model = {d_model} must be a positive multiple of num_heads = {num_heads}, "
                    "or head_dim be given"
                )
            head_dim = d_model // num_heads
        kdim = d_model if kdim is None else kdim
        self.sizes = Sizes(
            d_model=d_model,
            kdim=kdim,
            vdim=kdim if vdim is None else vdim,
            num_heads=num_heads,
            num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim if v_head_dim is None else v_head_dim,
        )
        rng = backend.generator(rng)
        stacked: Weights = {}
        for role, (width, count, dim) in self.sizes.roles().items():
            shape, std = (width, count * dim), 1 / math.sqrt(width)
            stacked[f"w_{role}"] = backend.normal(rng, shape, std=std, dtype=dtype)
            zeros = backend.full((count * dim,), 0, dtype=dtype)
            stacked[f"b_{role}"] = zeros if bias else None
        self._hold(form, form_named(form).from_stacked(self.sizes, stacked))

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """Q (…, H, T, D), K (…, G, S, D) and V (…, G, S, Dv) of query (…, T, M), key (…, S, Mk) and
        value (…, S, Mv). In the bilinear form Q and K have the width Mk, K being the key itself.

        Raises ValueError where the fused form is given three different inputs.
        """
        return FORMS[self.form].project(self, query, key, value)

    def convert(self, form: str, *, head_dim: int | None = None) -> Self:
        """A copy in another form: equal outputs, and equal gradients of the inputs. In the same
        form, a copy of all there is. The parameters are new ones: an optimizer of the old ones does
        not move them, two that were tied are two, and all require gradients unless none did.

        head_dim  D, for a way out of the bilinear form: W_i is factored into this rank by its
                  singular values, even if that cuts something off. How much, relative to W, is the
                  copy's `truncation_error`. Columns beyond the rank of W_i are zero in both
                  factors, and no gradient ever reaches them

        Gradients of weights come along between the forms per-head, stacked and fused, where they
        are determined, if every weight has one. The bilinear form leaves out b_k, which adds the
        same number to all scores of a query: exact where softmax alone follows.

        Raises ValueError for what the form cannot hold, with the reason; without a head_dim also
        where W_i is of a higher rank than D.
        """
        source, target = form_named(self.form), form_named(form)
        if head_dim is not None and (self.form != "bilinear" or form == "bilinear"):
            raise ValueError("head_dim is for converting from the bilinear form into another")
        if form == self.form:
            return copy.deepcopy(self)
        new = self._converted(form, lambda p: p.data, head_dim)
        held = [p for name in source.names for p in _each(getattr(self, name))]
        if source.rearranges and target.rearranges and all(p.grad is not None for p in held):
            gradients = self._converted(form, lambda p: p.grad, None)
            for name in target.names:
                pairs = zip(_each(getattr(new, name)), _each(getattr(gradients, name)), strict=True)
                for p, gradient in pairs:
                    p.grad = gradient.data
        return new

    def ranks(self) -> list[int]:
        """The rank of W_i = W_i^Q W_i^Kᵀ of each head: at most D, unless it was learned as such."""
        w = self._converted("bilinear", lambda p: widened(p.data), None).w_qk.data  # type: ignore[attr-defined]
        xp = namespace(w)
        held = getattr(self, "w_qk", w)  # as precise as W was rounded, by us or in the weights
        sigma = xp.linalg.svdvals(_finite(w))  # (H, min(M, Mk)), falling
        least = sigma[:, :1] * max(w.shape) * xp.finfo(held.dtype).eps
        return [int(n) for n in xp.sum(xp.astype(sigma > least, xp.int64), axis=1)]

    def _converted(self, form: str, read: Callable[[Tensor], Array], head_dim: int | None) -> Self:
        """A copy in another form, with what is read of each Tensor for its data."""
        source, new = form_named(self.form), copy.deepcopy(self)
        held = {name: _mapped(read, getattr(self, name)) for name in source.names}
        for name in source.names:
            delattr(new, name)
        if form == self.form:
            new._hold(form, held)
            return new
        if head_dim is not None:
            new.sizes = replace(self.sizes, head_dim=integer(head_dim, "head_dim", least=1))
        stacked, spectra = source.to_stacked(new.sizes, held)
        new.truncation_error = _cut(spectra, new.sizes.head_dim)
        if head_dim is None:
            self._check_rank(spectra, stacked["w_q"])
        learned = any(p.requires_grad for name in source.names for p in _each(getattr(self, name)))
        new._hold(form, form_named(form).from_stacked(new.sizes, stacked), learned)
        return new

    def _check_rank(self, spectra: Spectra, w_q: Array) -> None:
        """Raise ValueError where a factored W_i is cut by more than rounding."""
        rounding = 30 * namespace(w_q).finfo(w_q.dtype).eps  # 2 is what was seen at most
        over = [sigma for sigma in spectra if _cut([sigma], self.sizes.head_dim) > rounding]
        if over:
            rank = max(_rank(sigma, rounding) for sigma in over)
            what = " with the row b_qk" if getattr(self, "b_qk", None) is not None else ""
            if self.sizes.num_kv_heads < self.sizes.num_heads:
                what += ", with those that share its key head,"
            raise ValueError(
                f"W_i = W_i^Q W_i^Kᵀ{what} is of rank {rank}, more than D = "
                f"{self.sizes.head_dim}: give the head_dim to keep, and read `truncation_error`"
            )

    def _hold(self, form: str, held: Weights, requires_grad: bool = True) -> None:
        """Take copies of these weights for the parameters."""

        def parameter(x: Array) -> Tensor:
            return Tensor(backend.copy(x), requires_grad=requires_grad)

        self.form = form
        for name, arrays in held.items():
            setattr(self, name, _mapped(parameter, arrays))


class Form:
    """How the weights are held. Conversions go through the stacked form.

    names       of the attributes that hold them
    rearranges  whether they are those of the stacked form in another order, so that gradients can
                be converted too
    """

    names: tuple[str, ...]
    rearranges = True

    def from_stacked(self, sizes: Sizes, stacked: Weights) -> Weights:
        """The weights in this form."""
        raise NotImplementedError

    def to_stacked(self, sizes: Sizes, held: Weights) -> tuple[Weights, Spectra]:
        """The stacked weights, and the singular values of what was factored, if anything was."""
        raise NotImplementedError

    def project(self, weights: Any, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """Q, K, V, with the attributes of weights."""
        raise NotImplementedError


class Stacked(Form):
    """Three matrices, the heads side by side as blocks of columns."""

    names = ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v")

    def from_stacked(self, sizes: Sizes, stacked: Weights) -> Weights:
        return stacked

    def to_stacked(self, sizes: Sizes, held: Weights) -> tuple[Weights, Spectra]:
        return held, []

    def project(self, weights: Any, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        h, g = weights.sizes.num_heads, weights.sizes.num_kv_heads
        return (
            project_in(query, weights.w_q, weights.b_q, num_heads=h),
            project_in(key, weights.w_k, weights.b_k, num_heads=g),
            project_in(value, weights.w_v, weights.b_v, num_heads=g),
        )


class PerHead(Form):
    """3·h small matrices: the columns of the stacked ones, a block for each head."""

    names = Stacked.names

    def from_stacked(self, sizes: Sizes, stacked: Weights) -> Weights:
        return {
            f"{kind}_{role}": None if x is None else _blocks(x, count)
            for kind in "wb"
            for role, (_, count, _) in sizes.roles().items()
            for x in [stacked[f"{kind}_{role}"]]
        }

    def to_stacked(self, sizes: Sizes, held: Weights) -> tuple[Weights, Spectra]:
        joined = {
            name: None if x is None else namespace(*x).concat(x, axis=-1)
            for name, x in held.items()
        }
        return joined, []

    def project(self, weights: Any, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        def role(x: Any, w: list[Any], b: list[Any] | None) -> Any:
            pairs = zip(w, b or [None] * len(w), strict=True)
            return ops.stack([linear(x, w_i, b_i) for w_i, b_i in pairs], axis=-3)

        return (
            role(query, weights.w_q, weights.b_q),
            role(key, weights.w_k, weights.b_k),
            role(value, weights.w_v, weights.b_v),
        )


class Fused(Form):
    """One matrix: those of Q, K and V side by side. For self-attention."""

    names = ("w_qkv", "b_qkv")

    def from_stacked(self, sizes: Sizes, stacked: Weights) -> Weights:
        if not sizes.d_model == sizes.kdim == sizes.vdim:
            raise ValueError(
                "the fused form is one matrix for one input: queries, keys and values of widths "
                f"{sizes.d_model}, {sizes.kdim}, {sizes.vdim} need the stacked form"
            )

        missing = [f"b_{role}" for role in "qkv" if stacked[f"b_{role}"] is None]
        if 0 < len(missing) < 3:
            raise ValueError(
                "the fused form has one bias for all three roles: without "
                f"{' and '.join(missing)} keep another form, or make zeros of what is missing"
            )

        def fused(kind: str) -> Array | None:
            parts = [stacked[f"{kind}_{role}"] for role in "qkv"]
            return None if parts[0] is None else namespace(*parts).concat(parts, axis=-1)

        return {"w_qkv": fused("w"), "b_qkv": fused("b")}

    def to_stacked(self, sizes: Sizes, held: Weights) -> tuple[Weights, Spectra]:
        stacked, start = {}, 0
        for role, (_, count, dim) in sizes.roles().items():
            columns = slice(start, start + count * dim)
            for kind in "wb":
                x = held[f"{kind}_qkv"]
                stacked[f"{kind}_{role}"] = None if x is None else x[..., columns]
            start = columns.stop
        return stacked, []

    def project(self, weights: Any, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        if query is not key or key is not value:
            raise ValueError(
                "the fused form is for self-attention, where query, key and value are one: call "
                'convert("stacked") for three different inputs'
            )
        sizes = weights.sizes
        return project_fused(
            query,
            weights.w_qkv,
            weights.b_qkv,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
        )


class Double(Form):
    """Two matrices in a row, W then W_i: their product does the same, so Q, K and V can be taken
    straight from the input. Started with W = 1."""

    names = ("first_q", "first_k", "first_v", *Stacked.names)
    rearranges = False

    def from_stacked(self, sizes: Sizes, stacked: Weights) -> Weights:
        firsts = {}
        for role in "qkv":
            w = stacked[f"w_{role}"]
            firsts[f"first_{role}"] = namespace(w).eye(w.shape[0], dtype=w.dtype, device=w.device)
        return firsts | stacked

    def to_stacked(self, sizes: Sizes, held: Weights) -> tuple[Weights, Spectra]:
        stacked = {name: held[name] for name in Stacked.names}
        for role in "qkv":
            stacked[f"w_{role}"] = held[f"first_{role}"] @ held[f"w_{role}"]
        return stacked, []

    def project(self, weights: Any, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        inputs = (query, weights.first_q), (key, weights.first_k), (value, weights.first_v)
        return Stacked().project(weights, *(linear(x, w) for x, w in inputs))


class Bilinear(Form):
    """W_i = W_i^Q W_i^Kᵀ (M, Mk) for each head, and the scores x W_i x'ᵀ: attention whose queries
    are x W_i and whose keys are the inputs x' themselves.

    With biases (xW_Q + b_Q)(x'W_K + b_K)ᵀ = x W x'ᵀ + (W_K b_Q) · x' + terms of the query alone,
    which softmax does not see: W_K b_Q stays, as b_qk (H, Mk), and b_K goes. As another row under
    W_i, b_qk is factored with it.
    """

    names = ("w_qk", "b_qk", "w_v", "b_v")
    rearranges = False

    def from_stacked(self, sizes: Sizes, stacked: Weights) -> Weights:
        w_q, w_k = (
            _blocks(stacked["w_q"], sizes.num_heads),
            _blocks(stacked["w_k"], sizes.num_kv_heads),
        )
        b_q = stacked["b_q"]
        xp, group = namespace(*w_q), sizes.num_heads // sizes.num_kv_heads
        w_k = [w_k[h // group] for h in range(sizes.num_heads)]  # (Mk, D) each
        b_qk = None
        if b_q is not None:
            rows = zip(_blocks(b_q, sizes.num_heads), w_k, strict=True)
            b_qk = xp.stack([w @ b for b, w in rows])
        pairs = zip(w_q, w_k, strict=True)
        w_qk = xp.stack([q @ xp.matrix_transpose(k) for q, k in pairs])
        if not is_finite(w_qk) and is_finite(stacked["w_q"]) and is_finite(stacked["w_k"]):
            raise ValueError(f"W_i^Q W_i^Kᵀ overflows {w_qk.dtype}: convert weights of more bits")
        return {"w_qk": w_qk, "b_qk": b_qk, "w_v": stacked["w_v"], "b_v": stacked["b_v"]}

    def to_stacked(self, sizes: Sizes, held: Weights) -> tuple[Weights, Spectra]:
        w, b, d, g = held["w_qk"], held["b_qk"], sizes.head_dim, sizes.num_kv_heads
        xp, (heads, m, mk) = namespace(w), w.shape
        rows = w if b is None else xp.concat([w, b[:, None, :]], axis=1)  # (H, M + 1, Mk)
        group = heads // g, rows.shape[1]
        u, sigma, vt = xp.linalg.svd(
            _finite(widened(xp.reshape(rows, (g, group[0] * group[1], mk)))), full_matrices=False
        )
        kept = min(d, sigma.shape[-1])
        root = xp.sqrt(sigma[:, None, :kept])
        missing = ((0, 0), (0, 0), (0, d - kept))  # of a D beyond M
        left = ops.pad(u[..., :kept] * root, missing)  # (G, H/G · (M + 1), D)
        right = ops.pad(xp.matrix_transpose(vt)[..., :kept] * root, missing)  # (G, Mk, D)
        left = xp.astype(xp.reshape(left, (heads, group[1], d)), w.dtype)
        right = xp.astype(right, w.dtype)
        b_q = None if b is None else xp.reshape(left[:, m, :], (heads * d,))
        b_k = None if b is None else xp.zeros((g * d,), dtype=w.dtype, device=w.device)
        stacked = {
            "w_q": merge_heads(left[:, :m, :]),
            "w_k": merge_heads(right),
            "w_v": held["w_v"],
            "b_q": b_q,
            "b_k": b_k,
            "b_v": held["b_v"],
        }
        return stacked, backend.to_numpy(sigma).tolist()

    def project(self, weights: Any, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        g = weights.sizes.num_kv_heads
        q = ops.matmul(_with_head(query), weights.w_qk)  # (…, H, T, Mk)
        if weights.b_qk is not None:
            q = ops.add(q, ops.reshape(weights.b_qk, (q.shape[-3], 1, q.shape[-1])))
        k = _with_head(key)
        k = ops.broadcast_to(k, (*k.shape[:-3], g, *k.shape[-2:]))
        return q, k, project_in(value, weights.w_v, weights.b_v, num_heads=g)


FORMS: dict[str, Form] = {
    "per-head": PerHead(),
    "stacked": Stacked(),
    "fused": Fused(),
    "double": Double(),
    "bilinear": Bilinear(),
}


def _cut(spectra: Spectra, kept: int) -> float:
    """The norm of all but the largest singular values, relative to that of all."""
    lost = math.hypot(*(x for sigma in spectra for x in sigma[kept:]))  # no square overflows
    return lost / math.hypot(*(x for sigma in spectra for x in sigma)) if lost else 0.0


def _rank(sigma: list[float], rounding: float) -> int:
    """How many of the singular values of one matrix to keep, so that only rounding is cut off."""
    return next(n for n in range(len(sigma) + 1) if _cut([sigma], n) <= rounding)


def _finite(w: Array) -> Array:
    """w. Raises ValueError if it has no singular values."""
    if not is_finite(w):
        raise ValueError("W_i = W_i^Q W_i^Kᵀ holds NaN or infinity: it has no rank and no factors")
    return w


def form_named(name: str) -> Form:
    """The form of this name. Raises ValueError for a name that is not in `FORMS`."""
    if name not in FORMS:
        raise ValueError(
            f"no form of the projections is called {name!r}: there are {', '.join(FORMS)}"
        )
    return FORMS[name]


def _blocks(x: Array, count: int) -> list[Array]:
    """The columns of each head."""
    width = x.shape[-1] // count
    return [x[..., n * width : (n + 1) * width] for n in range(count)]


def _with_head(x: Any) -> Any:
    """(…, T, M) -> (…, 1, T, M)"""
    return ops.expand_dims(x, axis=-3)


def _each(held: Any) -> list[Any]:
    """What stands in weights of any kind, one by one."""
    if isinstance(held, dict):
        held = list(held.values())
    if isinstance(held, list):
        return [x for part in held for x in _each(part)]
    return [] if held is None else [held]


def _mapped(function: Callable[[Any], Any], held: Any) -> Any:
    """Weights of any kind, each put through a function."""
    if isinstance(held, list):
        return [function(x) for x in held]
    return None if held is None else function(held)
