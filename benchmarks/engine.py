"""The cost of a step of the tape, compared with HIPS autograd and eager PyTorch in the same run.

python benchmarks/engine.py [--quick] [--save docs/measured/engine.md] [CASE …]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import common
import numpy as np
from common import optional, printed, ratios, spread, table

import minimha as mh
from minimha import functional, ops

torch, hips = map(optional, ("torch", "autograd.numpy"))
autograd = hips and optional("autograd")  # our folder `autograd` is not their package
PEERS = {"HIPS autograd": autograd, "PyTorch": torch}
STEPS, LONG = 500, 200_000
RNG = np.random.default_rng(0)
X = (RNG.random((8, 8)) * 0.1 + 0.5).astype("float32")
W = (RNG.random((8, 8)) * 0.1 + 0.9).astype("float32")
C = W.mean() < W
TX, TW, TC = map(torch.tensor, (X, W, C)) if torch else (X, W, C)
MEDIAN_BOUNDS = {
    "HIPS autograd": 1.0,
    "PyTorch": 2.0,
}  # largest median ratio to its time, over all steps
BOUNDS = {"HIPS autograd": 2.0}  # largest ratio of any step


def hips_softmax(y: Any) -> Any:
    e = hips.exp(y - hips.max(y, axis=-1, keepdims=True))
    return e / hips.sum(e, axis=-1, keepdims=True)


def hips_layer_norm(y: Any) -> Any:
    c = y - hips.mean(y, axis=-1, keepdims=True)
    return c / hips.sqrt(hips.mean(c * c, axis=-1, keepdims=True) + 1e-5) * W[0] + W[1]


def everywhere(make: Callable[[Any, Any, Any], Any]) -> tuple[Any, ...]:
    """A step for all three libraries, which differ in the namespace, array and condition."""
    libraries = (ops, W, C), (hips, W, C), (torch, TW, TC)
    return tuple(make(*library) if library[0] else None for library in libraries)


CASES: dict[str, tuple[Any, ...]] = {  # one step in minimha, HIPS autograd and PyTorch
    "add": everywhere(lambda _, w, c: lambda y: y + w),
    "subtract": everywhere(lambda _, w, c: lambda y: w - y),
    "multiply": everywhere(lambda _, w, c: lambda y: y * w),
    "square": (lambda y: y * y,) * 3,
    "times a number": (lambda y: y * 0.99,) * 3,
    "divide": everywhere(lambda _, w, c: lambda y: y / w),
    "power": (lambda y: y**2,) * 3,
    "negative": (lambda y: -y,) * 3,
    **{
        name: everywhere(lambda library, w, c, name=name: getattr(library, name))
        for name in ("abs", "exp", "log", "log1p", "expm1", "sqrt", "tanh", "sin", "cos")
    },
    "maximum": everywhere(lambda library, w, c: lambda y: library.maximum(y, w)),
    "where": everywhere(lambda library, w, c: lambda y: library.where(c, y, w)),
    "clip": everywhere(lambda library, w, c: lambda y: library.clip(y, 0.1, 0.9)),
    "reshape": (lambda y: y.reshape((8, 8)),) * 3,
    "permute": (
        lambda y: y.permute(1, 0),
        lambda y: hips.transpose(y, (1, 0)),
        lambda y: y.permute(1, 0),
    ),
    "mT": (lambda y: y.mT, getattr(hips, "transpose", None), lambda y: y.mT),
    "expand": (lambda y: y.expand(8, 8), None, lambda y: y.expand(8, 8)),
    "squeeze": (
        lambda y: ops.squeeze(ops.expand_dims(y, 0), 0),
        lambda y: hips.squeeze(hips.expand_dims(y, 0), 0),
        lambda y: y[None].squeeze(0),
    ),
    "index": (lambda y: y[:8],) * 3,
    "concat": (
        lambda y: ops.concat(y[:4], y[4:]),
        lambda y: hips.concatenate((y[:4], y[4:])),
        lambda y: torch.concat((y[:4], y[4:])),
    ),
    "flip": (
        lambda y: ops.flip(y, 0),
        getattr(hips, "flipud", None),
        lambda y: torch.flip(y, (0,)),
    ),
    "sum": (
        lambda y: y.sum(0, True) * W,
        lambda y: hips.sum(y, 0, keepdims=True) * W,
        lambda y: y.sum(0, True) * TW,
    ),
    "mean": (
        lambda y: y.mean(0, True) * W,
        lambda y: hips.mean(y, 0, keepdims=True) * W,
        lambda y: y.mean(0, True) * TW,
    ),
    "max": (
        lambda y: y.max(0, True) * W,
        lambda y: hips.max(y, 0, keepdims=True) * W,
        lambda y: y.amax(0, True) * TW,
    ),
    "cumsum": (lambda y: ops.cumsum(y, 0), lambda y: hips.cumsum(y, 0), lambda y: y.cumsum(0)),
    "matmul": everywhere(lambda _, w, c: lambda y: y @ w),
    "softmax": (functional.softmax, hips_softmax, lambda y: torch.softmax(y, -1)),
    "layer norm": (
        lambda y: functional.layer_norm(y, W[0], W[1]),
        hips_layer_norm,
        lambda y: torch.nn.functional.layer_norm(y, (8,), TW[0], TW[1]),
    ),
}
LIBRARIES = ("minimha", *PEERS)
TITLE = """# What a step of the tape costs

`python benchmarks/engine.py`. A chain of 500 identical steps on an 8 × 8 float32 array, forward and
backward, on one thread and with all checks on. The libraries take turns. The table shows our time
per step in microseconds, and its ratio to the times of the other libraries: the median over the
turns, with the quartiles in brackets. The median ratio over all steps should be at most 1.0 for
HIPS autograd and 2.0 for PyTorch, and no step should take more than 2.0 times HIPS autograd's time;
the last column marks steps that do. Some steps consist of two or three operations, corresponding
ones in every library; in HIPS autograd, softmax and layer norm are written with more. A dash means
that the step was not measured in this library.

"""


def chain(step: Callable[[Any], Any], x: Any, steps: int) -> Any:
    for _ in range(steps):
        x = step(x)
    return x


def forward_and_backward(library: str, step: Callable[[Any], Any], steps: int = STEPS) -> None:
    if library == "minimha":
        y = chain(step, mh.Tensor(X, requires_grad=True), steps)
        y.backward(np.ones(y.shape, dtype="float32"))
    elif library == "PyTorch":
        y = chain(step, TX.clone().requires_grad_(), steps)
        y.backward(torch.ones_like(y))
    else:
        vjp, y = autograd.make_vjp(lambda x: chain(step, x, steps))(X)
        vjp(np.ones_like(y))


def microseconds(library: str, step: Callable[[Any], Any]) -> float:
    """The time of a step."""
    return 1e6 / STEPS * common.seconds(partial(forward_and_backward, library, step))


def missed(medians: dict[str, float], bounds: dict[str, float]) -> str:
    over = [f"{most} times {p}" for p, most in bounds.items() if medians.get(p, 0.0) > most]
    return "over " + ", ".join(over) if over else ""


def measured(wanted: list[str], turns: int) -> list[list[str]]:
    """A row for each case (name, time, ratios, missed bounds), and a row of medians."""
    rows, medians = [], {peer: list[float]() for peer in PEERS}
    for name in [name for name in CASES if not wanted or name in wanted]:
        calls = {
            library: partial(microseconds, library, step)
            for library, step in zip(LIBRARIES, CASES[name], strict=True)
            if step is not None and PEERS.get(library, mh) is not None
        }
        times = common.take_turns(calls, turns)
        ours = times["minimha"]
        compared = {peer: ratios(ours, times[peer]) for peer in PEERS if peer in times}
        middle = {peer: statistics.median(values) for peer, values in compared.items()}
        for peer, median in middle.items():
            medians[peer].append(median)
        cells = [spread(compared[peer]) if peer in compared else "—" for peer in PEERS]
        rows.append([name, f"{statistics.median(ours):.2f}", *cells, missed(middle, BOUNDS)])
    overall = {peer: statistics.median(values) for peer, values in medians.items() if values}
    cells = [f"**{overall[peer]:.2f}**" if peer in overall else "—" for peer in PEERS]
    return [*rows, ["**median**", "", *cells, missed(overall, MEDIAN_BOUNDS)]]


def peak(library: str, name: str) -> None:
    """Print the peak memory of a long chain, in MiB."""
    step = CASES[name][LIBRARIES.index(library)]
    with np.errstate(all="ignore"):
        forward_and_backward(library, step, 10)
        print(common.growth(lambda: forward_and_backward(library, step, LONG)))


def peaks() -> list[list[str]]:
    """The peak memory of a long chain of some steps, in MiB, each in its own process."""
    rows = [[name] for name in ("add", "times a number", "tanh", "reshape")]
    for row, library in itertools.product(rows, LIBRARIES):
        there = PEERS.get(library, mh) is not None
        row.append(f"{printed(__file__, '--peak', library, row[0])[0]:.0f}" if there else "—")
    return rows


def main() -> None:
    parser = common.arguments(__doc__, quick="5 turns, no memory")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all by default")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        peak(*options.peak)
        return
    if torch:
        torch.set_num_threads(1)
    with np.errstate(all="ignore"):
        rows = measured(options.cases, 5 if options.quick else 21)
    text = TITLE + table(["step", "µs", *(f"ratio to {peer}" for peer in PEERS), ""], rows)
    if not (options.quick or options.cases):
        text += """

Peak memory of a chain of 200,000 steps, in MiB above the memory in use before it. Each chain runs
in its own process:

"""
        text += table(["step", *LIBRARIES], peaks())
    installed = {name: module.__name__ for name, module in PEERS.items() if module}
    common.show(f"{text}\n\n{common.versions(**installed)}\n", options.save)


if __name__ == "__main__":
    main()
