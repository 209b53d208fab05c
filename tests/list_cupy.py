"""Write what CuPy has to `cupy_surface.txt`, which the stand-in reads: `python tests/list_cupy.py`.

CuPy can be imported without a GPU. Listed are the names that NumPy has as well, with their
parameters, in which an ellipsis is a default.
"""

import inspect
import re
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("cupy_surface.txt")


def listed(module, names):
    """A line for each public name of a module or class, among these names."""
    where = module.__name__
    return [f"{where}.{name}{_described(getattr(module, name))}" for name in sorted(names)]


def _described(x):
    """What follows a name: " ufunc" and its numbers of arguments, or the parameters, or nothing."""
    if type(x).__name__ == "ufunc":
        return f" ufunc {x.nin} {x.nout}"
    if isinstance(x, type) or not callable(x):
        return ""
    try:
        signature = inspect.signature(x)
    except ValueError:  # Cython writes it into the docstring
        found = re.match(r"\w+\.\w+(\(.*\))", x.__doc__ or "")
        # Types and values of defaults are Cython's; a test of names needs neither.
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
