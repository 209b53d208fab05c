"""Optimisers: from gradients to better parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable

from minimha_autograd import Tensor
from minimha_autograd.backend import namespace


class AdamW:
    """Adam with decoupled weight decay.

        m ← β₁ m + (1 − β₁) g          v ← β₂ v + (1 − β₂) g²
        p ← p − lr · (m̂ / (√v̂ + eps) + weight_decay · p),   m̂ = m / (1 − β₁ᵗ),   v̂ = v / (1 − β₂ᵗ)

    parameters    Tensors that require a gradient; those without one at a step are left alone
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
        self.parameters = list(dict.fromkeys(parameters))  # tied ones move once
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.steps = 0
        self._moments = [(0.0 * p.data, 0.0 * p.data) for p in self.parameters]

    def step(self) -> None:
        """Move every parameter once, by its .grad."""
        self.steps += 1
        beta1, beta2 = self.betas
        correction = math.sqrt(1 - beta2**self.steps)
        rate = self.lr * correction / (1 - beta1**self.steps)
        for k, p in enumerate(self.parameters):
            g = p.grad
            if g is None:
                continue
            m, v = self._moments[k]
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * (g * g)
            self._moments[k] = m, v
            root = namespace(v).sqrt(v) + self.eps * correction
            p.data = (1 - self.lr * self.weight_decay) * p.data - rate * (m / root)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.parameters:
            p.grad = None
