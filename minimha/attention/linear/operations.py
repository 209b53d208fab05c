"""Linear attention and the gated delta rule, as operations."""

from __future__ import annotations

from functools import partial
from typing import Any

from minimha_autograd import backend, in_float32, operation
from minimha_autograd.backend import Array, namespace

from ...functional.checks import integer
from ...masks.kinds import broadcasts
from .forms import Result, chunked, in_turn, position


@operation
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    state: Array | None = None,
    *,
    form: str = "chunked",
    chunk: int = 64,
) -> Result:
    """Causal attention without softmax, whose only memory is a matrix S: out_t = S_tᵀ q_t.

        S_t = α_t S_{t−1} + k_t v_tᵀ,  α_t = exp(log_decay_t)
        so out_t = Σ α_{s+1} ⋯ α_t (q_t · k_s) v_s over s ≤ t

        dS_t = q_t dout_tᵀ + α_{t+1} dS_{t+1},  dlog_decay_t = Σ dS_t · α_t S_{t−1}
        dq_t = S_t dout_t,  dk_t = dS_t v_t,  dv_t = dS_tᵀ k_t

    query, key  (…, H, T, D)
    value       (…, H, T, Dv)
    log_decay   at most 0, broadcasts to (…, H, T); None for no decay
    state       S before the first position, broadcasts to (…, H, D, Dv); None for 0
    form        "recurrent": position by position, as above; the backward pass keeps every S_t
                "parallel": (Q Kᵀ · decay) V with matrices of T × T numbers
                "chunked": parallel within chunks, recurrent from chunk to chunk, so that time and
                memory grow linearly with T
    chunk       the number of positions in a chunk

    All forms have the same values and gradients. Returns out (…, H, T, Dv) and S after the last
    position, (…, H, D, Dv), with which the next call continues; when decoding, T = 1.

    The rest is left to the caller: a scale or a feature map is applied to query and key, and a
    column of ones beside value gives Σ α_{s+1} ⋯ α_t (q_t · k_s), by which out can be divided.
    Arrays of 16 bits are computed in float32; the results have 16 bits, also the state.
    Raises ValueError for shapes that do not match.
    Source: Katharopoulos et al., "Transformers are RNNs" (2020); with decay and in chunks, Sun et
    al., "Retentive Network" (2023) and Yang et al., "Gated Linear Attention Transformers with
    Hardware-Efficient Training" (2023).
    """
    values, pull = _computed(query, key, value, None, log_decay, state, form=form, chunk=chunk)

    def pullback(*cotangents: Array | None) -> tuple[Array | None, ...]:
        dquery, dkey, dvalue, _, dlog_decay, dstate = pull(*cotangents)
        return dquery, dkey, dvalue, dlog_decay, dstate

    return values, pullback


@operation
def gated_delta_rule(
    query: Array,
    key: Array,
    value: Array,
    beta: Array,
    log_decay: Array | None = None,
    state: Array | None = None,
    *,
    form: str = "chunked",
    chunk: int = 64,
) -> Result:
    """Linear attention that writes only what the state does not yet return: out_t = S_tᵀ q_t.

        S_t = α_t S_{t−1} + k_t u_tᵀ,  u_t = β_t (v_t − α_t S_{t−1}ᵀ k_t)
            = α_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ

    α_t S_{t−1}ᵀ k_t is the old value of the key k_t. Linear attention adds the new value to it;
    here, with β_t = 1 and a key of length 1, the new value replaces it: S_tᵀ k_t = v_t.

    beta  how much of the difference is written, broadcasts to (…, H, T). With keys of length 1 and
          β_t from 0 to 1, as they are in the paper, the state cannot grow without new values

    The gradients are those of `linear_attention` with u_t as value, and another use of each key:

        du_t = dS_tᵀ k_t,  dβ_t = Σ du_t · (v_t − α_t S_{t−1}ᵀ k_t),  dv_t = β_t du_t
        dk_t = dS_t u_t − α_t S_{t−1} dv_t
        dS_t = q_t dout_tᵀ + α_{t+1} E_{t+1},  dlog_decay_t = Σ E_t · α_t S_{t−1}

    with E_t = dS_t − k_t dv_tᵀ. The other arguments, the forms, the values and the errors are those
    of `linear_attention`.
    Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024), where S is the transpose of
    this one; in chunks, Yang et al., "Parallelizing Linear Transformers with the Delta Rule over
    Sequence Length" (2024).
    """
    return _computed(query, key, value, beta, log_decay, state, form=form, chunk=chunk)


def _computed(*arrays: Any, form: str, chunk: int) -> Result:
    """The values and the pullback to the six arrays, after their checks."""
    query, key, value, beta, log_decay, state = arrays
    if backend.is_half(query):
        return in_float32(_computed, *arrays, form=form, chunk=chunk)
    rows, xp = query.shape[:-1], namespace(query)
    if not rows or key.shape != query.shape or value.shape[:-1] != rows:
        raise ValueError("query and key must be (…, H, T, D), and value (…, H, T, Dv)")
    chunk, t = integer(chunk, "chunk", least=1), max(1, rows[-1])
    sizes = {"recurrent": 1, "parallel": t, "chunked": min(chunk, t)}
    if form not in sizes:
        raise ValueError(f"form must be one of {', '.join(map(repr, sizes))}, not {form!r}")
    matrix = (*rows[:-1], key.shape[-1], value.shape[-1])
    if state is None:
        state = xp.zeros(matrix, dtype=query.dtype, device=query.device)
    beta, log_decay = _full("beta", beta, rows), _full("log_decay", log_decay, rows)
    arrays = query, key, value, beta, log_decay, _full("state", state, matrix)
    compute = partial(in_turn, position) if sizes[form] == 1 else chunked
    values, pull = compute(*arrays, size=sizes[form])

    def pullback(*cotangents: Array | None) -> tuple[Array | None, ...]:
        given = zip(cotangents, values, strict=True)
        return pull(*(xp.zeros_like(y) if dy is None else dy for dy, y in given))

    return values, pullback


def _full(name: str, x: Array | None, shape: tuple[int, ...]) -> Array | None:
    """x, broadcast to a shape."""
    if x is None or x.shape == shape:
        return x
    if not broadcasts(tuple(x.shape), tuple(shape)):
        axes = "(…, H, D, Dv)" if name == "state" else "(…, H, T)"
        raise ValueError(f"{name} must broadcast to {axes}, here {tuple(shape)}")
    return namespace(x).broadcast_to(x, shape)
