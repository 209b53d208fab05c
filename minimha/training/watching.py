"""Watching a training run: progress, losses, samples and attention, in a notebook or a terminal."""

from __future__ import annotations

import contextlib
import html
import math
import re
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minimha_autograd import backend, no_grad

from .. import pictures
from ..transformers import generate
from .loop import evaluate, tokens_for

_WIDTH = 72
"""How many tokens a sample has: about a line of a terminal."""


@dataclass
class Losses:
    """The losses of a run, in nats: two dictionaries with the step as the key, `training` for the
    loss of each step's batch, and `validation` for the loss on the validation tokens."""

    training: dict[int, float] = field(default_factory=dict)
    validation: dict[int, float] = field(default_factory=dict)

    def recent(self, steps: int) -> float:
        """The mean training loss of the last `steps` steps."""
        return float(np.mean(list(self.training.values())[-steps:]))


def watch(
    run: Any,
    validation: np.ndarray,
    tokenizer: Any = None,
    *,
    every: int | None = None,
    losses: Losses | None = None,
) -> Generator[float, None, None]:
    """Run a `Training`: yield the loss of each step, and show the progress.

        for loss in watch(run, parts.validation, tokenizer):
            pass

    run         the `Training`
    validation  tokens (N,) of held-out text, more than the context of the model
    tokenizer   such as a `data.CharacterTokenizer`; with it, each report has a sample, which
                continues the validation text, and in a notebook the attention of each head to one
                of its sentences
    every       steps between two reports; by default a tenth of all steps, or the `every` of a
                `ParallelTraining`
    losses      where the losses are kept; by default a new `Losses`

    A notebook shows a progress bar, the curve of the losses, the sample and the attention, which
    all update in place. A terminal shows a progress bar and, for each report, a line with the
    losses and, with a tokenizer, one with the sample.

    Raises FloatingPointError when a loss is NaN or infinite.
    """
    losses = Losses() if losses is None else losses
    every = every or getattr(run, "every", max(1, run.steps // 10))
    screen = (_Notebook if _in_notebook() else _Terminal)(run, validation, tokenizer, every, losses)
    with contextlib.closing(screen):
        for loss in run:
            losses.training[run.step] = loss
            screen.progress(loss)
            _require_finite(loss, run)
            if run.step % every == 0 or run.step == run.steps:
                losses.validation[run.step] = evaluate(run.model, validation)
                _require_finite(losses.validation[run.step], run)
                screen.report()
            yield loss


def _require_finite(loss: float, run: Any) -> None:
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"training diverged: the loss is {loss} after step {run.step}. A learning "
            f"rate lower than {run.settings['lr']:g} usually helps"
        )


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@dataclass
class _Screen:
    run: Any
    validation: np.ndarray
    tokenizer: Any
    every: int
    losses: Losses


@dataclass
class _Terminal(_Screen):
    """Shows the progress in a terminal: a progress bar, and the reports as lines above it."""

    def __post_init__(self) -> None:
        from rich.progress import Progress

        self._progress = Progress(transient=True)
        self._progress.disable = not self._progress.console.is_terminal
        self._task = self._progress.add_task("training", total=self.run.steps)
        self._progress.start()

    def close(self) -> None:
        self._progress.stop()

    def progress(self, loss: float) -> None:
        self._progress.update(self._task, completed=self.run.step)

    def report(self) -> None:
        step, losses = self.run.step, self.losses
        text = f"step {step:6d}   training {losses.recent(self.every):.3f}"
        text += f"   validation {losses.validation[step]:.3f}"
        if self.tokenizer is not None:
            continued = sample(self.run.model, self.validation, self.tokenizer, _WIDTH)
            text += f"\n  | {printable(continued)}"
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


@dataclass
class _Notebook(_Screen):
    """Shows the progress in a notebook: a progress bar and the last report, which update in
    place."""

    def __post_init__(self) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self._bar, self._last = (display(HTML(""), display_id=True) for _ in range(2))

    def close(self) -> None:
        """Do nothing: the bar and the last report stay below the cell."""

    def progress(self, loss: float) -> None:
        step, steps = self.run.step, self.run.steps
        if step % max(1, steps // 100) == 0:  # each update is a message to the browser
            bar = f"<progress value={step} max={steps}></progress>"
            self._bar.update(self._html(f"{bar} step {step} of {steps}, loss {loss:.3f}"))

    def report(self) -> None:
        run, losses = self.run, self.losses
        curve = pictures.svg(pictures.losses(losses.training, losses.validation))
        parts = [
            f"<p>After {run.step} steps, the loss is {losses.recent(self.every):.3f} on the "
            f"training text and {losses.validation[run.step]:.3f} on the validation text.</p>",
            curve.replace(
                "<svg", '<svg style="max-width: 100%; height: auto; background: #fff"', 1
            ),
        ]
        if self.tokenizer is not None:
            continued = sample(run.model, self.validation, self.tokenizer, 4 * _WIDTH)
            weights, labels = attention(run.model, self.validation, self.tokenizer)
            title = "What each head attends to, in a sentence of the validation text"
            shown = pictures.attention_html(weights, labels, title=title)
            parts += [
                f'<pre style="white-space: pre-wrap">{html.escape(continued)}</pre>',
                shown.html,
            ]
        self._last.update(self._html("\n".join(parts)))


def sample(model: Any, validation: np.ndarray, tokenizer: Any, count: int) -> str:
    """The text of the `count` tokens with which the model continues the beginning of the validation
    text, whose tokens are validation (N,). The beginning, half as long as the model's context, is
    left out."""
    prompt = validation[None, : max(1, model.context // 2)]
    return tokenizer.decode(generate(model, prompt, count)[0, prompt.shape[1] :])


def attention(model: Any, validation: np.ndarray, tokenizer: Any) -> tuple[np.ndarray, list[str]]:
    """The attention weights (layers, H, T, T) of the model on a sentence of the validation text,
    and the text of each of the sentence's T tokens. validation has the tokens (N,) of the text. A
    sentence that is too long for the model's context or for a picture is cut off."""
    sentence = real_sentence(tokenizer.decode(validation[:10_000]))
    tokens = tokenizer.encode(sentence)[: min(model.context, 32)]
    weights = attention_weights(model, tokens)
    room = math.isqrt(16_384 // math.prod(weights.shape[:2]))  # cells that attention_html accepts
    return weights[..., :room, :room], [tokenizer.decode([token]) for token in tokens[:room]]


def attention_weights(model: Any, tokens: np.ndarray) -> np.ndarray:
    """The attention weights (layers, H, T, T) of the model on tokens (T,)."""
    with no_grad():
        _, weights = model(tokens_for(model, tokens[None, :]), return_weights=True)
    return np.stack([backend.to_numpy(w.data)[0] for w in weights])


def real_sentence(text: str) -> str:
    """The first sentence of 30 to 44 characters that has only lower-case letters, spaces and commas
    between its capital and its full stop, "!" or "?". Without one, the first 40 characters."""
    found = re.search(r"(?<=\s)[A-Z][a-z, ]{28,42}[.!?](?=\s)", text)
    return found.group() if found else text[:40]


def printable(text: str) -> str:
    """The text in one line: a space replaces each line break, and each other character that a
    terminal cannot print."""
    return "".join(c if c.isprintable() else " " for c in text)
