"""Optimisers: from gradients to better parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from minimha_autograd import Tensor
from minimha_autograd.backend import namespace

from .. import functional


class AdamW:
    """Adam with decoupled weight decay.

        m ← β₁ m + (1 − β₁) g          v ← β₂ v + (1 − β₂) g²
        p ← p − lr · (m̂ / (√v̂ + eps) + weight_decay · p),   m̂ = m / (1 − β₁ᵗ),   v̂ = v / (1 − β₂ᵗ)

    parameters    Tensors that require a gradient; a step skips those whose .grad is None, and t
                  counts the steps of each parameter
    lr            learning rate; may be changed between steps

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), algorithm 2.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        if isinstance(parameters, Tensor):
            raise TypeError("parameters is a list of Tensors: write [tensor]")
        self.parameters = list(dict.fromkeys(parameters))  # a tied parameter is updated once
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        _keep_freed_memory()
        self._state = [(0, 0.0 * p.data, 0.0 * p.data) for p in self.parameters]  # t, m, v

    def step(self) -> None:
        """Update every parameter once, by its .grad."""
        beta1, beta2 = self.betas
        size = sum(math.prod(p.shape) for p in self.parameters)
        fast = functional.acceleration.kernel("adamw", size)
        for k, p in enumerate(self.parameters):
            g = p.grad
            if g is None:
                continue
            t, m, v = self._state[k]
            t += 1
            correction = math.sqrt(1 - beta2**t)  # of v̂, taken out of the division of arrays
            decay, eps = 1 - self.lr * self.weight_decay, self.eps * correction
            rate = self.lr * correction / (1 - beta1**t)
            moved = fast(p.data, g, m, v, self.betas, decay, rate, eps) if fast else None
            if moved is None:
                m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * (g * g)
                moved = decay * p.data - rate * (m / (namespace(v).sqrt(v) + eps)), m, v
            p.data, m, v = moved
            self._state[k] = t, m, v

    def zero_grad(self) -> None:
        """Set the gradients to None."""
        for p in self.parameters:
            p.grad = None


@functools.cache
def _keep_freed_memory() -> None:
    """Make glibc keep up to 64 MB of the memory that a training step frees for the next step.

    Otherwise glibc returns large blocks to the system and gets them back page by page, which takes
    a fifth of the time of a small GPT's step. Its threshold becomes twice the size of the
    largest piece freed so far of at most 32 MiB; this piece is never written to and costs nothing.
    """
    bytes(2**25 - 2**16)
