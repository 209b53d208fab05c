"""Attention in minimha, PyTorch and jax, compared in one run: time, memory and the first call.

python benchmarks/attention.py [--quick] [--save docs/measured/attention.md] [--minutes 12]

--save writes the page after every step, and a picture next to it. After --minutes, no further
measurement starts; the page lists the missing ones.

Libraries take turns. A turn is a rest, then a warm-up call, then calls for 20 ms, whose median
counts; a long call is its own turn. PyTorch's threads spin for some milliseconds after their work,
so libraries that alternate call by call on two cores slow each other down: PyTorch's forward of 128
positions took 10 ms instead of 0.2. The warm-up call makes the threads spin again, as they do in a
user's loop. The alternative, OMP_WAIT_POLICY=passive, makes PyTorch's short calls up to twice as
slow, so we leave the policy unchanged.
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "2")  # jax's threads

import argparse
import contextlib
import itertools
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import common
import numpy as np
import threadpoolctl
from common import optional, printed, ratios, seconds, spread, table, verdict

import minimha as mh
from minimha.attention import IMPLEMENTATIONS
from minimha.kernels import threads

torch, jax = map(optional, ("torch", "jax"))
PACKAGES = {k: m.__name__ for k, m in {"PyTorch": torch, "jax": jax}.items() if m}
OTHER = "PyTorch" if torch else "auto"  # times are compared with this library's
BATCH, HEADS, WINDOW, LONGEST = 2, 4, 256, 8192
WIDTHS, LENGTHS, THREADS = (64, 32, 128), (128, 512, 2048, 4096, LONGEST), (2, 1)
FORWARD, BOTH = DIRECTIONS = "forward", "forward + backward"
MASKS = {
    "causal": mh.masks.causal(),
    "full": None,
    "window": mh.masks.sliding_window(WINDOW - 1, 0),
}
LEAN = "tiled", "microkernel", "auto", "PyTorch"  # store no array of all scores
REST, SHORT = 0.02, 0.02  # seconds before a turn, and of its calls
LONG_REST = 0.1  # after BLAS, whose threads spin for 60 ms
SLOW, LARGE = 2.0, 2e9  # seconds and bytes above which an implementation is left out
BOUNDS = {  # the largest allowed ratio to PyTorch's time, at width 64 on 2 threads
    (FORWARD, "causal"): {512: 0.60, 2048: 0.80, 4096: 0.85, 8192: 0.95},
    (FORWARD, "full"): {512: 0.90, 2048: 0.90, 4096: 0.90, 8192: 0.95},
    (BOTH, "causal"): {512: 0.45, 2048: 0.65, 4096: 0.75, 8192: 0.85},
    (BOTH, "full"): {512: 0.80, 2048: 0.90, 4096: 0.95, 8192: 0.95},
}
WINDOW_BOUND = 0.15
FIRST_CALL_BOUNDS = {"minimha, no kernel compiled yet": 15.0, "minimha, the next process": 1.0}

Call = Callable[[], list[Any]]  # returns the output and, after a backward, the three gradients
Times = dict[str, list[float]]  # of each library, in seconds, turn by turn


class Cell(NamedTuple):
    """One measurement: what is computed, and on how many threads."""

    threads: int
    width: int
    direction: str
    mask: str
    length: int

    @property
    def bound(self) -> float | None:
        lengths = BOUNDS.get((self.direction, self.mask), {}) if self[:2] == (2, 64) else {}
        return lengths.get(self.length)

    @property
    def flops(self) -> float:
        """For the visible scores: two matrix products forward, and five backward."""
        n, reach = self.length, WINDOW if self.mask == "window" else self.length
        visible = n * n if self.mask == "full" else sum(min(i, reach) for i in range(1, n + 1))
        return 2.0 * (2 if self.direction == FORWARD else 7) * BATCH * HEADS * visible * self.width

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"D = {self.width}, N = {self.length}, {self.mask}, {self.direction}, {threads}"


def head(command: str) -> str:
    return f"""# Attention compared with PyTorch

`{command}`, on {time.strftime("%Y-%m-%d")}.
{common.machine()}
{common.versions(**PACKAGES)}

`scaled_dot_product_attention` of float32 arrays of the shape ({BATCH}, {HEADS}, N, D), called as a
user would call it: on Tensors, with newly allocated memory, and under `no_grad` for the forward
pass alone. "full" means without a mask. With a window, each query sees its own key and the
{WINDOW - 1} keys before it; PyTorch's function has no option for this and gets a boolean mask. The
libraries take turns. The column "our time / PyTorch's" shows the ratio in the same turn: the
median, with the quartiles in brackets. Below 1, minimha is faster. A bound is the largest ratio
that we accept. The shares of the peak count only the work for visible scores: two products forward,
and seven forward and backward."""


# The libraries, called as a user would.


def inputs(cell: Cell) -> list[np.ndarray]:
    """Query, key, value, and the gradient of the output."""
    rng, shape = np.random.default_rng(0), (BATCH, HEADS, cell.length, cell.width)
    return [rng.standard_normal(shape, "float32") for _ in range(4)]


def minimha_call(cell: Cell, implementation: str) -> Call:
    *arrays, dout = inputs(cell)
    leaves = [mh.Tensor(x, requires_grad=cell.direction == BOTH) for x in arrays]
    settings = {"mask": MASKS[cell.mask], "implementation": implementation}
    attend = partial(mh.scaled_dot_product_attention, *leaves, **settings)
    return taped_call(cell, attend, leaves, dout, mh.no_grad)


def torch_call(cell: Cell) -> Call:
    *arrays, dout = map(torch.from_numpy, inputs(cell))
    leaves = [x.requires_grad_(cell.direction == BOTH) for x in arrays]
    settings: dict[str, Any] = {"is_causal": cell.mask == "causal"}
    if cell.mask == "window":
        shape = cell.length, cell.length
        settings["attn_mask"] = torch.from_numpy(MASKS["window"].array(shape))  # type: ignore[union-attr]
    attend = partial(torch.nn.functional.scaled_dot_product_attention, *leaves, **settings)
    return taped_call(cell, attend, leaves, dout, torch.no_grad)


def taped_call(cell: Cell, attend: Any, leaves: Any, dout: Any, no_grad: Any) -> Call:
    def forward() -> list[Any]:
        with no_grad():
            return [attend()]

    def both() -> list[Any]:
        for x in leaves:
            x.grad = None
        out = attend()
        out.backward(dout)
        return [out, *(x.grad for x in leaves)]

    return forward if cell.direction == FORWARD else both


def jax_call(cell: Cell) -> Call:
    arrays = [jax.numpy.asarray(x.swapaxes(1, 2)) for x in inputs(cell)]  # (B, N, H, D)
    settings: dict[str, Any] = {"is_causal": cell.mask == "causal"}
    if cell.mask == "window":
        settings["local_window_size"] = WINDOW - 1, 0
    attend = partial(jax.nn.dot_product_attention, **settings)

    def both(q: Any, k: Any, v: Any, dout: Any) -> list[Any]:
        out, pullback = jax.vjp(attend, q, k, v)
        return [out, *pullback(dout)]

    forward = jax.jit(lambda q, k, v, dout: [attend(q, k, v)])
    compiled = forward if cell.direction == FORWARD else jax.jit(both)
    return lambda: jax.block_until_ready(compiled(*arrays))


CALLS: dict[str, Callable[[Cell], Call]] = {
    **{name: partial(minimha_call, implementation=name) for name in (*IMPLEMENTATIONS, "auto")},
    **({"PyTorch": torch_call} if torch else {}),
    **({"jax": jax_call} if jax else {}),
}


# Measuring.


def check_agreement(calls: dict[str, Call]) -> None:
    """Raise an error unless all results agree."""
    results = []
    for name, call in calls.items():
        arrays = [x.data if isinstance(x, mh.Tensor) else x for x in call()]
        arrays = [np.asarray(x.detach() if name == "PyTorch" else x) for x in arrays]
        results.append([x.swapaxes(1, 2) for x in arrays] if name == "jax" else arrays)
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)  # sums are in different orders


def turn(call: Call, rest: float) -> float:
    """The median time of a call."""
    time.sleep(rest)
    times = [seconds(call)]
    if times[0] < 5 * SHORT:
        times = []
        while sum(times) < SHORT:
            times.append(seconds(call))
    return statistics.median(times)


def take_turns(calls: dict[str, Call], quick: bool, rest: float = REST) -> Times:
    """The times by turn: as many turns as fit into 2 seconds, at least 7, at most 41."""
    least, most, budget = (2, 5, 0.1) if quick else (7, 41, 2.0)
    for call in calls.values():
        call()
    turns = {name: partial(turn, call, 0 if quick else rest) for name, call in calls.items()}
    once = seconds(partial(common.take_turns, turns, 1))
    return common.take_turns(turns, min(most, max(least, int(budget / once))))


@contextlib.contextmanager
def thread_limit(number: int) -> Iterator[None]:
    """Set the number of threads for all libraries but jax."""
    if torch:
        torch.set_num_threads(number)
    with threads.limit(number), threadpoolctl.threadpool_limits(number, user_api="blas"):
        yield


def measure_peaks(peaks: dict[int, float], n: int) -> None:
    """Store the best flop/s of a matrix product, NumPy's or ours, for each number of threads."""
    a = np.random.default_rng(0).standard_normal((n, n)).astype("float32")
    for number, product in itertools.product(THREADS, (np.matmul, mh.functional.linear)):
        time.sleep(LONG_REST)
        with thread_limit(number):
            least = min(seconds(partial(product, a, a)) for _ in range(15))
        peaks[number] = max(peaks.get(number, 0.0), 2 * n**3 / least)


def times_of(cell: Cell, quick: bool) -> Times:
    """The times of minimha and of the other library."""
    with thread_limit(cell.threads):
        calls = {name: CALLS[name](cell) for name in dict.fromkeys(("auto", OTHER))}
        if cell.length <= 512:
            check_agreement(calls)
        return take_turns(calls, quick)


def times_of_all(cell: Cell, quick: bool) -> Times:
    """The times of all implementations and libraries that are not too slow or too large."""
    small = 3 * 4 * BATCH * HEADS * cell.length**2 <= LARGE
    with thread_limit(cell.threads):
        calls = {name: make(cell) for name, make in CALLS.items() if small or name in LEAN}
        check_agreement(calls)
        fast = {name: call for name, call in calls.items() if seconds(call) <= SLOW}
        return take_turns(fast, quick, LONG_REST)


# The sections of the page; each makes its own measurements.


def of_implementations(quick: bool) -> str:
    lengths, masks = ((128,), ("causal",)) if quick else ((128, 512, 2048), ("causal", "full"))
    columns, rows = [name for name in CALLS if name != OTHER], []
    for direction, mask, length in itertools.product(DIRECTIONS, masks, lengths):
        times = times_of_all(Cell(2, 64, direction, mask, length), quick)
        cells = [spread(ratios(times[n], times[OTHER])) if n in times else "—" for n in columns]
        rows.append([direction, mask, str(length), *cells])
    return f"""## The implementations

Times of [our implementations](../speed.md) and of other libraries divided by those of {OTHER}, at
D = 64 on 2 threads; jax computes `jax.nn.dot_product_attention` within `jit`. A dash means that a
call takes over 2 s, or that three arrays of all scores need over 2 GB.

{table(["", "mask", "N", *columns], rows)}"""


def of_windows(quick: bool) -> str:
    length = LENGTHS[1] if quick else LONGEST
    with thread_limit(2):
        masks = "window", "causal"
        calls = {mask: minimha_call(Cell(2, 64, BOTH, mask, length), "auto") for mask in masks}
        share = ratios(*take_turns(calls, quick).values())
    bound = verdict(statistics.median(share), None if quick else WINDOW_BOUND)
    return f"""## What a window saves

The time of forward and backward with a window of {WINDOW}, divided by our own time with a causal
mask; D = 64, 2 threads.

{table(["N", "window / causal", "bound"], [[str(length), spread(share), bound]])}"""


def of_memory(quick: bool) -> str:
    if sys.platform != "linux":
        return ""
    length = LENGTHS[1] if quick else LONGEST
    names = [name for name in LEAN if name in CALLS]
    grown = {name: printed(__file__, "--growth", name, str(length))[0] for name in names}
    bounds = {} if quick else {"auto": grown.get("PyTorch")}
    rows = [[name, f"{mb:.0f}", verdict(mb, bounds.get(name))] for name, mb in grown.items()]
    return f"""## Memory

The largest growth of a process's memory, in MiB, during forward and backward with N = {length},
causal, D = 64, 2 threads, after a small call. Each implementation has its own process.
Implementations that store all scores are left out.

{table(["", "MiB", "bound"], rows)}"""


def print_growth(name: str, length: int) -> None:
    cell = Cell(2, 64, BOTH, "causal", length)
    with thread_limit(cell.threads):
        CALLS[name](cell._replace(length=256))()
        print(common.growth(CALLS[name](cell)))


FIRST_CALL = """
import time
import numpy as np
rng = np.random.default_rng(0)
q, k, v, dout = (rng.standard_normal((2, 4, 512, 64)).astype("float32") for _ in range(4))
start = time.perf_counter()
{}
print(time.perf_counter() - start)
out.backward(dout)
print(time.perf_counter() - start)
"""
MINIMHA_FIRST_CALL = FIRST_CALL.format("""
import minimha as mh
q, k, v = (mh.Tensor(x, requires_grad=True) for x in (q, k, v))
out = mh.scaled_dot_product_attention(q, k, v, mh.masks.causal())
""")
TORCH_FIRST_CALL = FIRST_CALL.format("""
import torch
q, k, v = (torch.from_numpy(x).requires_grad_() for x in (q, k, v))
dout = torch.from_numpy(dout)
out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
""")


def of_first_calls(quick: bool) -> str:
    if quick:
        return ""
    measured: dict[str, list[list[float]]] = {name: [] for name in FIRST_CALL_BOUNDS}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            for runs in measured.values():
                runs.append(printed("-c", MINIMHA_FIRST_CALL, MINIMHA_CACHE_DIR=cache))
    if torch:
        measured["PyTorch"] = [printed("-c", TORCH_FIRST_CALL) for _ in range(3)]
    rows = []
    for name, runs in measured.items():
        forward, both = map(statistics.median, zip(*runs, strict=True))
        bound = verdict(both, FIRST_CALL_BOUNDS.get(name))
        rows.append([name, f"{forward:.2f}", f"{both:.2f}", bound])
    return f"""## The first call

Seconds to import the library and compute attention of 512 queries, in a new process that has
loaded NumPy: the median of 3.

{table(["", FORWARD, BOTH, "bound, s"], rows)}"""


@dataclass
class Page:
    """The results so far."""

    head: str
    peaks: dict[int, float] = field(default_factory=dict)
    cells: dict[Cell, Times] = field(default_factory=dict)
    missing: list[Cell] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)

    def measure(self, quick: bool, minutes: float) -> Iterator[str]:
        """Measure everything, and yield the name of each step after it."""
        end = time.perf_counter() + 60 * minutes
        widths, lengths = (WIDTHS[1:2], LENGTHS[:2]) if quick else (WIDTHS, LENGTHS)
        sizes = itertools.product(THREADS, widths, DIRECTIONS, MASKS, lengths)
        cells = sorted(
            itertools.starmap(Cell, sizes),
            key=lambda cell: (cell[:2] != (2, 64), cell.flops / cell.threads, cell),
        )
        measure_peaks(self.peaks, 512 if quick else 2048)
        for section in (of_implementations, of_windows, of_memory, of_first_calls):
            self.sections.append(section(quick))
            yield section.__name__
        for k, cell in enumerate(cells):
            if time.perf_counter() > end:
                self.missing = cells[k:]
                break
            self.cells[cell] = times_of(cell, quick)
            yield str(cell)
        measure_peaks(self.peaks, 512 if quick else 2048)

    def __str__(self) -> str:
        judged = [
            statistics.median(ratios(times["auto"], times[OTHER])) <= cell.bound
            for cell, times in self.cells.items()
            if cell.bound and torch
        ]
        bounds = f"At D = 64 on 2 threads, {sum(judged)} of {len(judged)} bounds hold."
        missing = f"Not measured for lack of time: {'; '.join(map(str, self.missing))}."
        settings = dict.fromkeys(cell[:2] for cell in self.cells)
        parts = [self.head, bounds if judged else "", missing if self.missing else ""]
        parts += [*itertools.starmap(self.table, settings), *self.sections]
        return "\n\n".join(part for part in parts if part) + "\n"

    def table(self, threads: int, width: int) -> str:
        """The section for one number of threads and one width."""
        rows, peak = [], self.peaks[threads]
        for cell in sorted(cell for cell in self.cells if cell[:2] == (threads, width)):
            times = self.cells[cell]
            took = {name: statistics.median(turns) for name, turns in times.items()}
            share = {name: f"{cell.flops / t / peak:.0%}" for name, t in took.items()}
            of_torch = ["—", "", "—"]
            if torch:
                compared = ratios(times["auto"], times[OTHER])
                bound = verdict(statistics.median(compared), cell.bound)
                of_torch = [spread(compared), bound, f"{1e3 * took[OTHER]:.3g}"]
            shares = share["auto"], share[OTHER] if torch else "—"
            rows.append([cell.direction, cell.mask, str(cell.length), *of_torch, *shares])
        headers = ["", "mask", "N", "our time / PyTorch's", "bound", "PyTorch, ms"]
        return f"""## D = {width}, {threads} thread{"s" * (threads > 1)}

The peak is {peak / 1e9:.0f} Gflop/s: the fastest matrix product in the same run, by NumPy or by
`functional.linear`. That is a measured speed and not the limit of the machine, so a share can
exceed 100%.

{table([*headers, "our share of peak", "PyTorch's share"], rows)}"""


def picture(cells: dict[Cell, Times]) -> Any:
    """Our time divided by PyTorch's over N: a row for each direction, a column for each width."""
    from matplotlib.figure import Figure

    styles = {"causal": ("#0072B2", "o"), "full": ("#D55E00", "s"), "window": ("#009E73", "^")}
    widths = sorted({cell.width for cell in cells})
    figure = Figure(figsize=(1.6 + 3.2 * len(widths), 6.6), layout="constrained")
    panels = figure.subplots(2, len(widths), sharex=True, sharey=True, squeeze=False)
    lines: dict[Cell, list[tuple[int, float]]] = {}  # points by all but the length
    for cell, times in sorted(cells.items()):
        ratio = statistics.median(ratios(times["auto"], times[OTHER]))
        lines.setdefault(cell._replace(length=0), []).append((cell.length, ratio))
    for (number, width, direction, mask, _), points in lines.items():
        colour, marker = styles[mask]
        panels[DIRECTIONS.index(direction), widths.index(width)].plot(
            *zip(*points, strict=True), color=colour, marker=marker, markersize=5,
            linestyle="--" if number == 1 else "-",
            markerfacecolor="white" if number == 1 else colour,
            label=f"{mask}, {number} thread{'s' * (number > 1)}",
        )  # fmt: skip
    ticks = 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3
    lengths = sorted({cell.length for cell in cells})
    for (i, j), axes in np.ndenumerate(panels):
        axes.axhline(1, color="0.3", linewidth=1)
        axes.set(xscale="log", yscale="log", title=f"{DIRECTIONS[i]}, D = {widths[j]}")
        axes.set(xlabel="length N" if i else "", ylabel="" if j else "our time / PyTorch's")
        axes.set_xticks(lengths, map(str, lengths))
        axes.set_yticks(ticks, map("{:g}".format, ticks))
        axes.minorticks_off()
        axes.grid(axis="y", color="0.9")
    heights = [y for points in lines.values() for _, y in points]
    panels[0, 0].set_ylim(0.92 * min(heights), 1.08 * max(heights))
    legend = panels[0, 0].get_legend_handles_labels()
    columns = 1 if len(widths) == 1 else 3
    figure.legend(*legend, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def main() -> None:
    parser = common.arguments(__doc__, quick="few and small cells, no first call")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--growth", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.growth:
        print_growth(options.growth[0], int(options.growth[1]))
        return
    image: pathlib.Path | None = (
        options.save.with_suffix(".png") if options.save and torch else None
    )
    drawn = (
        f"\n\n![Our time divided by PyTorch's, over the length N]({image.name})" if image else ""
    )
    command = " ".join(["python benchmarks/attention.py", *["--quick"] * options.quick])
    page, start = Page(head(command) + drawn), time.perf_counter()
    for step in page.measure(options.quick, options.minutes):
        print(f"{time.perf_counter() - start:5.0f} s  {step}", file=sys.stderr)
        if options.save:
            options.save.write_text(str(page), encoding="utf-8")
    if image:
        mh.pictures.save(picture(page.cells), image)
    common.show(str(page), options.save)


if __name__ == "__main__":
    main()
