"""Weights as plain dictionaries of arrays, and as safetensors files. Nothing unpickles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from minimha_autograd import backend

from .files import written_whole
from .modules import Module


def state(module: Module) -> dict[str, np.ndarray]:
    """Copies of all parameters of a module, on the host and in row-major order, by name."""
    return {name: backend.to_numpy(p.data).copy() for name, p in module.named_parameters()}


def set_state(module: Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Set all parameters of a module, in its library and on its device.

    Raises ValueError, and changes nothing, where entries are missing, extra, or of another shape or
    dtype: all of them are named at once.
    """
    parameters = dict(module.named_parameters())
    wrong = [f"{name} is missing" for name in parameters if name not in arrays]
    wrong += [f"{name} is extra" for name in arrays if name not in parameters]
    for name in parameters.keys() & arrays.keys():
        ours, theirs = backend.to_numpy(parameters[name].data), arrays[name]
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            wrong.append(
                f"{name} is {theirs.dtype} {theirs.shape}, required is {ours.dtype} {ours.shape}"
            )
    if wrong:
        raise ValueError("the weights do not fit the module: " + "; ".join(sorted(wrong)))
    for name, p in parameters.items():
        p.data = backend.like(arrays[name], p.data)


def save(module: Module, path: str | Path) -> None:
    """Write all parameters to a safetensors file. Raises OSError where it can't be written."""
    from safetensors.numpy import save_file

    with written_whole(path) as unfinished:
        save_file(state(module), unfinished)


def load(module: Module, path: str | Path) -> None:
    """Set all parameters from a safetensors file. Raises as `set_state`, OSError, and ValueError
    for a file that is not one of safetensors."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    set_state(module, arrays)
