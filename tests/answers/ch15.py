"""Chapter 15: latent vectors, windows, the delta rule, speculative decoding."""

# fmt: off
from . import right, wrong

loop, blocks, batched = right("absorbed_attention", '''
def absorbed_attention(query, latents, w_uk, w_uv, *, tap=lambda name, x: x):
    H, D = query.shape
    Dv = w_uv.shape[1] // H
    absorbed = np.stack([query[i] @ w_uk[:, i * D : (i + 1) * D].T for i in range(H)])
    absorbed = tap("absorbed", absorbed)
    scores = absorbed @ latents.T / D ** 0.5
    mean = tap("mean", softmax_rows(scores) @ latents)
    return np.stack([mean[i] @ w_uv[:, i * Dv : (i + 1) * Dv] for i in range(H)])
''', '''
def absorbed_attention(query, latents, w_uk, w_uv, *, tap=lambda name, x: x):
    # one product with a block-diagonal matrix of queries, and the diagonal blocks of one with values
    H, D = query.shape
    spread = np.kron(np.eye(H), np.ones((1, D))) * np.tile(query, (1, H))
    absorbed = tap("absorbed", spread @ w_uk.T)
    e = np.exp(absorbed @ latents.T * D ** -0.5)
    mean = tap("mean", e @ latents / e.sum(-1)[:, None])
    all_pairs = (mean @ w_uv).reshape(H, H, -1)
    return all_pairs[np.arange(H), np.arange(H)]
''', '''
def absorbed_attention(query, latents, w_uk, w_uv, *, tap=lambda name, x: x):
    heads, width = query.shape
    up_k = np.stack(np.split(w_uk, heads, axis=1))
    up_v = np.stack(np.split(w_uv, heads, axis=1))
    absorbed = tap("absorbed", (query[:, None] @ up_k.mT)[:, 0])
    weights = softmax_rows((latents @ absorbed.T).T / np.sqrt(width))
    mean = tap("mean", np.tensordot(weights, latents, axes=1))
    return (mean[:, None] @ up_v)[:, 0]
''')
loop.wrong("the scale missing", r"not divided by √D", " / D ** 0.5", "")
loop.wrong("divided by D", r"√|factor|times", "D ** 0.5", "D")
loop.wrong("divided by the root of C", r"√C", "D ** 0.5", "latents.shape[1] ** 0.5")
loop.wrong("scaled before tap", r"absorbed is wrong.*1/√\d times", 'absorbed = tap("absorbed", absorbed)', 'absorbed = tap("absorbed", absorbed / D ** 0.5)', " / D ** 0.5\n    mean", "\n    mean")
loop.wrong("every H-th column of w_uk", r"every H-th column", "w_uk[:, i * D : (i + 1) * D]", "w_uk[:, i::H]")
loop.wrong("every H-th column of w_uv", r"every H-th column", "w_uv[:, i * Dv : (i + 1) * Dv]", "w_uv[:, i::H]")
batched.wrong("reshaped straight to heads", r"reshape straight|mixes", "np.stack(np.split(w_uk, heads, axis=1))", "w_uk.reshape(heads, -1, width)")
batched.wrong("w_uv reshaped straight to heads", r"reshape straight|mixes", "np.stack(np.split(w_uv, heads, axis=1))", "w_uv.reshape(heads, len(w_uv), -1)")
blocks.wrong("heads added up", r"heads are mixed", "all_pairs[np.arange(H), np.arange(H)]", "all_pairs.sum(axis=0)")
loop.wrong("tap ignored", r"continue with", 'absorbed = tap("absorbed", absorbed)', 'tap("absorbed", absorbed)')
loop.wrong("no softmax", r"softmax|mean is wrong|sum", "softmax_rows(scores)", "scores")
wrong("absorbed_attention", "keys and values are made", r"does not pass absorbed to tap", """
def absorbed_attention(query, latents, w_uk, w_uv, *, tap=lambda name, x: x):
    H, D = query.shape
    keys = (latents @ w_uk).reshape(len(latents), H, D)
    values = (latents @ w_uv).reshape(len(latents), H, -1)
    weights = softmax_rows(np.einsum("hd,shd->hs", query, keys) / D ** 0.5)
    return np.einsum("hs,shv->hv", weights, values)
""")

SEEN = "(gap >= 0) & ((gap < window) | (at < sinks))"
masked, queries, places = right("windowed_step", '''
def windowed_step(query, key, value, start, cache, window, sinks):
    N, D = query.shape
    mine = np.arange(start, start + N)
    K = np.vstack([cache[0], key])
    V = np.vstack([cache[1], value])
    at = np.append(cache[2], mine)
    gap = mine[:, None] - at[None, :]
    seen = (gap >= 0) & ((gap < window) | (at < sinks))
    out = softmax_rows(np.where(seen, query @ K.T / D ** 0.5, -np.inf)) @ V
    keep = (at >= start + N - window + 1) | (at < sinks)
    return out, (K[keep], V[keep], at[keep])
''', '''
def windowed_step(query, key, value, start, cache, window, sinks):
    # one query after the other, each with the list of keys that it sees
    held = dict(zip(cache[2].tolist(), zip(*cache[:2])))
    outs = []
    for n in range(len(query)):
        t = start + n
        held[t] = key[n], value[n]
        for old in list(held):
            if old >= sinks and t - old >= window:
                del held[old]
        K, V = (np.array(x) for x in zip(*held.values()))
        scores = K @ query[n] / len(query[n]) ** 0.5
        e = np.exp(scores - scores.max())
        outs.append(e @ V / e.sum())
    last = start + len(query) - window
    for old in list(held):
        if old >= sinks and old <= last:
            del held[old]
    K = np.array([k for k, _ in held.values()]).reshape(-1, key.shape[1])
    V = np.array([v for _, v in held.values()]).reshape(-1, value.shape[1])
    return np.array(outs), (K, V, np.array(list(held), dtype=int))
''', '''
def windowed_step(query, key, value, start, cache, window, sinks):
    # places in the cache in place of positions: between what it holds, only hidden keys are missing
    S, N = len(cache[0]), len(query)
    K, V = np.concatenate([cache[0], key]), np.concatenate([cache[1], value])
    at = np.concatenate([cache[2], np.arange(start, start + N)])
    i, j = np.ogrid[S : S + N, : S + N]
    hidden = (j > i) | ((j <= i - window) & (j >= sinks))
    scores = query @ K.T / np.sqrt(query.shape[1])
    scores[hidden] = -np.inf
    first = max(min(sinks, S + N), S + N - window + 1)
    kept = np.r_[: min(sinks, S + N), first : S + N]
    return softmax_rows(scores) @ V, (K[kept], V[kept], at[kept])
''')
masked.wrong("a window too long", r"one key too many", "gap < window", "gap <= window")
masked.wrong("a window too short", r"one key too few", "gap < window", "gap < window - 1")
masked.wrong("no causal mask", r"later tokens", SEEN, "(gap < window) | (at < sinks)")
masked.wrong("one sink too many is visible", r"one sink too many", SEEN, "(gap >= 0) & ((gap < window) | (at <= sinks))")
masked.wrong("sinks hidden", r"sinks are hidden", SEEN, "(gap >= 0) & (gap < window)")
masked.wrong("sinks seen before they come", r"before it|no key later", SEEN, "(gap >= 0) & (gap < window) | (at < sinks)")
masked.wrong("new tokens at 0", r"start at 0", "np.arange(start, start + N)", "np.arange(N)")
masked.wrong("one position too many kept", r"too many is kept", "- window + 1", "- window")
masked.wrong("one position too few kept", r"too few is kept", "- window + 1", "- window + 2")
masked.wrong("kept for the new queries", r"only the new queries saw", "start + N - window + 1", "start - window + 1")
masked.wrong("sinks evicted", r"sinks are evicted", "(at >= start + N - window + 1) | (at < sinks)", "at >= start + N - window + 1")
masked.wrong("one sink too many kept", r"one sink too many", "window + 1) | (at < sinks)", "window + 1) | (at <= sinks)")
masked.wrong("the scale missing", r"√D", " / D ** 0.5", "")
masked.wrong("nothing evicted", r"evict|still holds", "(at >= start + N - window + 1) | (at < sinks)", "at >= 0")
masked.wrong("the cache replaced", r"wrong shape", "(K[keep], V[keep], at[keep])", "(key, value, mine)")
masked.wrong("evicted first", r"before the new queries attend", "    gap = mine", "    early = (at > start + N - window) | (at < sinks)\n    K, V, at = K[early], V[early], at[early]\n    gap = mine")
masked.wrong("no positions", r"positions", "(K[keep], V[keep], at[keep])", "(K[keep], V[keep])")
places.wrong("sinks in the window kept twice", r"wrong shape|twice|negative|positions", "max(min(sinks, S + N), S + N - window + 1)", "max(0, S + N - window + 1)")

solved, looped, inverse = right("delta_writes", '''
def delta_writes(key, value, beta, state):
    T = len(key)
    B = np.diag(beta)
    L = np.tril(key @ key.T, -1)
    A = np.eye(T) + B @ L
    E = value - key @ state
    u = np.linalg.solve(A, B @ E)

    def pullback(du):
        dR = np.linalg.solve(A.T, du)
        G = B @ dR
        dA = -dR @ u.T
        dL = np.tril(B @ dA, -1)
        dkey = dL @ key + dL.T @ key - G @ state.T
        dbeta = np.sum(dR * E, axis=1) + np.sum(dA * L, axis=1)
        return dkey, G, dbeta, -key.T @ G

    return u, pullback
''', '''
def delta_writes(key, value, beta, state):
    # position by position, and back through the states
    states, writes = [state], []
    for k, v, b in zip(key, value, beta):
        writes.append(b * (v - k @ states[-1]))
        states.append(states[-1] + np.outer(k, writes[-1]))
    u = np.array(writes)

    def pullback(du):
        dkey, dvalue, dbeta = np.zeros_like(key), np.zeros_like(value), np.zeros_like(beta)
        dstate = np.zeros_like(state)
        for t in reversed(range(len(key))):
            dw = du[t] + key[t] @ dstate
            dkey[t] = dstate @ u[t]
            dbeta[t] = dw @ (value[t] - key[t] @ states[t])
            dvalue[t] = beta[t] * dw
            dkey[t] -= states[t] @ dvalue[t]
            dstate = dstate - np.outer(key[t], dvalue[t])
        return dkey, dvalue, dbeta, dstate

    return u, pullback
''', '''
def delta_writes(key, value, beta, state):
    # forward substitution, and the inverse as a matrix
    T = len(key)
    below = (key @ key.T) * (np.arange(T)[:, None] > np.arange(T))
    inverse = np.eye(T, dtype=(key * beta[:, None]).dtype)
    for t in range(1, T):
        inverse[t, :t] = -beta[t] * below[t, :t] @ inverse[:t, :t]
    found = value - key @ state
    u = inverse @ (beta[:, None] * found)

    def pullback(du):
        dr = inverse.T @ du
        g = dr * beta[:, None]
        c = np.einsum("tv,jv->tj", g, u) * (below != 0)
        dkey = -np.einsum("tj,jd->td", c, key) - np.einsum("tj,td->jd", c, key) - g @ state.T
        return dkey, g, np.einsum("tv,tv->t", dr, found - below @ u), -(key.T @ g)

    return u, pullback
''')
solved.wrong("its own write is in the state", r"own write", "key.T, -1)\n    A", "key.T)\n    A")
solved.wrong("earlier writes added", r"earlier writes are added", "np.eye(T) + B @ L", "np.eye(T) - B @ L")
solved.wrong("no beta in the matrix", r"β is missing in the matrix", "np.eye(T) + B @ L", "np.eye(T) + L")
solved.wrong("beta times columns", r"columns of L", "np.eye(T) + B @ L", "np.eye(T) + L @ B")
solved.wrong("the state before the chunk for all", r"before the chunk", "np.eye(T) + B @ L", "np.eye(T)")
solved.wrong("no beta on the right", r"right-hand side", "np.linalg.solve(A, B @ E)", "np.linalg.solve(A, E)")
solved.wrong("the inverse of first order", r"only for two positions", "np.linalg.solve(A, B @ E)", "(np.eye(T) - B @ L) @ B @ E")
solved.wrong("no state", r"state before the chunk is missing", "E = value - key @ state", "E = value")
solved.wrong("the same matrix in the pullback", r"same matrix", "np.linalg.solve(A.T, du)", "np.linalg.solve(A, du)")
solved.wrong("du for dR", r"first solve", "np.linalg.solve(A.T, du)", "du")
solved.wrong("the sign of the gradient of L", r"wrong sign", "dL = np.tril(B @ dA, -1)", "dL = -np.tril(B @ dA, -1)")
solved.wrong("all of K Kᵀ", r"lower triangle", "dL = np.tril(B @ dA, -1)", "dL = B @ dA")
solved.wrong("K once", r"twice", "dL @ key + dL.T @ key", "dL @ key")
solved.wrong("no path through K S", r"K S", " - G @ state.T", "")
solved.wrong("no path through L", r"through L", "dL @ key + dL.T @ key - G", "-G")
solved.wrong("no path from beta through the matrix", r"through the matrix", " + np.sum(dA * L, axis=1)", "")
solved.wrong("beta counted twice", r"contains β|times too large", "np.sum(dR * E, axis=1) + np.sum(dA * L, axis=1)", "np.sum(dR * u, axis=1)")
solved.wrong("dvalue without beta", r"factor", "        return dkey, G, dbeta", "        return dkey, dR, dbeta")
solved.wrong("the sign of dstate", r"sign", "-key.T @ G", "key.T @ G")
solved.wrong("divided by beta", r"NaN|beta|0", "np.sum(dR * E, axis=1) + np.sum(dA * L, axis=1)", "np.sum(dR * u, axis=1) / beta")
looped.wrong("the state only at the start", r"before the chunk", "k @ states[-1]))", "k @ state))")

first, together = right("accept_or_reject", '''
def accept_or_reject(p, q, drafted, uniform):
    n = 0
    while n < len(drafted):
        x = drafted[n]
        if not uniform[n] < p[n, x] / q[n, x]:
            break
        n += 1
    if n == len(drafted):
        return n, p[n]
    rest = np.where(p[n] > q[n], p[n] - q[n], 0.0)
    return n, rest / np.sum(rest)
''', '''
def accept_or_reject(p, q, drafted, uniform):
    # all places at once; q of the last place is 0, where nothing was drafted
    k = len(drafted)
    ratios = p[np.arange(k), drafted] / q[np.arange(k), drafted]
    rejected = np.append(uniform >= np.minimum(ratios, 1), True)
    n = int(np.argmax(rejected))
    rest = (p - np.vstack([q, np.zeros_like(p[:1])])).clip(min=0)[n]
    return n, rest / rest.sum()
''')
ACCEPTED = "uniform[n] < p[n, x] / q[n, x]"
REST = "np.where(p[n] > q[n], p[n] - q[n], 0.0)"
first.wrong("only if p is larger", r"always rejected", ACCEPTED, "p[n, x] >= q[n, x]")
first.wrong("with probability p", r"with probability p", ACCEPTED, "uniform[n] < p[n, x]")
first.wrong("the fraction turned over", r"turned over", ACCEPTED, "uniform[n] < q[n, x] / p[n, x]")
first.wrong("exchanged", r"exchanged", "if not uniform", "if uniform")
first.wrong("p = 0 accepted", r"p = 0", ACCEPTED, "uniform[n] <= p[n, x] / q[n, x]")
first.wrong("drawn from p", r"drawn from p", REST, "p[n]")
first.wrong("what is too often", r"exchanged after a rejection", REST, "np.where(q[n] > p[n], q[n] - p[n], 0.0)")
first.wrong("absolute differences", r"\|p − q\|", REST, "abs(p[n] - q[n])")
first.wrong("negative differences", r"negative", REST, "p[n] - q[n]")
first.wrong("p without the rejected token", r"without the rejected", REST, "np.where(np.arange(len(p[n])) == x, 0, p[n])")
first.wrong("not normalised", r"sum to 1", "rest / np.sum(rest)", "rest")
first.wrong("the rejected one counted", r"counted as accepted", "return n, rest", "return n + 1, rest")
first.wrong("the place before", r"place of the last drafted", "return n, p[n]", "return n, p[n - 1]")
first.wrong("drawn tokens", r"wrong shape", "return n, rest / np.sum(rest)", "return n, int(np.argmax(rest))")
first.wrong("the number alone", r"return n, the distribution|should return", "return n, p[n]", "return n", "return n, rest / np.sum(rest)", "return n")
together.wrong("accepted after a rejection", r"after a rejection are counted", "int(np.argmax(rejected))", "int((~rejected).sum())")
