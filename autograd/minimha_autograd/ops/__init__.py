"""The operations of the engine, one file a subject. Each is a value and its pullback.

Names and meanings are those of the array-API standard; y is the value, dy its gradient. Arrays come
first, settings after them by position or by name: `sum(x, 0)`, `sum(x, axis=0)`.
"""

from ..tensor import Tensor
from .elementwise import (
    abs,
    add,
    astype,
    clip,
    cos,
    divide,
    erf,
    exp,
    expm1,
    log,
    log1p,
    maximum,
    minimum,
    multiply,
    negative,
    pow,
    sin,
    sqrt,
    subtract,
    tanh,
    where,
)  # fmt: skip
from .indexing import gather, getitem, scatter_add, take_along_axis
from .linear import einsum, matmul, outer
from .reduction import cumsum, logsumexp, max, mean, min, sum, var
from .shape import (
    broadcast_to,
    concat,
    expand_dims,
    flip,
    matrix_transpose,
    pad,
    permute_dims,
    repeat,
    reshape,
    split,
    squeeze,
    stack,
    to_device,
    transpose,
)  # fmt: skip

__all__ = [
    "abs", "add", "astype", "broadcast_to", "clip", "concat", "cos", "cumsum", "divide", "einsum",
    "erf", "exp", "expand_dims", "expm1", "flip", "gather", "getitem", "log", "log1p", "logsumexp",
    "matmul", "matrix_transpose", "max", "maximum", "mean", "min", "minimum", "multiply",
    "negative", "outer", "pad", "permute_dims", "pow", "repeat", "reshape", "scatter_add", "sin",
    "split", "sqrt", "squeeze", "stack", "subtract", "sum", "take_along_axis", "tanh", "to_device",
    "transpose", "var", "where",
]  # fmt: skip

for _name, _operation in {
    "add": add, "sub": subtract, "mul": multiply, "truediv": divide, "pow": pow, "matmul": matmul
}.items():  # fmt: skip
    setattr(Tensor, f"__{_name}__", _operation)
    setattr(Tensor, f"__r{_name}__", lambda b, a, _operation=_operation: _operation(a, b))

for _operation in (
    abs, astype, clip, cos, cumsum, exp, flip, gather, log, logsumexp, matmul, max, mean, min,
    repeat, reshape, sin, split, sqrt, squeeze, sum, take_along_axis, tanh, transpose, var,
):  # fmt: skip
    setattr(Tensor, _operation.__name__, _operation)


def _of_matrix(x: Tensor) -> Tensor:
    """The transpose of a matrix."""
    if x.ndim != 2:
        raise ValueError(f"T is for matrices: for shape {x.shape} use mT, or permute its axes")
    return matrix_transpose(x)


for _name, _operation in {
    "T": property(_of_matrix), "__neg__": negative, "__abs__": abs, "__getitem__": getitem,
    "mT": property(matrix_transpose), "permute": permute_dims, "expand": broadcast_to,
    "to": to_device,
}.items():  # fmt: skip
    setattr(Tensor, _name, _operation)
