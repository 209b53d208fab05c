"""Common mistakes in the tasks of chapter 14, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch14_real_models import induction_score, patch_effects, project_without, qk_circuit

induction_score.mistakes += patches(r"""
- queries - period + 1
+ queries - period
this is the weight of the earlier occurrence itself, one key too early; an induction head attends to
the token after it, t − period + 1
+ queries - period - 1
the key is the token before the earlier occurrence; it should be the one after it, t − period + 1
+ queries - 1
this is the score of a previous-token head; the key should be t − period + 1
- np.arange(period, weights.shape[-1])
+ np.arange(period)
- np.arange(period, weights.shape[-1])
+ np.arange(1, period)
these are the queries of the first copy, whose tokens have not occurred before; start at period
+ np.arange(weights.shape[-1])
queries of the first copy count, too, whose tokens have not occurred before; start at period
+ np.arange(period - 1, weights.shape[-1])
the query period − 1 counts, too, whose token has not occurred before; start at period
+ np.arange(period, weights.shape[-1] - 1)
the last query is left out; its token has occurred before, so it counts
+ np.arange(period, min(2 * period, weights.shape[-1]))
only the second copy counts here; a text may be longer or shorter: go up to T
- queries, queries - period + 1
+ queries - period + 1, queries
query and key are exchanged: weights are (…, query, key)
- .mean(axis=(0, -1))
+ .sum(axis=-1).mean(axis=0) / weights.shape[-1]
the sum is divided by T; only T − period queries are in it: divide by their number
+ .max(axis=-1).mean(axis=0)
this is the largest weight; take the mean over the queries
+ .sum(axis=(0, -1))
this is a sum; take the mean over texts and queries
+ .mean(axis=-1)[0]
only the first text counts; take the mean over all texts
+ .mean(axis=(0, 1))
heads are averaged, not queries: the axes are (B, H, queries), so average over 0 and −1
""")

project_without.mistakes += patches(r"""
- heads[:, head] = heads[:, head].mean(axis=0)
+ heads[:, head] = 0
the head is set to 0; replace it by its mean over the texts, which the next layers expect
+ heads[:, head] = heads[:, head].mean()
this is one number for the whole head; average over the texts only, axis=0
+ heads[:, head] = heads[:, head].mean(axis=1, keepdims=True)
the mean runs over positions; average over the texts, axis=0, at each position separately
+ heads[:, head] = heads.mean(axis=1)
the mean runs over the heads; average the output of this head over the texts, axis=0
+ heads[head] = heads.mean(axis=0)
this changes a text, not a head: heads are the second axis, heads[:, head]
+ heads[:, :, head] = heads[:, :, head].mean(axis=0)
this changes a position, not a head: heads are the second axis, heads[:, head]
+ heads[:, np.arange(heads.shape[1]) != head] = 0
- heads[:, head] = heads[:, head].mean(axis=0)
+ heads[:, np.arange(heads.shape[1]) != head] = heads[:, np.arange(heads.shape[1]) != head].mean(0)
the other heads are switched off, and this one is kept: change heads[:, head] only
+ heads = heads.mean(axis=0, keepdims=True) + 0 * heads
all heads are replaced by their means: change heads[:, head] only
+ heads[:, 0] = heads[:, 0].mean(axis=0)
the head is always head 0; the argument head is its number
+ pass
the head is not switched off: nothing is replaced by the mean
+ width, out = heads.shape[-1], heads.swapaxes(1, 2).reshape(*heads.shape[::2], -1) @ w_o
+     own = slice(head * width, (head + 1) * width)
+     out[..., own] = out[..., own].mean(axis=0)
+     return out
- heads[:, head] = heads[:, head].mean(axis=0)
+ width, out = heads.shape[-1], heads.swapaxes(1, 2).reshape(*heads.shape[::2], -1) @ w_o
+     out[..., head * width : (head + 1) * width] = 0
+     return out
the output is changed after the projection, where the heads are mixed already: column m of the
output is no head's own. Change heads before the product with w_o
- heads.swapaxes(1, 2).reshape(len(heads), heads.shape[2], -1)
+ heads.reshape(len(heads), heads.shape[2], -1)
positions and heads are mixed: swap the axes H and T, then reshape
- heads[:, head] = heads[:, head].mean(axis=0)
+ heads[:, head] = heads[:, head].mean(axis=0); heads *= heads.shape[1] / (heads.shape[1] - 1)
the other heads are enlarged, as by dropout; leave them as they are
""")

patch_effects.mistakes += patches(r"""
- kept = {}
+ kept = {}; clean, corrupted = corrupted, clean
the wrong run is patched: this puts heads of the corrupted run into the clean one. Patch the
corrupted run with heads of the clean one
- value(corrupted, patch)
+ value(clean, patch)
the clean run is patched with its own heads, which changes nothing; patch the corrupted run
- right, wrong = value(clean, keep), value(corrupted, lambda name, heads: heads)
+ right, wrong = value(clean, lambda name, heads: heads), value(corrupted, keep)
the corrupted run is patched with its own heads, which changes nothing; keep those of the clean run
- heads[head] = kept[name][head]
+ heads = kept[name]
the whole layer is patched; replace the output of one head, heads[head]
+ heads[head, -1] = kept[name][head, -1]
only the last position is patched; replace the output of the head at all positions
+ heads[:, head] = kept[name][:, head]
a position is patched, not a head: heads are the first axis here, (H, T, D)
+ heads[head] = 0
the head is set to 0, which is an ablation; put its output from the clean run there
- if name == f"layer {n}":
+ if True:
heads with this number are patched in all layers; patch only the layer {n}
+ if name <= f"layer {n}":
earlier layers are patched, too; patch one head at a time
- (value(corrupted, patch) - wrong) / (right - wrong)
+ value(corrupted, patch) - wrong
the change is not divided by (clean − corrupted): the shares have no unit
+ value(corrupted, patch)
- (value(corrupted, patch) - wrong) / (right - wrong)
+ value(corrupted, patch) / right
the corrupted value is not subtracted: the share is (patched − corrupted) / (clean − corrupted)
+ (value(corrupted, patch) - right) / (wrong - right)
this is the share that is still missing, 1 minus the right one: subtract the corrupted value
+ (value(corrupted, patch) - wrong) / (wrong - right)
the sign is wrong: divide by (clean − corrupted)
- attention_layers(x, layers, tap)[-1] @ direction
+ attention_layers(x, layers, tap)[0] @ direction
the value is that of the first row; take the last, which predicts the next token
+ (attention_layers(x, layers, tap) @ direction).mean()
the value is a mean over positions; take the last row, which predicts the next token
""")

qk_circuit.mistakes += patches(r"""
- return query @ key.T / np.sqrt(d)
+ return key @ query.T / np.sqrt(d)
queries and keys are exchanged: this is the transpose. Rows belong to queries, which come from w_q
+ return query @ key.T
the factor 1/√D is missing: divide by √D
+ return query @ key.T / np.sqrt(w_q.shape[1])
the scores are divided by √(H·D); D is the width of one head
+ return query @ key.T / d
the scores are divided by D; divide by √D
+ scores = np.exp(query @ key.T / np.sqrt(d))
+     return scores / scores.sum(axis=-1, keepdims=True)
these are the weights after the softmax; return the scores
+ return w_q[:, head * d : (head + 1) * d] @ w_k[:, group * d : (group + 1) * d].T / np.sqrt(d)
- return query @ key.T / np.sqrt(d)
+ return w_q[:, head * d : (head + 1) * d] @ w_k[:, group * d : (group + 1) * d].T
the embedding is missing: W^Q W^Kᵀ is (M, M); multiply by it on both sides, for scores of tokens
- query = embedding @ w_q[:, head * d : (head + 1) * d]
+ query = embedding @ w_q[:, head::num_heads]
the columns are those of all heads: head h has D columns side by side, from h·D on
+ query = embedding @ w_q[:, (head - 1) * d : head * d] if head else embedding @ w_q[:, :d]
- query = embedding @ w_q[:, head * d : (head + 1) * d]
+ query = embedding @ w_q[:, group * d : (group + 1) * d]
the queries are those of another head: head h has the columns from h·D up to (h + 1)·D
- group = head // (num_heads // num_kv_heads)
+ group = head % num_kv_heads
the keys are those of another head: heads in a row share one, h // (H // G), not h % G
- group * d : (group + 1) * d
+ (group + 1) * d : (group + 2) * d
the keys are those of the next key head: they start at column group · D
- group = head // (num_heads // num_kv_heads)
+ group = 0
the keys are always those of key head 0: it should be key head h // (H // G)
+ group = head
the key head is h: G may be smaller than H, and query head h uses key head h // (H // G)
- return query @ key.T / np.sqrt(d)
+ w_k = w_k.reshape(len(w_k), num_kv_heads, d).repeat(num_heads // num_kv_heads, axis=1)
+     return embedding @ w_q @ (embedding @ w_k.reshape(len(w_k), -1)).T / np.sqrt(d)
the scores of all heads are added up: use the columns of one head only
""")
