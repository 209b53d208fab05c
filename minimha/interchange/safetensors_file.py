"""Dictionaries of arrays as safetensors files. Nothing is unpickled.

Such a file has three parts: the length of the header, as 8 bytes; the header, which is JSON with
the dtype, the shape and the place of each array; and the bytes of the arrays, without gaps. NumPy
reads and writes them, since the library of this name does not run in a browser.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
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
"""The names of dtypes in safetensors files, and for each the NumPy dtype that holds its values
exactly."""
_NAMES = {ours: name for name, ours in _DTYPES.items() if name != "BF16"} | {"bfloat16": "BF16"}
"""For the dtype of an array, its name in safetensors files. The dtype bfloat16 is that of the
package ml_dtypes."""


def write(
    arrays: Mapping[str, Any], path: str | Path, *, metadata: dict[str, str] | None = None
) -> None:
    """Write a dictionary of arrays to a safetensors file, completely or not at all.

    torch's bfloat16, which NumPy lacks, is written as float32, which holds its values exactly.

    metadata  a dictionary of texts, stored in the header of the file: transformers, for example,
              writes {"format": "pt"}. None by default

    Raises ValueError for entries that a safetensors file cannot hold, such as complex numbers, and
    names all of them; OSError if the file cannot be written; TypeError for arrays that are not a
    dictionary.
    """
    require_dictionary(arrays)
    wrong, host = [], {}
    for name, x in arrays.items():
        numbers = on_host(x)
        if not isinstance(name, str) or name == "__metadata__":
            wrong.append(f"{name!r} cannot be a name")
        elif isinstance(numbers, str):
            wrong.append(f"{name} is {numbers}")
        elif numbers.dtype.name not in _NAMES:
            wrong.append(f"{name} is of {numbers.dtype}")
        else:
            host[name] = numbers
    refuse("a safetensors file holds named arrays of real numbers and booleans", wrong)
    with written_whole(path) as unfinished:
        unfinished.write_bytes(_packed(host, metadata))


def read(path: str | Path, *, bfloat16: bool = False) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, by name; its metadata are ignored.

    bfloat16  whether entries of bfloat16 keep this dtype, which needs the package ml_dtypes; by
              default they become float32, which holds their values exactly

    Raises OSError if there is no file. Raises ValueError for a file that is incomplete or in
    another format, and for entries of a dtype that is not supported, such as float8; the message
    names all these entries. Raises RuntimeError for bfloat16 without ml_dtypes. Nothing is
    unpickled.
    """
    return {
        name: _array(dtype, shape, bytearray(data), bfloat16=bfloat16)
        for name, dtype, shape, data in _read(path, Path(path).read_bytes())
    }


def mapped(path: str | Path, *, bfloat16: bool = False) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file, by name, with the arguments and errors of `read`. But the
    arrays are views of the file: the operating system reads each part of them when it is first
    used, and may drop it when memory is short. Changes to the arrays are not written to the file.
    Two kinds of arrays are copies: those of bfloat16 that become float32, and those that are not
    aligned in the file."""
    import mmap  # here, because the rest of the module works without it

    with Path(path).open("rb") as file:
        content: Any = b""
        if Path(path).stat().st_size:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return {
        name: _array(dtype, shape, data, bfloat16=bfloat16)
        for name, dtype, shape, data in _read(path, content)
    }


def _read(path: str | Path, content: Any) -> list[tuple[str, str, list[int], memoryview]]:
    """The name, dtype, shape and bytes of each array in a safetensors file, sorted by name.
    `content` is the content of the file. Raises ValueError, with the `path` of the file in the
    message, if it is incomplete, in another format, or has entries of dtypes that are not
    supported."""
    try:
        entries = sorted(_entries(content), key=lambda entry: entry[0])
    except (ValueError, RecursionError) as error:
        pickled = content[:4].startswith((b"\x80", b"PK\x03\x04"))  # as torch.save writes
        raise ValueError(
            f"{path} is not a safetensors file, or is incomplete: {error}"
            + ". It looks like a pickle, which can run any code when it is read, so it was not "
            "read: if you trust it, write it again with safetensors" * pickled
        ) from error
    other = [f"{name} is {dtype}" for name, dtype, *_ in entries if dtype not in _DTYPES]
    refuse(f"{path} has entries of dtypes that are not read here", other)
    return entries


def save(module: Module, path: str | Path) -> None:
    """Write all parameters of a module to a safetensors file. Raises the errors of `state`, which
    copies the parameters, and of `write`."""
    write(state(module), path)


def load(module: Module, path: str | Path) -> None:
    """Set all parameters of a module from a safetensors file. If the module has parameters of
    bfloat16, entries of bfloat16 keep this dtype; otherwise they become float32. Raises the errors
    of `read` and `set_state`."""
    names = {str(p.dtype) for p in module.parameters()}
    set_state(module, read(path, bfloat16="bfloat16" in names))


def bfloat16_of_numpy() -> np.dtype:
    """NumPy's dtype bfloat16, which ml_dtypes provides. Raises RuntimeError without it."""
    try:
        import ml_dtypes
    except ImportError as error:
        fix = "pip install ml_dtypes"
        raise RuntimeError(f"bfloat16 needs the package ml_dtypes: {fix}") from error
    return np.dtype(ml_dtypes.bfloat16)


def _packed(arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None) -> bytes:
    """The bytes of a safetensors file with these arrays and, in its header, these metadata. The
    arrays are sorted from the widest dtype to the narrowest, so that each begins at a multiple of
    the size of its numbers."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    parts, start = [], 0
    for name, x in sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0])):
        header[name] = {
            "dtype": _NAMES[x.dtype.name], "shape": x.shape,
            "data_offsets": (start, start := start + x.nbytes),
        }  # fmt: skip
        parts.append(x.astype(x.dtype.newbyteorder("<"), copy=False).tobytes())
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _entries(content: Any) -> Iterator[tuple[str, str, list[int], memoryview]]:
    """The name, dtype, shape and bytes of each array in a safetensors file with this content.
    Raises ValueError if it is in another format, or if part of it is missing."""
    length = int.from_bytes(content[:8], "little")
    text, numbers, end = content[8 : 8 + length], memoryview(content)[8 + length :], 0
    header = json.loads(text.decode()) if len(text) == length > 0 else None
    if not isinstance(header, dict):
        raise ValueError("it has no header")
    header.pop("__metadata__", None)
    places: dict[str, tuple[int, int]] = {}
    for name, entry in header.items():
        match entry:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [start, stop]} if all(
                type(n) is int and n >= 0 for n in (*shape, start, stop)
            ):
                places[name] = start, stop
            case _:
                raise ValueError(f"{name!r} lacks a dtype, a shape, or two offsets")
        if dtype in _DTYPES and stop - start != math.prod(shape) * _width(dtype):
            raise ValueError(f"{name!r} has {stop - start} bytes, which do not fit its shape")
    for name, (start, stop) in sorted(places.items(), key=lambda item: item[1]):
        if start != end or not start <= stop <= len(numbers):
            raise ValueError(f"the bytes of {name!r} are not where they should be")
        end = stop
        yield name, header[name]["dtype"], header[name]["shape"], numbers[start:stop]
    if end != len(numbers):
        raise ValueError(f"{len(numbers) - end} bytes follow the last array")


def _width(dtype: str) -> int:
    return 2 if dtype == "BF16" else np.dtype(_DTYPES[dtype]).itemsize


def _array(dtype: str, shape: list[int], data: Any, *, bfloat16: bool) -> np.ndarray:
    """The array with this dtype (its name in the file), shape and bytes, if possible as a view of
    the bytes.

    bfloat16  whether "BF16" stays bfloat16. Otherwise it becomes float32: the bits of a bfloat16
              are the upper 16 bits of a float32 of the same value
    """
    if dtype != "BF16":
        x = np.frombuffer(data, _DTYPES[dtype])
    elif bfloat16:
        x = np.frombuffer(data, bfloat16_of_numpy())
    else:
        x = np.left_shift(np.frombuffer(data, "uint16"), 16, dtype="uint32").view("float32")
    return (x if x.flags.aligned else x.copy()).reshape(shape)
