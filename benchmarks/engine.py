"""What a step of the tape costs, beside HIPS autograd and PyTorch eager in the same run.

python benchmarks/engine.py [--quick] [--save docs/measured/engine.md] [CASE …]
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from common import growth, optional, show, spread, table, versions

import minimha as mh
from minimha import functional, ops

torch, hips = map(optional, ("torch", "autograd.numpy"))
autograd = hips and optional("autograd")  # our folder of that name is no package of theirs
PEERS = {"HIPS autograd": autograd, "PyTorch": torch}
STEPS, LONG = 500, 200_000
RNG = np.random.default_rng(0)
X = (RNG.random((8, 8)) * 0.1 + 0.5).astype("float32")
W = (RNG.random((8, 8)) * 0.1 + 0.9).astype("float32")
C = W.mean() < W
TX, TW, TC = map(torch.tensor, (X, W, C)) if torch else (X, W, C)
BARS = {  # the most that is allowed of a peer's time, in the median over all steps and for any
    "HIPS autograd": (1.0, 2.0),
    "PyTorch": (2.0, None),
}


def hips_softmax(y: Any) -> Any:
    e = hips.exp(y - hips.max(y, axis=-1, keepdims=True))
    return e / hips.sum(e, axis=-1, keepdims=True)


def hips_layer_norm(y: Any) -> Any:
    c = y - hips.mean(y, axis=-1, keepdims=True)
    return c / hips.sqrt(hips.mean(c * c, axis=-1, keepdims=True) + 1e-5) * W[0] + W[1]


def same(name: str) -> tuple[Callable[[Any], Any], ...]:
    """A function that all three have by one name."""
    return tuple(getattr(library, name, None) for library in (ops, hips, torch))


CASES: dict[str, tuple[Any, ...]] = {  # one step: ours, HIPS autograd's, PyTorch's
    "add": (lambda y: y + W, lambda y: y + W, lambda y: y + TW),
    "subtract": (lambda y: W - y, lambda y: W - y, lambda y: TW - y),
    "multiply": (lambda y: y * W, lambda y: y * W, lambda y: y * TW),
    "square": (lambda y: y * y,) * 3,
    "by a number": (lambda y: y * 0.99,) * 3,
    "divide": (lambda y: y / W, lambda y: y / W, lambda y: y / TW),
    "power": (lambda y: y**2,) * 3,
    "negative": (lambda y: -y,) * 3,
    **{
        name: same(name)
        for name in ("abs", "exp", "log", "log1p", "expm1", "sqrt", "tanh", "sin", "cos")
    },
    "maximum": (
        lambda y: ops.maximum(y, W),
        lambda y: hips.maximum(y, W),
        lambda y: torch.maximum(y, TW),
    ),
    "where": (
        lambda y: ops.where(C, y, W),
        lambda y: hips.where(C, y, W),
        lambda y: torch.where(TC, y, TW),
    ),
    "clip": (
        lambda y: ops.clip(y, 0.1, 0.9),
        lambda y: hips.clip(y, 0.1, 0.9),
        lambda y: torch.clip(y, 0.1, 0.9),
    ),
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
    "matmul": (lambda y: y @ W, lambda y: y @ W, lambda y: y @ TW),
    "softmax": (functional.softmax, hips_softmax, lambda y: torch.softmax(y, -1)),
    "layer norm": (
        lambda y: functional.layer_norm(y, W[0], W[1]),
        hips_layer_norm,
        lambda y: torch.nn.functional.layer_norm(y, (8,), TW[0], TW[1]),
    ),
}
LIBRARIES = ("minimha", *PEERS)
TITLE = """# What a step of the tape costs

`python benchmarks/engine.py`. A chain of 500 equal steps on an 8x8 float32 array, forward and
backward, on one thread and with all guards on; the libraries take turns. The time a step, in
microseconds, and the ratios to the peers: the median over the turns, in brackets the quarter and
the three-quarter mark. The bars: in the median over the steps at most 1.0 of HIPS autograd and 2.0
of PyTorch, and at most 2.0 of HIPS autograd for any step; the last column says where that is
missed. Some steps are made of two operations, in all libraries alike.

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


def seconds(library: str, step: Callable[[Any], Any]) -> float:
    start = time.perf_counter()
    forward_and_backward(library, step)
    return (time.perf_counter() - start) / STEPS


def measured(wanted: list[str], turns: int) -> list[list[str]]:
    """A row for each case: name, time, ratios, and which bars it misses; and one of the medians."""
    rows, medians = [], {peer: list[float]() for peer in PEERS}
    for name, steps in CASES.items():
        if wanted and name not in wanted:
            continue
        present = [
            (library, step)
            for library, step in zip(LIBRARIES, steps, strict=True)
            if step is not None and PEERS.get(library, mh) is not None
        ]
        times: dict[str, list[float]] = {library: [] for library, _ in present}
        for _ in range(turns):
            for library, step in present:
                times[library].append(seconds(library, step))
        row, misses = [name, f"{1e6 * statistics.median(times['minimha']):.2f}"], []
        for peer, (_, most) in BARS.items():
            if peer not in times:
                row.append("—")
                continue
            ratios = [a / b for a, b in zip(times["minimha"], times[peer], strict=True)]
            row.append(spread(ratios))
            medians[peer].append(statistics.median(ratios))
            if most is not None and medians[peer][-1] > most:
                misses.append(f"{most} of {peer}")
        rows.append([*row, "over " + ", ".join(misses) if misses else ""])
    last = ["**median**", ""]
    misses = []
    for peer, (most, _) in BARS.items():
        median = statistics.median(medians[peer]) if medians[peer] else 0.0
        last.append(f"**{median:.2f}**" if median else "—")
        misses += [f"{most} of {peer}"] if median > most else []
    return [*rows, [*last, "over " + ", ".join(misses) if misses else ""]]


def peak(library: str, name: str) -> None:
    """Print the memory, in MB, that a long chain takes at its peak."""
    step = CASES[name][LIBRARIES.index(library)]
    with np.errstate(all="ignore"):
        forward_and_backward(library, step, 10)
        print(growth(lambda: forward_and_backward(library, step, LONG)))


def peaks() -> list[list[str]]:
    rows = []
    for name in ("add", "by a number", "tanh", "reshape"):
        row = [name]
        for library in LIBRARIES:
            if PEERS.get(library, mh) is None:
                row.append("—")
                continue
            command = [sys.executable, __file__, "--peak", library, name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            row.append(f"{float(done.stdout):.0f}")
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all by default")
    parser.add_argument("--quick", action="store_true", help="5 turns, no memory")
    parser.add_argument("--save", type=pathlib.Path, help="write the tables to a file, too")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        peak(*options.peak)
        return
    if torch:
        torch.set_num_threads(1)
    with np.errstate(all="ignore"):
        rows = measured(options.cases, 5 if options.quick else 21)
    text = TITLE + table(["step", "µs", *(f"of {peer}" for peer in PEERS), ""], rows)
    if not (options.quick or options.cases):
        text += (
            "\n\nPeak memory, in MB, of a chain of 200,000, each in a process of its own, less\n"
        )
        text += "what the process took before:\n\n"
        text += table(["step", *LIBRARIES], peaks())
    text += f"\n\n{versions(**{k: m.__name__ for k, m in PEERS.items() if m})}\n"
    show(text, options.save)


if __name__ == "__main__":
    main()
