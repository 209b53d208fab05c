"""Linear attention and the gated delta rule in chunks: `attention.linear`, head by head.

A head goes through its chunks in one thread, with all matrices of a chunk in the cache. BLAS
computes their products. The backward pass computes them again from the states between the chunks
and, for the delta rule, from the errors. Factors of decay are multiplied from position to position.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...attention import linear
from ...functional.implementations import register
from .. import blas, unavailable
from .arrays import Array, are_floats, contiguous, in_chunks
from .jit import kernel
from .parallel import share
from .row_softmax import dot, scale_by


@register("chunked")
def chunked(*arrays: Any, size: int) -> Any:
    """The value and the pullback of `attention.linear.chunked`, or None if the kernel does not
    support the arrays or a result is not finite. `arrays` are query, key, value, beta, log_decay
    and state, and `size` is the number of positions in a chunk.

    For the pullback, it keeps the states between the chunks and, for the delta rule, the errors:
    each value minus what the state returned for its key before the value was written.
    """
    query, key, value, beta, log_decay, state = arrays
    present = [x for x in arrays if x is not None]
    if not are_floats(*present) or not value.size or unavailable("scipy", "threadpoolctl"):
        return None
    (t, d), dv, dtype = query.shape[-2:], value.shape[-1], query.dtype
    q, k, v = (contiguous(x).reshape(-1, t, x.shape[-1]) for x in (query, key, value))
    b, g = (None if x is None else contiguous(x).reshape(-1, t) for x in (beta, log_decay))
    states = np.empty((len(q), -(-t // size) + 1, d, dv), dtype)
    states[:, 0] = state.reshape(-1, d, dv)
    out, errors = np.empty_like(v), None if beta is None else np.empty_like(v)
    parts = in_chunks(len(q), 8 * out.nbytes)
    with blas.single_threaded():
        _forward(parts, q, k, v, b, g, size, states, errors, out)
    last = states[:, -1].copy().reshape(state.shape)
    if not (np.isfinite(out).all() and np.isfinite(last).all()):
        return None

    def pullback(dout: Array, dlast: Array) -> tuple[Array | None, ...]:
        dstate = dlast.reshape(-1, d, dv).copy()
        given: list[Any] = [None if x is None else np.empty_like(x) for x in (q, k, v, b, g)]
        dread = contiguous(dout).reshape(out.shape)
        parts = in_chunks(len(q), 8 * out.nbytes)
        with blas.single_threaded():
            _backward(parts, q, k, v, b, g, size, states, errors, dread, *given, dstate)
        pairs = list(zip([*given, dstate], arrays, strict=True))
        if not all(dx is None or np.isfinite(dx).all() for dx, _ in pairs):
            return linear.chunked.__wrapped__(*arrays, size=size)[1](dout, dlast)
        return tuple(None if x is None else dx.reshape(x.shape) for dx, x in pairs)

    return (out.reshape(value.shape), last), pullback


@kernel
def _forward(part, q, k, v, beta, log_decay, size, states, errors, out):
    for n in range(*share(part)):
        for c in range(states.shape[1] - 1):
            t0, t1 = c * size, min((c + 1) * size, q.shape[1])
            key, new, state = k[n, t0:t1], v[n, t0:t1], states[n, c]
            left = _remaining(log_decay[n, t0:t1])
            if beta is not None:
                b, error = beta[n, t0:t1], errors[n, t0:t1]
                coupling, own = _reading(key, _scaled(b, key), state, np.tril(left))
                error[:] = new - own
                for i in range(len(error)):
                    error[i] -= np.dot(coupling[i, :i], error[:i])
                new = _scaled(b, error)
            weights, past = _reading(q[n, t0:t1], key, state, left)
            past += np.dot(weights, new)
            out[n, t0:t1] = past
            states[n, c + 1] = np.dot(_scaled(left[-1, 1:], key).T, new)
            states[n, c + 1] += left[-1, 0] * state


@kernel
def _backward(
    part, q, k, v, beta, log_decay, size, states, errors, dout, dq, dk, dv, dbeta, dlog, dstates
):
    """Compute the gradients dq, dk, dv, dbeta and dlog, the gradient of log_decay. `part`, made by
    `parallel.whole`, divides the N heads of all sequences among threads.

    q, k, dq, dk     (N, T, D)
    v, dout, dv      (N, T, Dv)
    beta, log_decay  (N, T), as are dbeta and dlog; beta and dbeta are None without the delta rule
    size             the number of positions in a chunk
    states           (N, chunks + 1, D, Dv), the states before each chunk and after the last
    errors           (N, T, Dv), or None: see `chunked`
    dstates          (N, D, Dv): on entry, the gradient of the states after the last chunk; on
                     return, that of the states before the first chunk
    """
    for n in range(*share(part)):
        dstate = dstates[n]
        for c in range(states.shape[1] - 2, -1, -1):
            t0, t1 = c * size, min((c + 1) * size, q.shape[1])
            query, key, new, state = q[n, t0:t1], k[n, t0:t1], v[n, t0:t1], states[n, c]
            left, dread, dkey = _remaining(log_decay[n, t0:t1]), dout[n, t0:t1], dk[n, t0:t1]
            if beta is not None:
                b, error = beta[n, t0:t1], errors[n, t0:t1]
                new = _scaled(b, error)
            weights, past = _reading(query, key, state, left)
            until, dleft = left[-1, 1:], np.zeros_like(left)
            dnew = np.dot(weights.T, dread)
            dnew += _scaled(until, np.dot(key, dstate))
            dkey[:] = _scaled(until, np.dot(new, dstate.T))
            dstate *= left[-1, 0]
            dleft[-1, 0] = dot(dstate.reshape(-1), state.reshape(-1))
            for j in range(len(key)):
                dleft[-1, j + 1] = dot(dkey[j], key[j])
            dq[n, t0:t1] = _reading_backward(
                query, key, state, left, weights, past, dread, new, dkey, dstate, dleft
            )
            if beta is not None:
                left = np.tril(left)
                coupling, own = _reading(key, key, state, left)
                for i in range(len(dnew) - 1, -1, -1):
                    dnew[i] -= np.dot(coupling[i + 1 :, i] * b[i + 1 :], dnew[i + 1 :])
                    dbeta[n, t0 + i] = dot(dnew[i], error[i])
                dnew = _scaled(b, dnew)
                dkey += _reading_backward(
                    key, key, state, left, coupling, own, -dnew, new, dkey, dstate, dleft
                )
            dv[n, t0:t1] = dnew
            sums = np.zeros(left.shape[1], left.dtype)
            for i in range(len(left) - 1, -1, -1):
                sums += dleft[i]
                dlog[n, t0 + i] = sums[: i + 1].sum()


@kernel
def _remaining(log_decay):
    """The array `left` (T, T + 1) of `attention.linear.remaining`, for a chunk of T positions whose
    logarithms of decay are log_decay (T,): what is left at position i, after the decay. left[i, 0]
    is the fraction that remains of the state before the chunk, and left[i, j + 1] the fraction that
    remains of what position j ≤ i wrote to the state."""
    t = len(log_decay)
    left, row = np.zeros((t, t + 1), log_decay.dtype), np.ones(t + 1, log_decay.dtype)
    for i in range(t):
        scale_by(row[: i + 1], np.exp(log_decay[i]))
        left[i, : i + 2] = row[: i + 2]
    return left


@kernel
def _reading(rows, key, state, left):
    """What `rows` (T, D), the queries or the keys of a chunk of T positions, read from the state,
    as in `attention.linear.reading`. key is (T, D), state (D, Dv), and `left` is the result of
    `_remaining`.

    Returns the weights (T, T) with which each row reads what each key of the chunk wrote, and past
    (T, Dv), what each row reads from the state before the chunk.
    """
    weights = np.dot(rows, key.T)
    for i in range(len(rows)):
        for j in range(len(key)):
            weights[i, j] *= left[i, j + 1]
    return weights, _scaled(left[:, 0], np.dot(rows, state))


@kernel
def _reading_backward(rows, key, state, left, weights, past, dread, new, dkey, dstate, dleft):
    """The pullback of `_reading`, whose results are weights and past. The rows read past + weights
    · new in total, where new (T, Dv) is what the keys of the chunk write, and dread (T, Dv) is the
    gradient of this. Returns the gradient of rows, and adds the gradients of key, of state and of
    the logarithm of `left` to dkey, dstate and dleft."""
    draw, dpast = np.dot(dread, new.T), _scaled(left[:, 0], dread)
    for i in range(len(rows)):
        dleft[i, 0] += dot(dread[i], past[i])
        for j in range(len(key)):
            dleft[i, j + 1] += weights[i, j] * draw[i, j]
            draw[i, j] *= left[i, j + 1]
    dkey += np.dot(draw.T, rows)
    dstate += np.dot(rows.T, dpast)
    return np.dot(draw, key) + np.dot(dpast, state.T)


@kernel
def _scaled(factors, x):
    """A copy of the matrix x, each row multiplied by its own factor: row i by factors[i]."""
    y = x.copy()
    for i in range(len(y)):
        scale_by(y[i], factors[i])
    return y
