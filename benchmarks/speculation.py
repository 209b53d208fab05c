"""When speculative decoding pays, and whether `mh.cost.speculation` predicts it.

python benchmarks/speculation.py [--quick] [--save docs/measured/speculation.md]

The times of a call of each model, with the draw of a token, and the fraction of accepted tokens go
into the prediction. Both sides take turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import common
from common import ratios, seconds, spread, table

THREADS = 2
common.blas_threads(THREADS)  # before NumPy is loaded
import numpy as np

import minimha as mh
from minimha.transformers.generation import Reader, probabilities, sample

VOCABULARY, CONTEXT, PROMPT, COUNT = 1024, 512, 64, 96
SIZES = {"small": (128, 4), "medium": (512, 6), "large": (1024, 8)}  # d_model, num_layers
DRAFT = 64, 1
TEMPERATURES, AHEAD = (1.0, 0.3), (1, 2, 4)
WITHIN = 0.15
TITLE = f"""# When speculative decoding pays

`python benchmarks/speculation.py`. Untrained models of three sizes write {COUNT} tokens after
{PROMPT} others, in float32 on {THREADS} threads: with `mh.generate`, and with `mh.speculate` and a
draft of width {DRAFT[0]} with {DRAFT[1]} layer. At a lower temperature, these untrained
models agree with their draft on fewer tokens. k is the number of tokens that the draft proposes in
each round. c is the time of a call of the draft divided by that of a call of the
model, and s the time in which the model scores k + 1 tokens divided by that for one; all times
include drawing the next token. The prediction is
`mh.cost.speculation(accepted, k, c, scoring=s)`, and should be right to within {WITHIN:.0%}.
c, s and the speed-up are medians over the turns; the brackets show the quartiles.

"""


def gpt(d_model: int, num_layers: int) -> mh.GPT:
    return mh.GPT(
        VOCABULARY, context=CONTEXT, d_model=d_model, num_heads=d_model // 32,
        num_layers=num_layers, bias=False,
    )  # fmt: skip


def call_time(model: mh.GPT, width: int) -> float:
    """The seconds of a call with so many new tokens in the middle of the text, and of drawing the
    next one."""
    known, rng = np.zeros((1, PROMPT + COUNT // 2 + width), int), np.random.default_rng(0)
    read, past = Reader(model, reserve=CONTEXT), known.shape[1] - width

    def call() -> None:
        sample(probabilities(read(known, last=width)[0])[-1:], rng)
        read.rewind(past)

    read(known[:, :past])
    return statistics.median(seconds(call) for _ in range(20))


def measured(
    model: mh.GPT, draft: mh.GPT, temperature: float, turns: int
) -> tuple[dict[Any, list[float]], dict[int, float]]:
    """The seconds of all calls, turn by turn, for a whole text ("generate" or "speculate" and k) or
    a single call ("draft", or "call" and the number of tokens); and the share accepted for each k.
    """
    prompt, accepted = np.arange(PROMPT)[None], {}

    def speculate(k: int) -> None:
        found = mh.speculate(model, draft, prompt, COUNT, ahead=k, temperature=temperature)
        accepted[k] = found.acceptance  # the same in all turns

    calls: dict[Any, Callable[[], float]] = {
        ("call", k + 1): lambda k=k: call_time(model, k + 1) for k in (0, *AHEAD)
    }
    calls["draft"] = lambda: call_time(draft, 1)
    calls["generate"] = lambda: seconds(
        lambda: mh.generate(model, prompt, COUNT, temperature=temperature)
    )
    calls |= {("speculate", k): lambda k=k: seconds(lambda: speculate(k)) for k in AHEAD}
    return common.take_turns(calls, turns), accepted


def main() -> None:
    options = common.arguments(__doc__, quick="the small model, two turns").parse_args()
    rows, errors, draft = [], [], gpt(*DRAFT)
    for name, size in SIZES.items():
        if options.quick and name != "small":
            continue
        model = gpt(*size)
        for temperature in TEMPERATURES:
            took, accepted = measured(model, draft, temperature, 2 if options.quick else 7)
            c = statistics.median(ratios(took["draft"], took["call", 1]))
            for k in AHEAD:
                scoring = statistics.median(ratios(took["call", k + 1], took["call", 1]))
                predicted = mh.cost.speculation(accepted[k], k, c, scoring=scoring)
                speed_up = ratios(took["generate"], took["speculate", k])
                errors.append(abs(predicted / statistics.median(speed_up) - 1))
                rows.append([
                    f"{name}, {size[0]} × {size[1]}", f"{temperature}", f"{k}",
                    f"{accepted[k]:.0%}", f"{c:.2f}", f"{scoring:.2f}", f"{predicted:.2f}",
                    spread(speed_up),
                ])  # fmt: skip
    headers = ["width × layers", "temperature", "k", "accepted", "c", "s", "predicted", "speed-up"]
    right = sum(error <= WITHIN for error in errors)
    page = TITLE + table(headers, rows)
    page += f"\n\n{right} of {len(errors)} predictions are right to within {WITHIN:.0%}; the"
    page += f" largest error is {max(errors):.0%}.\n\n{common.versions()} {common.machine()}\n"
    common.show(page, options.save)


if __name__ == "__main__":
    main()
