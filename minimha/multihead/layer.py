"""The module with the weights of multi-head attention."""

from __future__ import annotations

import copy
import math
from typing import Any, Self

from minimha_autograd import Tensor, array_of, backend, ops
from minimha_autograd.backend import Array, Rng
from minimha_autograd.extension import ExtensionPoint

from .. import masks
from ..attention import Arguments, scaled_dot_product_attention
from ..attention.arguments import check
from ..functional.checks import probability
from ..nn.module import parameter
from ..projections import Projections, project_out
from .cache import KeyValueCache
from .forms import WithProjections
from .positions import Rope, alibi
from .qk_norm import QKNorm


class MultiHeadAttention(WithProjections):
    """Attention in H heads, with the projections W^Q, W^K, W^V before it and W^O after it.

        Q = split_heads(query w_q + b_q)          (…, T, M) -> (…, T, H·D) -> (…, H, T, D)
        K = split_heads(key w_k + b_k)            (…, S, Mk) -> (…, S, G·D) -> (…, G, S, D)
        V = split_heads(value w_v + b_v)          (…, S, Mv) -> (…, S, G·Dv) -> (…, G, S, Dv)
        heads = softmax(Q Kᵀ/√D) V                (…, H, T, Dv)
        out = merge_heads(heads) w_o + b_o        (…, H, T, Dv) -> (…, T, H·Dv) -> (…, T, M)

    d_model       M, the width of query and output, and of key and value unless kdim, vdim are given
    num_heads     H
    bias          whether the projections add b_q, b_k, b_v, b_o; "qkv" leaves out b_o
    dropout       the probability with which each weight is dropped in calls with an rng or a keep
    rng           a generator or a seed. Initial matrices are normal with variance 1/rows, in the
                  bilinear form w_qk the product of two such; biases start at 0
    dtype         of the weights

    Sizes with defaults:

    num_kv_heads  G, which divides H: heads of key and value, each shared by H/G query heads. By
                  default H; 1 is multi-query attention
    head_dim      D, by default M/H
    v_head_dim    Dv, by default D
    kdim, vdim    widths of key and value for cross-attention: Mk, by default M; Mv, by default Mk

    Variants of attention:

    rope          `positions.Rope(…)`: Q and K are then rotated by their positions
    alibi         whether scores decrease with distance, by `positions.alibi`: self-attention only
    qk_norm       whether Q and K are normalised in each head by `rms_norm`, with learned weights;
                  instead of True, `QKNorm(…)` can normalise all heads together, or change eps
    scale         of the scores, 1/√D unless given
    softcap       limits the scores to softcap · tanh(scores / softcap). The predictions of a `GPT`
                  can be limited in the same way, by its logit_softcap
    sink          whether the softmax of each head has one more logit, without a value, which is
                  learned and starts at 0
    form          how W^Q, W^K, W^V are stored, one of `projections.FORMS`

    `projections` holds the weights and biases of Q, K and V: in the stacked form w_q, w_k, w_v,
    b_q, b_k, b_v. They are also attributes of the layer, like w_o, b_o, sink, norm_q and norm_k.
    The attribute `attend` is the function that computes attention, and `project_out` the one that
    computes the output from the results of all heads. A subclass may override them. Both are
    extension points of each layer: `mh.parallel` provides other functions for a layer that several
    ranks share.
    Raises ValueError for sizes that do not match, and for settings that the form cannot represent.
    Source: Vaswani et al. (2017), section 3.2.2; grouped heads: Ainslie et al., "GQA" (2023);
    qk_norm: Henry et al., "Query-Key Normalization for Transformers" (2020), with the root mean
    square in place of the norm.
    """

    unnamed = ("projections",)  # parameters are called "w_q", not "projections.w_q"

    attend: Any = staticmethod(scaled_dot_product_attention)
    project_out: Any = staticmethod(project_out)

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

        # W^Q, W^K and W^V of all heads, side by side: in the stacked form w_q is (M, H·D).
        self.projections = Projections(
            d_model, num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
            v_head_dim=v_head_dim, kdim=kdim, vdim=vdim, form=form, bias=bool(bias), rng=rng,
            dtype=dtype,
        )  # fmt: skip

        # The sizes of the projections are checked, and have a number for each None.
        sizes = self.projections.sizes
        self.d_model = sizes.d_model
        self.num_heads = sizes.num_heads

        # W^O has a row for each column of the heads side by side. With the variance 1/rows, its
        # output is about as large as they are.
        rows = sizes.num_heads * sizes.v_head_dim
        std = 1 / math.sqrt(rows)
        w_o = backend.normal(rng, (rows, sizes.d_model), std=std, dtype=dtype)
        self.w_o = parameter(w_o)  # (H·Dv, M)

        # A bias of "qkv", as in Qwen2, leaves this one out.
        self.b_o = None
        if bias is True:
            self.b_o = constant(sizes.d_model, 0, dtype)  # (M,)

        # q · k is a sum of D products, whose standard deviation grows as √D.
        self.scale = backend.setting(scale)
        if scale is None:
            self.scale = 1 / math.sqrt(sizes.head_dim)

        # The variants, and their parameters.
        self.dropout = dropout
        self.rope = rope
        self.alibi = alibi
        self.softcap = backend.setting(softcap)
        self.sink = None
        if sink:
            self.sink = constant(sizes.num_heads, 0, dtype)  # (H,)
        self._add_qk_norm(qk_norm, dtype)

        if form == "bilinear":
            self._check_bilinear()

        # What the class defines is the default: ranks that share a layer replace it, in this layer
        # alone, by functions that exchange messages.
        self.attend = ExtensionPoint(self.attend)
        self.project_out = ExtensionPoint(self.project_out)

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

        Without a key this is self-attention; without a value, the value is the key. mask says which
        keys each query may attend to, bias is added to the scores, and keep says which weights
        dropout keeps: these three, return_weights and implementation are those of
        `scaled_dot_product_attention`.

        cache      stores the keys and values of earlier calls: S counts these and the new ones.
                   Masks, rope and alibi take the T queries as the last positions; lengths, ids and
                   valid keys in masks may be those of the whole sequence. mask, bias and keep have
                   entries for positions that the cache has evicted; the weights returned have none
        rng        draws which weights dropout keeps; without rng and keep there is no dropout
        positions  integers (T,) for rope: where queries and keys are in a sequence of which they
                   are a part; by default 0 … T − 1, or after the positions in the cache

        Raises ValueError for an input of the wrong width, TypeError for one that is not an array of
        floating-point numbers.
        """
        past = self._check_cache(cache, query, key)

        # Self-attention reads all three from one sequence.
        if key is None:
            key = query
        if value is None:
            value = key
        self._check_widths(query, key, value)

        # In the stacked form, one matmul makes the queries of all heads, because w_q (M, H·D) holds
        # the matrices of the heads side by side. split_heads, called inside, cuts the columns of
        # the product into blocks of D:
        #     query @ w_q (…, T, H·D)  ->  reshaped (…, T, H, D)  ->  axes swapped (…, H, T, D)
        # From here on, H is an axis like that of the batch: each head attends by itself.
        #     q (…, H, T, D), k (…, G, S, D), v (…, G, S, Dv); in the bilinear form Mk in place of D
        q, k, v = self.projections.project(query, key, value)

        # The norm comes first. After the rotation, its weights would change the angles, since the
        # two numbers of a rotated pair have different ones.
        if self.qk_norm is not None:
            q = self.qk_norm(q, self.norm_q)
            k = self.qk_norm(k, self.norm_k)
        if self.rope is not None:
            q = self.rope(q, offset=past, positions=positions)
            k = self.rope(k, offset=past, positions=positions)

        # From here on S counts the keys in the cache, too. What was given for all positions of the
        # sequence is cut down to those that the cache still holds.
        if cache is not None:
            k, v = cache.joined(k, v)
            mask = cache.mask(mask, q.shape)
            bias = cache.held(bias)
            keep = cache.held(keep)

        if self.alibi:
            bias = self._with_alibi(bias, q, k, v, past, cache)

        dropout = self.dropout
        if rng is None and keep is None:
            dropout = 0.0  # evaluation: nothing says which weights to drop

        # softmax(q kᵀ · scale) v in each head, over the keys that the mask lets a query see: attend
        # is scaled_dot_product_attention, unless another function was provided.
        heads = self.attend.function(
            q,
            k,
            v,
            mask,
            bias=bias,
            scale=self.scale,
            softcap=self.softcap,
            sink=self.sink,
            dropout=dropout,
            rng=rng,
            keep=keep,
            return_weights=return_weights,
            implementation=implementation,
        )
        if return_weights:
            heads, weights = heads  # (…, H, T, Dv), (…, H, T, S)

        # merge_heads, called inside, puts the heads of each position side by side again:
        #     heads (…, H, T, Dv)  ->  axes swapped (…, T, H, Dv)  ->  reshaped (…, T, H·Dv)
        # Then W^O mixes them: each head has its own Dv rows of w_o (H·Dv, M).
        out = self.project_out.function(heads, self.w_o, self.b_o)  # (…, T, M)

        # Stored last, so that a call that raised an error can be repeated.
        if cache is not None:
            cache.store(k, v)
        if return_weights:
            return out, weights
        return out

    def convert(self, form: str, *, head_dim: int | None = None) -> Self:
        """A copy whose projections have another form: `form` is its name in `projections.FORMS`.
        head_dim and the errors are those of `projections.Form.convert`.

        Also raises ValueError for the bilinear form if the layer has rope or qk_norm, which act
        between W^Q and W^K, or a nonzero b_k together with a softcap or a sink.
        """
        if form == "bilinear":
            self._check_bilinear()
        new = copy.deepcopy(self)
        new.projections = self.projections.convert(form, head_dim=head_dim)
        return new

    def _with_alibi(
        self, bias: Any, q: Any, k: Any, v: Any, past: int, cache: KeyValueCache | None
    ) -> Any:
        """The bias of alibi (H, T, S) for queries q that follow `past` positions, without the keys
        that the cache has evicted, plus `bias` if it is not None. k and v include the keys and
        values from the cache."""
        length = k.shape[-2]
        if cache is not None:
            length = past + q.shape[-2]  # also counts the evicted positions
        by_distance = alibi(self.num_heads, q.shape[-2], length, offset=past, like=q)  # (H, T, S)
        if cache is not None:
            by_distance = cache.held(by_distance)  # (H, T, keys held)
        if bias is None:
            return by_distance

        # Checked here, because the sum would turn a bias of booleans, which is refused, into one of
        # numbers.
        check(Arguments(array_of(q), array_of(k), array_of(v), array_of(bias)))
        return ops.add(bias, by_distance)

    def _add_qk_norm(self, qk_norm: bool | QKNorm, dtype: str) -> None:
        """Set the attributes qk_norm, the settings of the norm, and norm_q and norm_k, its weights
        for Q and K. If qk_norm is False, all three are None."""
        if qk_norm is True:
            qk_norm = QKNorm()
        self.qk_norm = qk_norm or None
        self.norm_q = None
        self.norm_k = None
        if self.qk_norm is not None:
            sizes = self.projections.sizes
            width_q = self.qk_norm.width(sizes.num_heads, sizes.head_dim)
            width_k = self.qk_norm.width(sizes.num_kv_heads, sizes.head_dim)

            # At first the norms multiply by 1, whether this is the weight or 1 + weight.
            first = 0 if self.qk_norm.plus_one else 1
            self.norm_q = constant(width_q, first, dtype)  # (D,), or (H·D,) for all heads together
            self.norm_k = constant(width_k, first, dtype)  # (D,), or (G·D,)

    def _check_cache(self, cache: KeyValueCache | None, query: Any, key: Any) -> int:
        """The number of positions in the cache, 0 without one. Raises ValueError if a key is given
        together with a cache, or if the layer has alibi and the key is not the query itself."""
        if cache is not None and key is not None:
            raise ValueError("a cache is for self-attention: pass only the query")
        past = positions_in(cache)
        if self.alibi and key is not None and key is not query:
            raise ValueError("alibi is for self-attention: key positions are those of the queries")
        return past

    def _check_widths(self, query: Any, key: Any, value: Any) -> None:
        """Raise TypeError or ValueError, as `check_input` does, unless query, key and value are
        (…, T, M), (…, S, Mk) and (…, S, Mv)."""
        sizes = self.projections.sizes
        check_input("query", query, "M", sizes.d_model)
        check_input("key", key, "Mk", sizes.kdim)
        check_input("value", value, "Mv", sizes.vdim)


def constant(length: int, value: float, dtype: str) -> Tensor:
    """A new parameter: a vector of this length, whose entries all have this value at first."""
    return parameter(backend.full((length,), value, dtype=dtype))


def check_input(name: str, x: Any, letter: str, width: int) -> None:
    """Raise TypeError unless x has floating-point or complex numbers, and ValueError unless its
    shape is (…, T, width). The messages call x `name`, and its width `letter`, such as "Mk"."""
    array = array_of(x)
    if not (backend.is_floating(array) or backend.is_complex(array)):
        what = f"a {type(x).__name__}"
        if backend.is_array(array):
            what = f"of {array.dtype}"
        # A common mistake: mha(x, mask) passes the mask as the key.
        fix = ""
        if isinstance(x, masks.Mask):
            fix = ": pass a mask by name, mask=…"
        raise TypeError(
            f"{name} must be an array or a Tensor of floating-point numbers, not {what}{fix}"
        )
    if array.ndim < 2 or array.shape[-1] != width:
        raise ValueError(
            f"{name} has shape {tuple(array.shape)}, but must be (…, positions, {letter}) "
            f"with {letter} = {width}"
        )


def check_rope(rope: Rope | None) -> None:
    """Raise TypeError unless rope is a `Rope` or None."""
    if not isinstance(rope, Rope | None):
        raise TypeError(f"rope must be a positions.Rope(…), not {rope!r}")


def positions_in(cache: KeyValueCache | None) -> int:
    """The number of positions in a cache, 0 without one. Raises TypeError for anything else."""
    if not isinstance(cache, KeyValueCache | None):
        raise TypeError(f"cache must be a KeyValueCache(), not {cache!r}")
    if cache is None:
        return 0
    return len(cache)
