"""Module: named parameters, found where they stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minimha_autograd import Tensor, backend


class Module:
    """Something with parameters: its attributes that are Tensors, and those of Modules within it.

    A list of Modules counts as well. Names are the path to the attribute: "blocks.0.attention.w_q".
    """

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """All parameters with their names, in the order in which they were made."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                yield prefix + name, value
            for suffix, module in _modules(value):
                yield from module.named_parameters(f"{prefix}{name}{suffix}.")

    def parameters(self) -> list[Tensor]:
        """All parameters."""
        return [tensor for _, tensor in self.named_parameters()]

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for tensor in self.parameters():
            tensor.grad = None

    def to(self, library: str, device: Any = None) -> Module:
        """Move all parameters, in place, to an array library ("numpy", "cupy", "torch", …).

        Returns the module itself. Raises RuntimeError for a library that this machine lacks.
        """
        xp = backend.library(library)
        for tensor in self.parameters():
            tensor.data, tensor.grad = backend.move(tensor.data, xp, device), None
        return self


def _modules(value: object) -> Iterator[tuple[str, Module]]:
    if isinstance(value, Module):
        yield "", value
    if isinstance(value, list):
        yield from ((f".{k}", m) for k, m in enumerate(value) if isinstance(m, Module))
