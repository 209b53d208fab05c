"""The module with the weights of multi-head attention."""

from __future__ import annotations

import copy
import math
from typing import Any, Self

from minimha_autograd import Tensor, array_of, backend, ops
from minimha_autograd.backend import Array, Rng

from .. import masks
from ..attention import Arguments, scaled_dot_product_attention
from ..attention.arguments import check
from ..functional.checks import probability
from ..nn import Module
from ..nn.module import parameter
from ..projections import Form, Projections, project_out
from .cache import KeyValueCache
from .positions import Rope, alibi
from .qk_norm import QKNorm


class MultiHeadAttention(Module):
    """Attention in H heads, with the projections W^Q, W^K, W^V before it and W^O after it.

    d_model       M, the width of query and output, and of key and value unless kdim, vdim are given
    num_heads     H
    num_kv_heads  G, which divides H: heads of key and value, each shared by H/G query heads. By
                  default H; 1 is multi-query attention
    head_dim      D, by default M/H
    v_head_dim    Dv, by default D
    kdim, vdim    widths of key and value for cross-attention: Mk, by default M; Mv, by default Mk
    form          how W^Q, W^K, W^V are stored, one of `projections.FORMS`
    bias          whether the projections add b_q, b_k, b_v, b_o; "qkv" leaves out b_o
    scale         of the scores, 1/√D unless given
    softcap       limits the scores to softcap · tanh(scores / softcap)
    sink          whether the softmax of each head has one more logit, without a value, which is
                  learned and starts at 0
    qk_norm       whether Q and K are normalised in each head by `rms_norm`, with learned weights;
                  `QKNorm(…)` is for all heads together, or with another eps
    rope          `positions.Rope(…)`: Q and K are then rotated by their positions
    alibi         whether scores decrease with distance, by `positions.alibi`: self-attention only
    dropout       the probability with which each weight is dropped in calls with an rng or a keep
    rng           a generator or a seed. Initial matrices are normal with variance 1/rows, in the
                  bilinear form w_qk the product of two such; biases start at 0
    dtype         of the weights

    `projections` holds the weights and biases of Q, K and V: in the stacked form w_q, w_k, w_v,
    b_q, b_k, b_v. They are also attributes of the layer, like w_o, b_o, sink, norm_q and norm_k.
    `attend` computes attention and `project_out` the output from its heads; `mh.parallel` replaces
    them in a layer that several ranks share.
    Raises ValueError for sizes that do not match, and for settings that the form cannot represent.
    Source: Vaswani et al. (2017), section 3.2.2; grouped heads: Ainslie et al., "GQA" (2023);
    qk_norm: Henry et al., "Query-Key Normalization for Transformers" (2020), with the root mean
    square in place of the norm.
    """

    unnamed = ("projections",)  # parameters are called "w_q", not "projections.w_q"

    attend, project_out = staticmethod(scaled_dot_product_attention), staticmethod(project_out)

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
        bias: bool | str = True,
        scale: float | None = None,
        softcap: float | None = None,
        sink: bool = False,
        qk_norm: bool | QKNorm = False,
        rope: Rope | None = None,
        alibi: bool = False,
        dropout: float = 0.0,
        rng: Rng = 0,
        dtype: str = "float32",
    ) -> None:
        dropout = probability(dropout, "dropout")
        check_rope(rope)
        if bias not in (True, False, "qkv"):
            raise ValueError(f"bias = {bias!r} must be True, False or 'qkv'")
        rng = backend.generator(rng)
        self.projections: Form = Projections(
            d_model, num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
            v_head_dim=v_head_dim, kdim=kdim, vdim=vdim, form=form, bias=bool(bias), rng=rng,
            dtype=dtype,
        )  # fmt: skip
        d_model, num_heads = self.sizes.d_model, self.sizes.num_heads
        d, columns = self.sizes.head_dim, num_heads * self.sizes.v_head_dim
        self.d_model, self.num_heads = d_model, num_heads
        self.scale = 1 / math.sqrt(d) if scale is None else backend.setting(scale)
        softcap = backend.setting(softcap)
        self.softcap, self.rope, self.alibi, self.dropout = softcap, rope, alibi, dropout

        def vector(length: int, value: float) -> Tensor:
            return parameter(backend.full((length,), value, dtype=dtype))

        shape, std = (columns, d_model), 1 / math.sqrt(columns)
        self.w_o = parameter(backend.normal(rng, shape, std=std, dtype=dtype))
        self.b_o = vector(d_model, 0) if bias is True else None
        self.sink = vector(num_heads, 0) if sink else None
        norm = self.qk_norm = QKNorm() if qk_norm is True else qk_norm or None
        self.norm_q = self.norm_k = None
        if norm is not None:
            one, g = 0 if norm.plus_one else 1, self.sizes.num_kv_heads
            self.norm_q = vector(norm.width(num_heads, d), one)
            self.norm_k = vector(norm.width(g, d), one)
        if form == "bilinear":
            self._check_bilinear()

    def __getattr__(self, name: str) -> Any:
        """What the projections hold is also an attribute of the layer, such as mha.w_q."""
        if name == "projections":  # not there yet
            raise AttributeError(name)
        return getattr(self.projections, name)

    def __setattr__(self, name: str, value: Any) -> None:
        projections = vars(self).get("projections")
        held = projections is not None and name in vars(projections)
        object.__setattr__(projections if held else self, name, value)

    def __call__(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        mask: masks.Mask | Array | None = None,
        *,
        bias: Any = None,
        positions: Array | None = None,
        cache: KeyValueCache | None = None,
        rng: backend.Generator | None = None,
        keep: Array | None = None,
        return_weights: bool | str = False,
        implementation: str = "auto",
    ) -> Any:
        """The output (…, T, M) of query (…, T, M), key (…, S, Mk) and value (…, S, Mv) and, with
        return_weights, the weights (…, H, T, S).

        Without a key this is self-attention; without a value, the value is the key. mask, bias,
        keep, return_weights and implementation are those of `scaled_dot_product_attention`.

        cache  stores the keys and values of earlier calls: S counts these and the new ones. Masks,
               rope and alibi take the T queries as the last positions; lengths, ids and valid keys
               in masks may be those of the whole sequence. mask, bias and keep have entries for
               positions that the cache has evicted; the weights returned have none
        rng    draws which weights dropout keeps; without rng and keep there is no dropout
        positions
               integers (T,) for rope: where queries and keys are in a sequence of which they are a
               part; by default 0 … T − 1, or after the positions in the cache

        Raises ValueError for an input of the wrong width, TypeError for one that is not an array of
        floating-point numbers.
        """
        if cache is not None and key is not None:
            raise ValueError("a cache is for self-attention: pass only the query")
        past = positions_in(cache)
        if self.alibi and key is not None and key is not query:
            raise ValueError("alibi is for self-attention: key positions are those of the queries")
        key = query if key is None else key
        value = key if value is None else value
        check_input("query", query, "M", self.sizes.d_model)
        check_input("key", key, "Mk", self.sizes.kdim)
        check_input("value", value, "Mv", self.sizes.vdim)

        q, k, v = self.projections.project(query, key, value)
        if self.qk_norm is not None:
            q, k = self.qk_norm(q, self.norm_q), self.qk_norm(k, self.norm_k)
        if self.rope is not None:
            q, k = (self.rope(x, offset=past, positions=positions) for x in (q, k))
        if cache is not None:
            k, v = cache.joined(k, v)
            mask, bias, keep = cache.mask(mask, q.shape), cache.held(bias), cache.held(keep)
        if self.alibi:
            s = k.shape[-2] if cache is None else past + q.shape[-2]
            slopes = alibi(self.num_heads, q.shape[-2], s, offset=past, like=q)
            slopes = slopes if cache is None else cache.held(slopes)
            if bias is not None:
                # before the sum turns booleans into numbers
                check(Arguments(*map(array_of, (q, k, v, bias))))
                slopes = ops.add(bias, slopes)
            bias = slopes
        attended = self.attend(
            q, k, v, mask, bias=bias, scale=self.scale, softcap=self.softcap, sink=self.sink,
            dropout=0.0 if rng is None and keep is None else self.dropout, rng=rng, keep=keep,
            return_weights=return_weights, implementation=implementation,
        )  # fmt: skip
        heads, *weights = attended if return_weights else (attended,)
        out = self.project_out(heads, self.w_o, self.b_o)
        if cache is not None:
            # last, so that a call that raised an error can be repeated
            cache.store(k, v)
        return (out, *weights) if weights else out

    def convert(self, form: str, *, head_dim: int | None = None) -> Self:
        """A copy with its projections in another form: see `projections.Form.convert`.

        Also raises ValueError for the bilinear form if the layer has rope or qk_norm, which act
        between W^Q and W^K, or a nonzero b_k together with a softcap or a sink.
        """
        if form == "bilinear":
            self._check_bilinear()
        new = copy.deepcopy(self)
        new.projections = self.projections.convert(form, head_dim=head_dim)
        return new

    def _check_bilinear(self) -> None:
        """Raise ValueError for settings that the bilinear form cannot represent."""
        between = "rope" if self.rope is not None else "qk_norm" if self.norm_q is not None else ""
        if between:
            raise ValueError(
                f"the bilinear form stores the product W^Q W^Kᵀ, but {between} is applied between "
                "the two: keep another form, or do without it"
            )
        bent = "softcap" if self.softcap is not None else "sink" if self.sink is not None else ""
        if bent and self.form != "bilinear":  # which has no b_k
            b_k = self.projections.mapped(lambda p: p.data).to_stacked().b_k
            if b_k is not None and backend.to_numpy(b_k).any():
                raise ValueError(
                    "the bilinear form leaves out b_k, which adds the same number to all scores of "
                    f"a query: that does not change softmax, but it changes a {bent}. Set b_k "
                    "to zero, or keep another form"
                )


def check_input(name: str, x: Any, letter: str, width: int) -> None:
    """Raise unless x, called name in messages, is floating-point and of shape (…, T, width)."""
    array = array_of(x)
    if not (backend.is_floating(array) or backend.is_complex(array)):
        what = f"of {array.dtype}" if backend.is_array(array) else f"a {type(x).__name__}"
        fix = ": pass a mask by name, mask=…" if isinstance(x, masks.Mask) else ""
        raise TypeError(
            f"{name} must be an array or a Tensor of floating-point numbers, not {what}{fix}"
        )
    if array.ndim < 2 or array.shape[-1] != width:
        raise ValueError(
            f"{name} has shape {tuple(array.shape)}, but must be (…, positions, {letter}) "
            f"with {letter} = {width}"
        )


def check_rope(rope: Rope | None) -> None:
    """Raise TypeError unless these are the settings of rope, or None."""
    if not isinstance(rope, Rope | None):
        raise TypeError(f"rope must be a positions.Rope(…), not {rope!r}")


def positions_in(cache: KeyValueCache | None) -> int:
    """The number of positions in a cache, 0 without one."""
    if not isinstance(cache, KeyValueCache | None):
        raise TypeError(f"cache must be a KeyValueCache(), not {cache!r}")
    return 0 if cache is None else len(cache)
