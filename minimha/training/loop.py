"""Training a language model, and evaluating it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minimha_autograd import backend, half, no_grad
from minimha_autograd.backend import Array

from .. import interchange
from ..functional import cross_entropy
from ..functional.checks import integer
from ..interchange.states import entries_under
from ..nn import AdamW, clip_gradients, decay_groups, warmup_cosine
from . import checkpoint
from .data import random_batches, windows


class Training:
    """A training run of a language model: an iterator that makes one step each time.

        for loss in Training(model, tokens, steps=2000, batch=12, lr=1e-3):
            ...

    A step draws windows at random places of the text, computes the gradient of their cross entropy,
    clips it, and updates the parameters with `AdamW`. The iterator yields the loss before the
    update, in nats per token. The learning rate follows `warmup_cosine`.

    model         a GPT, or another Module with a context T, which maps tokens (B, T) to logits
                  (B, T, vocabulary) when called as model(tokens, rng=generator)
    tokens        (N,), the text to learn, with N > T
    steps         number of steps of the whole run; the attribute `step` counts those made so far
    batch         B, the number of windows in a step
    lr, min_lr    the largest learning rate, and the one towards which it falls, lr/10 by default
    warmup        number of steps in which the learning rate rises, by default a tenth of all steps
    betas         the decay rates of the two running means in `AdamW`
    weight_decay  that of `AdamW`, for parameters with two or more axes, see `decay_groups`
    clip          the largest norm of the gradient: a larger gradient is scaled down to this norm
    seed          seed of all random numbers: step k draws its windows and its dropout from a
                  generator seeded with (seed, k)
    precision     "float32", or "bfloat16" for a float32 model on a GPU, where it is untried: the
                  factors of matrix products are rounded to bfloat16, in linear maps, in `matmul`
                  and in attention by "tiled". Weights, gradients, sums, norms, the loss and AdamW
                  stay in float32

    A run that is stopped at any step and resumed from a checkpoint ends with the same weights, bit
    for bit, as a run without a stop, on the same machine with the same number of threads and the
    same versions of all packages. On another CPU, and on a GPU, which adds up the gradients of
    embeddings in no fixed order, rounding may differ from the first step on.
    Raises ValueError for a text that is too short, and for a precision that does not exist or that
    the model or its device does not support.
    """

    def __init__(
        self,
        model: Any,
        tokens: np.ndarray,
        *,
        steps: int,
        batch: int,
        lr: float,
        min_lr: float | None = None,
        warmup: int | None = None,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.1,
        clip: float = 1.0,
        seed: int = 0,
        precision: str = "float32",
    ) -> None:
        _require_a_window(model, tokens)
        _require_a_precision(precision, model)
        # Arrays without axes become numbers, which a checkpoint can store and compare.
        steps, batch, lr, betas = backend.setting((steps, batch, lr, betas))
        weight_decay, clip, seed = backend.setting((weight_decay, clip, seed))
        min_lr = lr / 10 if min_lr is None else backend.setting(min_lr)
        warmup = steps // 10 if warmup is None else backend.setting(warmup)
        self.model, self.tokens, self.steps, self.step = model, tokens, steps, 0
        self.batch, self.clip, self.seed = batch, clip, seed
        self.precision = precision
        self.rate = partial(warmup_cosine, steps=steps, warmup=warmup, lr=lr, min_lr=min_lr)
        self.optimiser = self._optimiser(weight_decay, lr=lr, betas=betas)
        self.settings = {
            "steps": steps, "batch": batch, "lr": lr, "min_lr": min_lr, "warmup": warmup,
            "betas": betas, "weight_decay": weight_decay, "clip": clip, "seed": seed,
            "precision": precision, "text": _described(tokens), **_described_model(model),
        }  # fmt: skip

    def __iter__(self) -> Iterator[float]:
        return self

    def __next__(self) -> float:
        """Make one step and return its loss."""
        if self.step >= self.steps:
            raise StopIteration
        rng = np.random.default_rng((self.seed, self.step))
        draws = random_batches(self.tokens, batch=self.batch, context=self.model.context, rng=rng)
        self.optimiser.lr = self.rate(self.step)
        self.optimiser.zero_grad()
        rounding = half.bfloat16_products() if self.precision == "bfloat16" else _nothing
        with rounding:
            loss = self._update(*next(draws), rng)
        self.step += 1
        return loss

    def _optimiser(self, weight_decay: float, **settings: Any) -> AdamW:
        return AdamW(decay_groups(self.model, weight_decay), **settings)

    def _update(self, inputs: np.ndarray, targets: np.ndarray, rng: backend.Generator) -> float:
        """Update the parameters with the gradient of a batch, inputs and targets (B, T). Returns
        the loss before the update. rng draws the dropout."""
        inputs, targets = (tokens_for(self.model, tokens) for tokens in (inputs, targets))
        loss = cross_entropy(self.model(inputs, rng=rng), targets)
        loss.backward()
        clip_gradients(self.optimiser.parameters, self.clip)
        self.optimiser.step()
        return loss.item()

    def save(self, path: str | Path) -> None:
        """Write a checkpoint, from which `resume` continues, to a safetensors file.

        A checkpoint that was there is kept beside it as NAME-previous, unless it is damaged. Raises
        OSError if a file cannot be written.
        """
        checkpoint.write(self.state(), self.settings, path)

    def resume(self, path: str | Path) -> None:
        """Continue from a checkpoint; if it is missing or damaged, from the file NAME-previous
        beside it, with a warning.

        Raises FileNotFoundError if neither file exists. Raises ValueError, without changing
        anything, if each file that exists is damaged, and if the checkpoint belongs to another
        model, another text or a run with other settings; the message then names every difference.
        """
        self.set_state(checkpoint.read(path, self.settings))

    def state(self) -> dict[str, np.ndarray]:
        """The arrays of a checkpoint: the parameters, the state of the optimiser, and the step."""
        arrays = {f"model.{name}": x for name, x in interchange.state(self.model).items()}
        arrays |= {f"optimiser.{name}": x for name, x in self._optimiser_state().items()}
        return {**arrays, "step": np.asarray(self.step)}

    def set_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Continue from the arrays of a checkpoint, which `state` returned."""
        interchange.set_state(self.model, entries_under("model", arrays))
        self._set_optimiser_state(entries_under("optimiser", arrays))
        self.step = int(arrays["step"])

    def _optimiser_state(self) -> dict[str, np.ndarray]:
        return self.optimiser.state()

    def _set_optimiser_state(self, state: dict[str, np.ndarray]) -> None:
        self.optimiser.set_state(state)


def _described(tokens: np.ndarray) -> str:
    numbers = np.asarray(tokens, np.int64)
    digest = hashlib.sha256(numbers.tobytes()).hexdigest()
    return f"{len(numbers)} tokens with SHA-256 {digest[:16]}…"


def _described_model(model: Any) -> dict[str, Any]:
    """The settings of a model; if it has none, the dtypes and shapes of its parameters."""
    settings = getattr(model, "settings", None) or {
        name: f"{x.dtype} {x.shape}" for name, x in interchange.state(model).items()
    }
    return {f"model.{name}": value for name, value in settings.items()}


def evaluate(model: Any, tokens: np.ndarray, batch: int = 64) -> float:
    """The mean loss of a language model, in nats per token, over consecutive windows of the tokens
    (N,) of a text, each as long as the model's context.

    batch  the number of windows in a call of the model

    Raises ValueError for fewer than context + 1 tokens.
    """
    batch = integer(batch, "batch", least=1)
    _require_a_window(model, tokens)
    every, total = windows(tokens, model.context), 0.0
    with no_grad():
        for k in range(0, len(every[0]), batch):
            inputs, targets = (tokens_for(model, x[k : k + batch]) for x in every)
            total += inputs.shape[0] * cross_entropy(model(inputs), targets).item()
    return total / len(every[0])


_nothing = contextlib.nullcontext()

PRECISIONS = "float32", "bfloat16"
"""What `Training` accepts as its precision."""


def _require_a_precision(precision: str, model: Any) -> None:
    """Raise ValueError unless the model can be trained in this precision on its device."""
    if precision not in PRECISIONS:
        raise ValueError(
            f"precision={precision!r}: there are {' and '.join(map(repr, PRECISIONS))}"
        )
    if precision == "float32":
        return
    needed = f"precision={precision!r} needs"
    for name, parameter in model.named_parameters():
        if backend.on_host(parameter.data):
            why = "on a CPU, it would save no time"
            raise ValueError(f'{needed} a GPU: {why}. Move the model there with model.to("cupy")')
        if parameter.dtype != backend.namespace(parameter.data).float32:
            raise ValueError(f"{needed} parameters of float32, but {name} is {parameter.dtype}")
    if importlib.util.find_spec("ml_dtypes") is None:
        raise ValueError(f"{needed} the package ml_dtypes: pip install ml_dtypes")


def _require_a_window(model: Any, tokens: np.ndarray) -> None:
    if len(tokens) <= model.context:
        raise ValueError(
            f"there are {len(tokens)} tokens, but a context of {model.context} needs at least "
            f"{model.context + 1}"
        )


def tokens_for(model: Any, tokens: np.ndarray) -> Array:
    """The tokens as an array of the array library that the model's parameters belong to, on their
    device."""
    _, first = next(iter(model.named_parameters()))
    return backend.like(tokens, first.data)
