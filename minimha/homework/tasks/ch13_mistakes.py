"""Common mistakes in the tasks of chapter 13, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch13_many_machines import head_parallel, ring_of_ranks, squares_over_ranks, sum_over_ranks

sum_over_ranks.mistakes += patches(r"""
- range(comm.size - 1)
+ range(comm.size)
one step too many, so that the rank's own array counts twice: after size − 1 steps every array has
reached every rank
+ range(comm.size - 2)
one step too few: the array of the right neighbour, which travels farthest, never arrives. There
are size − 1 steps
+ range(1)
only the left neighbour's array is added: after one step, pass on what you received, size − 1
times in all
- total = received = x
+ total, received = 0 * x, x
an array is missing from the sum: start with the rank's own, total = x, and add each array received,
total = total + received
- comm.send(received, right)
+ comm.send(total, right)
the sums travel, so arrays are counted several times: pass on the array that you received, not the
sum so far
+ comm.send(x, right)
each rank sends its own array in every step, so you receive the left neighbour's again and again:
pass on the array that you received
- return total
+ return total / comm.size
it is the mean, or the sum times the number of ranks: all_reduce returns the sum
+ return total if comm.rank == 0 else x
- return total
+ return total if comm.rank == 0 else 0 * x
only rank 0 has the sum: every rank needs it, so it must reach the others as well
- total = total + received
+ total = total + received * (_ < comm.rank)
rank r has the sum of ranks 0 to r only: at the end of a chain, the last rank has the whole sum,
and it must send it back to the others
""")

squares_over_ranks.mistakes += patches(r"""
- 2 * x * comm.all_reduce(dy)
+ 2 * x * dy
the all-reduce was forgotten: x is part of the result of every rank, so its gradient needs the dy
of every rank, comm.all_reduce(dy)
+ 2 * x * comm.all_reduce(comm.all_reduce(dy))
the gradient is counted once per rank: sum the dy of all ranks, once. Multiplying by the number of
ranks, or summing a sum again, counts too much
+ comm.all_reduce(2 * x * dy)
2 · x is inside the sum, so the x of other ranks enters, too: sum only dy over ranks, then
multiply by this rank's 2 · x
+ 2 * x * comm.all_reduce(dy) / comm.size
the dy of all ranks are averaged, or the 2 of 2 · x is missing: the dy add up, and the derivative
of x · x is 2 · x
+ 2 * comm.all_reduce(x) * comm.all_reduce(dy)
x is summed over ranks as well: the derivative of x · x is 2 · x, with this rank's x
+ 2 * comm.all_reduce(x) * dy
the sum over ranks belongs to dy, not to x: dx is 2 · x times the dy of all ranks, with this
rank's x
+ comm.all_reduce(dy)
- 2 * x * comm.all_reduce(dy)
+ 2 * comm.all_reduce(dy)
- 2 * x * comm.all_reduce(dy)
+ x * x * comm.all_reduce(dy)
the derivative of x · x is missing: multiply the sum of the dy by 2 · x
""")

head_parallel.mistakes += patches(r"""
- return comm.all_reduce(out) + b_o
+ return out + b_o
the all-reduce was forgotten: out is the sum over this rank's heads, and the output is the sum
over all heads
+ return comm.all_reduce(out + b_o)
every rank adds the bias before the sum, so it counts once per rank: add b_o after the all-reduce
+ return comm.all_reduce(out)
the bias b_o is missing: add it once, after the all-reduce
+ return comm.all_reduce(out) + b_o * (comm.rank == 0)
only rank 0 adds the bias after the sum, so the other ranks have the output without it: after the
all-reduce, every rank adds b_o to its own copy of the output
+ return comm.all_reduce(out) + b_o / comm.size
- return comm.all_reduce(out) + b_o
+ return comm.all_reduce(out + b_o / num_heads)
only a part of the bias is added: after the all-reduce, every rank adds the whole b_o
+ return comm.all_reduce(out) / comm.size + b_o
the outputs of the ranks are averaged: heads add up
- columns = slice(own.start * d, own.stop * d)
+ columns = own
own counts heads, and each head has D columns: the columns go from own.start · D to own.stop · D
+ columns = slice(None); own = slice(0, num_heads)
every rank computes all heads, so each head counts once per rank: use only the columns of the
rank's own heads
+ columns = slice(comm.rank * d, (comm.rank + 1) * d); own = slice(0, 1)
-         columns = slice(own.start * d, own.stop * d)
+         k = num_heads // comm.size; own = slice(k * comm.rank, k * (comm.rank + 1))
+         columns = slice(own.start * d, own.stop * d)
-         columns = slice(own.start * d, own.stop * d)
+         columns = slice(comm.rank, None, comm.size)
the columns are not those of the rank's own heads: own says which, ranks can have different
numbers of heads, and the D columns of a head lie side by side
- w_q.shape[1] // num_heads
+ x.shape[1] // num_heads
D is not M // H here: the width of a head is w_q.shape[1] // num_heads
- own.stop - own.start
+ num_heads
- own.stop - own.start
+ own.stop
the number of heads given to attention_of_heads is not that of the rank's own heads: it is own.stop
− own.start
- w_v[:, columns]
+ w_v
w_v has the columns of all heads: use only those of the rank's own heads
- w_o[columns]
+ w_o[:, columns]
w_o is divided by columns: its rows belong to the heads, w_o[columns]
""")

ring_of_ranks.mistakes += patches(r"""
- range(1, comm.size)
+ range(1, comm.size - 1)
one hop too few: the keys of the right neighbour, which travel farthest, never arrive
+ range(1, 2)
only one hop: a rank passes on the keys and values that it received, size − 1 times in all
+ range(1, comm.size + 1)
one hop too many: a rank's own keys come back and count twice
-             comm.send(key, right)
-             comm.send(value, right)
+             comm.send(keys[comm.rank], right)
+             comm.send(values[comm.rank], right)
each rank sends its own keys and values in every step, so you receive the left neighbour's again
and again: pass on the key and value that you received
-             comm.send(value, right)
-             key, value = comm.recv(left), comm.recv(left)
+             key = comm.recv(left)
the values do not travel: the keys received belong to the values of their own rank, so send both
-             comm.send(key, right)
-             comm.send(value, right)
-             key, value = comm.recv(left), comm.recv(left)
+             comm.send(value, right)
+             value = comm.recv(left)
the keys do not travel: the values received belong to the keys of their own rank, so send both
- out, lse = attend(query, key, value, 0)
+ out, lse = attend(query, key, value, -n)
the rank's own keys are left out: start with attend(query, key, value, 0)
- source = (comm.rank - hop) % comm.size
+ source = (comm.rank + hop) % comm.size
the keys received are treated as those of another rank: keys move to the right, so after hop steps
they come from hop places to the left, (comm.rank − hop) % comm.size
+ source = left
the keys received are treated as those of the left neighbour, which only passes them on: after hop
steps they come from (comm.rank − hop) % comm.size
-     def on_rank(comm):
+     def on_rank(comm, attend=lambda q, k, v, _: attend(q, k, v, len(q) * len(keys))):
nothing is hidden: a query also sees later keys. attend hides them if it is given the right offset
- (comm.rank - source) * n
+ 0
the mask is not shifted: with offset 0, the keys received count as if they were at this rank's own
positions. The offset is (comm.rank − source) · n
+ comm.rank - source
the offset counts ranks, but positions are needed: each rank has n of them
+ source * n
- (comm.rank - source) * n
+ comm.rank * n
the offset is the difference between two positions, that of the first query minus that of the
first key: (comm.rank − source) · n
+ (source - comm.rank) * n
the offset has the wrong sign: it is the position of the first query minus that of the first key
- np.exp(lse - new)[:, None] * out + np.exp(more_lse - new)[:, None] * more_out
+ out + more_out
the parts are added without weights: each is divided by its own sum of exponentials, e^lse, so it
counts in proportion to this sum
+ np.exp(more_lse - new)[:, None] * out + np.exp(lse - new)[:, None] * more_out
the weights are swapped: out has the weight e^(lse − new), more_out has e^(more_lse − new)
+ (out + more_out) / 2
- np.exp(lse - new)[:, None] * out + np.exp(more_lse - new)[:, None] * more_out
+ (hop * out + more_out) / (hop + 1) if hop <= comm.rank else out
the parts are averaged: each is divided by its own sum of exponentials, e^lse, so it counts in
proportion to this sum
+ (lse[:, None] * out + more_lse[:, None] * more_out) / (lse + more_lse)[:, None]
lse is the logarithm of a sum of exponentials: a part counts in proportion to the sum, e^lse
+ np.exp(lse)[:, None] * out + np.exp(more_lse)[:, None] * more_out
the sum of both parts is not divided: divide it by the sum of all exponentials, e^new
-             lse = new
+
lse stays that of the rank's own keys: after a merge it is new, which covers all keys so far
+             lse = more_lse
lse is that of the last block: after a merge it is new, which covers all keys so far
- np.logaddexp(lse, more_lse)
+ np.maximum(lse, more_lse)
new is the larger of the two logarithms: that keeps exp from overflowing, but the weights do not
sum to one. new = np.logaddexp(lse, more_lse)
""")
