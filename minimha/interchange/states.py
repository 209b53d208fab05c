"""The weights of a module as a dictionary of arrays, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import HostArray

from ..nn import Module

Required = dict[str, tuple[tuple[int, ...], Any]]
"""By name, the shape and the NumPy dtype that an array must have."""


def state(module: Module) -> dict[str, HostArray]:
    """Copies of all parameters of a module, on the host and in row-major order, by name."""
    return {name: backend.to_numpy(p.data).copy() for name, p in module.named_parameters()}


def set_state(module: Module, arrays: Mapping[str, Any]) -> None:
    """Set all parameters of a module, in its library and on its device.

    Raises TypeError for what is not a dictionary. Raises ValueError, and changes nothing, for
    entries that are missing, extra, not arrays, or of another shape or dtype: it names all of them,
    and the form of the projections where that differs.
    """
    require_dictionary(arrays)
    parameters = dict(module.named_parameters())
    required = {name: (p.shape, backend.to_numpy(p.data).dtype) for name, p in parameters.items()}
    wrong = mismatches(arrays, required)
    if wrong:
        wrong = _other_forms(arrays, required) + wrong
        raise ValueError("the weights do not fit the module: " + "; ".join(wrong))
    new = {name: backend.like(arrays[name], p.data) for name, p in parameters.items()}
    for name, p in parameters.items():
        p.data = new[name]


def require_dictionary(arrays: object) -> None:
    """Raise TypeError for what is not a dictionary."""
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
        if x is None:
            wrong.append(f"{name} is {described(arrays[name])}, required is an array of {dtype}")
        elif (x.shape, x.dtype) != (shape, dtype):
            wrong.append(f"{name} is {x.dtype} {x.shape}, required is {dtype} {shape}")
    return sorted(wrong)


def on_host(x: object) -> HostArray | None:
    """An array as NumPy's; None for what is not an array, or not one that NumPy can hold."""
    try:
        return backend.to_numpy(x) if backend.is_array(x) else None
    except (TypeError, NotImplementedError):  # a torch tensor of float8, or on the meta device
        return None


def described(x: Any) -> str:
    """What an entry is for which `on_host` returns None."""
    unread = f" of {x.dtype}, which NumPy cannot read" if backend.is_array(x) else ""
    return f"a {type(x).__name__}{unread}"


_FORM_OF = {
    "w_qkv": "fused",
    "w_qk": "bilinear",
    "w_q.0": "per-head",
    "first_q": "double",  # before w_q, which the double form has too
    "w_q": "stacked",
}
"""The form of the projections that have a parameter of this name."""


def _other_forms(arrays: Iterable[Any], required: Iterable[str]) -> list[str]:
    """A sentence for each projections whose weights come in another form than the module's."""
    theirs = _forms(map(str, arrays))
    return [
        f'the projections{" of " * bool(place)}{place[:-1]} have the form "{theirs[place]}" in the '
        f'weights and "{form}" in the module: its convert("{theirs[place]}") is a copy that takes '
        "them"
        for place, form in _forms(required).items()
        if theirs.get(place, form) != form
    ]


def _forms(names: Iterable[str]) -> dict[str, str]:
    """The forms of all projections by their place in the module, such as "blocks.0.attention."."""
    names = list(names)
    found: dict[str, str] = {}
    for mark, form in _FORM_OF.items():
        for name in names:
            if f".{name}".endswith(f".{mark}"):
                found.setdefault(name.removesuffix(mark), form)
    return found
