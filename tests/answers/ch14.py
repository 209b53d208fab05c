"""Chapter 14: what the heads of a trained model do."""

# fmt: off
from . import right, wrong

KEY = "t - period + 1"

loop, diagonal, picked = right("induction_score", '''
def induction_score(weights, period):
    B, H, T, _ = weights.shape
    score = np.zeros(H)
    for b in range(B):
        for t in range(period, T):
            score += weights[b, :, t, t - period + 1]
    return score / (B * (T - period))
''', '''
def induction_score(weights, period):
    on_diagonal = np.diagonal(weights, offset=1 - period, axis1=-2, axis2=-1)
    return on_diagonal[..., 1:].mean(-1).mean(0)
''', '''
def induction_score(weights, period):
    # one-hot rows of the wanted keys, summed by einsum
    T = weights.shape[-1]
    wanted = np.eye(T, k=1 - period)
    wanted[:period] = 0
    return np.einsum("bhts,ts->h", weights, wanted) / (len(weights) * (T - period))
''')
loop.wrong("the earlier occurrence itself", r"earlier occurrence itself", KEY, "t - period")
loop.wrong("the token before it", r"token before", KEY, "t - period - 1")
loop.wrong("two tokens after it", r"key|after|offset|shift", KEY, "t - period + 2")
loop.wrong("the previous token", r"previous-token head", KEY, "t - 1")
loop.wrong("the first copy", r"first copy", "range(period, T)", "range(1, period)", "(T - period)", "(period - 1)")
loop.wrong("all queries", r"first copy count", "range(period, T)", "range(T)", "(T - period)", "T")
loop.wrong("one query too early", r"period − 1 counts", "range(period, T)", "range(period - 1, T)", "(T - period)", "(T - period + 1)")
diagonal.wrong("the whole diagonal", r"period − 1 counts", "[..., 1:]", "")
loop.wrong("the last query left out", r"last query", "range(period, T)", "range(period, T - 1)", "(T - period)", "(T - 1 - period)")
loop.wrong("one period only", r"second copy|up to T", "range(period, T)", "range(period, min(T, 2 * period))", "(T - period)", "min(period, T - period)")
loop.wrong("query and key exchanged", r"exchanged|transpose", "t, t - period + 1]", "t - period + 1, t]")
loop.wrong("divided by T", r"divided by T", "(T - period)", "T")
loop.wrong("not divided by the texts", r"times|sum|factor", "(B * (T - period))", "(T - period)")
loop.wrong("a sum", r"times|sum|factor", " / (B * (T - period))", "")
diagonal.wrong("one number", r"wrong shape|a float|should be .*shape", ".mean(-1).mean(0)", ".mean()")
diagonal.wrong("texts not averaged", r"wrong shape", ".mean(-1).mean(0)", ".mean(-1)")
diagonal.wrong("heads averaged", r"heads are averaged|wrong shape", ".mean(-1).mean(0)", ".mean(0).mean(0)")
diagonal.wrong("the largest weight", r"largest", ".mean(-1).mean(0)", ".max(-1).mean(0)")
diagonal.wrong("only the first text", r"first|text|average", ".mean(0)", "[0]")
wrong("induction_score", "the period is half of T", r"second copy|half|period|queries", """
def induction_score(weights, period):
    n = weights.shape[-1] // 2
    t = np.arange(n, 2 * n)
    return weights[:, :, t, t - n + 1].mean((0, 2))
""")

MEAN = "heads[:, head].mean(axis=0)"
copy, summed, zeroed = right("project_without", '''
def project_without(heads, w_o, head):
    B, H, T, D = heads.shape
    changed = np.array(heads)
    changed[:, head] = heads[:, head].mean(axis=0)
    return np.transpose(changed, (0, 2, 1, 3)).reshape(B, T, H * D) @ w_o
''', '''
def project_without(heads, w_o, head):
    B, H, T, D = heads.shape
    blocks = w_o.reshape(H, D, -1)
    out = 0
    for h in range(H):
        own = heads[:, h] @ blocks[h]
        out = out + (own.mean(0, keepdims=True) if h == head else own)
    return out
''', '''
def project_without(heads, w_o, head):
    # the layer as it is, minus what the head adds beyond its mean
    B, H, T, D = heads.shape
    rows = w_o[head * D : head * D + D]
    own = heads[:, head]
    out = np.concatenate(list(heads.swapaxes(0, 1)), axis=-1) @ w_o
    return out - (own - own.mean(0)) @ rows
''')
copy.wrong("the head is 0", r"set to 0", MEAN, "0")
copy.wrong("one number", r"one number", MEAN, "heads[:, head].mean()")
copy.wrong("the mean over positions", r"over positions", MEAN, "heads[:, head].mean(axis=1, keepdims=True)")
copy.wrong("the mean over heads", r"over the heads", MEAN, "heads.mean(axis=1)")
copy.wrong("a text changed", r"changes a text", "changed[:, head] = " + MEAN, "changed[head] = heads.mean(axis=0)")
copy.wrong("a position changed", r"changes a position", "changed[:, head] = " + MEAN, "changed[:, :, head] = heads[:, :, head].mean(axis=0)")
summed.wrong("the others switched off", r"other heads are switched off", "if h == head", "if h != head")
copy.wrong("all heads", r"all heads", "changed[:, head] = " + MEAN, "changed[:] = heads.mean(axis=0)")
copy.wrong("nothing changed", r"not switched off", "    changed[:, head] = heads[:, head].mean(axis=0)\n", "")
copy.wrong("mixed by a reshape", r"swap the axes H and T", "np.transpose(changed, (0, 2, 1, 3))", "changed")
copy.wrong("in place", r"in place", "np.array(heads)", "heads")
copy.wrong("the head left out of the sum", r"set to 0", "changed[:, head] = " + MEAN, "changed = changed * (np.arange(H) != head)[:, None, None]")
copy.wrong("rescaled like dropout", r"enlarged", MEAN, MEAN + "\n    changed *= H / (H - 1)")
copy.wrong("always the first head", r"head 0|another head|number", "[:, head]", "[:, 0]")
wrong("project_without", "columns of the output", r"after the projection", """
def project_without(heads, w_o, head):
    B, H, T, D = heads.shape
    out = heads.swapaxes(1, 2).reshape(B, T, H * D) @ w_o
    out[..., head * D : (head + 1) * D] = 0
    return out
""")
wrong("project_without", "the mean of columns of the output", r"after the projection", """
def project_without(heads, w_o, head):
    B, H, T, D = heads.shape
    out = heads.swapaxes(1, 2).reshape(B, T, H * D) @ w_o
    own = slice(head * D, (head + 1) * D)
    out[..., own] = out[..., own].mean(axis=0)
    return out
""")
wrong("project_without", "columns of w_o", r"rows|columns|set to 0|after the projection", """
def project_without(heads, w_o, head):
    B, H, T, D = heads.shape
    w_o = w_o.copy()
    w_o[:, head * D : (head + 1) * D] = 0
    return heads.swapaxes(1, 2).reshape(B, T, H * D) @ w_o
""")

SHARE = "(patched - before) / (after - before)"
plain, listed = right("patch_effects", '''
def patch_effects(clean, corrupted, layers, direction):
    kept = []
    out = attention_layers(clean, layers, lambda name, heads: kept.append(heads) or heads)
    after = out[-1] @ direction
    before = attention_layers(corrupted, layers)[-1] @ direction
    result = []
    for wanted in range(len(layers)):
        row = []
        for h in range(len(kept[wanted])):
            def tap(name, heads):
                if name.split()[1] == str(wanted):
                    heads = heads.copy()
                    heads[h] = kept[wanted][h]
                return heads
            patched = attention_layers(corrupted, layers, tap)[-1] @ direction
            row.append((patched - before) / (after - before))
        result.append(row)
    return np.array(result)
''', '''
# a class with the state of the tap, and np.where over heads
class Tap:
    def __init__(self, source=None, layer=None, head=None):
        self.source, self.layer, self.head, self.seen = source, layer, head, {}

    def __call__(self, name, heads):
        self.seen[name] = heads
        if name != self.layer:
            return heads
        own = np.arange(len(heads))[:, None, None] == self.head
        return np.where(own, self.source.seen[name], heads)


def patch_effects(clean, corrupted, layers, direction):
    def run(x, tap):
        return np.dot(direction, attention_layers(x, layers, tap=tap)[len(x) - 1])

    first, second = Tap(), Tap()
    high, low = run(clean, first), run(corrupted, second)
    found = [
        [run(corrupted, Tap(first, name, h)) - low for h in range(len(heads))]
        for name, heads in first.seen.items()
    ]
    return np.array(found) / (high - low)
''')
plain.wrong("the wrong run", r"wrong run is patched", "    kept = []", "    kept = []\n    clean, corrupted = corrupted, clean")
plain.wrong("the clean run with its own heads", r"own heads", "attention_layers(corrupted, layers, tap)", "attention_layers(clean, layers, tap)")
plain.wrong("the whole layer", r"whole layer", "heads[h] = kept[wanted][h]", "heads[:] = kept[wanted]")
plain.wrong("the last position only", r"last position", "heads[h] = kept[wanted][h]", "heads[h, -1] = kept[wanted][h, -1]")
plain.wrong("a position, not a head", r"position is patched|out of bounds", "heads[h] = kept[wanted][h]", "heads[:, h] = kept[wanted][:, h]")
plain.wrong("an ablation", r"ablation", "heads[h] = kept[wanted][h]", "heads[h] = 0")
plain.wrong("this head of all layers", r"all layers", "if name.split()[1] == str(wanted)", "if True", "kept[wanted][h]", "kept[int(name[-1])][h]")
plain.wrong("earlier layers, too", r"earlier layers|one head at a time", "== str(wanted)", "<= str(wanted)", "kept[wanted][h]", "kept[int(name[-1])][h]")
plain.wrong("not divided", r"not divided", SHARE, "patched - before")
plain.wrong("the patched value", r"not subtracted", SHARE, "patched")
plain.wrong("divided by the clean value", r"not subtracted", SHARE, "patched / after")
plain.wrong("the share still missing", r"still missing", SHARE, "(after - patched) / (after - before)")
plain.wrong("the sign", r"sign|−1|opposite", SHARE, "(before - patched) / (after - before)")
plain.wrong("the first row", r"first row", "[-1] @ direction", "[0] @ direction")
plain.wrong("the mean over positions", r"mean over positions", "[-1] @ direction", ".mean(0) @ direction")
plain.wrong("nothing returned by tap", r"None|return", "                return heads\n", "")
plain.wrong("one layer only", r"wrong shape|all layers|layers", "range(len(layers))", "range(1)")
wrong("patch_effects", "heads of the corrupted run are kept", r"own heads", """
def patch_effects(clean, corrupted, layers, direction):
    kept = {}
    after = attention_layers(clean, layers)[-1] @ direction
    def keep(name, heads):
        kept[name] = heads
        return heads
    before = attention_layers(corrupted, layers, keep)[-1] @ direction
    result = np.zeros((len(layers), layers[0][0].shape[0]))
    for n in range(len(layers)):
        for h in range(result.shape[1]):
            def tap(name, heads):
                if name == f"layer {n}":
                    heads = np.array(heads)
                    heads[h] = kept[name][h]
                return heads
            result[n, h] = attention_layers(corrupted, layers, tap)[-1] @ direction
    return (result - before) / (after - before)
""")
wrong("patch_effects", "the clean run with heads of the corrupted one", r"wrong run is patched", """
def patch_effects(clean, corrupted, layers, direction):
    kept = {}
    def keep(name, heads):
        kept[name] = heads
        return heads
    right = attention_layers(clean, layers)[-1] @ direction
    wrong = attention_layers(corrupted, layers, keep)[-1] @ direction
    shares = np.zeros((len(layers), len(layers[0][0])))
    for n in range(shares.shape[0]):
        for h in range(shares.shape[1]):
            def put(name, heads):
                if name == f"layer {n}":
                    heads = heads.copy()
                    heads[h] = kept[name][h]
                return heads
            shares[n, h] = attention_layers(clean, layers, put)[-1] @ direction
    return (right - shares) / (right - wrong)
""")

OWN = "[:, head * D : (head + 1) * D]"
sliced, split = right("qk_circuit", '''
def qk_circuit(embedding, w_q, w_k, num_heads, num_kv_heads, head):
    D = w_q.shape[1] // num_heads
    shared = head * num_kv_heads // num_heads
    W = w_q[:, head * D : (head + 1) * D] @ w_k[:, shared * D : (shared + 1) * D].T
    return embedding @ W @ embedding.T / D ** 0.5
''', '''
def qk_circuit(embedding, w_q, w_k, num_heads, num_kv_heads, head):
    V, M = embedding.shape
    q = (embedding @ w_q).reshape(V, num_heads, -1)
    k = np.repeat((embedding @ w_k).reshape(V, num_kv_heads, -1), num_heads // num_kv_heads, axis=1)
    return np.einsum("ahd,bhd->hab", q, k)[head] / np.sqrt(q.shape[-1])
''')
sliced.wrong("query and key exchanged", r"exchanged|transpose", "embedding @ W @", "embedding @ W.T @")
sliced.wrong("the scale missing", r"1/√D|factor", " / D ** 0.5", "")
sliced.wrong("divided by D", r"√D", "D ** 0.5", "D")
sliced.wrong("the width of all heads", r"√\(H·D\)|√D", "D ** 0.5", "w_q.shape[1] ** 0.5")
sliced.wrong("the embedding missing", r"embedding is missing", "embedding @ W @ embedding.T", "W")
sliced.wrong("the embedding missing for keys", r"embedding|wrong shape|multipl", "W @ embedding.T", "W")
sliced.wrong("the next key head", r"another head|key head|keys", "shared * D : (shared + 1) * D", "(shared + 1) * D : (shared + 2) * D")
sliced.wrong("the query of another head", r"another head", "w_q" + OWN, "w_q[:, shared * D : (shared + 1) * D]")
sliced.wrong("every H-th column", r"columns", "w_q" + OWN, "w_q[:, head::num_heads]")
sliced.wrong("the key head is h", r"key head is h|H // G", "head * num_kv_heads // num_heads", "head")
sliced.wrong("heads take turns", r"not h % G", "head * num_kv_heads // num_heads", "head % num_kv_heads")
sliced.wrong("the first key head", r"key head 0|first", "head * num_kv_heads // num_heads", "0")
sliced.wrong("rows of w_q", r"columns|rows|cannot|shape|matmul", "w_q" + OWN, "w_q[head * D : (head + 1) * D]")
split.wrong("all heads", r"all heads", '"ahd,bhd->hab", q, k)[head]', '"ahd,bhd->ab", q, k)')
split.wrong("reshaped to heads first", r"columns|split|another head|reshape", "(embedding @ w_q).reshape(V, num_heads, -1)", "(embedding @ w_q).reshape(num_heads, V, -1).swapaxes(0, 1)")
sliced.wrong("weights, not scores", r"softmax", "return embedding @ W @ embedding.T / D ** 0.5", "s = np.exp(embedding @ W @ embedding.T / D ** 0.5)\n    return s / s.sum(axis=1, keepdims=True)")
wrong("qk_circuit", "w_q and w_k exchanged", r"exchanged|transpose", """
def qk_circuit(embedding, w_q, w_k, num_heads, num_kv_heads, head):
    D = w_q.shape[1] // num_heads
    group = head // (num_heads // num_kv_heads)
    keys = embedding @ w_q[:, head * D : (head + 1) * D]
    queries = embedding @ w_k[:, group * D : (group + 1) * D]
    return queries @ keys.T / np.sqrt(D)
""")
