"""The tour: check all gradients, train a small transformer, and see what its heads attend to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minimha_autograd import Operation, backend, gradcheck, ops
from minimha_autograd.gradcheck import text_table

from .. import functional, masks, pictures
from ..attention import scaled_dot_product_attention
from ..multihead import multi_head_attention
from ..pictures.saving import check_path
from ..projections import project_in, project_out
from ..transformers import GPT, generate
from . import data, watching
from .loop import Training, evaluate

CONTEXT = 64
STEPS = 1000
LR = 5e-3
MARGIN = 0.1
"""How much lower than that of the bigram table a loss must be, in nats per character."""


@dataclass(frozen=True)
class Tour:
    """A tour whose input is known to be usable."""

    text: str
    vocabulary: data.CharacterTokenizer
    parts: data.Split
    library: str
    seed: int
    steps: int
    picture: Path
    by_default: bool

    @classmethod
    def of(cls, text: Path | None, *, seed: int, steps: int, library: str, picture: Path) -> Tour:
        """Raises ValueError, RuntimeError or OSError, with a one-line message."""
        backend.library(library)
        check_path(picture)
        by_default = text is None and steps == STEPS
        characters = data.python_reference() if text is None else data.read_text(text)
        vocabulary = data.CharacterTokenizer(characters)
        parts = data.split(vocabulary.encode(characters), CONTEXT)
        return cls(characters, vocabulary, parts, library, seed, steps, picture, by_default)

    def run(self) -> int:
        """Run the tour and print it. Returns the exit code: 1 if the model, on the default text and
        with the default steps, did not clearly beat the bigram table.

        Raises GradcheckError for a gradient that is wrong.
        """
        vocabulary, parts = self.vocabulary, self.parts
        print("1. Gradients of every part of multi-head attention, against finite differences\n")
        print(check_gradients(self.library))
        print("\n   structural zero: the true gradient is 0, and all that is left is rounding")

        size = f"{len(self.text):,} characters"
        print(f"\n2. A causal transformer learns to continue a text of {size}\n")
        model = GPT(
            len(vocabulary), context=CONTEXT, d_model=64, num_heads=4, num_layers=2, rng=self.seed
        )
        model.to(self.library)
        _train(model, parts.train, self.steps, self.seed)
        below = _judge(model, parts, len(vocabulary))
        prompt = parts.validation[: CONTEXT // 2]
        print(f"\n   It continues the held-out text {vocabulary.decode(prompt)!r} with\n")
        continued = generate(model, prompt[None], 200, rng=self.seed)[0, len(prompt) :]
        for line in vocabulary.decode(continued).splitlines():
            print(f"   | {watching.printable(line)}")

        sentence = watching.real_sentence(vocabulary.decode(parts.validation))
        print(f"\n3. What each head attends to, in {sentence!r}")
        figure = pictures.attention_heads(
            watching.attention_weights(model, vocabulary.encode(sentence)),
            sentence,
            title="Attention weights of each head, over held-out text",
        )
        print(f"   The picture is in {pictures.save(figure, self.picture)}")
        if self.by_default and below < MARGIN:
            print(f"\nFailed: the transformer should beat the bigram table by {MARGIN} nats")
            return 1
        return 0


def check_gradients(library: str = "numpy") -> str:
    """Check each part of multi-head attention and of the transformer; returns a table of errors.

    Raises GradcheckError at the first gradient that is wrong.
    """
    from rich.progress import track

    rng = np.random.default_rng(0)
    xp = backend.library(library)
    rows = []
    for name, operation, settings, inputs in track(_parts(xp), "   checking", transient=True):
        arrays = [
            backend.move(rng.standard_normal(x), xp) if isinstance(x, tuple) else x
            for x in inputs.values()
        ]
        checked = partial(operation.with_pullback, **settings)
        report = gradcheck(checked, *arrays, names=list(inputs))
        rows += [(name, r.input, f"{r.error:.1e}", r.method, r.note) for r in report.rows]
    return text_table(("operation", "input", "error", "method", ""), rows)


def _parts(xp: Any) -> list[tuple[str, Operation, dict[str, Any], dict[str, Any]]]:
    """Name, operation, settings, and the inputs: arrays, or the shapes of random ones."""
    b, h, t, s, d, dv, m = 2, 3, 4, 5, 2, 6, 7
    indices = xp.asarray([[1, 0, 1], [3, 1, 1]])
    qkv = {"query": (b, h, t, d), "key": (b, h, s, d), "value": (b, h, s, dv)}
    rule = masks.padding([3, 0]) | masks.causal(offset=1)
    mask = rule.array((b, h, t, s), like=indices)
    attend = scaled_dot_product_attention
    x, w, bias = (b, t, m), (m, h * d), (h * d,)
    return [
        ("matmul", ops.matmul, {}, {"x": x, "w": w}),
        ("softmax", functional.softmax, {}, {"scores": (h, t, s)}),
        ("attention", attend, {}, qkv),
        ("attention, masked", attend, {}, qkv | {"mask": mask, "bias": (h, 1, s)}),
        ("project in", project_in, {"num_heads": h}, {"x": x, "w": w, "b": bias}),
        ("project out", project_out, {}, {"x": (b, h, t, d), "w": (h * d, m), "b": (m,)}),
        (
            "multi-head attention",
            multi_head_attention,
            {"num_heads": h},
            {"query": x, "key": (b, s, m), "value": (b, s, m)}
            | {"w_q": w, "w_k": w, "w_v": (m, h * dv), "w_o": (h * dv, m)}
            | {"b_q": bias, "b_k": bias, "b_v": (h * dv,), "b_o": (m,)},
        ),
        ("layer norm", functional.layer_norm, {}, {"x": x, "weight": (m,), "bias": (m,)}),
        ("gelu", functional.gelu, {}, {"x": (t, m)}),
        ("embedding", functional.embedding, {}, {"table": (5, m), "indices": indices}),
        ("cross entropy", functional.cross_entropy, {}, {"logits": (2, 3, 4), "targets": indices}),
    ]


def _train(model: GPT, tokens: np.ndarray, steps: int, seed: int) -> None:
    """Train with a progress bar, and print the mean loss of each tenth."""
    from rich.progress import Progress

    tenth = max(1, steps // 10)
    recent: list[float] = []
    with Progress(transient=True) as progress:
        task = progress.add_task("   training", total=steps)
        run = Training(model, tokens, steps=steps, batch=12, lr=LR, seed=seed)
        for loss in run:
            recent.append(loss)
            progress.update(task, advance=1)
            if run.step % tenth == 0 or run.step == steps:
                mean = float(np.mean(recent))
                line = f"   step {run.step:5d}   loss {mean:.3f}   {'#' * round(10 * mean)}"
                progress.console.print(line, highlight=False)
                recent.clear()


def _judge(model: GPT, parts: data.Split, vocabulary: int) -> float:
    """Print the validation loss next to that of the bigram table; returns the difference."""
    loss = evaluate(model, parts.validation)
    table = data.bigram_loss(parts, vocabulary)
    verdict = "clearly below" if table - loss >= MARGIN else "not clearly below"
    print(
        f"   On held-out text, in nats per character: transformer {loss:.3f}, bigram table "
        f"{table:.3f}. The transformer is {verdict} the table."
    )
    return table - loss
