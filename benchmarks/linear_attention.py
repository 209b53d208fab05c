"""Time and memory of linear attention, the gated delta rule and causal attention, over the length.

python benchmarks/linear_attention.py [--quick] [--save docs/measured/linear-attention.md]

The three take turns, with rests between them, because threads wait actively for a while.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import common
from common import growth, printed, ratios, seconds, spread, table, verdict

THREADS = 2
common.blas_threads(THREADS)  # before NumPy is loaded
import numpy as np

import minimha as mh
from minimha.kernels import threads

HEADS, WIDTH, LENGTHS = 8, 64, (256, 512, 1024, 2048, 4096, 8192)
ATTENTION, LINEAR, DELTA = KINDS = "causal attention", "linear attention", "gated delta rule"
BOUND = 0.2
"""The largest ratio of linear attention's time to that of causal attention, at N = 8192."""
REST = 0.1  # seconds
TITLE = f"""# Linear attention over the length

`python benchmarks/linear_attention.py`. Forward and backward of `linear_attention` and of
`gated_delta_rule`, both with decay and in chunks of 64, and of `scaled_dot_product_attention` with
a causal mask: N positions, float32, {HEADS} heads, D = Dv = {WIDTH}, on {THREADS} threads. They
take turns. The tables of times show the median of the turns, with the quartiles in brackets; a
ratio compares two calls of the same turn.

"""


def call(kind: str, length: int, implementation: str = "auto") -> Callable[[], None]:
    """A forward and backward pass on Tensors."""
    rng, shape = np.random.default_rng(0), (HEADS, length, WIDTH)
    query, key, value, dout = (rng.standard_normal(shape, "float32") for _ in range(4))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    beta = rng.random(shape[:-1], "float32")
    arrays = {
        ATTENTION: [query, key, value],
        LINEAR: [query, key, value, -beta / 10],
        DELTA: [query, key, value, beta, -beta / 10],
    }[kind]
    leaves = [mh.Tensor(x, requires_grad=True) for x in arrays]

    def both() -> None:
        for x in leaves:
            x.grad = None
        with mh.implementation(implementation), threads.limit(THREADS):
            if kind == ATTENTION:
                out = mh.scaled_dot_product_attention(*leaves, mh.masks.causal())
            else:
                rule = mh.linear_attention if kind == LINEAR else mh.gated_delta_rule
                out, _ = rule(*leaves)
            out.backward(dout)

    return both


def turn(run: Callable[[], None]) -> float:
    time.sleep(REST)
    return seconds(run)


def megabytes(kind: str, length: int) -> None:
    """Print by how much a process grows in a forward and backward pass."""
    call(kind, 256)()  # kernels are loaded
    print(growth(call(kind, length)))


def crossing(times: dict[tuple[str, int], list[float]], kind: str, lengths: list[int]) -> str:
    """From which of the lengths on this kind is faster than causal attention, in at least three
    quarters of the turns."""
    shares = [ratios(times[kind, n], times[ATTENTION, n]) for n in lengths]
    faster = [statistics.quantiles(share, n=4, method="inclusive")[2] < 1 for share in shares]
    from_ = next((n for k, n in enumerate(lengths) if all(faster[k:])), None)
    if from_ is None:
        return f"{kind} is not faster than {ATTENTION}"
    return f"{kind} is faster than {ATTENTION} from N = {from_} on"


def main() -> None:
    options = common.arguments(__doc__, quick="short sequences, two turns").parse_args()
    lengths, turns = ([256, 512], 2) if options.quick else (list(LENGTHS), 9)
    times: dict[tuple[str, int], list[float]] = {}
    rows, longest = [], lengths[-1]
    for n in lengths:
        calls = {kind: call(kind, n) for kind in KINDS}
        for run in calls.values():
            run()  # compiles
        found = common.take_turns({k: partial(turn, run) for k, run in calls.items()}, turns)
        times |= {(kind, n): ts for kind, ts in found.items()}
        shares = [ratios(found[kind], found[ATTENTION]) for kind in (LINEAR, DELTA)]
        judged = verdict(statistics.median(shares[0]), BOUND) if n == LENGTHS[-1] else ""
        cells = [spread([1e3 * t for t in found[kind]]) for kind in KINDS]
        rows.append([str(n), *cells, *map(spread, shares), judged])
    headers = [f"{kind}, ms" for kind in KINDS]
    headers = ["N", *headers, "linear / causal", "delta / causal", "bound on linear / causal"]
    crossings = [crossing(times, kind, lengths) for kind in (LINEAR, DELTA)]
    page = f"{TITLE}{table(headers, rows)}\n\nIn at least three quarters of the turns, "
    page += f"{', and the '.join(crossings)}.\n\n"

    calls = {
        (kind, by): partial(turn, call(kind, longest, by))
        for kind in (LINEAR, DELTA)
        for by in ("reference", "auto")
    }
    by_path = common.take_turns(calls, turns)
    rows = []
    for kind in (LINEAR, DELTA):
        cells = [spread([1e3 * t for t in by_path[kind, by]]) for by in ("reference", "auto")]
        share = spread(ratios(by_path[kind, "auto"], by_path[kind, "reference"]))
        rows.append([kind, *cells, share])
    page += f"""## What the kernel saves

At N = {longest}: the reference, which calls NumPy for one chunk after another, and the compiled
kernel, in which each thread has its own heads.

{table(["", "reference, ms", "kernel, ms", "kernel / reference"], rows)}
"""
    if sys.platform == "linux":
        rows = [
            [str(n), *(f"{printed(__file__, 'memory', kind, str(n))[0]:.0f}" for kind in KINDS)]
            for n in lengths
        ]
        page += f"""
## Memory

The largest growth of a process's memory, in MiB, during forward and backward, including the
gradients. Causal attention is computed in tiles, whose scores are not kept, so that the memory of
all three grows nearly in proportion to N.

{table(["N", *KINDS], rows)}
"""
    common.show(f"{page}\n{common.versions()} {common.machine()}\n", options.save)


if __name__ == "__main__":
    megabytes(sys.argv[2], int(sys.argv[3])) if sys.argv[1:2] == ["memory"] else main()
