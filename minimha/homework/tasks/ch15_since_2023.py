"""Tasks of chapter 15: latent vectors, windows, the delta rule, speculative decoding."""

import numpy as np

from ..checks.comparisons import named, same, same_operation, same_steps, tap_is_used
from ..checks.task import task
from .ch05_attention import softmax_rows


@task(chapter=15, difficulty=2, minutes=15, given=(softmax_rows,), hints=(
    "The score q · (c W^UK) is a product of three matrices. Which two of them do you multiply "
    "first, so that no product has a row for each of the S positions and a column for each of the "
    "H · D entries of a key?",
    "absorbed is q_i W_i^UKᵀ, with the D columns of head i in w_uk. All heads share the latents: "
    "the scores are absorbed @ latents.T, still divided by √D. The weighted mean of the values is "
    "the weighted mean of the latents, times W_i^UV.",
    'by_head = w_uk.reshape(C, H, D); absorbed = tap("absorbed", np.einsum("hd,chd->hc", query, '
    "by_head)); the weights are the softmax of absorbed @ latents.T / D**0.5; mean = "
    'tap("mean", weights @ latents); the output is np.einsum("hc,chv->hv", mean, w_uv.reshape(C, '
    "H, -1)).",
))  # fmt: skip
def absorbed_attention(query, latents, w_uk, w_uv, *, tap=lambda name, x: x):
    """Attention of one new token to a cache of latent vectors, without making keys or values.

    query    (H, D), the query q_i of each head i
    latents  (S, C), the latent vectors c of all tokens so far
    w_uk     (C, H·D), with the columns of head 0 first: the keys of head i would be c W_i^UK
    w_uv     (C, H·Dv), likewise: the values of head i would be c W_i^UV
    tap      call it with the absorbed queries q_i W_i^UKᵀ, not scaled yet, and with the weighted
             mean of the latents for each head, both (H, C), and continue with what it returns:
             absorbed = tap("absorbed", absorbed), mean = tap("mean", mean)
    Returns out (H, Dv), the attention of each head, with scores q_i · k_i / √D.
    """
    # BEGIN SOLUTION: return out
    h, d = query.shape
    absorbed = tap("absorbed", np.einsum("hd,chd->hc", query, w_uk.reshape(-1, h, d)))
    weights = softmax_rows(absorbed @ latents.T / d**0.5)
    mean = tap("mean", weights @ latents)
    return np.einsum("hc,chv->hv", mean, w_uv.reshape(len(w_uv), h, -1))
    # END SOLUTION


@absorbed_attention.check
def two_tokens_worked_by_hand(yours, rng):
    query, latents = np.array([[np.log(3)]]), np.array([[1.0, 1.0], [0.0, 1.0]])
    w_uk, w_uv = np.array([[1.0], [0.0]]), np.array([[4.0], [4.0]])
    out = yours(query, latents, w_uk, w_uv)
    yours(*_latent_inputs(rng, 3, 5, 4, 2, 7))  # which distinguishes more mistakes
    same(out, np.array([[7.0]]), "out, for the weights ¾ and ¼,", "head width")


@absorbed_attention.check(weight=2)
def each_step_for_several_heads(yours, rng):
    for sizes in ((4, 6, 5, 2, 3), (2, 5, 3, 4, 4)):
        same_steps(yours, absorbed_attention, *_latent_inputs(rng, *sizes))


@absorbed_attention.check
def what_tap_returns_is_used(yours, rng):
    tap_is_used(yours, absorbed_attention, *_latent_inputs(rng, 3, 5, 4, 2, 3))


def _latent_inputs(rng, h, s, c, d, dv):
    shapes = (h, d), (s, c), (c, h * d), (c, h * dv)
    return [rng.standard_normal(shape) for shape in shapes]


@task(chapter=15, difficulty=2, minutes=20, given=(softmax_rows,), hints=(
    "Do it in two steps: attention of the new queries to all keys at hand, those in the cache and "
    "the new ones, under a mask that compares positions; then decide what to keep.",
    "The distance between a query and a key is the difference of their positions. A key is "
    "visible if the distance is at least 0 and below window, or if its position is below sinks "
    "and not later than the query. The next query is at n = start + N. It sees n − window + 1 and "
    "what follows; later queries see less. The sinks stay.",
    "new = start + np.arange(N); at is the cached positions and new, side by side; distance = "
    "new[:, None] - at; visible = (distance >= 0) & ((distance < window) | (at < sinks)); kept = "
    "(at > start + N - window) | (at < sinks).",
))  # fmt: skip
def windowed_step(query, key, value, start, cache, window, sinks):
    """Attention of N new tokens in a window, with a cache that forgets what no later query sees.

    query, key     (N, D), of the new tokens, and value (N, Dv)
    start          the position of the first new token, counted from 0
    cache          (keys (S, D), values (S, Dv), positions (S,)): what is held of earlier tokens
    window, sinks  a query at position t sees the keys at t − window + 1 … t, and those at 0 …
                   sinks − 1, but no key later than t
    Returns out (N, Dv) with scores q · k / √D, and the new cache: of all tokens so far, only those
    that a query at position start + N or later will see, in the order of their positions.
    """
    # BEGIN SOLUTION: return out and the new cache
    new = start + np.arange(len(query))
    keys, values, at = (np.concatenate(x) for x in zip(cache, (key, value, new), strict=True))
    distance = new[:, None] - at
    visible = (distance >= 0) & ((distance < window) | (at < sinks))
    scores = query @ keys.T / query.shape[-1] ** 0.5
    out = softmax_rows(np.where(visible, scores, -np.inf)) @ values
    kept = (at > start + len(query) - window) | (at < sinks)
    return out, (keys[kept], values[kept], at[kept])
    # END SOLUTION


@windowed_step.check
def two_tokens_in_a_window_of_one(yours, rng):
    query, key, value = (np.array(x)[:, None] for x in ([np.log(3), 0.0], [1.0, 0], [8.0, 4.0]))
    held = [(key[:sinks], value[:sinks], np.arange(sinks)) for sinks in (0, 1)]
    found = [yours(query[1:], key[1:], value[1:], 1, held[sinks], 1, sinks) for sinks in (0, 1)]
    first, new = rng.standard_normal((2, 3, 5, 2))  # this distinguishes more mistakes
    yours(*new, 5, (first[0], first[1], np.arange(5)), 4, 2)
    for sinks, expected in ((0, 4.0), (1, 6.0)):
        right = np.array([[expected]]), held[sinks]
        _same_step(found[sinks], right, f" for the second token, window 1, sinks {sinks}")


def _same_runs(yours, rng, *runs):
    """Compare runs of several calls. Each call gets the right cache of the one before."""
    compared = []
    for sizes, window, sinks in runs:
        cache, start = (np.zeros((0, 3)), np.zeros((0, 2)), np.arange(0)), 0
        for n in sizes:
            new = rng.standard_normal((n, 3)), rng.standard_normal((n, 3))
            arguments = *new, rng.standard_normal((n, 2)), start, cache, window, sinks
            when = f" for tokens {start} to {start + n - 1}, window {window}, sinks {sinks}"
            right = windowed_step(*arguments)
            compared.append((yours(*arguments), right, when))
            cache, start = right[1], start + n
    for found, right, when in compared:
        _same_step(found, right, when)


_SINGLY = ([1] * 8, 3, 0), ([1] * 8, 1, 0), ([1] * 8, 3, 2), ([1] * 8, 2, 1)
windowed_step.case("one token at a time", _same_runs, _SINGLY)
_PIECES = ((4, 1, 5, 3), 3, 0), ((1, 6, 2, 4), 4, 2), ((5, 3), 1, 1)
windowed_step.case("several tokens at a time", _same_runs, _PIECES, weight=2)
_SHORT = ((2, 1, 3), 9, 3), ((2, 1, 4, 3), 2, 5)
windowed_step.case("nothing to forget yet", _same_runs, _SHORT, hidden=True)


def _same_step(found, right, when):
    parts = named(found, ("out", "the new cache"), "windowed_step")
    cache = named(parts["the new cache"], ("keys", "values", "positions"), "the new cache")
    same(parts["out"], right[0], f"out{when}", "query width")
    tip = f"the cache should hold the positions {right[1][2].tolist()}"
    same(cache["positions"], right[1][2], f"positions in the cache{when}", advice=tip)
    for name, held in zip(("keys", "values"), right[1], strict=False):
        same(cache[name], held, f"{name} in the cache{when}")


@task(chapter=15, difficulty=3, minutes=30, hints=(
    "u_t contains the state that position t finds: the one before the chunk and what was written "
    "since, S + Σ k_jᵀ u_j over j < t. Put this into u_t, and bring all u to one side. The "
    "pullback starts with that of a solution of linear equations, which the text derives.",
    "With L = tril(K Kᵀ, −1) and E = V − K S, the equations are (I + diag(β) L) U = diag(β) E. "
    "The pullback first solves (I + diag(β) L)ᵀ dR = dU. Then β_t multiplies row t of E − L U, so "
    "dβ_t = Σ dR (E − L U), and G = diag(β) dR is the gradient of E − L U, which goes to V, K, S, "
    "and L. K is twice in K Kᵀ.",
    "lower = np.tril(key @ key.T, -1); rest = value - key @ state; a = np.eye(T) + beta[:, None] * "
    "lower; u = np.linalg.solve(a, beta[:, None] * rest). In the pullback dr = "
    "np.linalg.solve(a.T, du); dvalue = beta[:, None] * dr; dlower = -np.tril(dvalue @ u.T, -1); "
    "dkey = (dlower + dlower.T) @ key - dvalue @ state.T; dbeta = (dr * (rest - lower @ "
    "u)).sum(axis=1); dstate = -key.T @ dvalue.",
))  # fmt: skip
def delta_writes(key, value, beta, state):
    """What the delta rule writes in a chunk of T positions, all at once, and the pullback.

    key    (T, D)
    value  (T, Dv)
    beta   (T,), between 0 and 1
    state  S (D, Dv), before the chunk
    Position t writes u_t = β_t (v_t − k_t S), where S already contains the writes of the earlier
    positions, and adds k_tᵀ u_t to S. Here k_t, v_t and u_t are rows.
    Returns u (T, Dv), and a function that takes du (T, Dv) and returns a tuple of four gradients,
    (dkey, dvalue, dbeta, dstate).
    """
    # BEGIN SOLUTION: return u and its pullback
    lower = np.tril(key @ key.T, -1)
    rest = value - key @ state
    a = np.eye(len(key)) + beta[:, None] * lower
    u = np.linalg.solve(a, beta[:, None] * rest)

    def pullback(du):
        dr = np.linalg.solve(a.T, du)
        dvalue = beta[:, None] * dr
        dlower = -np.tril(dvalue @ u.T, -1)
        dkey = (dlower + dlower.T) @ key - dvalue @ state.T
        dbeta = (dr * (rest - lower @ u)).sum(axis=1)
        return dkey, dvalue, dbeta, -key.T @ dvalue

    return u, pullback
    # END SOLUTION


_DELTA_AXES = ["position width", "position value", "position", "width value"]


def _same_writes(yours, rng, sizes, many, silent=0):
    """Compare the operation; this many positions have beta 0."""
    inputs, large = _delta_inputs(rng, *sizes), _delta_inputs(rng, *many)
    inputs[2][:silent] = 0
    same_operation(yours, delta_writes, *inputs, large=large, name="u", axes=_DELTA_AXES)


_MANY = 180, 110, 60
delta_writes.case("one position", _same_writes, ((1, 3, 2), (1, 400, 300)))
delta_writes.case("two positions", _same_writes, ((2, 3, 4), (2, 400, 300)))
delta_writes.case("a chunk", _same_writes, ((5, 3, 2), _MANY), ((4, 6, 7), _MANY), weight=3)
_SILENT = (4, 3, 2), _MANY, 2
delta_writes.case("a position with beta 0 writes nothing", _same_writes, _SILENT, hidden=True)


def _delta_inputs(rng, t, d, dv):
    """Keys of length 1, values, beta and the state."""
    key, value = rng.standard_normal((t, d)), rng.standard_normal((t, dv))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    return [key, value, rng.uniform(0.1, 0.9, t), rng.standard_normal((d, dv))]


@task(chapter=15, difficulty=2, minutes=10, hints=(
    "Go through the drafted tokens in order, and stop at the first one that is rejected.",
    "Token x at place i is accepted if uniform[i] < p[i, x] / q[i, x]. After a rejection at place "
    "n the distribution is max(0, p[n] − q[n]), divided by its sum. If all are accepted, it is "
    "p[k], at the place after the last drafted token.",
    "for n, x in enumerate(drafted): if uniform[n] * q[n, x] >= p[n, x]: rest = np.maximum(p[n] - "
    "q[n], 0); return n, rest / rest.sum(). After the loop, return len(drafted), p[-1].",
))  # fmt: skip
def accept_or_reject(p, q, drafted, uniform):
    """How many drafted tokens are accepted, and the distribution of the token after them.

    p        (k + 1, V), the probabilities of all tokens, given by the large model at k + 1 places
    q        (k, V), those given by the small model at the first k places
    drafted  (k,), the token that was drawn from q at each of these places
    uniform  (k,), random numbers, 0 ≤ uniform < 1. Drafted token x at place i is accepted if
             uniform[i] is below p/q, the ratio of its probabilities at place i; the first
             rejected token and all tokens after it are dropped
    Returns n, the number of accepted tokens, and the probabilities (V,) from which to draw the
    token at place n. Then every token has the distribution p.
    """
    # BEGIN SOLUTION: return the number and the probabilities
    for n, x in enumerate(drafted):
        if uniform[n] * q[n, x] >= p[n, x]:
            rest = np.maximum(p[n] - q[n], 0)
            return n, rest / rest.sum()
    return len(drafted), p[-1]
    # END SOLUTION


@accept_or_reject.check
def a_vocabulary_of_two_worked_by_hand(yours, rng):
    p, q = np.array([[3 / 4, 1 / 4], [1 / 2, 1 / 2]]), np.array([[1 / 2, 1 / 2]])
    cases = [(0, 0.9, 1, [0.5, 0.5]), (1, 0.4, 1, [0.5, 0.5]), (1, 0.6, 0, [1.0, 0.0])]
    found = [yours(p, q, np.array([x]), np.array([r])) for x, r, *_ in cases]
    more = rng.dirichlet(np.ones(4), 2), rng.dirichlet(np.ones(4), 1)
    yours(*more, (more[0][:1] / more[1]).argmin(axis=1), np.array([0.99]))
    for (x, r, *right), mine in zip(cases, found, strict=True):
        _same_judgement(mine, right, f" for token {x} and the random number {r}")


def _same_rounds(yours, rng, *rounds):
    """Compare rounds in which this many of k drafted tokens are accepted."""
    compared = []
    for accepted, k in rounds:
        p, q = rng.dirichlet(np.ones(5), k + 1), rng.dirichlet(np.ones(5), k)
        ratios = p[:k] / q
        least = ratios.min(axis=1)  # below 1, so that the token can be rejected
        rejected = np.isin(np.arange(k), (accepted, accepted + 2))
        uniform = np.where(rejected, (1 + least) / 2, 0.7 * least)
        arguments = p, q, ratios.argmin(axis=1), uniform
        when = f" with {accepted} of {k} accepted"
        compared.append((yours(*arguments), accept_or_reject(*arguments), when))
    for found, right, when in compared:
        _same_judgement(found, right, when)


_ROUNDS = (0, 4), (2, 5), (3, 4), (4, 4)
accept_or_reject.case("the first rejection ends the round", _same_rounds, _ROUNDS, weight=2)


@accept_or_reject.check(hidden=True)
def what_the_large_model_excludes_is_never_accepted(yours, rng):
    p, q = np.array([[0.0, 0.2, 0.8], [0.5, 0.5, 0]]), np.array([[0.6, 0.3, 0.1]])
    arguments = p, q, np.array([0]), np.array([0.0])
    when = " for a token with p = 0 and the random number 0"
    _same_judgement(yours(*arguments), accept_or_reject(*arguments), when)


def _same_judgement(found, right, when):
    parts = named(found, ("n", "the distribution"), "accept_or_reject")
    for (name, part), expected in zip(parts.items(), right, strict=True):
        same(part, np.asarray(expected), f"{name}{when}", "token" if name != "n" else None)
