"""Attention with a state of constant size: linear attention and the gated delta rule.

Both go through their positions in steps, `position` or `chunk`: from the state before some
positions, a step computes the outputs of these positions and the state after them. `position` takes
one position by the recurrence, `chunk` takes any number by products of matrices. Their arrays are
query, key, value, beta, log_decay and state; beta is None for linear attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minimha_autograd import Pullback, operation
from minimha_autograd.backend import Array, namespace

from ..functional.checks import integer
from ..functional.implementations import accelerated
from ..functional.masked_products import products, sums_over_keys, sums_over_queries
from ..masks.kinds import broadcasts

Result = tuple[tuple[Array, Array], Pullback]


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
        so, from S_0 = 0, out_t = Σ α_{s+1} ⋯ α_t (q_t · k_s) v_s over s ≤ t

        dS_t = q_t dout_tᵀ + α_{t+1} dS_{t+1},  dlog_decay_t = Σ dS_t · α_t S_{t−1}
        dq_t = S_t dout_t,  dk_t = dS_t v_t,  dv_t = dS_tᵀ k_t,  dS_0 = α_1 dS_1

    The sum is over the entries of the matrix. The last position has no next one; there, the
    gradient of the returned state takes the place of α_{t+1} dS_{t+1}.

    query, key  (…, H, T, D)
    value       (…, H, T, Dv)
    log_decay   at most 0, broadcasts to (…, H, T); None for no decay
    state       S before the first position, broadcasts to (…, H, D, Dv); None for 0
    form        "recurrent": position by position, as above; the backward pass keeps every S_t
                "parallel": (Q Kᵀ · decay) V with matrices of T × T numbers
                "chunked": parallel within chunks, recurrent from chunk to chunk, so that time and
                memory grow linearly with T
    chunk       the number of positions in a chunk

    All forms have the same values and gradients up to rounding. Returns out (…, H, T, Dv) and S
    after the last position, (…, H, D, Dv), with which the next call continues (T = 1 in decoding).

    The rest is left to the caller: a scale or a feature map is applied to query and key, and a
    column of ones beside value gives Σ α_{s+1} ⋯ α_t (q_t · k_s), by which out can be divided.
    16-bit arrays are computed in float32; the results, including the state, have 16 bits.
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

    beta  how much of the difference is written, broadcasts to (…, H, T). The state cannot grow
          without new values if 0 ≤ β_t ‖k_t‖² ≤ 2: the write multiplies what S returns for k_t by
          1 − β_t ‖k_t‖². In the paper, keys have length 1 and β_t is between 0 and 1

    The gradients are those of `linear_attention` with u_t as value, and another use of each key:

        du_t = dS_tᵀ k_t,  dβ_t = Σ du_t · (v_t − α_t S_{t−1}ᵀ k_t),  dv_t = β_t du_t
        dk_t = dS_t u_t − α_t S_{t−1} dv_t
        dS_t = q_t dout_tᵀ + α_{t+1} E_{t+1},  dlog_decay_t = Σ E_t · α_t S_{t−1},  dS_0 = α_1 E_1

    with E_t = dS_t − k_t dv_tᵀ. The other arguments, the forms, the errors and the shapes of the
    results are those of `linear_attention`.
    Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024), where S is the transpose of
    this one; in chunks, Yang et al., "Parallelizing Linear Transformers with the Delta Rule over
    Sequence Length" (2024).
    """
    return _computed(query, key, value, beta, log_decay, state, form=form, chunk=chunk)


def _computed(*arrays: Any, form: str, chunk: int) -> Result:
    """The values and the pullback to the six arrays, after their checks."""
    query, key, value, beta, log_decay, state = arrays
    rows, xp = query.shape[:-1], namespace(query)
    if not rows or key.shape != query.shape or value.shape[:-1] != rows:
        raise ValueError("query and key must be (…, H, T, D), and value (…, H, T, Dv)")
    chunk, t = integer(chunk, "chunk", least=1), max(1, rows[-1])
    sizes = {"recurrent": 1, "parallel": t, "chunked": min(chunk, t)}
    if form not in sizes:
        raise ValueError(f"form must be one of {', '.join(map(repr, sizes))}, not {form!r}")
    matrix = (*rows[:-1], key.shape[-1], value.shape[-1])
    beta = None if beta is None else _full("beta", beta, rows, query)
    log_decay = _full("log_decay", log_decay, rows, query)
    state = _full("state", state, matrix, query)
    values, pull = chunked(query, key, value, beta, log_decay, state, size=sizes[form])

    def pullback(*cotangents: Array | None) -> tuple[Array | None, ...]:
        given = zip(cotangents, values, strict=True)
        return pull(*(xp.zeros_like(y) if dy is None else dy for dy, y in given))

    return values, pullback


def _full(name: str, x: Array | None, shape: tuple[int, ...], like: Array) -> Array:
    """x, broadcast to a shape; zeros if it is left out."""
    if x is None:
        return namespace(like).zeros(shape, dtype=like.dtype, device=like.device)
    if not broadcasts(tuple(x.shape), tuple(shape)):
        axes = "(…, H, D, Dv)" if name == "state" else "(…, H, T)"
        raise ValueError(f"{name} must broadcast to {axes}, here {tuple(shape)}")
    return x if x.shape == shape else namespace(x).broadcast_to(x, shape)


@accelerated
def chunked(*arrays: Any, size: int) -> Result:
    """A step for every `size` positions, from the state that the one before returns.

    The pullback goes through the steps in reverse order, with the gradient of their states.
    """
    step = position if size == 1 else chunk
    *rows, state = arrays
    xp, length = namespace(state), rows[0].shape[-2]
    outs, pulls = [rows[2][..., :0, :]], []  # of no position
    for t in range(0, length, size):
        some = slice(t, min(length, t + size))
        places = [(..., some, slice(None))] * 3 + [(..., some)] * 2
        parts = [None if x is None else x[at] for x, at in zip(rows, places, strict=True)]
        (out, state), pull = step(*parts, state)
        outs.append(out)
        pulls.append((places, pull))

    def pullback(dout: Array, dstate: Array) -> tuple[Array | None, ...]:
        gradients = [None if x is None else xp.zeros_like(x) for x in rows]
        for places, pull in reversed(pulls):
            *parts, dstate = pull(dout[places[0]], dstate)
            for dx, at, part in zip(gradients, places, parts, strict=True):
                if dx is not None:
                    dx[at] = part
        return *gradients, dstate

    return (xp.concat(outs, axis=-2), state), pullback


def position(*arrays: Any) -> Result:
    """One position, with rows q, k and v. Read the gradients from the bottom up.

        kept  = α S                dα = Σ dkept · S,       dS = α dkept
        error = v − k kept         dv = derror,            dkept −= kᵀ derror,  dk −= derror keptᵀ
        new   = β error            dβ = Σ dnew · error,    derror = β dnew
        after = kept + kᵀ new      dkept = dafter,         dnew = k dafter,     dk = new dafterᵀ
        out   = q after            dafter += qᵀ dout,      dq = dout afterᵀ

    In linear attention, new = v.
    """
    query, key, value, beta, log_decay, state = arrays
    xp = namespace(query)
    alpha = xp.exp(log_decay)[..., None]
    kept = alpha * state
    error = None if beta is None else value - key @ kept
    new = value if beta is None else beta[..., None] * error
    after = kept + key.mT @ new

    def pullback(dout: Array, dafter: Array) -> tuple[Array | None, ...]:
        dafter = dafter + query.mT @ dout
        dquery, dkey, dnew, dkept = dout @ after.mT, new @ dafter.mT, key @ dafter, dafter
        dvalue, dbeta = dnew, None
        if beta is not None:
            dvalue, dbeta = beta[..., None] * dnew, xp.sum(dnew * error, axis=-1)
            dkey = dkey - dvalue @ kept.mT
            dkept = dkept - key.mT @ dvalue
        dlog = xp.sum(dkept * kept, axis=(-2, -1))[..., None]
        return dquery, dkey, dvalue, dbeta, dlog, alpha * dkept

    return (query @ after, after), pullback


def chunk(*arrays: Any) -> Result:
    """T positions at once.

        out   = past + weights new         by `reading` with the queries
        error = V − (own + coupling new)   by `reading` with the keys, of what is strictly earlier
        new   = β error                    in linear attention, new = V
        after = whole · S + (until · K)ᵀ new

    Each product is scaled by factors from `remaining`: whole is the decay over the chunk, and until
    the decay after each position. The errors solve a triangular system. So does r, the gradient of
    new, where dnew is the part of it that comes through out and after:

        (I + coupling · βᵀ) error = V − own
        (I + β · coupling)ᵀ r = dnew,         dV = β r,  dβ = Σ r · error
    """
    query, key, value, beta, log_decay, state = arrays
    xp = namespace(query)
    left = remaining(log_decay)
    until, whole = left[..., -1, 1:, None], left[..., -1:, :1]
    visible = xp.tril(xp.ones(left.shape[-2:-1] * 2, dtype=xp.bool, device=left.device))
    weights, past, pull_query = reading(query, key, state, left, visible)
    error, new = None, value
    if beta is not None:
        coupling, own, pull_key = reading(key, key, state, xp.tril(left), visible)
        error = solved(coupling * beta[..., None, :], value - own)
        new = beta[..., None] * error
    out = past + sums_over_keys(weights, new, visible)
    after = whole * state + (until * key).mT @ new

    def pullback(dout: Array, dafter: Array) -> tuple[Array | None, ...]:
        dnew = sums_over_queries(weights, dout, visible, key) + until * (key @ dafter)
        dkey, dstate = until * (new @ dafter.mT), whole * dafter
        dquery, dkey_read, dstate_read, dleft = pull_query(dout, new)
        dleft[..., -1, 0] += xp.sum(dstate * state, axis=(-2, -1))
        dleft[..., -1, 1:] += xp.sum(dkey * key, axis=-1)
        dkey, dstate = dkey + dkey_read, dstate + dstate_read
        dvalue, dbeta = dnew, None
        if beta is not None:
            r = solved_from_the_end((beta[..., None] * coupling).mT, dnew)
            dvalue, dbeta = beta[..., None] * r, xp.sum(r * error, axis=-1)
            drows, dkey_read, dstate_read, dleft_read = pull_key(-dvalue, new)
            dkey, dstate = dkey + drows + dkey_read, dstate + dstate_read
            dleft = dleft + dleft_read
        return dquery, dkey, dvalue, dbeta, remaining_backward(dleft), dstate

    return (out, after), pullback


def reading(
    rows: Array, key: Array, state: Array, left: Array, visible: Array
) -> tuple[Array, Array, Callable[..., tuple[Array, ...]]]:
    """weights and past, such that the rows read past + weights · new: past from the state, and the
    rest from what the visible keys write.

        past = since · (rows S),  weights = within · rows Kᵀ,  where left is [since within]

    The pullback takes the gradient of what they read, and new. It returns those of rows, key, state
    and log left.
    """
    xp = namespace(rows)
    since, within = left[..., :1], left[..., 1:]
    past, weights = since * (rows @ state), within * products(rows, key, visible)

    def pullback(dread: Array, new: Array) -> tuple[Array, ...]:
        dpast, dweights = since * dread, products(dread, new, visible)
        draw = within * dweights
        drows = dpast @ state.mT + sums_over_keys(draw, key, visible)
        dkey = sums_over_queries(draw, rows, visible, key)
        dleft = xp.sum(dread * past, axis=-1, keepdims=True), weights * dweights
        return drows, dkey, rows.mT @ dpast, xp.concat(dleft, axis=-1)

    return weights, past, pullback


def remaining(log_decay: Array) -> Array:
    """left (…, T, T + 1): which fraction remains, at position i, of the state before the chunk
    (column 0) and of what key j has written (column j + 1); 0 if that comes later.

        left[i, j] = exp(Σ log_decay[m] over j ≤ m ≤ i)

    Each sum is computed from its own j on. As a difference of two sums from the start, it would be
    ∞ − ∞ after a decay to 0, and inexact after a strong decay.
    """
    xp, t = namespace(log_decay), log_decay.shape[-1]
    terms = xp.tril(xp.broadcast_to(log_decay[..., None], (*log_decay.shape, t + 1)))
    return xp.tril(xp.exp(xp.cumulative_sum(terms, axis=-2)), k=1)


def remaining_backward(dleft: Array) -> Array:
    """The gradient of log_decay from that of log left: at m, the sum over j ≤ m ≤ i."""
    xp = namespace(dleft)
    from_the_end = xp.cumulative_sum(xp.flip(dleft, axis=-2), axis=-2)
    return xp.sum(xp.tril(xp.flip(from_the_end, axis=-2)), axis=-1)


def solved(a: Array, b: Array) -> Array:
    """x with (I + a) x = b, for the part of a (…, T, T) below its diagonal: the first half of x,
    then the second half, which depends on it."""
    n = b.shape[-2] // 2
    if not n:
        return b
    first = solved(a[..., :n, :n], b[..., :n, :])
    second = solved(a[..., n:, n:], b[..., n:, :] - a[..., n:, :n] @ first)
    return namespace(b).concat([first, second], axis=-2)


def solved_from_the_end(a: Array, b: Array) -> Array:
    """The same for the part above the diagonal."""
    xp = namespace(b)
    return xp.flip(solved(xp.flip(a, axis=(-2, -1)), xp.flip(b, axis=-2)), axis=-2)
