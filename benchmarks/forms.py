"""Whether `mh.cost` predicts which form of the projections, or of attention, is faster.

python benchmarks/forms.py [--quick] [--save docs/measured/forms.md]
"""

from __future__ import annotations

import collections
import itertools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from common import arguments, blas_threads, show, table, take_turns, versions

blas_threads(1)  # before NumPy is loaded
import numpy as np

import minimha as mh

FORMS = {"projections": tuple(mh.projections.FORMS), "attention": ("reference", "loop", "steps")}
CELLS = {
    "projections": """
        M=32 H=4 T=16 B=1, M=32 H=2 T=64 B=8, M=32 H=8 T=256 B=4, M=48 H=6 T=32 B=2 G=2,
        M=64 H=1 T=128 B=4, M=64 H=4 T=8 B=1, M=64 H=8 T=64 B=16, M=64 H=2 T=512 B=2 G=1,
        M=96 H=3 T=100 B=3, M=128 H=1 T=64 B=8, M=128 H=2 T=128 B=4, M=128 H=4 T=64 B=12,
        M=128 H=8 T=32 B=4 G=2, M=128 H=16 T=128 B=2, M=192 H=6 T=64 B=2, M=256 H=1 T=256 B=1,
        M=256 H=4 T=16 B=1, M=256 H=8 T=128 B=2 G=2, M=256 H=8 T=64 B=8, M=256 H=32 T=64 B=4,
        M=384 H=6 T=128 B=1, M=512 H=8 T=64 B=1, M=512 H=2 T=256 B=1, M=512 H=16 T=128 B=1 G=4
    """,
    "attention": """
        D=8 H=4 T=8 B=1, D=16 H=2 T=32 B=4, D=16 H=8 T=64 B=8, D=32 H=8 T=16 B=8 G=2,
        D=32 H=4 T=128 B=2, D=64 H=8 T=64 B=1 G=1, D=64 H=1 T=256 B=1, D=64 H=8 T=256 B=1,
        D=64 H=4 T=512 B=1 G=2, D=128 H=2 T=1024 B=1
    """,
}
DISTINCT = 1.2  # forms whose times differ by more should be ordered correctly
TITLE = """# Which form is faster: predicted and measured

`python benchmarks/forms.py`. The times of forward and backward on one thread, in float32, for the
[forms of the projections](../cost.md) and for three ways to compute attention: `reference`, `loop`
and `mh.attention_steps`. The forms take turns; each turn keeps the shortest of several calls, and
the table shows the median over the turns. The first column of times is in milliseconds, and the
others are multiples of it. The prediction of `mh.cost`, based on an earlier measurement by
`mh.cost.calibrate`, is in brackets. A pair of forms counts if their measured times differ by more
than 20%. The aim is to predict which is faster in nine of ten such pairs. The last column lists
those predicted wrongly, with the form that was faster first.

"""


@mh.operation
def end(*outputs: Any) -> Any:
    """A scalar from several arrays, whose pullback returns cotangents made in advance."""
    ready = tuple(np.ones(y.shape, y.dtype) for y in outputs)
    return np.ones(1, outputs[0].dtype), lambda dy: ready


def timed(kind: str, form: str, cell: dict[str, int]) -> Callable[[], float]:
    """A function that computes forward and backward once and returns the seconds it took."""
    s = mh.cost.Setting.of(**cell)
    z, rng = s.sizes, np.random.default_rng(0)

    def leaf(*shape: int) -> mh.Tensor:
        return mh.Tensor(rng.standard_normal(shape).astype(s.dtype), requires_grad=True)

    if kind == "attention":
        key = s.B, z.num_kv_heads, s.S, z.head_dim
        leaves = [leaf(s.B, z.num_heads, s.T, z.head_dim), leaf(*key), leaf(*key)]

        def compute() -> Any:
            if form == "steps":
                return [mh.attention_steps(*leaves).out]
            return [mh.scaled_dot_product_attention(*leaves, implementation=form)]
    else:
        x = leaf(s.B, s.T, z.d_model)
        projections = mh.projections.Projections(
            z.d_model, z.num_heads, num_kv_heads=z.num_kv_heads, form=form
        )
        leaves = [x, *projections.parameters()]

        def compute() -> Any:
            return projections.project(x, x, x)

    def once() -> float:
        for p in leaves:
            p.grad = None
        start = time.perf_counter()
        end(*compute()).backward()
        return time.perf_counter() - start

    return once


def measured(kind: str, cell: dict[str, int], turns: int) -> dict[str, float]:
    """The median time of every form, in seconds."""

    def least(call: Callable[[], float]) -> Callable[[], float]:
        """The shortest of as many calls as fit into 2 ms, at least 3."""
        repeats = max(3, math.ceil(2e-3 / min(call(), call())))
        return lambda: min(call() for _ in range(repeats))

    times = take_turns({form: least(timed(kind, form, cell)) for form in FORMS[kind]}, turns)
    return {form: statistics.median(turns) for form, turns in times.items()}


def predicted(kind: str, cell: dict[str, int], flops: bool = False) -> dict[str, float]:
    """The seconds that `mh.cost` predicts for every form, or the flops."""
    costs = {form: getattr(mh.cost, kind)(form, **cell) for form in FORMS[kind]}
    seconds = mh.cost.calibrate().seconds
    return {form: cost.flops if flops else seconds(cost) for form, cost in costs.items()}


def compared(times: dict[str, float], predictions: dict[str, float]) -> tuple[list[str], list[str]]:
    """The pairs with distinct times, in the measured order: predicted correctly, and wrongly."""
    right, wrong = [], []
    for pair in itertools.combinations(times, 2):
        fast, slow = sorted(pair, key=lambda form: times[form])
        if times[slow] > DISTINCT * times[fast]:
            (right if predictions[fast] < predictions[slow] else wrong).append(f"{fast} < {slow}")
    return right, wrong


def figures(times: dict[str, float], predictions: dict[str, float]) -> list[str]:
    """Measured (predicted) times: the first in milliseconds, the others as multiples of it."""
    first, *others = times
    return [f"{1e3 * times[first]:.3g} ({1e3 * predictions[first]:.3g})"] + [
        f"{times[x] / times[first]:.3g} ({predictions[x] / predictions[first]:.3g})" for x in others
    ]


def main() -> None:
    options = arguments(__doc__, quick="2 cells of each kind, 3 turns").parse_args()
    turns, most = (3, 2) if options.quick else (9, None)
    machine = mh.cost.calibrate()
    text, total = TITLE, collections.Counter[str]()
    for kind, cells in CELLS.items():
        rows = []
        for sizes in cells.split(",")[:most]:
            cell = {letter: int(n) for letter, n in (size.split("=") for size in sizes.split())}
            times, predictions = measured(kind, cell, turns), predicted(kind, cell)
            right, wrong = compared(times, predictions)
            pairs = len(right + wrong)
            counts = f"{len(right)} of {pairs}", "; ".join(wrong)
            rows.append([sizes.strip(), *figures(times, predictions), *counts])
            by_flops, _ = compared(times, predicted(kind, cell, flops=True))
            total.update({kind: len(right), f"{kind}, all": pairs, "all": pairs})
            total.update({"right": len(right), "flops": len(by_flops)})
        headers = [kind, f"{FORMS[kind][0]}, ms", *FORMS[kind][1:], "correct", "wrong"]
        text += table(headers, rows) + "\n\n"
    parts = ", ".join(f"{total[k]} of {total[f'{k}, all']} of {k}" for k in CELLS)
    share = total["right"] / total["all"]
    text += (
        f"Predicted correctly: {total['right']} of {total['all']} pairs, {share:.0%}: {parts}.\n"
    )
    text += (
        "The number of flops alone, which is often equal for two forms, predicts "
        f"{total['flops']} correctly.\n\n"
    )
    text += f"Calibrated: {machine}.\n{versions()}\n"
    show(text, options.save)


if __name__ == "__main__":
    main()
