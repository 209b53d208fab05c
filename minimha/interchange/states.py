"""The weights of a module as a dictionary of arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import HostArray

from ..nn import Module

Required = dict[str, tuple[tuple[int, ...], Any]]
"""For each name, the shape and the NumPy dtype that its array must have."""


def state(module: Module) -> dict[str, HostArray]:
    """Copies of all parameters of a module, on the host and in row-major order, by name."""
    return {name: backend.to_numpy(p.data).copy() for name, p in module.named_parameters()}


def set_state(module: Module, arrays: Mapping[str, Any]) -> None:
    """Set all parameters of a module, in its library and on its device.

    Raises TypeError for arrays that are not a dictionary. Raises ValueError, without changing
    anything, for entries that are missing, extra, not arrays, or of another shape or dtype: it
    names all of them.
    """
    require_dictionary(arrays)
    parameters = dict(module.named_parameters())
    required = {name: (p.shape, backend.to_numpy(p.data).dtype) for name, p in parameters.items()}
    if wrong := mismatches(arrays, required):
        names = " (each form of the projections has its own names: see `convert`)"
        hint = names if arrays.keys() != required.keys() else ""
        raise ValueError(f"the weights do not fit the module{hint}: " + "; ".join(wrong))
    new = {name: backend.like(arrays[name], p.data) for name, p in parameters.items()}
    for name, p in parameters.items():
        p.data = new[name]


def require_dictionary(arrays: object) -> None:
    """Raise TypeError unless arrays is a dictionary."""
    if not isinstance(arrays, Mapping):
        fix = ": call its state_dict()" if hasattr(arrays, "state_dict") else ""
        raise TypeError(
            f"arrays must be a dictionary of arrays by name, not {type(arrays).__name__}{fix}"
        )


def mismatches(arrays: Mapping[str, Any], required: Required) -> list[str]:
    """A sentence for each entry that is not as required."""
    wrong = [f"{name} is missing" for name in required if name not in arrays]
    wrong += [f"{name} is extra" for name in arrays if name not in required]
    for name in required.keys() & arrays.keys():
        (shape, dtype), x = required[name], on_host(arrays[name])
        if isinstance(x, str):
            wrong.append(f"{name} is {x}, but must be an array of {dtype}")
        elif (x.shape, x.dtype) != (shape, dtype):
            wrong.append(f"{name} is {x.dtype} {x.shape}, but must be {dtype} {shape}")
    return sorted(wrong)


def on_host(x: Any) -> HostArray | str:
    """A NumPy array; for values that NumPy cannot hold, a description."""
    if not backend.is_array(x):
        return f"a {type(x).__name__}"
    try:
        return backend.to_numpy(x)
    except (TypeError, NotImplementedError):  # a torch tensor of float8, or on the meta device
        return f"a {type(x).__name__} of {x.dtype}, which NumPy cannot read"
