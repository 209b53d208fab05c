"""Chapter 11: speed."""

# fmt: off
from . import right, wrong

online, *_ = right("online_softmax", """
def online_softmax(m, l, acc, scores, value):
    m_new = np.maximum(m, scores.max(axis=1))
    base = np.where(np.isinf(m_new), 0, m_new)
    alpha = np.exp(m - base)
    p = np.exp(scores - base[:, None])
    return m_new, alpha * l + p.sum(axis=1), alpha[:, None] * acc + p @ value
""", """
def online_softmax(m, l, acc, scores, value):
    m2, l2, acc2 = m.copy(), l.copy(), acc.copy()
    for i, row in enumerate(scores):
        top = max(m[i], row.max())
        if top == -np.inf:
            continue
        old = np.exp(m[i] - top)
        e = np.exp(row - top)
        m2[i] = top
        l2[i] = old * l[i] + e.sum()
        acc2[i] = old * acc[i] + e @ value
    return m2, l2, acc2
""", """
def online_softmax(m, l, acc, scores, value):
    everything = np.concatenate([m[:, None], scores], axis=-1)
    new = everything.max(axis=-1, keepdims=True)
    seen = new > -np.inf
    e = np.exp(everything - np.where(seen, new, 0))
    l = (e * np.concatenate([l[:, None], np.ones_like(scores)], axis=-1)).sum(-1)
    acc = e[:, :1] * acc + np.einsum("tn,nv->tv", e[:, 1:], value)
    return new[:, 0], l, acc
""", """
def online_softmax(m, l, acc, scores, value):
    # the block by itself, then the two states merged
    def state(s):
        top = s.max(-1)
        e = np.exp(s - np.nan_to_num(top, neginf=0.0)[:, np.newaxis])
        return top, e.sum(-1), e @ value
    bm, bl, bacc = state(scores)
    new = np.maximum(m, bm)
    zero = np.nan_to_num(new, neginf=0.0)
    a, b = np.exp(m - zero), np.exp(bm - zero)
    return new, a * l + b * bl, a[:, None] * acc + b[:, None] * bacc
""", """
def online_softmax(m, l, acc, scores, value):
    for j in range(scores.shape[1]):
        s = scores[:, j]
        new = np.maximum(m, s)
        live = new > -np.inf
        old = np.exp(m - new, where=live, out=np.zeros_like(m))
        p = np.exp(s - new, where=live, out=np.zeros_like(m))
        l = l * old + p
        acc = acc * old[:, None] + np.outer(p, np.ones(len(value[j]))) * value[j]
        m = new
    return m, l, acc
""")
online.wrong("acc is not rescaled", r"rescal|scal(e|ed|ing)|factor|acc.*e\^|e\^.*acc",
    "alpha[:, None] * acc", "acc")
online.wrong("l is not rescaled", r"rescal|scal(e|ed|ing)|factor|l.*e\^\(|e\^\(.*l\b", "alpha * l", "l")
online.wrong("the factor upside down", r"invers|upside|reciprocal|sign|exp\(m|e\^\(m|exchang|swap",
    "np.exp(m - base)", "np.exp(np.where(np.isinf(m), 0, base - m))")
online.wrong("the maximum of the block alone", r"max.*(so far|old|before)|new maximum|larger of|block.*max|np\.maximum",
    "np.maximum(m, scores.max(axis=1))", "scores.max(axis=1)")
online.wrong("−∞ − −∞", r"−∞ ?[−-] ?\(?−∞|-inf ?- ?\(?-inf", "np.where(np.isinf(m_new), 0, m_new)", "m_new")
online.wrong("no maximum", r"overflow|subtract|without (the )?max|no maximum|measured against",
    "np.exp(m - base)", "np.where(np.isinf(m), 0.0, 1.0)", "scores - base[:, None]", "scores")
online.wrong("normalised in every block", r"divid|normali|/ ?l|after the last",
    "return m_new, alpha * l + p.sum(axis=1), alpha[:, None] * acc + p @ value",
    "l = alpha * l + p.sum(axis=1)\n    return m_new, l, (alpha[:, None] * acc + p @ value) / np.where(l == 0, 1, l)[:, None]")

forward, *_ = right("tiled_forward", """
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    T, S = len(query), len(key)
    out, lse = np.zeros((T, value.shape[1])), np.full(T, -np.inf)
    for i in range(0, T, block):
        r = slice(i, i + block)
        n = len(query[r])
        m, l, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))
        for j in range(0, S, block):
            c = slice(j, j + block)
            place = np.arange(S)[c]
            seen = (first[r, None] <= place) & (place <= last[r, None])
            if not seen.any():
                continue
            scores = tap("scores", scale * (query[r] @ key[c].T))
            scores = np.where(seen, scores, -np.inf)
            m, l, acc = online_softmax(m, l, acc, scores, value[c])
        some = l > 0
        out[r][some] = acc[some] / l[some, None]
        lse[r][some] = m[some] + np.log(l[some])
    return out, lse
""", """
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    T, S = query.shape[0], key.shape[0]
    m = np.full(T, -np.inf)
    l = np.zeros(T)
    acc = np.zeros((T, value.shape[-1]))
    for j in range(0, S, block):          # keys outside, queries inside
        j1 = min(j + block, S)
        k, v = key[j:j1], value[j:j1]
        for i in range(0, T, block):
            i1 = min(i + block, T)
            cols = np.arange(j, j1)[None, :]
            mask = (cols >= first[i:i1, None]) & (cols <= last[i:i1, None])
            if mask.any():
                s = tap("scores", np.einsum("td,sd->ts", query[i:i1], k) * scale)
                s = np.where(mask, s, -np.inf)
                m[i:i1], l[i:i1], acc[i:i1] = online_softmax(m[i:i1], l[i:i1], acc[i:i1], s, v)
    empty = l == 0
    safe = np.where(empty, 1.0, l)
    return acc / safe[:, None], np.where(empty, -np.inf, m + np.log(safe))
""", """
def _tiles(n, block):
    return [np.arange(a, min(a + block, n)) for a in range(0, n, block)]

def _row_block(q, key, value, scale, lo, hi, block, tap):
    state = np.full(len(q), -np.inf), np.zeros(len(q)), np.zeros((len(q), value.shape[1]))
    for cols in _tiles(len(key), block):
        hidden = (cols < lo[:, None]) | (cols > hi[:, None])
        if hidden.all():
            continue
        s = tap("scores", scale * q @ key[cols].T).copy()
        s[hidden] = -np.inf
        state = online_softmax(*state, s, value[cols])
    m, l, acc = state
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(acc / l[:, None]), np.where(l > 0, m + np.log(l), -np.inf)

def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    parts = [_row_block(query[r], key, value, scale, first[r], last[r], block, tap)
             for r in _tiles(len(query), block)]
    outs, lses = zip(*parts)
    return np.concatenate(outs), np.concatenate(lses)
""", """
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    T, S, Dv = query.shape[0], key.shape[0], value.shape[1]
    out = np.zeros((T, Dv))
    lse = np.full((T,), -np.inf)
    for i in range(0, T, block):
        for j in range(0, S, block):
            q, k, v = query[i : i + block], key[j : j + block], value[j : j + block]
            cols = j + np.arange(len(k))
            see = np.logical_and(first[i : i + block, None] <= cols, cols <= last[i : i + block, None])
            if see.any() == False:
                continue
            s = tap("scores", scale * q @ k.T)
            s = np.where(see, s, -np.inf)
            top = s.max(1)
            ok = top > -np.inf
            top = np.where(ok, top, 0)
            e = np.exp(s - top[:, None])
            n = e.sum(1)
            tile_lse = np.where(ok, top + np.log(np.where(ok, n, 1)), -np.inf)
            tile_out = e @ v / np.where(ok, n, 1)[:, None]
            old = lse[i : i + block]
            new = np.logaddexp(old, tile_lse)
            ref = np.where(new == -np.inf, 0, new)
            a, b = np.exp(old - ref), np.exp(tile_lse - ref)
            out[i : i + block] = a[:, None] * out[i : i + block] + b[:, None] * tile_out
            lse[i : i + block] = new
    return out, lse
""", """
import math

def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    T, S = query.shape[0], key.shape[0]
    q = query * scale
    out, lse = [], []
    for bi in range(math.ceil(T / block)):
        rows = range(bi * block, min(T, bi * block + block))
        m, l, acc = [np.full(len(rows), -np.inf), np.zeros(len(rows)), np.zeros((len(rows), value.shape[1]))]
        for bj in range(math.ceil(S / block)):
            cols = range(bj * block, min(S, bj * block + block))
            seen = np.array([np.isin(cols, range(first[i], last[i] + 1)) for i in rows])
            if seen.any():
                s = tap("scores", np.matmul(q[list(rows)], key[list(cols)].T))
                m, l, acc = online_softmax(m, l, acc, np.where(seen, s, -np.inf), value[list(cols)])
        for k in range(len(rows)):
            out.append(acc[k] / l[k] if l[k] else 0 * acc[k])
            lse.append(m[k] + math.log(l[k]) if l[k] else -np.inf)
    return np.array(out), np.array(lse)
""")
forward.wrong("scores without the scale", r"scale (is )?(missing|left|·|\*)|without (the )?scale|not scaled|unscaled|[·*] scale|scale.*missing|by scale",
    "scale * (query[r] @ key[c].T)", "query[r] @ key[c].T")
forward.wrong("the last key is not visible", r"≤|<=|last|one key|off by one|itself|diagonal",
    "place <= last", "place < last")
forward.wrong("out is not divided by l", r"divid|normali|not / l|without / l",
    "acc[some] / l[some, None]", "acc[some]")
forward.wrong("lse without the maximum", r"m is missing|without (the )?(m\b|max)|maximum|lacks|lse = m \+",
    "m[some] + np.log(l[some])", "np.log(l[some])")
forward.wrong("a row that sees nothing divides by 0", r"nothing|0 ?/ ?0|empty|NaN", "l > 0", "l > -1")
forward.wrong("first is ignored", r"first (is|has|was)|ignor|lower bound|before first|first ≤|≥ first|< first|window",
    "(first[r, None] <= place) & ", "")
forward.wrong("places counted from the start of each tile", r"first key of all|start of (the|each|its) tile|whole sequence|within (the|each|its) tile|absolute",
    "place = np.arange(S)[c]", "place = np.arange(len(key[c]))")
forward.wrong("computes tiles that are hidden", r"hidden|skip|nobody|empty|nothing",
    "if not seen.any():\n                continue", "pass")
forward.wrong("the last tile is forgotten", r"last (tile|block)|multiple|remain|rest|incomplete|left over",
    "range(0, S, block)", "range(0, S - S % block, block)")
wrong("tiled_forward", "all scores at once", r"tile|T · S|whole|all pairs|at once|where block is", """
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    place = np.arange(len(key))
    seen = (first[:, None] <= place) & (place <= last[:, None])
    s = np.where(seen, tap("scores", scale * query @ key.T), -np.inf)
    m = s.max(-1, keepdims=True)
    m = np.where(np.isinf(m), 0, m)
    e = np.exp(s - m)
    l = e.sum(-1, keepdims=True)
    one = np.where(l == 0, 1, l)
    return e @ value / one, np.where(l == 0, -np.inf, m + np.log(one))[:, 0]
""")

back, *_ = right("tiled_backward", """
def tiled_backward(query, key, value, out, lse, dout, scale, first, last, block, *, tap=lambda name, x: x):
    dquery, dkey, dvalue = np.zeros(query.shape), np.zeros(key.shape), np.zeros(value.shape)
    delta = (out * dout).sum(axis=1)
    base = np.where(np.isinf(lse), 0, lse)
    for i in range(0, len(query), block):
        r = slice(i, i + block)
        for j in range(0, len(key), block):
            c = slice(j, j + block)
            place = np.arange(len(key))[c]
            seen = (first[r, None] <= place) & (place <= last[r, None])
            if not seen.any():
                continue
            scores = np.where(seen, scale * (query[r] @ key[c].T), -np.inf)
            weights = tap("weights", np.exp(scores - base[r, None]))
            dweights = dout[r] @ value[c].T
            dscores = tap("dscores", weights * (dweights - delta[r, None]))
            dvalue[c] += weights.T @ dout[r]
            dquery[r] += scale * (dscores @ key[c])
            dkey[c] += scale * (dscores.T @ query[r])
    return dquery, dkey, dvalue
""", """
def tiled_backward(query, key, value, out, lse, dout, scale, first, last, block, *, tap=lambda name, x: x):
    T, S = query.shape[0], key.shape[0]
    dq, dk, dv = np.zeros_like(query), [], []
    D = np.einsum("tv,tv->t", out, dout)[:, None]
    q = scale * query
    for j in range(0, S, block):
        k, v = key[j : j + block], value[j : j + block]
        dkj, dvj = np.zeros_like(k), np.zeros_like(v)
        cols = np.arange(j, j + len(k))
        for i in range(0, T, block):
            rows = np.arange(i, min(i + block, T))
            mask = (cols >= first[rows][:, None]) & (cols <= last[rows][:, None])
            if mask.any():
                L = lse[rows][:, None]
                p = np.zeros(mask.shape)
                np.exp(q[rows] @ k.T - L, out=p, where=mask)
                p = tap("weights", p)
                ds = tap("dscores", p * (dout[rows] @ v.T - D[rows]))
                dvj += p.T @ dout[rows]
                dkj += ds.T @ q[rows]
                dq[rows] += ds @ k * scale
        dk.append(dkj)
        dv.append(dvj)
    return dq, np.concatenate(dk), np.concatenate(dv)
""", """
def _tile(q, k, v, g, lse, delta, seen, scale, tap):
    s = scale * np.einsum("td,sd->ts", q, k)
    p = np.where(seen, np.exp(np.where(seen, s - lse[:, None], 0)), 0)
    p = tap("weights", p)
    dp = np.einsum("tv,sv->ts", g, v)
    ds = tap("dscores", p * dp - p * delta[:, None])
    return scale * np.einsum("ts,sd->td", ds, k), scale * np.einsum("ts,td->sd", ds, q), np.einsum("ts,tv->sv", p, g)

def tiled_backward(query, key, value, out, lse, dout, scale, first, last, block, *, tap=lambda name, x: x):
    grads = [np.zeros(a.shape, a.dtype) for a in (query, key, value)]
    delta = np.sum(out * dout, -1)
    for i0 in range(0, query.shape[0], block):
        R = np.s_[i0 : i0 + block]
        for j0 in range(0, key.shape[0], block):
            C = np.s_[j0 : j0 + block]
            js = np.arange(j0, min(j0 + block, key.shape[0]))
            seen = np.greater_equal.outer(js, first[R]).T & np.less_equal.outer(js, last[R]).T
            if not np.any(seen):
                continue
            parts = _tile(query[R], key[C], value[C], dout[R], lse[R], delta[R], seen, scale, tap)
            for grad, where, part in zip(grads, (R, C, C), parts):
                grad[where] += part
    return tuple(grads)
""", """
def tiled_backward(query, key, value, out, lse, dout, scale, first, last, block, *, tap=lambda name, x: x):
    T, S = len(query), len(key)
    dquery = np.zeros((T, query.shape[1]))
    dkey = np.zeros((S, key.shape[1]))
    dvalue = np.zeros((S, value.shape[1]))
    for i in range(0, T, block):
        for j in range(0, S, block):
            q, o, g = query[i : i + block], out[i : i + block], dout[i : i + block]
            k, v = key[j : j + block], value[j : j + block]
            lo, hi = first[i : i + block], last[i : i + block]
            n = j + np.arange(len(k))
            seen = np.stack([(a <= n) * (n <= b) for a, b in zip(lo, hi)])
            if not seen.any():
                continue
            l = np.nan_to_num(lse[i : i + block], neginf=0)[:, None]
            p = tap("weights", np.exp(np.where(seen, scale * q @ k.T - l, -np.inf)))
            dp = g @ v.T
            ds = tap("dscores", p * (dp - (g * o).sum(axis=-1, keepdims=True)))
            dquery[i : i + block] = dquery[i : i + block] + scale * ds @ k
            dkey[j : j + block] = dkey[j : j + block] + scale * ds.T @ q
            dvalue[j : j + block] = dvalue[j : j + block] + p.T @ g
    return dquery, dkey, dvalue
""", """
import itertools

def tiled_backward(query, key, value, out, lse, dout, scale, first, last, block, *, tap=lambda name, x: x):
    T, S = query.shape[0], key.shape[0]
    delta = np.array([o.dot(g) for o, g in zip(out, dout)])
    dq, dk, dv = (0.0 * z for z in (query, key, value))
    for i, j in itertools.product(range(0, T, block), range(0, S, block)):
        rows, cols = list(range(T))[i : i + block], list(range(S))[j : j + block]
        hidden = np.less.outer(cols, first[rows]).T + np.greater.outer(cols, last[rows]).T
        if hidden.all():
            continue
        s = scale * query[rows] @ key[cols].T
        z = s - np.where(lse[rows] == -np.inf, 0, lse[rows])[:, None]
        z[hidden] = -np.inf
        w = tap("weights", np.exp(z))
        ds = tap("dscores", (dout[rows] @ value[cols].T - delta[rows][:, None]) * w)
        np.add.at(dq, rows, ds @ key[cols] * scale)
        np.add.at(dk, cols, ds.T @ query[rows] * scale)
        np.add.at(dv, cols, w.T @ dout[rows])
    return dq, dk, dv
""")
back.wrong("no scale in dquery and dkey", r"scale (is )?(missing|left|·|\*)|without (the )?scale|not scaled|[·*] scale|scale.*missing|(lack|miss).*scale",
    "scale * (dscores @ key[c])", "dscores @ key[c]",
    "scale * (dscores.T @ query[r])", "dscores.T @ query[r]")
back.wrong("delta from one tile", r"tile|out · dout|Σ ?out|whole row|all keys|dout · out|out \*|delta",
    "dweights - delta[r, None]", "dweights - (weights * dweights).sum(axis=1, keepdims=True)")
back.wrong("delta left out", r"delta|out · dout|subtract|Σ", "dweights - delta[r, None]", "dweights")
back.wrong("tiles overwrite dkey and dvalue", r"\+=|accumul|add|sum|overwr", "dvalue[c] +=", "dvalue[c] =",
    "dkey[c] +=", "dkey[c] =")
back.wrong("weights without lse", r"lse", "base[r, None]", "scores.max(axis=1, keepdims=True, initial=-1e9)")
back.wrong("dvalue from dscores", r"weights.* @|weightsᵀ|from dscores|dscores in|Pᵀ|by weights|with weights|weights, not",
    "weights.T @ dout[r]", "dscores.T @ dout[r]")
back.wrong("scale in dscores too", r"scale.*(twice|dscores|too)|twice|of the scaled scores|without (the )?scale",
    "tap(\"dscores\", weights * (dweights - delta[r, None]))",
    "tap(\"dscores\", scale * weights * (dweights - delta[r, None]))",
    "scale * (dscores @ key[c])", "dscores @ key[c]",
    "scale * (dscores.T @ query[r])", "dscores.T @ query[r]")
back.wrong("hidden keys keep their weights", r"hidden|mask|visible|first|last",
    "np.where(seen, scale * (query[r] @ key[c].T), -np.inf)", "scale * (query[r] @ key[c].T)")

online.wrong("adds the scores, not their exponentials", r"e\^|exp", "p.sum(axis=1)", "scores.sum(axis=1)")
online.wrong("returns the old maximum", r"old (m|max)|new max|m is|updated", "return m_new,", "return m,")
online.wrong("rescales the new block too", r"rescal|factor|new block|old sum|only", "alpha * l + p.sum(axis=1)", "alpha * (l + p.sum(axis=1))")
forward.wrong("starts afresh in every tile", r"reset|start|last tile|once|afresh|every tile|each tile", "            place = np", "            m, l, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))\n            place = np")
forward.wrong("no logarithm in lse", r"\blog|logarithm|\bln\b", "np.log(l[some])", "l[some]")
forward.wrong("hides what is visible", r"opposite|exchang|True|inverted|hidden|visible", "np.where(seen, scores, -np.inf)", "np.where(seen, -np.inf, scores)")
back.wrong("dquery from the weights", r"dscores|weights", "(dscores @ key[c])", "(weights @ key[c])")
back.wrong("one delta for all rows", r"each row|axis|every row|own", "(out * dout).sum(axis=1)", "np.full(len(out), (out * dout).sum())")
back.wrong("no scale in the scores", r"scale", "scale * (query[r] @ key[c].T)", "query[r] @ key[c].T")
back.wrong("tiles overwrite dquery", r"\+=|accumul|add|sum|overwr|last tile", "dquery[r] +=", "dquery[r] =")
online.wrong("one maximum for all rows", r"over all rows", "scores.max(axis=1)", "scores.max()")
online.wrong("two results", r"should return m, l, acc, not 2 values", "return m_new, alpha", "return alpha")
online.wrong("the maximum after exp", r"overflow|before exp", "np.exp(scores - base[:, None])", "np.exp(scores) * np.exp(-base)[:, None]")
forward.wrong("all scores, cut into tiles", r"array of all pairs", "scale * (query[r] @ key[c].T)", "(scale * query @ key.T)[r, c]")
forward.wrong("the output alone", r"should return out, lse", "return out, lse", "return out")
forward.wrong("lse 0 for a query that sees nothing", r"sees? nothing.*lse is −∞", "np.full(T, -np.inf)", "np.zeros(T)")
forward.wrong("no tap", r"tap is not called", "tap(\"scores\", scale * (query[r] @ key[c].T))", "scale * (query[r] @ key[c].T)")
forward.wrong("whole rows", r"a tile is at most", "range(0, S, block)", "[0]", "slice(j, j + block)", "slice(0, S)")
back.wrong("the gradients in another order", r"order|dquery", "return dquery, dkey, dvalue", "return dvalue, dquery, dkey")
back.wrong("NaN for a query that sees nothing", r"−∞|NaN|sees nothing", "np.where(np.isinf(lse), 0, lse)", "lse")
back.wrong("all scores, cut into tiles", r"array of all pairs", "scale * (query[r] @ key[c].T)", "(scale * query @ key.T)[r, c]")
back.wrong("no tile skipped", r"skip the others", "            if not seen.any():\n                continue\n", "")
back.wrong("no tap", r"tap is not called: weights", "tap(\"weights\", np.exp(scores - base[r, None]))", "np.exp(scores - base[r, None])")
