"""Module: named parameters, found where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minimha_autograd import Tensor, backend
from minimha_autograd.backend import Array


def parameter(x: Array) -> Tensor:
    """A Tensor with this array that requires a gradient."""
    return Tensor(x, requires_grad=True)


class Module:
    """Something with parameters: its attributes that are Tensors requiring a gradient, and those of
    Modules within it, in lists, tuples and dictionaries too.

    Names are the path to the attribute: "blocks.0.attention.w_q". A parameter that stands in two
    places, as tied weights do, is one parameter, under the first of its names.

    unnamed  attributes that names leave out: what stands in them is named as the module's own
    """

    unnamed: tuple[str, ...] = ()

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All parameters with their names, in the order in which they were made."""
        return ((name, tensor) for name, tensor in self._tensors() if tensor.requires_grad)

    def parameters(self) -> list[Tensor]:
        """All parameters."""
        return [tensor for _, tensor in self.named_parameters()]

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for tensor in self.parameters():
            tensor.grad = None

    def to(self, library: str, device: Any = None) -> Module:
        """Move all Tensors, in place, to an array library ("numpy", "cupy", "torch", …).

        Returns the module itself. Raises RuntimeError for a library that this machine lacks.
        """
        xp = backend.library(library)
        for _, tensor in self._tensors():
            tensor.data = backend.move(tensor.data, xp, device)
        self.zero_grad()
        return self

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        seen = set()
        for name, value in _walk(self):
            if id(value) not in seen:
                seen.add(id(value))
                yield name, value


def _walk(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """All Tensors in a value, with their names."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Module | dict | list | tuple):
        unnamed = value.unnamed if isinstance(value, Module) else ()
        keyed = vars(value) if isinstance(value, Module) else value
        for key, item in keyed.items() if isinstance(keyed, dict) else enumerate(keyed):
            parts = [name] * bool(name) + [str(key)] * (key not in unnamed)
            yield from _walk(item, ".".join(parts))
