"""The forms of linear attention and of the gated delta rule: position by position, or in chunks.

`position` and `chunk` compute the same: the outputs of some positions and the state after them,
from the state before them. `position` takes one, by the recurrence; `chunk` takes any number, by
products of matrices. For linear attention beta is None, and without decay log_decay is None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minimha_autograd import Pullback
from minimha_autograd.backend import Array, namespace

from ...functional.implementations import accelerated
from ...functional.masked_products import hide, products, sums_over_keys, sums_over_queries


def recurrent(*arrays: Array | None) -> tuple[tuple[Array, Array], Pullback]:
    """The recurrent form of query, key, value, beta, log_decay and state."""
    return in_turn(position, 1, *arrays)


@accelerated
def chunked(*arrays: Array | None, size: int) -> tuple[tuple[Array, Array], Pullback]:
    """The form in chunks of this size."""
    return in_turn(chunk, size, *arrays)


def in_turn(
    step: Callable[..., Any], size: int, *arrays: Array | None
) -> tuple[tuple[Array, Array], Pullback]:
    """The steps for `size` positions each: every step continues with the state of the one before.
    Backwards, every step continues with the gradient of the state from the one after."""
    *arrays, state = arrays
    xp, length = namespace(state), arrays[0].shape[-2]
    out, pulls = xp.zeros_like(arrays[2]), []
    for t in range(0, length, size):
        some = slice(t, min(length, t + size))
        rows = (..., some, slice(None))
        places = rows, rows, rows, (..., some), (..., some)
        parts = [None if x is None else x[at] for x, at in zip(arrays, places, strict=True)]
        (out[rows], state), pull = step(*parts, state)
        pulls.append((places, pull))

    def pullback(dout: Array, dstate: Array) -> tuple[Array | None, ...]:
        gradients = [None if x is None else xp.zeros_like(x) for x in arrays]
        for places, pull in reversed(pulls):
            *parts, dstate = pull(dout[places[0]], dstate)
            for dx, at, part in zip(gradients, places, parts, strict=True):
                if dx is not None:
                    dx[at] = part
        return *gradients, dstate

    return (out, state), pullback


def position(
    query: Array,
    key: Array,
    value: Array,
    beta: Array | None,
    log_decay: Array | None,
    state: Array,
) -> tuple[tuple[Array, Array], Pullback]:
    """One position, with rows q, k and v. Read the right column from the bottom up.

        kept  = α S                dα = Σ dkept · S,       dS = α dkept
        error = v − k kept         dv = derror,            dkept −= kᵀ derror,  dk −= derror keptᵀ
        new   = β error            dβ = Σ dnew · error,    derror = β dnew
        after = kept + kᵀ new      dkept = dafter,         dnew = k dafter,     dk = new dafterᵀ
        out   = q after            dafter += qᵀ dout,      dq = dout afterᵀ

    Linear attention has new = v instead.
    """
    xp = namespace(query)
    alpha = 1.0 if log_decay is None else xp.exp(log_decay)[..., None]
    kept = alpha * state
    error = None if beta is None else value - key @ kept
    new = value if beta is None else beta[..., None] * error
    after = kept + key.mT @ new

    def pullback(dout: Array, dafter: Array) -> tuple[Array | None, ...]:
        dafter = dafter + query.mT @ dout
        dquery, dkey, dnew, dkept = dout @ after.mT, new @ dafter.mT, key @ dafter, dafter
        dvalue, dbeta = dnew, None
        if beta is not None:
            dbeta = xp.sum(dnew * error, axis=-1)
            dvalue = beta[..., None] * dnew
            dkey = dkey - dvalue @ kept.mT
            dkept = dkept - key.mT @ dvalue
        dlog = None if log_decay is None else xp.sum(dkept * kept, axis=(-2, -1))[..., None]
        return dquery, dkey, dvalue, dbeta, dlog, alpha * dkept

    return (query @ after, after), pullback


def chunk(
    query: Array,
    key: Array,
    value: Array,
    beta: Array | None,
    log_decay: Array | None,
    state: Array,
) -> tuple[tuple[Array, Array], Pullback]:
    """C positions, by products of matrices.

        out   = past + weights new,  after = whole · state + (until · K)ᵀ new
        error = V − (own + coupling new),  new = β error

    with past, weights = `reading`(Q) and own, coupling = `reading`(K), of positions strictly
    before. Linear attention has new = V instead. Each error depends on earlier ones only:

        (I + coupling diag β) error = V − own
        (I + couplingᵀ diag β) r = dnew,  dβ = Σ r · error,  dV = β r = −down

    where dnew = weightsᵀ dout + until · (K dafter) is the gradient through out and after alone.
    """
    xp = namespace(query)
    left = remaining(log_decay, query)
    whole, until = left[..., -1:, :1], left[..., -1, 1:, None]
    visible = xp.tril(xp.ones(left.shape[-2:-1] * 2, dtype=xp.bool, device=left.device))
    weights, past, pull_query = reading(query, key, state, left, visible)
    error, new = None, value
    if beta is not None:
        earlier = xp.tril(visible, k=-1)
        coupling, own, pull_key = reading(key, key, state, xp.tril(left), earlier)
        error = solved(coupling * beta[..., None, :], value - own)
        new = beta[..., None] * error
    out = past + sums_over_keys(weights, new, visible)
    after = whole * state + (until * key).mT @ new

    def pullback(dout: Array, dafter: Array) -> tuple[Array | None, ...]:
        dquery, dkey, dstate, dleft = pull_query(dout, new)
        dnew = sums_over_queries(weights, dout, visible, key) + until * (key @ dafter)
        dwritten = until * (new @ dafter.mT)
        ends = xp.sum(dwritten * key, axis=-1), xp.sum(whole * dafter * state, axis=(-2, -1))
        dleft[..., -1, 1:] += ends[0]
        dleft[..., -1, 0] += ends[1]
        dkey, dstate = dkey + dwritten, dstate + whole * dafter
        dvalue, dbeta = dnew, None
        if beta is not None:
            r = solved_backwards((beta[..., None] * coupling).mT, dnew)
            dvalue, dbeta = beta[..., None] * r, xp.sum(r * error, axis=-1)
            drows, dwritten, dstate_read, dleft_read = pull_key(-dvalue, new)
            dkey, dstate, dleft = dkey + drows + dwritten, dstate + dstate_read, dleft + dleft_read
        dlog = None if log_decay is None else remaining_backward(dleft)
        return dquery, dkey, dvalue, dbeta, dlog, dstate

    return (out, after), pullback


def reading(
    rows: Array, key: Array, state: Array, left: Array, visible: Array
) -> tuple[Array, Array, Pullback]:
    """weights and past: the rows read past + weights new, of the state and of the visible keys.

        weights = left · rows Kᵀ         past = since · (rows state)

    The pullback takes the gradient of what they read, and new. It returns those of rows, key,
    state and log left, (…, C, C + 1)."""
    xp = namespace(rows)
    since, within = left[..., :1], left[..., 1:]
    weights = within * products(rows, key, visible)
    past = since * (rows @ state)

    def pullback(dreads: Array, new: Array) -> tuple[Array, ...]:
        dweights, dpast = products(dreads, new, visible), since * dreads
        draw = within * dweights
        drows = sums_over_keys(draw, key, visible) + dpast @ state.mT
        dkey = sums_over_queries(draw, rows, visible, key)
        dleft = [xp.sum(dreads * past, axis=-1, keepdims=True), weights * dweights]
        return drows, dkey, rows.mT @ dpast, xp.concat(dleft, axis=-1)

    return weights, past, pullback


def remaining(log_decay: Array | None, like: Array) -> Array:
    """left[i, j], the factor by which what key j − 1 wrote has decayed at position i; j = 0 is the
    state before. It is exp(Σ log_decay[m] over j ≤ m ≤ i), and 0 for keys that come later.

    Shapes (…, C) -> (…, C, C + 1)
    """
    xp, count = namespace(like), like.shape[-2]
    if log_decay is None:
        ones = xp.ones((count, count + 1), dtype=like.dtype, device=like.device)
        return xp.tril(ones, k=1)
    terms = xp.broadcast_to(log_decay[..., None], (*log_decay.shape, count + 1))
    return xp.tril(xp.exp(xp.cumulative_sum(xp.tril(terms), axis=-2)), k=1)


def remaining_backward(dlog_left: Array) -> Array:
    """The gradient of log_decay, of position m: the sum over j ≤ m ≤ i."""
    xp = namespace(dlog_left)
    over_i = xp.flip(xp.cumulative_sum(xp.flip(dlog_left, axis=-2), axis=-2), axis=-2)
    return xp.sum(xp.tril(over_i), axis=-1)


def solved(a: Array, b: Array) -> Array:
    """x with (I + a) x = b, for a (…, C, C) of which only the part below the diagonal counts."""
    n = b.shape[-2] // 2
    if not n:
        return b
    first = solved(a[..., :n, :n], b[..., :n, :])
    rest = solved(a[..., n:, n:], b[..., n:, :] - a[..., n:, :n] @ first)
    return namespace(b).concat([first, rest], axis=-2)


def solved_backwards(a: Array, b: Array) -> Array:
    """The same for the part above the diagonal."""
    xp = namespace(b)
    return xp.flip(solved(xp.flip(a, axis=(-2, -1)), xp.flip(b, axis=-2)), axis=-2)
