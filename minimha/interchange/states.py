"""The weights of a module as a dictionary of arrays, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import HostArray

from ..nn import Module

Fit = tuple[tuple[int, ...], Any]
"""The shape and the dtype, NumPy's, that an entry must have."""


def state(module: Module) -> dict[str, HostArray]:
    """Copies of all parameters of a module, on the host and in row-major order, by name."""
    return {name: backend.to_numpy(p.data).copy() for name, p in module.named_parameters()}


def set_state(module: Module, arrays: Mapping[str, Any]) -> None:
    """Set all parameters of a module, in its library and on its device.

    Raises TypeError for what is no dictionary. Raises ValueError, and changes nothing, where
    entries are missing, extra, of another shape or dtype, or no arrays: all of them are named at
    once, and the form of the projections where it is another one.
    """
    require_dictionary(arrays)
    parameters = dict(module.named_parameters())
    fits = {name: (p.shape, backend.to_numpy(p.data).dtype) for name, p in parameters.items()}
    wrong = misfits(arrays, fits)
    if wrong:
        wrong = _other_forms(arrays, fits) + wrong
        raise ValueError("the weights do not fit the module: " + "; ".join(wrong))
    new = {name: backend.like(arrays[name], p.data) for name, p in parameters.items()}
    for name, p in parameters.items():
        p.data = new[name]


def require_dictionary(arrays: object) -> None:
    if not isinstance(arrays, Mapping):
        fix = ": call its state_dict()" if hasattr(arrays, "state_dict") else ""
        raise TypeError(
            f"arrays must be a dictionary of arrays by name, not {type(arrays).__name__}{fix}"
        )


def misfits(arrays: Mapping[str, Any], fits: dict[str, Fit]) -> list[str]:
    """What is wrong with a dictionary of arrays, an entry each."""
    wrong = [f"{name} is missing" for name in fits if name not in arrays]
    wrong += [f"{name} is extra" for name in arrays if name not in fits]
    for name in fits.keys() & arrays.keys():
        (shape, dtype), x = fits[name], on_host(arrays[name])
        if x is None:
            wrong.append(f"{name} is {described(arrays[name])}, required is an array of {dtype}")
        elif (x.shape, x.dtype) != (shape, dtype):
            wrong.append(f"{name} is {x.dtype} {x.shape}, required is {dtype} {shape}")
    return sorted(wrong)


def on_host(x: object) -> HostArray | None:
    """An array as NumPy's, or None for what is no array, or one that NumPy cannot hold."""
    try:
        return backend.to_numpy(x) if backend.is_array(x) else None
    except (TypeError, NotImplementedError):  # torch's, of float8 or without numbers
        return None


def described(x: Any) -> str:
    """What an entry is that `on_host` does not take."""
    unread = f" of {x.dtype}, which NumPy cannot read" if backend.is_array(x) else ""
    return f"a {type(x).__name__}{unread}"


_FORM_OF = {
    "w_qkv": "fused",
    "w_qk": "bilinear",
    "first_q": "double",
    "w_q.0": "per-head",
    "w_q": "stacked",  # and double
}
"""The form of the projections that have such a parameter, the first that fits."""


def _other_forms(arrays: Mapping[str, Any], fits: dict[str, Fit]) -> list[str]:
    """Where the projections are held in another form than the module's."""

    def forms(names: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for mark, form in _FORM_OF.items():
            for place in (n.removesuffix(mark) for n in map(str, names) if n.endswith(mark)):
                if place == "" or place.endswith("."):
                    found.setdefault(place, form)
        return found

    theirs = forms(arrays)
    return [
        f'the projections{" of " * bool(place)}{place[:-1]} have the form "{theirs[place]}" in the '
        f'weights and "{form}" in the module: its convert("{theirs[place]}") is a copy that takes '
        "them"
        for place, form in forms(fits).items()
        if theirs.get(place, form) != form
    ]
