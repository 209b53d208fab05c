"""Multi-head attention: the operation on arrays first, the module that holds its weights last.

Source: Vaswani et al., "Attention Is All You Need" (2017), section 3.2.2.
"""

from __future__ import annotations

import math
from typing import Any, Self

from minimha_autograd import Pullback, Tensor, array_of, backend, operation, ops
from minimha_autograd.backend import Array, Rng

from .. import masks
from ..attention.reference import attention
from ..attention.scaled_dot_product import check, scaled_dot_product_attention
from ..checks import integer
from ..functional.dropout import check_probability
from ..functional.rms_norm import rms_norm
from ..projections import Projections
from ..projections.operations import project_in, project_out
from .positions import Rope, alibi


@operation
def multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    b_q: Array | None = None,
    b_k: Array | None = None,
    b_v: Array | None = None,
    b_o: Array | None = None,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    mask: masks.Mask | Array | None = None,
    wanted: tuple[bool, ...],
) -> tuple[tuple[Array, Array], Pullback]:
    """The values (out, weights) of attention in H heads, and the pullback to all eleven arrays.

        Q, K, V = split_heads(query w_q + b_q), split_heads(key w_k + b_k), …
        out     = merge_heads(attention(Q, K, V)) w_o + b_o

    query (…, T, M), key (…, S, Mk), value (…, S, Mv), w_q (M, H·D), w_k (Mk, G·D), w_v (Mv, G·Dv),
    w_o (H·Dv, M), biases (columns of w,); out (…, T, M), weights (…, H, T, S). H is num_heads, and
    G, num_kv_heads, is H unless given.

    The backward is the pullbacks of the parts in reverse order. The gradient of b_k is zero: it
    adds the same number to every score of a row, which softmax does not see.

    Raises ValueError for shapes that do not fit, of num_heads and the columns among them.
    """
    num_heads = integer(num_heads, "num_heads")
    groups = num_heads if num_kv_heads is None else integer(num_kv_heads, "num_kv_heads")
    widths, counts = [w.shape[-1] for w in (w_q, w_k, w_v)], (num_heads, groups, groups)
    if min(counts) < 1 or any(width % n for width, n in zip(widths, counts, strict=True)):
        given = "" if num_kv_heads is None else f" and num_kv_heads = {groups}"
        raise ValueError(
            f"num_heads = {num_heads}{given} must divide the columns {widths} of w_q, w_k, w_v"
        )
    to_q, to_k, to_v = ((wanted[n], wanted[3 + n], wanted[7 + n]) for n in range(3))
    q, pull_q = project_in.with_pullback(query, w_q, b_q, num_heads=num_heads, wanted=to_q)
    k, pull_k = project_in.with_pullback(key, w_k, b_k, num_heads=groups, wanted=to_k)
    v, pull_v = project_in.with_pullback(value, w_v, b_v, num_heads=groups, wanted=to_v)
    check(q, k, v)
    (heads, weights), pull_attention = attention.with_pullback(
        q,
        k,
        v,
        mask=masks.resolve(mask, q, k),
        wanted=(any(to_q), any(to_k), any(to_v), False, False, False, False),
    )
    out, pull_o = project_out.with_pullback(heads, w_o, b_o, wanted=(True, wanted[6], wanted[10]))

    def pullback(dout: Array | None, dweights: Array | None) -> tuple[Array | None, ...]:
        dheads, dw_o, db_o = (None,) * 3 if dout is None else pull_o(dout)
        dq, dk, dv, *_ = pull_attention(dheads, dweights)
        dquery, dw_q, db_q = (None,) * 3 if dq is None else pull_q(dq)
        dkey, dw_k, db_k = (None,) * 3 if dk is None else pull_k(dk)
        dvalue, dw_v, db_v = (None,) * 3 if dv is None else pull_v(dv)
        return dquery, dkey, dvalue, dw_q, dw_k, dw_v, dw_o, db_q, db_k, db_v, db_o

    return (out, weights), pullback


class MultiHeadAttention(Projections):
    """Attention in H heads, with the projections W^Q, W^K, W^V before it and W^O behind.

    d_model       M, the width of query and output, and of key and value unless kdim, vdim are given
    num_heads     H
    num_kv_heads  G, which divides H: heads of key and value, each shared by H/G query heads. H
                  unless given; 1 is multi-query attention
    head_dim      D, M/H unless given
    v_head_dim    Dv, D unless given
    kdim, vdim    widths Mk, Mv of key and value for cross-attention; Mk is M, and Mv is Mk, unless
                  given
    form          how W^Q, W^K, W^V are held, one of `projections.FORMS`
    bias          whether the projections add b_q, b_k, b_v, b_o
    scale         of the scores, 1/√D unless given
    softcap       bends the scores to softcap · tanh(scores / softcap)
    sink          whether each head has a logit that takes weight and has no value, started at 0
    qk_norm       whether Q and K are normalised in each head by `rms_norm`, with learned weights
    rope          `positions.Rope(…)`: Q and K are turned by their positions
    alibi         whether scores fall with the distance, by `positions.alibi`: self-attention only
    dropout       the share of the weights that is dropped in calls that bring an rng or a keep
    rng           a generator, or the seed of one; weights start normal, with variance 1/rows
    dtype         of the weights

    Call it with query (…, T, M) for self-attention, or with key and value (…, S, Mk), (…, S, Mv) as
    well. `convert` changes the form.
    Raises ValueError for sizes that do not go together, and for what the form cannot hold.
    Source: Vaswani et al. (2017), section 3.2.2; grouped heads: Ainslie et al., "GQA" (2023);
    qk_norm: Henry et al., "Query-Key Normalization for Transformers" (2020), with the root mean
    square in place of the norm.
    """

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
        scale: float | None = None,
        softcap: float | None = None,
        sink: bool = False,
        qk_norm: bool = False,
        rope: Rope | None = None,
        alibi: bool = False,
        dropout: float = 0.0,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        check_probability(dropout, "dropout")
        if not isinstance(rope, Rope | None):
            raise TypeError(f"rope must be a positions.Rope(…), not {rope!r}")
        rng = backend.generator(rng)
        super().__init__(
            d_model,
            num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            v_head_dim=v_head_dim,
            kdim=kdim,
            vdim=vdim,
            form=form,
            bias=bias,
            rng=rng,
            dtype=dtype,
        )
        sizes = self.sizes
        self.d_model, self.num_heads = d_model, num_heads
        self.scale = 1 / math.sqrt(sizes.head_dim) if scale is None else scale
        self.softcap, self.rope, self.alibi, self.dropout = softcap, rope, alibi, dropout

        def parameter(shape: tuple[int, ...], value: float) -> Tensor:
            return Tensor(backend.full(shape, value, dtype=dtype), requires_grad=True)

        columns = num_heads * sizes.v_head_dim
        std = 1 / math.sqrt(columns)
        draws = backend.normal(rng, (columns, d_model), std=std, dtype=dtype)
        self.w_o = Tensor(draws, requires_grad=True)
        self.b_o = parameter((d_model,), 0) if bias else None
        self.sink = parameter((num_heads,), 0) if sink else None
        self.norm_q = self.norm_k = None
        if qk_norm:
            self.norm_q = parameter((sizes.head_dim,), 1)
            self.norm_k = parameter((sizes.head_dim,), 1)
        if form == "bilinear":
            self._check_bilinear()

    def __call__(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        mask: masks.Mask | Array | None = None,
        *,
        bias: Any = None,
        cache: KeyValueCache | None = None,
        rng: backend.Generator | None = None,
        keep: Array | None = None,
        return_weights: bool | str = False,
        implementation: str = "auto",
    ) -> Any:
        """The output (…, T, M) and, with return_weights, the weights (…, H, T, S).

        Without a key this is self-attention; without a value, the value is the key. mask, bias,
        keep, return_weights and implementation are those of `scaled_dot_product_attention`.

        cache  remembers keys and values of the calls before: S counts them all, with these ones.
               Masks, rope and alibi know that the T queries are the last positions; lengths, ids
               and valid keys in masks may be those of the whole sequence
        rng    draws what dropout keeps; without rng and keep nothing is dropped

        Raises ValueError for an input of another width than M, Mk, Mv, TypeError for what is no
        array.
        """
        if cache is not None and key is not None:
            raise ValueError("a cache is for self-attention: give query alone")
        if not isinstance(cache, KeyValueCache | None):
            raise TypeError(f"cache must be a KeyValueCache(), not {cache!r}")
        if self.alibi and key is not None and key is not query:
            raise ValueError("alibi is for self-attention, where queries and keys stand in one row")
        key = query if key is None else key
        value = key if value is None else value
        self._check_inputs(query, key, value)
        q, k, v = self.project(query, key, value)
        if self.norm_q is not None:
            q, k = rms_norm(q, self.norm_q), rms_norm(k, self.norm_k)
        past = 0 if cache is None else len(cache)
        if self.rope is not None:
            q, k = self.rope(q, offset=past), self.rope(k, offset=past)
        if cache is not None:
            k, v = cache.joined(k, v)
            mask = mask.at(past) if isinstance(mask, masks.Mask) else mask
        if self.alibi:
            slopes = alibi(self.num_heads, q.shape[-2], k.shape[-2], offset=past, like=q)
            if bias is not None:
                check(q, k, v, bias)  # before it is added, when a boolean would be a number
                slopes = ops.add(bias, slopes)
            bias = slopes
        attended = scaled_dot_product_attention(
            q,
            k,
            v,
            mask,
            bias=bias,
            scale=self.scale,
            softcap=self.softcap,
            sink=self.sink,
            dropout=0.0 if rng is None and keep is None else self.dropout,
            rng=rng,
            keep=keep,
            return_weights=return_weights,
            implementation=implementation,
        )
        heads, *weights = attended if return_weights else (attended,)
        out = project_out(heads, self.w_o, self.b_o)
        if cache is not None:  # last: a call that raised can be made again
            cache.keys, cache.values = k, v
        return (out, *weights) if weights else out

    def convert(self, form: str, *, head_dim: int | None = None) -> Self:
        """As `Projections.convert`.

        Raises ValueError also for the bilinear form with rope or qk_norm, which stand between W^Q
        and W^K, and with a b_k that is not zero under a softcap or a sink.
        """
        if form == "bilinear" and self.form != "bilinear":
            self._check_bilinear()
        return super().convert(form, head_dim=head_dim)

    def _check_bilinear(self) -> None:
        between = {"rope": self.rope, "qk_norm": self.norm_q}
        for name, x in between.items():
            if x is not None:
                raise ValueError(
                    f"the bilinear form holds W^Q W^Kᵀ, and {name} stands between the two: "
                    "keep another form, or do without it"
                )
        bent = "softcap" if self.softcap is not None else "sink" if self.sink is not None else None
        if bent is None or self.form == "bilinear":  # which has no b_k
            return
        b_k = self._converted("stacked", lambda p: p.data, None).b_k  # type: ignore[attr-defined]
        if b_k is not None and backend.to_numpy(b_k.data).any():
            raise ValueError(
                "the bilinear form leaves b_k out, which adds the same to all scores of a query: "
                f"softmax does not see that, and a {bent} does. Set b_k to zero, or keep another "
                "form"
            )

    def _check_inputs(self, query: Any, key: Any, value: Any) -> None:
        sizes = self.sizes
        widths = ("M", sizes.d_model), ("Mk", sizes.kdim), ("Mv", sizes.vdim)
        if sizes.d_model == sizes.kdim == sizes.vdim:
            widths = (widths[0],) * 3
        inputs = {"query": query, "key": key, "value": value}
        for (name, x), (letter, width) in zip(inputs.items(), widths, strict=True):
            if isinstance(x, masks.Mask):
                raise TypeError(f"{name} is a mask: pass it by name, mask=…")
            if not isinstance(x, Tensor) and not backend.is_array(x):
                raise TypeError(f"{name} must be an array or a Tensor, not {type(x).__name__}")
            if not (backend.is_floating(array := array_of(x)) or backend.is_complex(array)):
                raise TypeError(
                    f"{name} has dtype {x.dtype}: attention needs floating-point numbers"
                )
            if x.ndim < 2 or x.shape[-1] != width:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)}, required is (…, positions, {letter}) "
                    f"with {letter} = {width}"
                )


class KeyValueCache:
    """The keys and values of the positions so far, for decoding step by step.

        cache = mh.KeyValueCache()
        for x in tokens:                      # (…, 1, M) each, or some at a time
            y = mha(x, mask=mh.masks.causal(), cache=cache)

    One cache serves one layer and one run through a sequence. With Tensors gradients flow through
    it; decode within `no_grad`. `len(cache)` is the number of positions.
    """

    def __init__(self) -> None:
        self.keys: Any = None
        self.values: Any = None

    def __len__(self) -> int:
        return 0 if self.keys is None else int(self.keys.shape[-2])

    def append(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Remember these keys and values, and return all: see `joined`."""
        self.keys, self.values = self.joined(keys, values)
        return self.keys, self.values

    def joined(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """All keys (…, G, S, D) and values (…, G, S, Dv), with these ones at the end, not yet kept.

        Raises ValueError for a batch or heads other than those so far.
        """
        if self.keys is not None:
            for old, new in ((self.keys, keys), (self.values, values)):
                if (*old.shape[:-2], old.shape[-1]) != (*new.shape[:-2], new.shape[-1]):
                    raise ValueError(
                        f"the cache holds (…, G, S, D) {tuple(old.shape)} and is given "
                        f"{tuple(new.shape)}: a new sequence or layer needs a new cache"
                    )
            keys = ops.concat(self.keys, keys, axis=-2)
            values = ops.concat(self.values, values, axis=-2)
        return keys, values
