"""Writing files completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """A context manager that gives a temporary path in the same folder to write to. At the end of
    the block the file is renamed to `path`; after an error it is removed. Raises PermissionError,
    before anything is written, if no file can be created at `path`."""
    check_writable(path)
    path = Path(path).resolve()  # a link is followed, not replaced
    unfinished = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
    try:
        yield unfinished
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())  # or after a power failure the new name may hold no content
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def check_writable(path: str | Path) -> None:
    """Raise PermissionError if no file can be created at this path."""
    path = Path(path).resolve()
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise PermissionError(f"cannot write to {path}")
