"""Common mistakes in the tasks of chapter 02, as edits of their solutions."""

from ..checks.mistakes import patches
from .ch02_autograd import backward, matmul, multiply, topological_order

multiply.mistakes += patches(r"""
- unbroadcast(dy * b, a.shape), unbroadcast(dy * a, b.shape)
+ unbroadcast(dy * b, b.shape), unbroadcast(dy * a, a.shape)
unbroadcast gets the shape of the other argument: da has the shape of a, db that of b
+ unbroadcast(dy * b + dy * a, a.shape), unbroadcast(dy * b + dy * a, b.shape)
both terms of the product rule are added; da is the change with a alone, dy times b, and db is dy
times a
+ tuple(unbroadcast(unbroadcast(dy, x.shape) * z, x.shape) for x, z in ((a, b), (b, a)))
the copies are summed before the product, but each has a factor of its own: multiply first, then
unbroadcast
""")

matmul.mistakes += patches(r"""
- dy @ b.mT
+ dy @ b
a matrix is not transposed, or is on the wrong side: da (n, k) = dy (n, m) bᵀ (m, k) and db (k, m)
= aᵀ (k, n) dy (n, m)
+ dy * b
* multiplies entry by entry; da is a matrix product, dy @ b.mT
- unbroadcast(dy @ b.mT, a.shape), unbroadcast(a.mT @ dy, b.shape)
+ dy @ b.reshape(*b.shape[:-2], -1, b.shape[-2]), a.reshape(*a.shape[:-2], -1, a.shape[-2]) @ dy
a reshape is not a transpose; it only cuts the same numbers into different rows: .mT
""")

topological_order.mistakes += patches(r"""
- return ready
+ return ready[::-1]
each name comes before its parents, as in the backward pass: reverse the list
- children[parent].append(name)
+ children[parent] += [name] * (name not in children[parent])
for b = a + a the count of b is 2, but b is listed once among the children of a, so the count
never reaches 0: list b twice, or count distinct parents
- len(made_from)
+ len(set(made_from))
the count ignores that a name can be a parent twice, as in b = a + a, but the loop lowers it
twice: count with len(made_from)
""")

backward.mistakes += patches(r"""
- gradients[parent] = dx if gradients[parent] is None else gradients[parent] + dx
+ gradients[parent] = dx
only one of the gradients that reach a node is kept; a node used several times gets their sum
+ if gradients[parent] is None:
+                 gradients[parent] = dx
+             else:
+                 gradients[parent] += dx
+= changes an array in place, and a pullback may return the same array for two parents:
gradients[parent] + dx makes a new one
+ if nodes[parent][1] is not None:
+                 gradients[parent] = dx if gradients[parent] is None else gradients[parent] + dx
the gradients of leaves are dropped: a leaf has no pullback, but it has a gradient
+ gradients[parent] = dx if gradients[parent] is None else gradients[parent] * dx
the gradients that reach a node are multiplied: a node used several times gets their sum
- reversed(range(len(nodes)))
+ range(len(nodes))
the nodes are visited from the first to the last; a node's gradient is complete only after
everything computed from it: go backward
+ range(len(nodes) - 2, -1, -1)
the walk starts at the node before the last; the last one, whose gradient is given, is the first
whose pullback is called
- gradients[-1] = gradient
+ pass
the last node has no gradient at the start, so nothing is passed on: gradients[-1] = gradient
+ gradients[-1] = np.ones_like(gradient)
the walk starts with 1; it must start with gradient, that of the last node
- pullback(gradients[k])
+ pullback(gradients[k])[::-1]
the gradients of the parents are in the wrong order: a pullback returns them in the order of
parents
+ pullback(gradient)
every pullback gets the gradient of the last node; it needs that of its own node, gradients[k]
-             continue
+             break
the walk stops at the first leaf or unused node; earlier nodes may still have gradients: continue,
not break or return
- return gradients
+ return [g if p is None else None for g, (_, p) in zip(gradients, nodes)]
only leaves keep their gradients; return that of every node
- pullback is None or gradients[k] is None
+ pullback is None
a pullback is called with None: skip a node that received no gradient
""")
