"""The operations of the engine, one file a subject. Each is a value and its pullback.

Names and meanings are those of the array-API standard; y is the value, dy its gradient.
"""

from .elementwise import add, divide, exp, log, multiply, negative, pow, sqrt, subtract, tanh, where
from .indexing import getitem
from .linear import matmul, matrix_transpose
from .reduction import max, mean, sum
from .shape import broadcast_to, permute_dims, reshape

__all__ = [
    "add",
    "broadcast_to",
    "divide",
    "exp",
    "getitem",
    "log",
    "matmul",
    "matrix_transpose",
    "max",
    "mean",
    "multiply",
    "negative",
    "permute_dims",
    "pow",
    "reshape",
    "sqrt",
    "subtract",
    "sum",
    "tanh",
    "where",
]
