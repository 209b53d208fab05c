"""Dictionaries of arrays as safetensors files. Nothing is unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..nn import Module
from .files import written_whole
from .states import on_host, refuse, require_dictionary, set_state, state

_DTYPES = {
    "BOOL": "bool",
    "BF16": "float32",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
"""safetensors' names of dtypes, and the NumPy dtypes that hold them exactly."""


def write(
    arrays: Mapping[str, Any], path: str | Path, *, metadata: dict[str, str] | None = None
) -> None:
    """Write a dictionary of arrays to a safetensors file, completely or not at all.

    bfloat16, which NumPy lacks, is written as float32, exactly. metadata is text by name, none by
    default; transformers wants {"format": "pt"}.
    Raises ValueError, naming all of them, for entries that such a file cannot hold; OSError if the
    file cannot be written; TypeError for arrays that are not a dictionary.
    """
    from safetensors.numpy import save as packed

    require_dictionary(arrays)
    wrong, host = [], {}
    for name, x in arrays.items():
        numbers = on_host(x)
        if not isinstance(name, str) or name == "__metadata__":
            wrong.append(f"{name!r} cannot be a name")
        elif isinstance(numbers, str):
            wrong.append(f"{name} is {numbers}")
        elif numbers.dtype.name not in _DTYPES.values():
            wrong.append(f"{name} is of {numbers.dtype}")
        else:
            # safetensors writes memory in its order, which for a transposed array is another one
            host[name] = np.asarray(numbers, order="C")
    refuse("a safetensors file holds named arrays of real numbers and booleans", wrong)
    with written_whole(path) as unfinished:
        unfinished.write_bytes(packed(host, metadata))


def read(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, by name; its metadata are ignored.

    bfloat16, which NumPy lacks, becomes float32, exactly.
    Raises OSError if there is no file; ValueError for a file that is incomplete or in another
    format, and for entries of other dtypes, all of which it names. Nothing is unpickled.
    """
    from safetensors import SafetensorError, deserialize

    content = Path(path).read_bytes()
    try:
        entries = sorted(deserialize(content), key=lambda entry: entry[0])
    except SafetensorError as error:
        pickled = content.startswith((b"\x80", b"PK\x03\x04"))  # as torch.save writes
        raise ValueError(
            f"{path} is not a safetensors file, or is incomplete: {error}"
            + ". It looks like a pickle, which can run any code when it is read, so it was not "
            "read: if you trust it, write it again with safetensors" * pickled
        ) from error
    other = [
        f"{name} is {entry['dtype']}" for name, entry in entries if entry["dtype"] not in _DTYPES
    ]
    refuse(f"{path} has entries of dtypes that are not read here", other)
    return {name: _array(**entry) for name, entry in entries}


def save(module: Module, path: str | Path) -> None:
    """Write all parameters of a module to a safetensors file. Raises as `write`."""
    write(state(module), path)


def load(module: Module, path: str | Path) -> None:
    """Set all parameters of a module from a safetensors file. Raises as `read` and `set_state`."""
    set_state(module, read(path))


def _array(data: bytearray, dtype: str, shape: list[int]) -> np.ndarray:
    """The array of an entry. A bfloat16 is the upper half of the bits of a float32."""
    if dtype == "BF16":
        x = (np.frombuffer(data, "uint16").astype("uint32") << 16).view("float32")
    else:
        x = np.frombuffer(data, _DTYPES[dtype])
    return x.reshape(shape)
