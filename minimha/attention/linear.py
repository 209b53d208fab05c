"""Attention with a state of constant size: linear attention and the gated delta rule.

Both go through their positions in steps, `position` or `chunk`: from the state before some
positions, a step computes the outputs of these positions and the state after them. `position` takes
one position by the recurrence, `chunk` takes any number by products of matrices. For both, beta is
None in linear attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from minimha_autograd import Pullback, operation
from minimha_autograd.backend import Array, namespace

from ..functional.checks import integer
from ..functional.implementations import accelerated
from ..functional.masked_products import products, sums_over_keys, sums_over_queries
from ..masks.kinds import broadcasts

Result = tuple[tuple[Array, Array], Pullback]
"""What a step returns: out (…, T, Dv), the state (…, D, Dv) after its positions, and the pullback
of the two."""


class Gradients(NamedTuple):
    """The gradients of the six arrays that a step of linear attention, `position` or `chunk`,
    receives. The gradient of beta is None if beta is None."""

    query: Array  # (…, T, D)
    key: Array  # (…, T, D)
    value: Array  # (…, T, Dv)
    beta: Array | None  # (…, T)
    log_decay: Array  # (…, T)
    state: Array  # (…, D, Dv)


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

    The sum for dlog_decay_t is over the entries of the matrix. The last position has no next one;
    there, the gradient of the returned state takes the place of α_{t+1} dS_{t+1}.

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

    There is no scale, feature map or normalisation here. The caller can apply a scale or a feature
    map to query and key, and append a column of ones to value: the last column of out is then
    Σ α_{s+1} ⋯ α_t (q_t · k_s), the sum by which to divide the others.
    16-bit arrays are computed in float32; the results, including the state, have 16 bits.
    Raises ValueError for shapes that do not match.
    Source: Katharopoulos et al., "Transformers are RNNs" (2020); with decay and in chunks, Sun et
    al., "Retentive Network" (2023) and Yang et al., "Gated Linear Attention Transformers with
    Hardware-Efficient Training" (2023).
    """
    values, pull = _computed(query, key, value, None, log_decay, state, form, chunk)

    def pullback(dout: Array | None, dstate: Array | None) -> tuple[Array | None, ...]:
        dquery, dkey, dvalue, _, dlog_decay, dbefore = pull(dout, dstate)
        return dquery, dkey, dvalue, dlog_decay, dbefore

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
    """Linear attention that writes to its state S only what S does not yet return for a key.

    out_t = S_tᵀ q_t, as in `linear_attention`, but with another update of the state:

        S_t = α_t S_{t−1} + k_t u_tᵀ,  u_t = β_t (v_t − α_t S_{t−1}ᵀ k_t)
            = α_t (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ

    α_t S_{t−1}ᵀ k_t is the old value of the key k_t. Linear attention adds the new value to it;
    here, with β_t = 1 and a key of length 1, the new value replaces it: S_tᵀ k_t = v_t.

    beta  how much of the difference between the new and the old value is written, broadcasts to
          (…, H, T). The state cannot grow without new values if 0 ≤ β_t ‖k_t‖² ≤ 2: the write
          multiplies what S returns for k_t by 1 − β_t ‖k_t‖². In the paper, keys have length 1 and
          β_t is between 0 and 1

    The gradients are those of `linear_attention` with u_t as value, plus a term for the second use
    of each key, which also reads the old value:

        du_t = dS_tᵀ k_t,  dβ_t = Σ du_t · (v_t − α_t S_{t−1}ᵀ k_t),  dv_t = β_t du_t
        dk_t = dS_t u_t − α_t S_{t−1} dv_t
        dS_t = q_t dout_tᵀ + α_{t+1} E_{t+1},  dlog_decay_t = Σ E_t · α_t S_{t−1},  dS_0 = α_1 E_1

    with E_t = dS_t − k_t dv_tᵀ. The other arguments, the forms, the errors and the shapes of the
    results are those of `linear_attention`.
    Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024), where S is the transpose of
    this one; in chunks, Yang et al., "Parallelizing Linear Transformers with the Delta Rule over
    Sequence Length" (2024).
    """
    return _computed(query, key, value, beta, log_decay, state, form, chunk)


def _computed(
    query: Array,
    key: Array,
    value: Array,
    beta: Array | None,
    log_decay: Array | None,
    state: Array | None,
    form: str,
    chunk: int,
) -> Result:
    """Check the arguments of `gated_delta_rule` or, with None for beta, of `linear_attention`.
    Return the values (out, state) and the pullback to the six arrays, query to state."""
    rows = query.shape[:-1]  # (…, H, T)
    if not rows or key.shape != query.shape or value.shape[:-1] != rows:
        raise ValueError("query and key must be (…, H, T, D), and value (…, H, T, Dv)")
    chunk = integer(chunk, "chunk", least=1)
    length = max(1, rows[-1])
    sizes = {"recurrent": 1, "parallel": length, "chunked": min(chunk, length)}
    if form not in sizes:
        raise ValueError(f"form must be one of {', '.join(map(repr, sizes))}, not {form!r}")

    if beta is not None:
        beta = _full("beta", beta, rows, query)
    log_decay = _full("log_decay", log_decay, rows, query)
    state = _full("state", state, (*rows[:-1], key.shape[-1], value.shape[-1]), query)
    (out, last), pull = chunked(query, key, value, beta, log_decay, state, size=sizes[form])

    def pullback(dout: Array | None, dlast: Array | None) -> tuple[Array | None, ...]:
        xp = namespace(out)
        if dout is None:
            dout = xp.zeros_like(out)
        if dlast is None:
            dlast = xp.zeros_like(last)
        return tuple(pull(dout, dlast))

    return (out, last), pullback


def _full(name: str, x: Array | None, shape: tuple[int, ...], like: Array) -> Array:
    """x broadcast to this shape, or zeros of this shape, with the dtype and on the device of the
    array `like`, if x is None. Raises ValueError, with `name` in its message, if x does not
    broadcast."""
    if x is None:
        return namespace(like).zeros(shape, dtype=like.dtype, device=like.device)
    if not broadcasts(tuple(x.shape), tuple(shape)):
        axes = "(…, H, D, Dv)" if name == "state" else "(…, H, T)"
        raise ValueError(f"{name} must broadcast to {axes}, here {tuple(shape)}")
    if x.shape == shape:
        return x
    return namespace(x).broadcast_to(x, shape)


@accelerated
def chunked(
    query: Array,  # (…, T, D)
    key: Array,  # (…, T, D)
    value: Array,  # (…, T, Dv)
    beta: Array | None,  # (…, T)
    log_decay: Array,  # (…, T)
    state: Array,  # (…, D, Dv)
    *,
    size: int,
) -> Result:
    """Compute linear attention or, unless beta is None, the gated delta rule, in steps of `size`
    positions, by `position` if size is 1, else by `chunk`. Each step continues from the state that
    the step before it returns. Returns out of all positions, the last state, and the pullback.

    The pullback goes through the steps in reverse order, and hands the gradient of the state from
    each step to the one before it.
    """
    xp = namespace(state)
    step = position if size == 1 else chunk
    length = query.shape[-2]
    outs = [value[..., :0, :]]  # of no position, so that there is one for T = 0 as well
    steps = []
    for t in range(0, length, size):
        now = (..., slice(t, min(length, t + size)))  # of (…, T)
        rows = (*now, slice(None))  # of (…, T, D) and (…, T, Dv)
        beta_now = None
        if beta is not None:
            beta_now = beta[now]
        (out, state), pull = step(
            query[rows],
            key[rows],
            value[rows],
            beta_now,
            log_decay[now],
            state,
        )
        outs.append(out)
        steps.append((now, rows, pull))

    def pullback(dout: Array, dstate: Array) -> Gradients:
        dquery = xp.zeros_like(query)
        dkey = xp.zeros_like(key)
        dvalue = xp.zeros_like(value)
        dbeta = None if beta is None else xp.zeros_like(beta)
        dlog_decay = xp.zeros_like(log_decay)

        # The state after a step is used by the later ones alone, which come first here.
        for now, rows, pull in reversed(steps):
            of_step = pull(dout[rows], dstate)
            dquery[rows] = of_step.query
            dkey[rows] = of_step.key
            dvalue[rows] = of_step.value
            if dbeta is not None:
                dbeta[now] = of_step.beta
            dlog_decay[now] = of_step.log_decay
            dstate = of_step.state
        return Gradients(dquery, dkey, dvalue, dbeta, dlog_decay, dstate)

    return (xp.concat(outs, axis=-2), state), pullback


def position(
    query: Array,  # q (…, 1, D)
    key: Array,  # k (…, 1, D)
    value: Array,  # v (…, 1, Dv)
    beta: Array | None,  # β (…, 1)
    log_decay: Array,  # log α (…, 1)
    state: Array,  # S (…, D, Dv)
) -> Result:
    """One step of linear attention or the gated delta rule, for a single position, whose q, k and v
    are row vectors: from the state S before it to out and the state after it. The second column has
    the gradients; read it from the bottom up.

        kept  = α S                dα = Σ dkept · S,       dS = α dkept
        error = v − k kept         dv = derror,            dkept −= kᵀ derror,  dk −= derror keptᵀ
        new   = β error            dβ = Σ dnew · error,    derror = β dnew
        after = kept + kᵀ new      dkept = dafter,         dnew = k dafter,     dk = new dafterᵀ
        out   = q after            dafter += qᵀ dout,      dq = dout afterᵀ

    In linear attention, beta is None and new = v.
    """
    xp = namespace(query)
    alpha = xp.exp(log_decay)[..., None]  # (…, 1, 1)
    kept = alpha * state  # (…, D, Dv)
    error = None
    new = value  # (…, 1, Dv)
    if beta is not None:
        error = value - key @ kept  # (…, 1, Dv)
        new = beta[..., None] * error
    after = kept + key.mT @ new  # (…, D, Dv)
    out = query @ after  # (…, 1, Dv)

    def pullback(dout: Array, dafter: Array) -> Gradients:
        dquery = dout @ after.mT  # (…, 1, D)
        dafter = dafter + query.mT @ dout  # (…, D, Dv)

        dkey = new @ dafter.mT  # (…, 1, D)
        dnew = key @ dafter  # (…, 1, Dv)
        dkept = dafter  # (…, D, Dv)

        dvalue = dnew
        dbeta = None
        if beta is not None:
            dbeta = xp.sum(dnew * error, axis=-1)  # (…, 1)
            dvalue = beta[..., None] * dnew  # which is derror as well
            dkey = dkey - dvalue @ kept.mT
            dkept = dkept - key.mT @ dvalue

        # As α = exp(log α), the gradient of log α is α dα = Σ dkept · α S.
        dlog_decay = xp.sum(dkept * kept, axis=(-2, -1))[..., None]  # (…, 1)
        dstate = alpha * dkept
        return Gradients(dquery, dkey, dvalue, dbeta, dlog_decay, dstate)

    return (out, after), pullback


def chunk(
    query: Array,  # Q (…, T, D)
    key: Array,  # K (…, T, D)
    value: Array,  # V (…, T, Dv)
    beta: Array | None,  # β (…, T)
    log_decay: Array,  # (…, T)
    state: Array,  # S (…, D, Dv)
) -> Result:
    """One step of linear attention or the gated delta rule, for T positions at once, by products of
    matrices: from the state S before the chunk of positions to out and the state after it.

        out   = past + weights new         what the queries read: see `reading`
        error = V − (own + coupling new)   V minus what the keys read, from S and earlier keys
        new   = β error                    in linear attention, beta is None and new = V
        after = whole · S + (until · K)ᵀ new

    Each key writes its row of new to the state. past and own are what the queries and the keys read
    from the state S before the chunk; weights and coupling (…, T, T) say how much of each row of
    new they read. All four contain decays from `remaining`, whose last row gives whole, the decay
    of S over the chunk, and until (…, T, 1), the decay from each position to the end of the chunk.

    error is the solution of a triangular system, and so is r, the full gradient of new. dnew is the
    part of r that comes through out and after:

        (I + coupling · βᵀ) error = V − own
        (I + β · coupling)ᵀ r = dnew,         dV = β r,  dβ = Σ r · error
    """
    xp = namespace(query)
    left = remaining(log_decay)  # (…, T, T + 1)
    whole = left[..., -1:, :1]  # (…, 1, 1)
    until = left[..., -1, 1:, None]  # (…, T, 1)
    length = left.shape[-2]
    visible = xp.tril(xp.ones((length, length), dtype=xp.bool, device=left.device))  # (T, T)

    weights, past, pull_query = reading(query, key, state, left, visible)
    error = None
    new = value  # (…, T, Dv)
    if beta is not None:
        # A position does not read what its own key writes: row i of tril(left) has only the state
        # and the keys before i.
        earlier = xp.tril(left)
        coupling, own, pull_key = reading(key, key, state, earlier, visible)
        error = solved(coupling * beta[..., None, :], value - own)  # (…, T, Dv)
        new = beta[..., None] * error

    out = past + sums_over_keys(weights, new, visible)  # (…, T, Dv)
    after = whole * state + (until * key).mT @ new  # (…, D, Dv)

    def pullback(dout: Array, dafter: Array) -> Gradients:
        # new is read by the queries and written to the state.
        dnew = sums_over_queries(weights, dout, visible, key)  # (…, T, Dv)
        dnew = dnew + until * (key @ dafter)

        # Through after: the keys write to it, and the state before is part of it.
        dkey = until * (new @ dafter.mT)  # (…, T, D)
        dstate = whole * dafter  # (…, D, Dv)
        dlog_whole = xp.sum(dstate * state, axis=(-2, -1))  # (…,)
        dlog_until = xp.sum(dkey * key, axis=-1)  # (…, T)

        # Through out: dleft (…, T, T + 1) is the gradient of log left, of which whole and until
        # are the last row.
        dquery, dkey_read, dstate_read, dleft = pull_query(dout, new)
        dleft[..., -1, 0] += dlog_whole
        dleft[..., -1, 1:] += dlog_until
        dkey = dkey + dkey_read
        dstate = dstate + dstate_read

        dvalue = dnew
        dbeta = None
        if beta is not None:
            # Each error depends on the earlier ones, so a gradient of new reaches all of these.
            r = solved_from_the_end((beta[..., None] * coupling).mT, dnew)  # (…, T, Dv)
            dvalue = beta[..., None] * r
            dbeta = xp.sum(r * error, axis=-1)  # (…, T)

            # The keys also read, as rows. What they read is subtracted from the values.
            drows, dkey_read, dstate_read, dleft_read = pull_key(-dvalue, new)
            dkey = dkey + drows + dkey_read
            dstate = dstate + dstate_read
            dleft = dleft + dleft_read

        dlog_decay = remaining_backward(dleft)  # (…, T)
        return Gradients(dquery, dkey, dvalue, dbeta, dlog_decay, dstate)

    return (out, after), pullback


def reading(
    rows: Array,  # (…, T, D)
    key: Array,  # (…, T, D)
    state: Array,  # (…, D, Dv)
    left: Array,  # (…, T, T + 1)
    visible: Array,  # (T, T)
) -> tuple[Array, Array, Callable[..., tuple[Array, ...]]]:
    """What `rows`, the queries or the keys of a chunk, read: the sum past + weights new. Its first
    term comes from the state S before the chunk, its second from the rows of new (…, T, Dv), which
    the keys of the chunk write. Returns weights, past and a pullback.

        past = since · (rows S),  weights = within · rows Kᵀ

    left, from `remaining`, joins the columns since (…, T, 1), the decay of S up to each row, and
    within (…, T, T), the decay of what each key wrote. visible is True where a key is not later
    than the row. The pullback takes the gradient of what the rows read, and new. It returns the
    gradients of rows, key, state and log left.
    """
    xp = namespace(rows)
    since = left[..., :1]  # (…, T, 1)
    within = left[..., 1:]  # (…, T, T)
    past = since * (rows @ state)  # (…, T, Dv)
    weights = within * products(rows, key, visible)  # (…, T, T)

    def pullback(dread: Array, new: Array) -> tuple[Array, ...]:
        dpast = since * dread  # the gradient of rows S, (…, T, Dv)
        dweights = products(dread, new, visible)  # (…, T, T)
        draw = within * dweights  # the gradient of rows Kᵀ, (…, T, T)

        drows = dpast @ state.mT + sums_over_keys(draw, key, visible)  # (…, T, D)
        dkey = sums_over_queries(draw, rows, visible, key)  # (…, T, D)
        dstate = rows.mT @ dpast  # (…, D, Dv)

        # The gradient of log since is since · dsince, and past contains since already.
        dlog_since = xp.sum(dread * past, axis=-1, keepdims=True)  # (…, T, 1)
        dlog_within = weights * dweights  # (…, T, T)
        return drows, dkey, dstate, xp.concat((dlog_since, dlog_within), axis=-1)

    return weights, past, pullback


def remaining(log_decay: Array) -> Array:
    """The array left (…, T, T + 1): the fraction that remains at position i, after the decay, of
    the state before the chunk (column 0) and of what the key at position j − 1 has written
    (column j > 0). It is 0 for keys later than i.

        left[i, j] = exp(Σ log_decay[m] over j ≤ m ≤ i)

    Each sum is added up from m = j. As the difference of two sums that both start at m = 0, it
    would be ∞ − ∞ after a decay to 0, and inexact after a strong decay.
    """
    xp = namespace(log_decay)
    t = log_decay.shape[-1]

    # Column j holds log_decay[m] at m ≥ j, and 0 above, so that its sums begin at j.
    terms = xp.broadcast_to(log_decay[..., None], (*log_decay.shape, t + 1))  # (…, T, T + 1)
    sums = xp.cumulative_sum(xp.tril(terms), axis=-2)
    return xp.tril(xp.exp(sums), k=1)


def remaining_backward(dleft: Array) -> Array:
    """The gradient of log_decay: at position m, the sum of dleft[i, j] over j ≤ m ≤ i. dleft is the
    gradient of log left, the logarithm of the result of `remaining`."""
    xp = namespace(dleft)

    # The sum over i ≥ m is a cumulative sum from the end.
    flipped = xp.flip(dleft, axis=-2)  # (…, T, T + 1)
    over_i = xp.flip(xp.cumulative_sum(flipped, axis=-2), axis=-2)
    return xp.sum(xp.tril(over_i), axis=-1)  # (…, T)


def solved(a: Array, b: Array) -> Array:
    """Solve (I + L) x = b for x (…, T, Dv), where L is the part of a (…, T, T) below its diagonal:
    first the upper half of x, then the lower half, which depends on the upper one."""
    n = b.shape[-2] // 2
    if n == 0:  # one row: a has nothing below its diagonal
        return b
    first = solved(a[..., :n, :n], b[..., :n, :])
    known = a[..., n:, :n] @ first  # what the first half contributes to the second
    second = solved(a[..., n:, n:], b[..., n:, :] - known)
    return namespace(b).concat([first, second], axis=-2)


def solved_from_the_end(a: Array, b: Array) -> Array:
    """Solve (I + U) x = b for x (…, T, Dv), where U is the part of a (…, T, T) above its diagonal:
    as `solved`, with the lower half of x first."""
    xp = namespace(b)
    flipped = solved(xp.flip(a, axis=(-2, -1)), xp.flip(b, axis=-2))
    return xp.flip(flipped, axis=-2)
