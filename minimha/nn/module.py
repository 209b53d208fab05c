"""Module: finds its parameters and names them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from minimha_autograd import Tensor, backend
from minimha_autograd.backend import Array


def parameter(x: Array) -> Tensor:
    """A Tensor with this array that requires a gradient."""
    return Tensor(x, requires_grad=True)


class Module:
    """An object with parameters: its attributes that are Tensors requiring a gradient, and those of
    the Modules in its attributes, also inside lists, tuples and dictionaries.

    The name of a parameter is the path to it: "blocks.0.attention.w_q". A parameter with several
    paths, such as a tied weight, counts once, under the first of its names.

    unnamed  attributes whose own names are left out: with ("projections",) a parameter is called
             "w_q", not "projections.w_q"
    """

    unnamed: tuple[str, ...] = ()

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all parameters with their names, in the order of the attributes."""
        tensors = self._inside(Tensor)
        return iter([(name, tensor) for name, tensor in tensors if tensor.requires_grad])

    def parameters(self) -> list[Tensor]:
        """A list of all parameters of this module and of the modules inside it."""
        return [tensor for _, tensor in self.named_parameters()]

    def modules(self) -> list[Module]:
        """This module and all modules inside it."""
        return [module for _, module in self._inside(Module)]

    def zero_grad(self) -> None:
        """Set the gradients of all parameters to None."""
        for tensor in self.parameters():
            tensor.grad = None

    def to(self, library: str, device: Any = None) -> Module:
        """Move all Tensors, in place, to an array library ("numpy", "cupy", "torch", …), and to a
        device of this library, by default the library's default device. Gradients are set to None.

        Returns the module itself. Raises RuntimeError for a library that this machine lacks.
        """
        xp = backend.library(library)
        for _, tensor in self._inside(Tensor):
            tensor.data = backend.move(tensor.data, xp, device)
        self.zero_grad()
        return self

    def __repr__(self) -> str:
        """A table of all parameters: name, shape and number of entries, with the total in the last
        line."""
        rows = []
        total = 0
        for name, p in self.named_parameters():
            entries = math.prod(p.shape)
            total += entries
            rows.append((name, str(tuple(p.shape)), f"{entries:,}"))
        rows.append(("all parameters", "", f"{total:,}"))

        # Each column is as wide as its widest entry.
        names, shapes, counts = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = [f"  {n:<{names}}  {s:<{shapes}}  {c:>{counts}}" for n, s, c in rows]
        return "\n".join([type(self).__name__, *lines])

    def _inside(self, kind: type) -> list[tuple[str, Any]]:
        """All objects of the class `kind`, Tensor or Module, in this module: each once, with the
        first of its names."""
        found: list[tuple[str, Any]] = []
        seen: set[int] = set()

        # A stack, not a recursion: reversed, so that the first part is visited next.
        waiting: list[tuple[str, Any]] = [("", self)]
        while waiting:
            name, value = waiting.pop()
            if isinstance(value, kind) and id(value) not in seen:
                seen.add(id(value))
                found.append((name, value))
            if isinstance(value, Module | dict | list | tuple):
                waiting += reversed(_parts(name, value))
        return found


def _parts(name: str, whole: Any) -> list[tuple[str, Any]]:
    """The objects that `whole`, a Module, dictionary, list or tuple, directly contains, each with
    its full name. `name` is the name of `whole`."""
    unnamed: tuple[str, ...] = ()
    if isinstance(whole, Module):
        unnamed = whole.unnamed
        whole = vars(whole)
    items = whole.items() if isinstance(whole, dict) else enumerate(whole)

    parts = []
    for key, item in items:
        path = []
        if name:  # the module itself, at the root, has none
            path.append(name)
        if key not in unnamed:
            path.append(str(key))
        parts.append((".".join(path), item))
    return parts
