"""Common mistakes in the tasks of chapter 15, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch15_since_2023 import absorbed_attention, accept_or_reject, delta_writes, windowed_step

absorbed_attention.mistakes += patches(r"""
- latents.T / d**0.5
+ latents.T
the scores are not divided by √D; absorbed or not, they are q · k / √D
+ latents.T / d
the scores are divided by D; divide by √D
+ latents.T / latents.shape[1] ** 0.5
the scores are divided by √C; the width of a query and a key is D, so divide by √D
- w_uk.reshape(-1, h, d)
+ w_uk.reshape(-1, d, h).swapaxes(1, 2)
- w_uv.reshape(len(w_uv), h, -1)
+ w_uv.reshape(len(w_uv), -1, h).swapaxes(1, 2)
a head takes every H-th column here; its columns are side by side: reshape to (C, H, …)
- w_uk.reshape(-1, h, d)
+ w_uk.reshape(h, -1, d).swapaxes(0, 1)
- w_uv.reshape(len(w_uv), h, -1)
+ w_uv.reshape(h, len(w_uv), -1).swapaxes(0, 1)
a reshape straight to (H, C, D) mixes rows with columns; reshape to (C, H, D), then swap C and H
- np.einsum("hc,chv->hv", mean, w_uv.reshape(len(w_uv), h, -1))
+ (mean @ w_uv).reshape(h, h, -1).sum(axis=0)
heads are mixed in mean @ w_uv: multiply the mean of head i by the Dv columns of head i alone
""")

windowed_step.mistakes += patches(r"""
- distance < window
+ distance <= window
the window has one key too many: from t − window + 1 on, the distance is below window
+ distance < window - 1
the window has one key too few: the query's own is one of them, so the distance is below window
- (distance >= 0) & (
+ (
later tokens of the same call are visible; hide keys whose position is after the query's
- | (at < sinks))
+ )
the sinks are hidden once they leave the window; show keys at positions below sinks, too
- visible = (distance >= 0) & ((distance < window) | (at < sinks))
+ visible = (distance >= 0) & (distance < window) | (at < sinks)
a sink is visible to queries before it; a query sees no key later than itself, not even a sink
- start + np.arange(len(query))
+ np.arange(len(query))
the positions of the new tokens start at 0 here; the first of them is at start, so add start
- at > start + len(query) - window
+ at >= start + len(query) - window
one position too many is kept: the query at start + N no longer sees start + N − window
+ at > start + len(query) + 1 - window
one position too few is kept: the query at start + N still sees start + N − window + 1
+ at > start - window
the cache still holds what only the new queries saw: keep what the query at start + N will see
- (at > start + len(query) - window) | (at < sinks)
+ at > start + len(query) - window
the sinks are evicted; keep positions below sinks
+ (at > start + len(query) - window) | (at <= sinks)
- | (at < sinks))
+ | (at <= sinks))
one sink too many is kept or visible; the sinks are at positions 0 … sinks − 1
- keys, values, at = (np.concatenate(x) for x in zip(cache, (key, value, new), strict=True))
+ keys, values, at = (np.concatenate(x) for x in zip(cache, (key, value, new), strict=True))
+     seen = (at > start + len(query) - window) | (at < sinks)
+     keys, values, at = keys[seen], values[seen], at[seen]
the cache evicts before the new queries attend, but the first of them need those keys: attend first
- query.shape[-1] ** 0.5
+ 1.0
the scores are not divided by √D; they are q · k / √D
""")

delta_writes.mistakes += patches(r"""
- np.tril(key @ key.T, -1)
+ np.tril(key @ key.T)
position t reads its own write here; it should read only those of j < t: np.tril(…, −1)
- np.eye(len(key)) + beta[:, None] * lower
+ np.eye(len(key)) - beta[:, None] * lower
earlier writes are added, but u_t subtracts what the state holds: the matrix is I + diag(β) L
+ np.eye(len(key)) + lower
β is missing in the matrix: β_t multiplies all of v_t − k_t S, so it is I + diag(β) L
+ np.eye(len(key)) + beta * lower
β multiplies the columns of L; each row t has its own β_t: beta[:, None] * lower
+ np.eye(len(key))
every position reads only the state before the chunk here; add the earlier writes: I + diag(β) L
- u = np.linalg.solve(a, beta[:, None] * rest)
+ u = np.linalg.solve(a, rest)
β is missing on the right-hand side: u_t = β_t (v_t − k_t S − …)
+ u = beta[:, None] * rest
+     u = u - beta[:, None] * (lower @ u)
I − diag(β) L is the inverse of the matrix only for two positions: solve the equations
- rest = value - key @ state
+ rest = value
the state before the chunk is missing: subtract K S from V
- np.linalg.solve(a.T, du)
+ np.linalg.solve(a, du)
the pullback solves with the same matrix A; for U = A⁻¹ R, the gradient is dR = A⁻ᵀ dU: use Aᵀ
+ du
du goes straight to R, but U = A⁻¹ R: first solve Aᵀ dR = dU
- -np.tril(dvalue @ u.T, -1)
+ np.tril(dvalue @ u.T, -1)
the gradient of L has the wrong sign: L U is subtracted, so dL = −G Uᵀ
+ -dvalue @ u.T
the gradient of L is not cut to its lower triangle: the rest of K Kᵀ is never used, np.tril(…, −1)
- (dlower + dlower.T) @ key
+ dlower @ key
K is twice in L = tril(K Kᵀ): its gradient is dL K + dLᵀ K
- (dlower + dlower.T) @ key - dvalue @ state.T
+ (dlower + dlower.T) @ key
dkey lacks what comes through K S: subtract dvalue Sᵀ
+ -dvalue @ state.T
dkey lacks what comes through L = tril(K Kᵀ): add (dL + dLᵀ) K
- (rest - lower @ u)
+ rest
dbeta lacks what comes through the matrix, I + diag(β) L: it is Σ dR (E − L U)
+ u
dbeta is β_t times too large: u_t already contains β_t. It is Σ dR (E − L U)
""")

accept_or_reject.mistakes += patches(r"""
- uniform[n] * q[n, x] >= p[n, x]
+ q[n, x] > p[n, x]
a token with p < q is always rejected here; accept it if uniform[i] < p / q
+ uniform[n] >= p[n, x]
a token is accepted with probability p; it should be p / q, because it was drawn from q
+ uniform[n] * p[n, x] >= q[n, x]
the fraction is turned over: accept if uniform[i] < p / q
+ uniform[n] * q[n, x] < p[n, x]
accepted and rejected are exchanged: accept if uniform[i] < p / q
+ uniform[n] * q[n, x] > p[n, x]
a token with p = 0 is accepted if the random number is 0; accept only if uniform[i] is below p / q
- rest = np.maximum(p[n] - q[n], 0)
+ rest = p[n]
after a rejection, the token is drawn from p; take what the draft lacks, max(0, p − q), normalised
+ rest = np.maximum(q[n] - p[n], 0)
p and q are exchanged after a rejection: take max(0, p − q), what the draft proposes too rarely
+ rest = abs(p[n] - q[n])
this is |p − q|; a token with p < q should get 0: max(0, p − q)
+ rest = p[n] - q[n]
negative differences are kept; a token with p < q should get 0: max(0, p − q)
+ rest = p[n] * (np.arange(len(p[n])) != x)
this is p without the rejected token; take max(0, p − q), normalised
- return n, rest / rest.sum()
+ return n, rest
the probabilities do not sum to 1; divide max(0, p − q) by its sum
+ return n + 1, rest / rest.sum()
the rejected token is counted as accepted; n is the number before it
- return len(drafted), p[-1]
+ return len(drafted), p[-2]
all are accepted, but this p is at the place of the last drafted token; take the next one, p[k]
- for n, x in enumerate(drafted):
-         if uniform[n] * q[n, x] >= p[n, x]:
+ n = sum(r * b[x] < a[x] for a, b, x, r in zip(p, q, drafted, uniform))
+     if n < len(drafted):
accepted tokens after a rejection are counted, too; the first rejection ends the round
""")
