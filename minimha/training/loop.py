"""Training a language model, evaluating it, and sampling from it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from minimha_autograd import Tensor, backend, no_grad
from minimha_autograd.backend import Array

from ..functional import cross_entropy
from ..nn import AdamW
from .data import random_batches, windows


class LanguageModel(Protocol):
    """A module that maps tokens (B, T), T up to its context, to logits (B, T, vocabulary)."""

    context: int

    def __call__(self, tokens: Array, /) -> Any: ...

    def parameters(self) -> list[Tensor]: ...


def train(
    model: LanguageModel,
    tokens: np.ndarray,
    *,
    steps: int,
    batch: int,
    lr: float,
    rng: np.random.Generator | int = 0,
) -> Iterator[float]:
    """Train on windows of the tokens with AdamW, and yield the loss, in nats, after each step.

    The learning rate rises to lr over the first tenth of the steps, then falls to lr/10 along a
    cosine.
    """
    optimiser = AdamW(model.parameters(), betas=(0.9, 0.99))
    draws = random_batches(
        tokens, batch=batch, context=model.context, rng=np.random.default_rng(rng)
    )
    for step, (inputs, targets) in zip(range(steps), draws, strict=False):
        optimiser.lr = lr * _schedule(step, steps)
        optimiser.zero_grad()
        loss = cross_entropy(model(tokens_for(model, inputs)), tokens_for(model, targets))
        loss.backward()
        optimiser.step()
        yield loss.item()


def _schedule(step: int, steps: int) -> float:
    warmup = max(1, steps // 10)
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - 1 - warmup)))


def evaluate(model: LanguageModel, tokens: np.ndarray, batch: int = 64) -> float:
    """The mean loss, in nats per character, over all windows of the tokens."""
    inputs, targets = windows(tokens, model.context)
    total = 0.0
    with no_grad():
        for k in range(0, len(inputs), batch):
            logits = model(tokens_for(model, inputs[k : k + batch]))
            some = targets[k : k + batch]
            total += cross_entropy(logits, tokens_for(model, some)).item() * len(some)
    return total / len(inputs)


def sample(
    model: LanguageModel, prompt: np.ndarray, *, count: int, rng: np.random.Generator | int = 0
) -> np.ndarray:
    """The prompt (T,) followed by count tokens, each drawn from the model's prediction."""
    rng = np.random.default_rng(rng)
    tokens = list(prompt)
    with no_grad():
        for _ in range(count):
            seen = np.array(tokens[-model.context :])[None, :]
            last = backend.to_numpy(model(tokens_for(model, seen)).data)[0, -1].astype(np.float64)
            odds = np.exp(last - last.max())
            tokens.append(rng.choice(len(odds), p=odds / odds.sum()))
    return np.array(tokens)


def tokens_for(model: LanguageModel, tokens: np.ndarray) -> Array:
    """Tokens in the library and on the device of the model's parameters."""
    return backend.like(tokens, model.parameters()[0].data)
