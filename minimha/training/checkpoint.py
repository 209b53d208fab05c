"""Checkpoints: files in which a crash while writing, or any later damage, is detected."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import interchange
from ..interchange.files import written_whole

_CHECKSUM, _SETTINGS = "checksum", "settings"
"""Names in the file of the arrays that hold the checksum, and the settings as JSON."""


def write(arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any], path: str | Path) -> None:
    """Write the arrays and settings of a training run, with a checksum, to a safetensors file.
    Later, `read` compares these settings with those of its caller.

    A checkpoint that the file already holds is first copied to the file NAME-previous beside it,
    unless it is damaged. If the process is killed at any moment, each file has either its old
    content or its new content. Raises OSError if a file cannot be written.
    """
    path = Path(path).resolve()
    content = {**arrays, _SETTINGS: np.frombuffer(_json(settings), "uint8")}
    with contextlib.suppress(FileNotFoundError, ValueError):  # from _read: nothing to keep
        _read(path)
        with written_whole(_previous(path)) as unfinished:
            shutil.copyfile(path, unfinished)
    interchange.write({**content, _CHECKSUM: checksum(content)}, path)


def read(path: str | Path, settings: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint; if it is missing or damaged, those in the file NAME-previous
    beside it, with a warning.

    Raises FileNotFoundError if neither file exists. Raises ValueError if each file that exists is
    damaged, and if the checkpoint was written with settings other than `settings`; the message then
    names every difference.
    """
    arrays = _first_undamaged(Path(path).resolve())
    saved = _BEFORE | json.loads(arrays.pop(_SETTINGS).tobytes())
    wanted = json.loads(_json(settings))
    none = "missing"
    wrong = [
        f"{name} is {saved.get(name, none)} in the checkpoint, but {wanted.get(name, none)} here"
        for name in {**wanted, **saved}
        if saved.get(name, none) != wanted.get(name, none)
    ]
    if wrong:
        raise ValueError(f"{path} is a checkpoint of another run: " + "; ".join(wrong))
    return arrays


_BEFORE = {"precision": "float32"}
"""Settings that are missing in checkpoints of earlier versions, with the values that those used."""


def _first_undamaged(path: Path) -> dict[str, np.ndarray]:
    errors: list[Exception] = []
    for file in (path, _previous(path)):
        try:
            arrays = _read(file)
        except (FileNotFoundError, ValueError) as error:
            errors.append(error)
        else:
            if errors:
                warnings.warn(f"{errors[0]}; continuing from {file.name}", stacklevel=4)
            return arrays
    if all(isinstance(error, FileNotFoundError) for error in errors):
        raise FileNotFoundError(f"there is no checkpoint {path}")
    raise ValueError("; ".join(map(str, errors)))


def _read(path: Path) -> dict[str, np.ndarray]:
    arrays = interchange.read(path, bfloat16=True)  # the checksum is of the bits as they are
    if _CHECKSUM not in arrays:
        raise ValueError(f"{path} is not a checkpoint: it has no checksum")
    if not np.array_equal(arrays.pop(_CHECKSUM), checksum(arrays)):
        raise ValueError(f"{path} is damaged: its content does not have its checksum")
    return arrays


def checksum(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The SHA-256 of the names, dtypes, shapes and entries of all arrays, as 32 numbers of
    uint8."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        x = np.asarray(arrays[name])
        digest.update(f"{name} {x.dtype} {x.shape} ".encode())
        digest.update(x.tobytes())
    return np.frombuffer(digest.digest(), "uint8")


def _json(settings: Mapping[str, Any]) -> bytes:
    return json.dumps(settings, default=repr).encode()


def _previous(path: Path) -> Path:
    return path.with_stem(f"{path.stem}-previous")
