"""Linear attention and the gated delta rule, position by position or in chunks.

`position` and `chunk` are steps: from the state before some positions, they compute the outputs of
these positions and the state after them. `position` takes one position by the recurrence, `chunk`
takes any number by products of matrices. Their arrays are query, key, value, beta, log_decay and
state; beta is None for linear attention, and log_decay is None for no decay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minimha_autograd import Pullback
from minimha_autograd.backend import Array, namespace

from ...functional.implementations import accelerated
from ...functional.masked_products import products, sums_over_keys, sums_over_queries

Result = tuple[tuple[Array, Array], Pullback]


@accelerated
def chunked(*arrays: Any, size: int) -> Result:
    """In chunks of this size."""
    return in_turn(chunk, *arrays, size=size)


def in_turn(step: Callable[..., Result], *arrays: Any, size: int) -> Result:
    """A step for every `size` positions, from the state that the one before returns.

    The pullback goes through the steps in reverse order, with the gradient of their states.
    """
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
            dvalue, dbeta = beta[..., None] * dnew, xp.sum(dnew * error, axis=-1)
            dkey = dkey - dvalue @ kept.mT
            dkept = dkept - key.mT @ dvalue
        dlog = None if log_decay is None else xp.sum(dkept * kept, axis=(-2, -1))[..., None]
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
    left = remaining(log_decay, query)
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
        dlog = None if log_decay is None else remaining_backward(dleft)
        return dquery, dkey, dvalue, dbeta, dlog, dstate

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


def remaining(log_decay: Array | None, like: Array) -> Array:
    """left (…, T, T + 1): which fraction remains, at position i, of the state before the chunk
    (column 0) and of what key j has written (column j + 1); 0 if that comes later.

        left[i, j] = exp(Σ log_decay[m] over j ≤ m ≤ i)

    Each sum is computed from its own j on. As a difference of two sums from the start, it would be
    ∞ − ∞ after a decay to 0, and inexact after a strong decay.
    """
    xp, t = namespace(like), like.shape[-2]
    if log_decay is None:
        return xp.tril(xp.ones((t, t + 1), dtype=like.dtype, device=like.device), k=1)
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
