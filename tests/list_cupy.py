"""`python tests/list_cupy.py` writes `cupy_surface.txt`: the list of CuPy's functions and methods
that the stand-in reads.

This needs CuPy, but no GPU. The list has the names that NumPy has as well, with their parameters;
an ellipsis stands for a default value.
"""

import inspect
import re
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("cupy_surface.txt")


def listed(module, names):
    """A line for each of these names of a module or class."""
    where = module.__name__
    return [f"{where}.{name}{_described(getattr(module, name))}" for name in sorted(names)]


def _described(x):
    """What follows a name in its line: " ufunc" and the numbers of inputs and outputs, or the
    parameters, or nothing."""
    if type(x).__name__ == "ufunc":
        return f" ufunc {x.nin} {x.nout}"
    if isinstance(x, type) or not callable(x):
        return ""
    try:
        signature = inspect.signature(x)
    except ValueError:  # a function in Cython, which writes the signature into the docstring
        found = re.match(r"\w+\.\w+(\(.*\))", x.__doc__ or "")
        # Drop the types and the values of defaults: only names are tested.
        parts = found[1].strip("()").split(", ") if found else ["*args", "**kwargs"]
        return f"({', '.join(re.sub(r'=.*', '=...', part.split()[-1]) for part in parts)})"
    parameters = [
        p.replace(annotation=p.empty, default=p.empty if p.default is p.empty else ...)
        for p in signature.parameters.values()
    ]
    text = str(inspect.Signature(parameters))
    return text.replace("Ellipsis", "...").replace(" = ", "=")


def lines():
    """The contents of the file."""
    import cupy

    found = [f"CuPy {cupy.__version__}"]
    for module, like in ((cupy, np), (cupy.linalg, np.linalg), (cupy.fft, np.fft)):
        names = {name for name in set(dir(module)) & set(dir(like)) if not name.startswith("_")}
        found += listed(module, {n for n in names if not inspect.ismodule(getattr(module, n))})
    public = {name for name in dir(cupy.ndarray) if not name.startswith("_")}
    special = {name for name in vars(cupy._core.core._ndarray_base) if name.startswith("__")}
    found += listed(cupy.ndarray, public)
    return found + [f"ndarray.{name}" for name in sorted(special & set(dir(np.ndarray)))]


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", encoding="ascii")
