"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(
    package: str, rooms: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package whose rooms are entered on first use.

        if TYPE_CHECKING:
            from . import pictures
            from .transformers import GPT, Block
        else:
            __getattr__, __dir__ = on_first_use(__name__, {
                "pictures": "",
                "transformers": "GPT Block",
            })

    rooms  the modules of the package that are entered, each with the names that the package offers
           from it, which may be modules inside it. The room itself is offered, too

    Type checkers and editors read the imports above; `dir` lists `__all__`.
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
