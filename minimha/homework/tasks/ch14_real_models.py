"""Tasks of chapter 14: what the heads of a trained model do."""

import numpy as np

from ..checks.comparisons import same
from ..checks.task import task


@task(chapter=14, difficulty=1, minutes=10, hints=(
    "In A B C A B C, the second A attends to the first B if the head is an induction head. How far "
    "back is that, for a period of 3?",
    "Token t is token t − period again. The token after that earlier one is at t − period + 1. "
    "Only queries from period on have an earlier occurrence. Pick one weight for each of them, "
    "then average over texts and queries.",
    "queries = np.arange(period, weights.shape[-1]) and weights[..., queries, queries - period + "
    "1], of shape (B, H, T − period).",
))  # fmt: skip
def induction_score(weights, period):
    """How much each head attends to the token after the previous occurrence of the query's token.

    weights  (B, H, T, T), the attention weights of H heads for B texts: query, then key
    period   every text repeats itself: token t is the same as token t − period, and the tokens of
             one period differ from each other. T is larger than the period

    A query whose token has not occurred before does not count.
    Returns (H,): the mean of these weights over texts and queries, for each head.
    """
    # BEGIN SOLUTION: return the score of each head
    queries = np.arange(period, weights.shape[-1])
    return weights[..., queries, queries - period + 1].mean(axis=(0, -1))
    # END SOLUTION


@induction_score.check
def a_text_worked_by_hand(yours, rng):
    weights = np.array([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.1, 0.6, 0.3, 0], [0.2, 0.2, 0.4, 0.2]])
    score = yours(weights[None, None], 2)
    yours(rng.dirichlet(np.ones(7), (2, 3, 7)), 3)  # which distinguishes more mistakes
    same(score, np.array([0.5]), "the score, for the text A B A B,")


def _same_score(yours, rng, b, h, t, period):
    weights = rng.dirichlet(np.ones(t), (b, h, t))
    expected = induction_score(weights, period)
    same(yours(weights, period), expected, f"the scores, for T = {t} and period {period},", "head")


induction_score.case("several texts and heads", _same_score, (5, 3, 8, 4), weight=2)
induction_score.case("more or less than two periods", _same_score, (2, 3, 7, 5), (2, 3, 11, 3))


@task(chapter=14, difficulty=1, minutes=15, hints=(
    "Heads are independent until they meet in W^O. So change the output of the head before the "
    "product, and nothing else.",
    "The mean over texts is heads[:, head].mean(axis=0), of shape (T, Dv). Put it in the place of "
    "the head in a copy of heads. Then merge, (B, H, T, Dv) to (B, T, H·Dv), and multiply by w_o.",
    "changed = heads.copy(); changed[:, head] = heads[:, head].mean(axis=0); merged = "
    "changed.swapaxes(1, 2).reshape(B, T, -1); return merged @ w_o",
))  # fmt: skip
def project_without(heads, w_o, head):
    """The output of an attention layer without what one head says about the particular text.

    heads  (B, H, T, Dv), the outputs of all heads for B texts, before the output projection
    w_o    (H·Dv, M), the output projection, with the rows of head 0 first
    head   the number of the head to switch off

    The output of this head is replaced by its mean over the B texts, separately at each position:
    mean ablation. The other heads stay as they are.
    Returns the output of the layer, without the bias, (B, T, M).
    """
    # BEGIN SOLUTION: return the output without the head
    heads = heads.copy()
    heads[:, head] = heads[:, head].mean(axis=0)
    return heads.swapaxes(1, 2).reshape(len(heads), heads.shape[2], -1) @ w_o
    # END SOLUTION


@project_without.check
def two_heads_worked_by_hand(yours, rng):
    heads = np.array([[[[7.0]], [[5.0]]], [[[1.0]], [[3.0]]]])  # (B, H, T, Dv), T = Dv = 1
    expected = np.array([[[4.0, 5.0]], [[4.0, 3.0]]])  # the mean of 7 and 1 is 4
    out = yours(heads, np.eye(2), 0)
    yours(rng.standard_normal((3, 2, 4, 2)), rng.standard_normal((4, 5)), 1)
    same(out, expected, "the output without head 0, for W^O = I,")


def _same_without(yours, rng, b, h, t, d, m):
    heads, w_o = rng.standard_normal((b, h, t, d)), rng.standard_normal((h * d, m))
    expected = [project_without(heads, w_o, head) for head in range(h)]
    found = [yours(heads, w_o, head) for head in range(h)]
    for head in range(h):
        name = f"the output without head {head} of {h}"
        same(found[head], expected[head], name, "text position column")


project_without.case("each of several heads", _same_without, (4, 3, 5, 2, 7), weight=2)


def attention_layers(x, layers, tap=lambda name, x: x):
    """Layers of causal self-attention without perceptrons or norms: x (T, M) -> (T, M).

    Each layer is w_q, w_k, w_v (H, M, D) and w_o (H, D, M). tap is called with "layer 0",
    "layer 1" … and the outputs of the layer's heads (H, T, D); what it returns takes their place.
    """
    later = np.triu(np.ones((len(x), len(x)), bool), 1)
    for n, (w_q, w_k, w_v, w_o) in enumerate(layers):
        q, k, v = (x @ w for w in (w_q, w_k, w_v))
        scores = np.where(later, -np.inf, q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        heads = tap(f"layer {n}", weights @ v)
        x = x + (heads @ w_o).sum(axis=0)
    return x


@task(chapter=14, difficulty=3, minutes=30, given=(attention_layers,), hints=(
    "Three kinds of runs: the clean one, in which tap keeps the outputs of all heads; the "
    "corrupted one; and one for each head, on the corrupted text, in which tap puts the kept "
    "output of that head in its place.",
    "tap gets the name of the layer and the outputs of its heads (H, T, D). For the patched layer "
    "it returns a copy in which the row of one head comes from the clean run; for other layers, "
    "what it got. The share is (patched − corrupted) / (clean − corrupted).",
    'def patch(name, heads): if name == f"layer {n}": heads = heads.copy(); heads[head] = '
    "kept[name][head]; return heads. Then attention_layers(corrupted, layers, patch)[-1] @ "
    "direction is the patched value.",
))  # fmt: skip
def patch_effects(clean, corrupted, layers, direction):
    """Which head carries the answer: the share that each restores when its output is patched.

    clean, corrupted  (T, M), the embeddings of two texts
    layers            a list with w_q, w_k, w_v (H, M, D) and w_o (H, D, M) of each layer
    direction         (M,); the value of a run is the last row of its result times direction

    Patch a head: run the corrupted text, but with the output that this head had, at all positions,
    in the run of the clean text. attention_layers runs the layers. Patch one head at a time.
    Returns (layers, H): for each head (patched − corrupted) / (clean − corrupted), where each word
    stands for the value of that run. 0 means no effect, 1 that the clean value is back.
    """
    # BEGIN SOLUTION: return the share of each head
    kept = {}

    def keep(name, heads):
        kept[name] = heads
        return heads

    def value(x, tap):
        return attention_layers(x, layers, tap)[-1] @ direction

    right, wrong = value(clean, keep), value(corrupted, lambda name, heads: heads)
    effects = np.zeros((len(layers), len(layers[0][0])))
    for n, head in np.ndindex(effects.shape):

        def patch(name, heads, n=n, head=head):
            if name == f"layer {n}":
                heads = heads.copy()
                heads[head] = kept[name][head]
            return heads

        effects[n, head] = (value(corrupted, patch) - wrong) / (right - wrong)
    return effects
    # END SOLUTION


def _same_effects(yours, rng, layers, h, t):
    m, d = 6, 2
    shapes = [(h, m, d)] * 3 + [(h, d, m)]
    weights = [[rng.standard_normal(shape) for shape in shapes] for _ in range(layers)]
    clean, corrupted = rng.standard_normal((2, t, m))
    direction = rng.standard_normal(m)
    expected = patch_effects(clean, corrupted, weights, direction)
    found = yours(clean, corrupted, weights, direction)
    same(found, expected, f"the shares, for {layers} layers of {h} heads,", "layer head")


patch_effects.case("a single layer", _same_effects, (1, 3, 3))
patch_effects.case("two and three layers", _same_effects, (2, 3, 4), (3, 2, 5), weight=2)


@task(chapter=14, difficulty=2, minutes=15, hints=(
    "A score is a query times a key. The query of a token is its embedding times W^Q of the head, "
    "its key is the embedding times W^K.",
    "Head h has the columns from h·D up to (h + 1)·D of w_q. Several heads in a row share the "
    "columns of one key head, number h // (H // G), in w_k. Divide by √D.",
    "q = embedding @ w_q[:, h * d : (h + 1) * d], k = embedding @ w_k[:, g * d : (g + 1) * d], and "
    "the scores of all pairs are q @ k.T / np.sqrt(d).",
))  # fmt: skip
def qk_circuit(embedding, w_q, w_k, num_heads, num_kv_heads, head):
    """The scores of one head for all pairs of tokens, read in the weights.

    embedding     (V, M), the row that each token has in the residual stream
    w_q           (M, H·D), with the columns of the heads side by side
    w_k           (M, G·D); query head h uses key head h // (H // G)
    num_heads     H
    num_kv_heads  G, which divides H
    head          the number of the query head

    Returns (V, V): in row a and column b the scaled score, q·k/√D, that a query from token a gives
    to a key from token b.
    """
    # BEGIN SOLUTION: return the scores
    d = w_q.shape[1] // num_heads
    group = head // (num_heads // num_kv_heads)
    query = embedding @ w_q[:, head * d : (head + 1) * d]
    key = embedding @ w_k[:, group * d : (group + 1) * d]
    return query @ key.T / np.sqrt(d)
    # END SOLUTION


@qk_circuit.check
def two_tokens_worked_by_hand(yours, rng):
    w_q, w_k = np.array([[np.log(3), 5.0], [0, 7]]), np.array([[1.0, 2], [0, 3]])
    scores = np.array([[np.log(3), 0], [0, 0]])  # those of chapter 05
    same(yours(np.eye(2), w_q, w_k, 2, 2, 0), scores, "the scores of head 0", "query key")


def _same_circuit(yours, rng, h, g):
    v, m, d = 7, 5, 4
    embedding, w_q, w_k = (rng.standard_normal(shape) for shape in ((v, m), (m, h * d), (m, g * d)))
    of_heads = [(embedding, w_q, w_k, h, g, head) for head in range(h)]
    expected = [qk_circuit(*arguments) for arguments in of_heads]
    found = [yours(*arguments) for arguments in of_heads]
    for head in range(h):
        name = f"the scores of head {head}, for H = {h} and G = {g},"
        same(found[head], expected[head], name, "query key")


qk_circuit.case("every head has its own keys", _same_circuit, (3, 3), weight=2)
qk_circuit.case("heads that share keys", _same_circuit, (6, 2), (4, 1))
