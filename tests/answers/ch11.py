"""Chapter 11: speed."""

# fmt: off
from . import right, wrong

online, *_ = right("online_softmax", """
def online_softmax(peak, total, acc, scores, value):
    m_new = np.maximum(peak, scores.max(axis=1))
    base = np.where(np.isinf(m_new), 0, m_new)
    alpha = np.exp(peak - base)
    p = np.exp(scores - base[:, None])
    return m_new, alpha * total + p.sum(axis=1), alpha[:, None] * acc + p @ value
""", """
def online_softmax(peak, total, acc, scores, value):
    m2, l2, acc2 = peak.copy(), total.copy(), acc.copy()
    for i, row in enumerate(scores):
        top = max(peak[i], row.max())
        if top == -np.inf:
            continue
        old = np.exp(peak[i] - top)
        e = np.exp(row - top)
        m2[i] = top
        l2[i] = old * total[i] + e.sum()
        acc2[i] = old * acc[i] + e @ value
    return m2, l2, acc2
""", """
def online_softmax(peak, total, acc, scores, value):
    everything = np.concatenate([peak[:, None], scores], axis=-1)
    new = everything.max(axis=-1, keepdims=True)
    seen = new > -np.inf
    e = np.exp(everything - np.where(seen, new, 0))
    total = (e * np.concatenate([total[:, None], np.ones_like(scores)], axis=-1)).sum(-1)
    acc = e[:, :1] * acc + np.einsum("tn,nv->tv", e[:, 1:], value)
    return new[:, 0], total, acc
""", """
def online_softmax(peak, total, acc, scores, value):
    # the block by itself, then the two states merged
    def state(s):
        top = s.max(-1)
        e = np.exp(s - np.nan_to_num(top, neginf=0.0)[:, np.newaxis])
        return top, e.sum(-1), e @ value
    bm, bl, bacc = state(scores)
    new = np.maximum(peak, bm)
    zero = np.nan_to_num(new, neginf=0.0)
    a, b = np.exp(peak - zero), np.exp(bm - zero)
    return new, a * total + b * bl, a[:, None] * acc + b[:, None] * bacc
""", """
def online_softmax(peak, total, acc, scores, value):
    for j in range(scores.shape[1]):
        s = scores[:, j]
        new = np.maximum(peak, s)
        live = new > -np.inf
        old = np.exp(peak - new, where=live, out=np.zeros_like(peak))
        p = np.exp(s - new, where=live, out=np.zeros_like(peak))
        total = total * old + p
        acc = acc * old[:, None] + np.outer(p, np.ones(len(value[j]))) * value[j]
        peak = new
    return peak, total, acc
""")
online.wrong("acc is not rescaled", r"rescal|shrink|factor|acc.*e\^|e\^.*acc",
    "alpha[:, None] * acc", "acc")
online.wrong("total is not rescaled", r"rescal|shrink|factor|total.*e\^\(|e\^\(.*total", "alpha * total", "total")
online.wrong("the factor upside down", r"invers|upside|reciprocal|sign|exp\(peak|e\^\(peak|exchang|swap",
    "np.exp(peak - base)", "np.exp(np.where(np.isinf(peak), 0, base - peak))")
online.wrong("the maximum of the block alone", r"max.*(so far|old|before)|new maximum|larger of|block.*max|np\.maximum",
    "np.maximum(peak, scores.max(axis=1))", "scores.max(axis=1)")
online.wrong("−∞ − −∞", r"−∞ ?[−-] ?\(?−∞|-inf ?- ?\(?-inf", "np.where(np.isinf(m_new), 0, m_new)", "m_new")
online.wrong("no maximum", r"overflow|subtract|without (the )?max|no maximum|measured against",
    "np.exp(peak - base)", "np.where(np.isinf(peak), 0.0, 1.0)", "scores - base[:, None]", "scores")
online.wrong("normalised in every block", r"divid|normali|/ ?total|after the last",
    "return m_new, alpha * total + p.sum(axis=1), alpha[:, None] * acc + p @ value",
    "total = alpha * total + p.sum(axis=1)\n    return m_new, total, (alpha[:, None] * acc + p @ value) / np.where(total == 0, 1, total)[:, None]")

online.wrong("adds the scores, not their exponentials", r"e\^|exp", "p.sum(axis=1)", "scores.sum(axis=1)")
online.wrong("returns the old maximum", r"old (peak|max)|new max|peak is|updated", "return m_new,", "return peak,")
online.wrong("rescales the new block too", r"rescal|shrink|factor|new block|old sum|only", "alpha * total + p.sum(axis=1)", "alpha * (total + p.sum(axis=1))")
online.wrong("one maximum for all rows", r"over all rows", "scores.max(axis=1)", "scores.max()")
online.wrong("two results", r"should return peak, total, acc", "return m_new, alpha", "return alpha")
online.wrong("the maximum after exp", r"overflow|before exp", "np.exp(scores - base[:, None])", "np.exp(scores) * np.exp(-base)[:, None]")
online.wrong("softmax of each block alone", r"of its own", "return m_new, alpha * total + p.sum(axis=1), alpha[:, None] * acc + p @ value",
    "w = p / p.sum(axis=1, keepdims=True)\n    return m_new, total + 1, acc + w @ value")
online.wrong("the block's softmax with the rescaled state", r"of its own|divid", "alpha[:, None] * acc + p @ value",
    "alpha[:, None] * acc + (p / p.sum(axis=1, keepdims=True)) @ value")
online.wrong("the block relative to its own maximum", r"block|own max|new max|larger",
    "p = np.exp(scores - base[:, None])", "p = np.exp(scores - scores.max(axis=1, keepdims=True))")
online.wrong("changes acc in place", r"in place", "    return m_new, alpha * total + p.sum(axis=1), alpha[:, None] * acc + p @ value",
    "    acc *= alpha[:, None]\n    acc += p @ value\n    return m_new, alpha * total + p.sum(axis=1), acc")
online.wrong("peak 0 for a row that sees nothing", r"−∞|stay", "return m_new,", "return base,")
online.wrong("one sum for all rows", r"row|axis", "p.sum(axis=1)", "p.sum()")
online.wrong("shrink is no column", r"column|\[:, None\]", "alpha[:, None] * acc", "alpha * acc")

costs, *_ = right("attention_costs", """
def attention_costs(H, T, S, D, Dv, block):
    pairs = H * T * S
    flops = 2 * pairs * D + 2 * pairs * Dv
    flops_backward = 2 * pairs * D * 3 + 2 * pairs * Dv * 2
    inputs = H * T * D + H * S * D + H * S * Dv
    output = H * T * Dv
    passes = 1 + 2 + 1 + 2 + 2 + 1 + 2 + 1
    moved = 4 * (passes * pairs + inputs + output)
    blocks = T // block
    tiled = 4 * (H * T * D + blocks * H * S * (D + Dv) + output)
    kept = 4 * pairs
    kept_tiled = 4 * H * T
    return flops, flops_backward, moved, tiled, kept, kept_tiled
""", """
def product(rows, inner, columns):
    return 2 * rows * inner * columns

def attention_costs(H, T, S, D, Dv, block):
    flops = back = moved = tiled = 0
    q, k, v, out, p = T * D, S * D, S * Dv, T * Dv, T * S
    for head in range(H):
        flops += product(T, D, S) + product(T, S, Dv)
        back += product(T, D, S) + product(S, T, Dv) + product(T, Dv, S) + product(T, S, D)
        back += product(S, T, D)
        for step in ([q, k, p], [p, p], [p], [p, p], [p, p], [p], [p, p], [p, v, out]):
            moved += sum(step)
        for i in range(0, T, block):
            tiled += block * D + k + v + block * Dv
    return [flops, back, 4 * moved, 4 * tiled, 4 * H * p, 4 * H * T]
""", """
def attention_costs(H, T, S, D, Dv, block):
    Q, K, V, O = (np.prod(x) for x in ((H, T, D), (H, S, D), (H, S, Dv), (H, T, Dv)))
    P = np.prod((H, T, S))
    size = np.dtype(np.float32).itemsize
    return (
        2 * P * (D + Dv), P * (6 * D + 4 * Dv), size * (Q + K + V + O + 12 * P),
        size * (Q + O + (K + V) * (T / block)), size * P, size * H * T,
    )
""", """
def attention_costs(H, T, S, D, Dv, block):
    scores, out = 2 * H * T * S * D, 2 * H * T * S * Dv
    both = H * (T * D + S * D + S * Dv + T * Dv)
    again = H * (S * D + S * Dv) * (T // block - 1)
    return (
        scores + out, 3 * scores + 2 * out, 48 * H * T * S + 4 * both, 4 * (both + again),
        4 * H * T * S, 4 * H * T,
    )
""")
costs.wrong("one flop for a multiply-add", r"addition", "2 * pairs", "pairs")
costs.wrong("the heads forgotten in the flops", r"one head", "2 * pairs", "2 * T * S")
costs.wrong("the width of values forgotten", r"width Dv", "2 * pairs * Dv\n", "2 * pairs * D\n")
costs.wrong("only Q Kᵀ", r"weights · V", " + 2 * pairs * Dv\n", "\n")
costs.wrong("backward twice the forward", r"again|twice", "2 * pairs * D * 3 + 2 * pairs * Dv * 2", "2 * flops")
costs.wrong("backward 2.5 times the forward", r"2\.5 times", "2 * pairs * D * 3 + 2 * pairs * Dv * 2", "flops * 5 // 2")
costs.wrong("backward three times the forward", r"three times", "2 * pairs * D * 3 + 2 * pairs * Dv * 2", "3 * flops")
costs.wrong("backward with the forward", r"includes the forward", "2 * pairs * D * 3 + 2 * pairs * Dv * 2", "flops + 2 * pairs * D * 3 + 2 * pairs * Dv * 2")
costs.wrong("three products with Dv, two with D", r"width", "D * 3 + 2 * pairs * Dv * 2", "D * 2 + 2 * pairs * Dv * 3")
costs.wrong("one flop for a multiply-add, backward alone", r"addition", "2 * pairs * D * 3 + 2 * pairs * Dv * 2", "pairs * (3 * D + 2 * Dv)")
costs.wrong("numbers, not bytes", r"1 bytes", "4 * (passes * pairs + inputs + output)", "passes * pairs + inputs + output")
costs.wrong("each step moves the scores once", r"8 times", "1 + 2 + 1 + 2 + 2 + 1 + 2 + 1", "8")
costs.wrong("scores are written once and read once", r"2 times", "1 + 2 + 1 + 2 + 2 + 1 + 2 + 1", "2")
costs.wrong("maximum and sum write all scores", r"14 times", "1 + 2 + 1 + 2 + 2 + 1 + 2 + 1", "1 + 6 * 2 + 1")
costs.wrong("the softmax as a single pass", r"4 times", "1 + 2 + 1 + 2 + 2 + 1 + 2 + 1", "1 + 2 + 1")
costs.wrong("Q, K, V and the output forgotten", r"output move too", "(passes * pairs + inputs + output)", "(passes * pairs)")
costs.wrong("the output forgotten", r"output is missing", "passes * pairs + inputs + output", "passes * pairs + inputs")
costs.wrong("8 bytes a number", r"8 bytes", "4 * (passes", "8 * (passes")
costs.wrong("keys and values read once in all", r"each block of queries", "blocks * H", "H")
costs.wrong("keys and values read by each query", r"for each query", "blocks * H", "T * H")
costs.wrong("blocks of keys", r"blocks of queries", "T // block", "-(-S // block)")
costs.wrong("keys and values alone, in tiles", r"queries and output", "H * T * D + blocks * H * S * (D + Dv) + output", "blocks * H * S * (D + Dv)")
costs.wrong("the output forgotten, in tiles", r"output is missing", "(D + Dv) + output", "(D + Dv)")
costs.wrong("numbers in tiles, not bytes", r"1 bytes", "tiled = 4 * ", "tiled = ")
costs.wrong("scores and weights are kept", r"twice", "kept = 4", "kept = 8")
costs.wrong("the weights of one head are kept", r"one head", "kept = 4 * pairs", "kept = 4 * T * S")
costs.wrong("kept numbers, not bytes", r"1 bytes", "kept = 4 * ", "kept = ")
costs.wrong("peak and total are kept", r"peak and total", "kept_tiled = 4", "kept_tiled = 8")
costs.wrong("a tile is kept", r"includes a tile", "kept_tiled = 4 * H * T", "kept_tiled = 4 * (H * T + block * block)")
costs.wrong("weights are kept in tiles too", r"again from lse", "kept_tiled = 4 * H * T", "kept_tiled = kept")
costs.wrong("lse of one head", r"one head", "kept_tiled = 4 * H * T", "kept_tiled = 4 * T")
costs.wrong("four results", r"should return flops", "tiled, kept, kept_tiled\n", "tiled\n")

forward, *_ = right("tiled_forward", """
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    T, S = len(query), len(key)
    out, lse = np.zeros((T, value.shape[1])), np.full(T, -np.inf)
    for i in range(0, T, block):
        r = slice(i, i + block)
        n = len(query[r])
        peak, total, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))
        for j in range(0, S, block):
            c = slice(j, j + block)
            place = np.arange(S)[c]
            seen = (first[r, None] <= place) & (place <= last[r, None])
            if not seen.any():
                continue
            scores = tap("scores", scale * (query[r] @ key[c].T))
            scores = np.where(seen, scores, -np.inf)
            peak, total, acc = online_softmax(peak, total, acc, scores, value[c])
        some = total > 0
        out[r][some] = acc[some] / total[some, None]
        lse[r][some] = peak[some] + np.log(total[some])
    return out, lse
""", """
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    T, S = query.shape[0], key.shape[0]
    peak = np.full(T, -np.inf)
    total = np.zeros(T)
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
                peak[i:i1], total[i:i1], acc[i:i1] = online_softmax(peak[i:i1], total[i:i1], acc[i:i1], s, v)
    empty = total == 0
    safe = np.where(empty, 1.0, total)
    return acc / safe[:, None], np.where(empty, -np.inf, peak + np.log(safe))
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
    peak, total, acc = state
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(acc / total[:, None]), np.where(total > 0, peak + np.log(total), -np.inf)

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
        peak, total, acc = [np.full(len(rows), -np.inf), np.zeros(len(rows)), np.zeros((len(rows), value.shape[1]))]
        for bj in range(math.ceil(S / block)):
            cols = range(bj * block, min(S, bj * block + block))
            seen = np.array([np.isin(cols, range(first[i], last[i] + 1)) for i in rows])
            if seen.any():
                s = tap("scores", np.matmul(q[list(rows)], key[list(cols)].T))
                peak, total, acc = online_softmax(peak, total, acc, np.where(seen, s, -np.inf), value[list(cols)])
        for k in range(len(rows)):
            out.append(acc[k] / total[k] if total[k] else 0 * acc[k])
            lse.append(peak[k] + math.log(total[k]) if total[k] else -np.inf)
    return np.array(out), np.array(lse)
""")
forward.wrong("scores without the scale", r"scale (is )?(missing|left|·|\*)|without (the )?scale|not scaled|unscaled|[·*] scale|scale.*missing|by scale",
    "scale * (query[r] @ key[c].T)", "query[r] @ key[c].T")
forward.wrong("the last key is not visible", r"≤|<=|last|one key|off by one|itself|diagonal",
    "place <= last", "place < last")
forward.wrong("out is not divided by total", r"divid|normali|not / total|without / total",
    "acc[some] / total[some, None]", "acc[some]")
forward.wrong("lse without the maximum", r"peak is missing|without (the )?(peak|max)|maximum|lacks|lse = peak \+",
    "peak[some] + np.log(total[some])", "np.log(total[some])")
forward.wrong("a row that sees nothing divides by 0", r"nothing|0 ?/ ?0|empty|NaN", "total > 0", "total > -1")
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
    peak = s.max(-1, keepdims=True)
    peak = np.where(np.isinf(peak), 0, peak)
    e = np.exp(s - peak)
    total = e.sum(-1, keepdims=True)
    one = np.where(total == 0, 1, total)
    return e @ value / one, np.where(total == 0, -np.inf, peak + np.log(one))[:, 0]
""")
forward.wrong("starts afresh in every tile", r"reset|start|last tile|once|afresh|every tile|each tile", "            place = np", "            peak, total, acc = np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1]))\n            place = np")
forward.wrong("no logarithm in lse", r"\blog|logarithm|\bln\b", "np.log(total[some])", "total[some]")
forward.wrong("hides what is visible", r"opposite|exchang|True|inverted|hidden|visible", "np.where(seen, scores, -np.inf)", "np.where(seen, -np.inf, scores)")
forward.wrong("all scores, cut into tiles", r"array of all pairs", "scale * (query[r] @ key[c].T)", "(scale * query @ key.T)[r, c]")
forward.wrong("the output alone", r"should return out, lse", "return out, lse", "return out")
forward.wrong("lse 0 for a query that sees nothing", r"sees? nothing.*lse is −∞", "np.full(T, -np.inf)", "np.zeros(T)")
forward.wrong("no tap", r"tap is not called", "tap(\"scores\", scale * (query[r] @ key[c].T))", "scale * (query[r] @ key[c].T)")
forward.wrong("whole rows", r"a tile is at most", "range(0, S, block)", "[0]", "slice(j, j + block)", "slice(0, S)")
forward.wrong("softmax of each tile alone, added up", r"of its own", "peak, total, acc = online_softmax(peak, total, acc, scores, value[c])",
    "e = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-1e9))\n            w = e / np.where(e.sum(axis=1) > 0, e.sum(axis=1), 1)[:, None]\n            total, acc = total + 1, acc + w @ value[c]")
wrong("tiled_forward", "the average of the tiles' outputs", r"of its own", """
def tiled_forward(query, key, value, scale, first, last, block, *, tap=lambda name, x: x):
    T, S = len(query), len(key)
    out, lse = np.zeros((T, value.shape[1])), np.full(T, -np.inf)
    for i in range(0, T, block):
        r = slice(i, i + block)
        outs = []
        for j in range(0, S, block):
            c = slice(j, j + block)
            place = np.arange(S)[c]
            seen = (first[r, None] <= place) & (place <= last[r, None])
            if seen.any():
                scores = np.where(seen, tap("scores", scale * query[r] @ key[c].T), -np.inf)
                n = len(scores)
                m, l, acc = online_softmax(np.full(n, -np.inf), np.zeros(n), np.zeros((n, value.shape[1])), scores, value[c])
                one = np.where(l > 0, l, 1)
                outs.append(acc / one[:, None])
                lse[r] = np.logaddexp(lse[r], m + np.log(one))
        if outs:
            out[r] = np.mean(outs, axis=0)
    return out, lse
""")
forward.wrong("break at the first tile that is hidden", r"break|stop|later tile|skip|continue", "                continue", "                break")
forward.wrong("divides in every tile", r"divid|once|after", "acc = online_softmax(peak, total, acc, scores, value[c])",
    "acc = online_softmax(peak, total, acc, scores, value[c])\n            acc = acc / np.where(total > 0, total, 1)[:, None]")
forward.wrong("the scale twice", r"scale", "scale * (query[r]", "scale * scale * (query[r]")
forward.wrong("hidden scores are 0", r"−∞|hidden", "np.where(seen, scores, -np.inf)", "np.where(seen, scores, 0)")
forward.wrong("values of the first keys", r"values of this tile|value\[", "value[c]", "value[: len(place)]")
forward.wrong("lse is peak · ln total", r"peak \+ ln|lse", "peak[some] + np.log", "peak[some] * np.log")
forward.wrong("block is the number of blocks", r"at most|largest number", "for i in range(0, T, block):", "block = max(1, -(-max(T, S) // block))\n    for i in range(0, T, block):")

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
back.wrong("dquery from the weights", r"dscores|weights", "(dscores @ key[c])", "(weights @ key[c])")
back.wrong("one delta for all rows", r"each row|axis|every row|own", "(out * dout).sum(axis=1)", "np.full(len(out), (out * dout).sum())")
back.wrong("no scale in the scores", r"scale", "scale * (query[r] @ key[c].T)", "query[r] @ key[c].T")
back.wrong("tiles overwrite dquery", r"\+=|accumul|add|sum|overwr|last tile", "dquery[r] +=", "dquery[r] =")
back.wrong("the gradients in another order", r"order|dquery", "return dquery, dkey, dvalue", "return dvalue, dquery, dkey")
back.wrong("NaN for a query that sees nothing", r"−∞|NaN|sees nothing", "np.where(np.isinf(lse), 0, lse)", "lse")
back.wrong("all scores, cut into tiles", r"array of all pairs", "scale * (query[r] @ key[c].T)", "(scale * query @ key.T)[r, c]")
back.wrong("no tile skipped", r"skip the others", "            if not seen.any():\n                continue\n", "")
back.wrong("no tap", r"tap is not called: weights", "tap(\"weights\", np.exp(scores - base[r, None]))", "np.exp(scores - base[r, None])")
back.wrong("weights normalised in each tile again", r"division|lse|divid", "dweights = dout[r] @ value[c].T", "weights = weights / np.where(weights.sum(axis=1) > 0, weights.sum(axis=1), 1)[:, None]\n            dweights = dout[r] @ value[c].T")
back.wrong("no scale in dkey", r"scale", "scale * (dscores.T @ query[r])", "dscores.T @ query[r]")
back.wrong("dkey from keys", r"k is 4 on the left", "dscores.T @ query[r]", "dscores.T @ key[c]")
back.wrong("dscores without the weights", r"weights", "weights * (dweights - delta[r, None])", "dweights - delta[r, None]")
back.wrong("delta with the wrong sign", r"sign|−|delta", "dweights - delta[r, None]", "dweights + delta[r, None]")
back.wrong("delta in the columns", r"row|column", "delta[r, None]", "delta[r]")
back.wrong("break at the first tile that is hidden", r"break|stop|later tile|skip|continue", "                continue", "                break")
back.wrong("dvalue with the scale", r"dvalue.*scale|scale.*dvalue", "weights.T @ dout[r]", "scale * weights.T @ dout[r]")
