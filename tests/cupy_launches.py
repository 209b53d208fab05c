"""How many kernels CuPy launches for a call, according to the source of version 14.

A function whose result has its own memory launches one kernel. A view or an uninitialised array
needs none. `SEVERAL` lists the functions that launch more. For functions that a training step does
not call, such as `einsum`, the number may be too low.
"""

import math

import numpy as np

NONE = {"empty", "empty_like", "tolist", "item"}
"""Functions whose result is not filled by a kernel."""


def launched(name, arguments, settings, result):
    """The number of kernels for a call of a function with NumPy arrays that gave this result."""
    if name in NONE:
        return 0
    if result is None:  # it changes an argument
        return 1
    arrays = [x for x in (*arguments, *settings.values()) if isinstance(x, np.ndarray)]
    if name in SEVERAL:
        return SEVERAL[name](arguments, settings, result)
    results = result if isinstance(result, tuple | list) else [result]
    return sum(_is_new(y, arrays) for y in results)


def indexed(key):
    """The number of kernels that read or write x[key], if that is not a view of x."""
    arrays = [k for k in key if isinstance(k, np.ndarray) and k.ndim]
    if len(arrays) > 1:  # they become one array of places: zeros, then each array is added
        return len(arrays) + 2
    return 1


def _is_new(y, arrays):
    """Whether y is an array that shares no memory with these."""
    if not isinstance(y, np.ndarray | np.generic) or not y.size:
        return False
    return not any(x is y or np.may_share_memory(x, y) for x in arrays)


def _concatenated(arguments, settings, result):
    """Up to eight arrays are copied one by one; more than eight by a single kernel."""
    count = sum(x.size > 0 for x in arguments[0])
    return count if count <= 8 else 1


def _multiplied(arguments, settings, result):
    """cuBLAS accepts matrices whose rows or columns are contiguous, and stacks of contiguous
    matrices. CuPy copies all others first. If the result has a single entry, there is one kernel
    for the products and one for their sum."""
    if not result.size:
        return 0
    a, b = arguments[:2]
    stacks = max(a.ndim, b.ndim) > 2
    copies = sum(not x.flags.c_contiguous and (stacks or not x.flags.f_contiguous) for x in (a, b))
    one = not stacks and result.size == 1
    return copies + (2 if one else 1)


def _summed(arguments, settings, result):
    """A whole array is reduced by two kernels of CUB."""
    x = arguments[0]
    whole = np.size(result) == 1 and math.prod(np.shape(x)) > 1
    return 2 if whole else 1


SEVERAL = {
    "concatenate": _concatenated,
    "stack": _concatenated,
    "matmul": _multiplied,
    "dot": _multiplied,
    "sum": _summed,
    "max": _summed,
    "min": _summed,
    "any": _summed,
    "all": _summed,
    "eye": lambda *_: 2,
    "tril": lambda *_: 2,
    "triu": lambda *_: 2,
    "vecdot": lambda *_: 4,  # CuPy has none: conjugate, product and sum
}
