"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(
    package: str, rooms: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package that imports its rooms, the modules inside
    it, only when one of their names is first used.

        if TYPE_CHECKING:
            from . import pictures
            from .transformers import GPT, Block
        else:
            __getattr__, __dir__ = on_first_use(__name__, {
                "pictures": "",
                "transformers": "GPT Block",
            })

    rooms  for each of these modules, by name, the names that can be imported from the package
           though they are defined in the room: its objects, or modules inside it, with spaces
           between them. The room itself can be imported, too

    Type checkers and editors read the imports after TYPE_CHECKING; `dir` of the package lists its
    `__all__`.
    """
    room_of = {name: room for room, names in rooms.items() for name in names.split()}

    def attribute(name: str) -> Any:
        if name in rooms:
            return import_module(f"{package}.{name}")
        if name not in room_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")

        room = import_module(f"{package}.{room_of[name]}")
        if hasattr(room, name):
            value = getattr(room, name)
        else:
            value = import_module(f"{room.__name__}.{name}")

        # From now on Python finds it without asking here.
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return list(sys.modules[package].__all__)

    return attribute, names
