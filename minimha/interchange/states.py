"""The weights of a module as a dictionary of arrays, and back, under our names or others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minimha_autograd import backend
from minimha_autograd.backend import HostArray, namespace

from ..functional import Quantised
from ..nn import Module


def state(module: Module) -> dict[str, HostArray]:
    """Copies of all parameters of a module, on the host and in row-major order, by name.

    Raises ValueError for a module after `quantise`, whose matrices are not parameters.
    """
    if any(isinstance(x, Quantised) for part in module.modules() for x in vars(part).values()):
        raise ValueError("a module after quantise() cannot be saved: save it before")
    return {name: backend.to_numpy(p.data).copy() for name, p in module.named_parameters()}


def set_state(module: Module, arrays: Mapping[str, Any]) -> None:
    """Set all parameters of a module to the arrays of the same names, moved to the library and the
    device of the module.

    Raises TypeError for arrays that are not a dictionary. Raises ValueError, without changing
    anything, if entries are missing, extra, not arrays, or of another shape or dtype; the message
    names all of them.
    """
    require_dictionary(arrays)
    parameters = dict(module.named_parameters())
    required = {name: backend.to_numpy(p.data) for name, p in parameters.items()}
    names = " (each form of the projections has its own names: see `convert`)"
    hint = names if arrays.keys() != required.keys() else ""
    refuse(f"the weights do not fit the module{hint}", mismatches(arrays, required))
    new = {name: backend.like(arrays[name], p.data) for name, p in parameters.items()}
    for name, p in parameters.items():
        # torch's bfloat16 is float32 on the host
        p.data = namespace(p.data).astype(new[name], p.dtype, copy=False)


def packed(names: Mapping[str, str], ours: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Turn a dictionary of minimha's arrays into that of another library, which has other names for
    them, and may store several of them side by side in one array, or transposed.

    names  a dictionary from the other library's names to ours: "w_o.T" stands for the transpose of
           w_o, and "w_{q,k,v}" for w_q, w_k and w_v side by side
    ours   our arrays, by our names
    """
    found = {}
    for theirs, name in names.items():
        xs = [ours[part] for part in parts(name)]
        x = xs[0] if len(xs) == 1 else np.concatenate(xs, axis=-1)
        found[theirs] = x.T.copy() if name.endswith(".T") else x  # in row-major order
    return found


def blank(names: Mapping[str, str], ours: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of zeros with the shapes and dtypes of the arrays that `packed` returns for the same
    names and arrays. They take almost no memory: each is a single 0, broadcast to its shape."""
    found = {}
    for theirs, name in names.items():
        xs = [ours[part] for part in parts(name)]
        shape = (*xs[0].shape[:-1], sum(x.shape[-1] for x in xs))
        shape = shape[::-1] if name.endswith(".T") else shape
        found[theirs] = np.broadcast_to(np.zeros((), xs[0].dtype), shape)
    return found


def unpacked(names: Mapping[str, str], theirs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The inverse of `packed`: minimha's arrays by our names, on the host, from another library's
    arrays `theirs`. `names` is the dictionary that `packed` takes, from the other library's names
    to ours."""
    found: dict[str, np.ndarray] = {}
    for other, name in names.items():
        x, ours = backend.to_numpy(theirs[other]), parts(name)
        x = x.T if name.endswith(".T") else x
        found.update(zip(ours, np.split(x, len(ours), axis=-1), strict=True))
    return found


def with_biases(names: Mapping[str, str], bias: bool) -> dict[str, str]:
    """Expand a dictionary of short names to the `names` that `packed` takes. A name with a *
    becomes two, that of a weight and, if `bias`, that of a bias: the * stands for "weight" or
    "bias", and a ? for its first letter. So {"out_proj.*": "?_o.T"} becomes {"out_proj.weight":
    "w_o.T", "out_proj.bias": "b_o.T"}. Names without a * stay as they are."""
    return {
        theirs.replace("*", kind): ours.replace("*", kind).replace("?", kind[:1])
        for theirs, ours in names.items()
        for kind in (("weight", "bias")[: 1 + bias] if "*" in theirs else ("",))
    }


def parts(name: str) -> list[str]:
    """The names of our arrays that one value in the dictionary `names` of `packed` stands for:
    "w_q", "w_k" and "w_v" for "w_{q,k,v}.T"; "w_o" alone for "w_o.T"."""
    name = name.removesuffix(".T")
    return [name.replace("{q,k,v}", role) for role in ("qkv" if "{q,k,v}" in name else "-")]


def refuse(what: str, reasons: list[str]) -> None:
    """Raise a ValueError that begins with `what` and lists all reasons; do nothing if there are
    none."""
    if reasons:
        raise ValueError(f"{what}: {'; '.join(reasons)}")


def require(kind: type, name: str, x: object) -> None:
    """Raise TypeError unless x is an instance of the class `kind`; the message calls x `name`."""
    if not isinstance(x, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not a {type(x).__name__}")


def entries_under(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `arrays` whose names begin with the prefix and a dot, such as "layers.0.",
    under names without this beginning; all entries if the prefix is empty."""
    require_dictionary(arrays)
    start = f"{prefix.rstrip('.')}." if prefix else ""
    return {n.removeprefix(start): x for n, x in arrays.items() if n.startswith(start)}


def require_dictionary(arrays: object) -> None:
    """Raise TypeError unless arrays is a dictionary."""
    if not isinstance(arrays, Mapping):
        fix = ": call its state_dict()" if hasattr(arrays, "state_dict") else ""
        raise TypeError(
            f"arrays must be a dictionary of arrays by name, not {type(arrays).__name__}{fix}"
        )


def matrix(name: str, x: object, axes: str) -> np.ndarray:
    """x as a NumPy array. Raises ValueError unless it is a matrix of floating-point numbers; in the
    message, `name` is the name of x, and `axes` its shape in letters, such as "(M, M)"."""
    x = on_host(x)
    if isinstance(x, str) or x.dtype.kind != "f" or x.ndim != 2:
        what = x if isinstance(x, str) else f"{x.dtype} {x.shape}"
        raise ValueError(f"{name} is {what}, but must be floating-point numbers {axes}")
    return x


def mismatches(arrays: Mapping[str, Any], required: Mapping[str, np.ndarray]) -> list[str]:
    """Compare a dictionary of arrays with the `required` arrays of the same names. Returns a
    sentence for each array that is missing, extra, not an array, or of another shape or dtype than
    required."""
    wrong = [f"{name} is missing" for name in required if name not in arrays]
    wrong += [f"{name} is extra" for name in arrays if name not in required]
    for name in required.keys() & arrays.keys():
        must, x = required[name], on_host(arrays[name])
        if isinstance(x, str):
            wrong.append(f"{name} is {x}, but must be an array of {must.dtype}")
        elif (x.shape, x.dtype) != (must.shape, must.dtype):
            wrong.append(f"{name} is {x.dtype} {x.shape}, but must be {must.dtype} {must.shape}")
    return sorted(wrong)


def on_host(x: Any) -> HostArray | str:
    """x as a NumPy array or, if x is not an array or NumPy cannot hold its values, a description of
    x for an error message, such as "a list"."""
    if not backend.is_array(x):
        return f"a {type(x).__name__}"
    try:
        return backend.to_numpy(x)
    except (TypeError, NotImplementedError):  # a torch tensor of float8, or on the meta device
        return f"a {type(x).__name__} of {x.dtype}, which NumPy cannot read"
