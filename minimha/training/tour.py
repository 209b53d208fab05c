"""The tour: check all gradients, train a small transformer, and see what its heads attend to."""

from __future__ import annotations

import sys
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
from .loop import Training

CONTEXT = 64
STEPS = 1000
LR = 5e-3
MARGIN = 0.1
"""How far below the loss of the bigram table the model's must be, in nats per character."""


def take(text: Path | None, *, seed: int, steps: int, library: str, picture: Path) -> int:
    """Take the tour and print it: check all gradients, train a small GPT on a text, and draw what
    its heads attend to.

    text     the file with the text, or None for Python's own documentation
    seed     of the random weights and of the training
    steps    number of training steps
    library  the array library to compute with, such as "numpy"
    picture  the file to which the attention weights are drawn

    Returns the exit code: 2 for input that cannot be used; 1 if the model, on the default text and
    with the default steps, did not clearly beat the bigram table, which predicts each character
    from the one before it; and otherwise 0. Raises GradcheckError for a gradient that is wrong.
    """
    try:
        backend.library(library)
        check_path(picture)
        characters = data.python_reference() if text is None else data.read_text(text)
        vocabulary = data.CharacterTokenizer(characters)
        parts = data.split(vocabulary.encode(characters), CONTEXT)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"minimha: {error}", file=sys.stderr)
        return 2
    print("1. Gradients of every part of multi-head attention, against finite differences\n")
    print(check_gradients(library))
    print("\n   structural zero: the true gradient is 0, and all that is left is rounding")

    size = f"{len(characters):,} characters"
    print(f"\n2. A causal transformer learns to continue a text of {size}\n")
    model = GPT(len(vocabulary), context=CONTEXT, d_model=64, num_heads=4, num_layers=2, rng=seed)
    model.to(library)
    run = Training(model, parts.train, steps=steps, batch=12, lr=LR, seed=seed)
    losses = watching.Losses()
    for _ in watching.watch(run, parts.validation, losses=losses):
        pass
    loss, table = losses.validation[steps], data.bigram_loss(parts, len(vocabulary))
    verdict = "clearly below" if table - loss >= MARGIN else "not clearly below"
    print(
        f"\n   On held-out text, in nats per character: transformer {loss:.3f}, bigram table "
        f"{table:.3f}. The transformer is {verdict} the table."
    )
    prompt = parts.validation[: CONTEXT // 2]
    print(f"\n   It continues the held-out text {vocabulary.decode(prompt)!r} with\n")
    continued = generate(model, prompt[None], 200, rng=seed)[0, len(prompt) :]
    for line in vocabulary.decode(continued).splitlines():
        print(f"   | {watching.printable(line)}")

    sentence = watching.real_sentence(vocabulary.decode(parts.validation))
    print(f"\n3. What each head attends to, in {sentence!r}")
    figure = pictures.attention_heads(
        watching.attention_weights(model, vocabulary.encode(sentence)),
        sentence,
        title="Attention weights of each head, over held-out text",
    )
    print(f"   The picture is in {pictures.save(figure, picture)}")
    if text is None and steps == STEPS and table - loss < MARGIN:
        print(f"\nFailed: the transformer should beat the bigram table by {MARGIN} nats")
        return 1
    return 0


def check_gradients(library: str = "numpy") -> str:
    """Check the gradients of each part of multi-head attention and of the transformer, on arrays of
    this library. Returns the text of a table of their errors.

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
    """A list with the name, the operation, the settings and the inputs of each part of the model.
    Settings and inputs are arguments of the operation, by name. Inputs are arrays of the array
    library xp, or shapes for random arrays."""
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
        ("multi-head attention", multi_head_attention, {"num_heads": h}, {
            "query": x, "key": (b, s, m), "value": (b, s, m),
            "w_q": w, "w_k": w, "w_v": (m, h * dv), "w_o": (h * dv, m),
            "b_q": bias, "b_k": bias, "b_v": (h * dv,), "b_o": (m,),
        }),
        ("layer norm", functional.layer_norm, {}, {"x": x, "weight": (m,), "bias": (m,)}),
        ("gelu", functional.gelu, {}, {"x": (t, m)}),
        ("embedding", functional.embedding, {}, {"table": (5, m), "indices": indices}),
        ("cross entropy", functional.cross_entropy, {}, {"logits": (2, 3, 4), "targets": indices}),
    ]  # fmt: skip
