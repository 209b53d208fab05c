"""The usual mistakes in the tasks of chapter 13, as patches of their solutions."""

from ..mistakes import patches
from .ch13_many_machines import head_parallel, ring_of_ranks, squares_over_ranks, sum_over_ranks

sum_over_ranks.mistakes += patches(r"""
- range(comm.size - 1)
+ range(comm.size)
one step too many, so that the rank's own array counts twice: after size − 1 steps every array has
visited every rank
+ range(comm.size - 2)
one step too few: the array of the right neighbour, which travels farthest, never arrives. There
are size − 1 steps
+ range(1)
only the left neighbour's array is added: after one step, pass on what you received, size − 1
times in all
- total = visitor = x
+ total, visitor = 0 * x, x
an array is missing in the sum: start with the rank's own, total = x, and add each visitor, total
= total + visitor
- comm.send(visitor, right)
+ comm.send(total, right)
the sums travel, so arrays are counted several times: pass on the array that you received, not the
sum so far
+ comm.send(x, right)
each rank sends its own array in every step, so you receive the left neighbour's again and again:
pass on the array that you received
- return total
+ return total / comm.size
it is the mean, or the sum times the number of ranks: all_reduce returns the sum
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
+ comm.all_reduce(dy)
the derivative of x · x is missing: multiply by 2 · x
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
+ return comm.all_reduce(out) / comm.size + b_o
the outputs of the ranks are averaged: heads add up
- columns = slice(own.start * d, own.stop * d)
+ columns = own
own counts heads, and each head has D columns: the columns go from own.start · D to own.stop · D
+ columns = slice(None); own = slice(0, num_heads)
every rank computes all heads, so each head counts once per rank: use only the columns of the
rank's own heads
+ columns = slice(comm.rank * d, (comm.rank + 1) * d); own = slice(0, 1)
the columns are not those of the rank's own heads: ranks can have different numbers of heads, and
own says which
- w_o[columns]
+ w_o[:, columns]
w_o is divided by columns: its rows belong to the heads, w_o[columns]
""")

ring_of_ranks.mistakes += patches(r"""
- range(1, comm.size)
+ range(1, comm.size - 1)
one hop too few: the keys of the right neighbour, which travel farthest, never arrive
+ range(1, comm.size + 1)
one hop too many: a rank's own keys come back and count twice
- source = (comm.rank - hop) % comm.size
+ source = (comm.rank + hop) % comm.size
the visiting keys are treated as those of another rank: keys move to the right, so after hop steps
they come from hop places to the left, (comm.rank − hop) % comm.size
+ source = left
the visiting keys are treated as those of the left neighbour, which only passes them on. After hop
steps they come from (comm.rank − hop) % comm.size
- (comm.rank - source) * n
+ 0
the mask is not shifted: with offset 0, the visiting keys count as if they were at this rank's own
positions. The offset is (comm.rank − source) · n
+ comm.rank - source
the offset counts ranks, but positions are needed: each rank has n of them
+ (source - comm.rank) * n
the offset has the wrong sign: it is the position of the first query minus that of the first key
- np.exp(lse - new)[:, None] * out + np.exp(more_lse - new)[:, None] * more_out
+ out + more_out
the parts are added without weights: each is divided by its own sum of exponentials, e^lse, so it
counts in proportion to this sum
+ np.exp(more_lse - new)[:, None] * out + np.exp(lse - new)[:, None] * more_out
the weights are swapped: out has the weight e^(lse − new), more_out has e^(more_lse − new)
+ (out + more_out) / 2
the parts are averaged: each is divided by its own sum of exponentials, e^lse, so it counts in
proportion to this sum
+ np.exp(lse)[:, None] * out + np.exp(more_lse)[:, None] * more_out
the sum of both parts is not divided by the sum of all exponentials, e^new
-             lse = new
+
lse stays that of the rank's own keys: after a merge it is new, which covers all keys so far
- np.logaddexp(lse, more_lse)
+ np.maximum(lse, more_lse)
new is the larger of the two logarithms: that keeps exp from overflowing, but the weights do not
sum to one. new = np.logaddexp(lse, more_lse)
""")
