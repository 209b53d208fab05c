"""Attention by minimha beside PyTorch and jax in the same run: time, memory, the first call.

python benchmarks/attention.py [--quick] [--save docs/measured/attention.md] [--parts PART …]
    [--minutes 12]

--save writes the page after every step, and a picture beside it. Once the minutes are over, no
further cell of a table starts; the page says which are missing.

Libraries take turns: a rest, then a call that does not count if it is short, then calls for 20 ms;
their median is the turn. PyTorch's threads spin for some milliseconds after their work, and where
libraries alternate call by call on two cores they slow each other down: PyTorch's forward of 128
positions took 10 ms instead of 0.2. The call that does not count sets the threads spinning again,
as they do in a user's loop. The other cure, OMP_WAIT_POLICY=passive, makes PyTorch's short calls up
to twice as slow, so its threads stay as they are.
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
OTHER = "PyTorch" if torch else "auto"  # the library that times are compared with
BATCH, HEADS, WINDOW, LONGEST = 2, 4, 256, 8192
WIDTHS, LENGTHS, THREADS = (64, 32, 128), (128, 512, 2048, 4096, LONGEST), (2, 1)
FORWARD, BOTH = DIRECTIONS = "forward", "forward + backward"
MASKS = {
    "causal": mh.masks.causal(),
    "full": None,
    "window": mh.masks.sliding_window(WINDOW - 1, 0),
}
PARTS = "cells", "implementations", "window", "memory", "first call"
LEAN = "tiled", "microkernel", "auto", "PyTorch"  # hold no array of all scores
REST, SHORT = 0.02, 0.02  # seconds before a turn, and of its calls
LONG_REST = 0.1  # after BLAS, whose threads spin for 60 ms
SLOW, LARGE = 2.0, 2e9  # seconds and bytes above which an implementation is left out
BOUNDS = {  # the largest ratio to PyTorch's time allowed, at width 64 on 2 threads
    (FORWARD, "causal"): {512: 0.60, 2048: 0.80, 4096: 0.85, 8192: 0.95},
    (FORWARD, "full"): {512: 0.90, 2048: 0.90, 4096: 0.90, 8192: 0.95},
    (BOTH, "causal"): {512: 0.45, 2048: 0.65, 4096: 0.75, 8192: 0.85},
    (BOTH, "full"): {512: 0.80, 2048: 0.90, 4096: 0.95, 8192: 0.95},
}
WINDOW_BOUND = 0.15
FIRST_CALL_BOUNDS = {"minimha, no kernel compiled yet": 15.0, "minimha, the next process": 1.0}

Call = Callable[[], list[Any]]  # returns the output, after a backward the three gradients too
Times = dict[str, list[float]]  # of each library, in seconds, turn by turn


class Cell(NamedTuple):
    """What is computed, and on how many threads."""

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
        """Of the visible scores: two matrix products forward, and five backward."""
        n, reach = self.length, WINDOW if self.mask == "window" else self.length
        visible = n * n if self.mask == "full" else sum(min(i, reach) for i in range(1, n + 1))
        return 2.0 * (2 if self.direction == FORWARD else 7) * BATCH * HEADS * visible * self.width

    def __str__(self) -> str:
        return f"D={self.width} N={self.length} {self.mask} {self.direction} {self.threads}t"


@dataclass
class Results:
    """What was measured so far."""

    peaks: dict[int, float] = field(default_factory=dict)  # flop/s, by threads
    cells: dict[Cell, Times] = field(default_factory=dict)
    missing: list[Cell] = field(default_factory=list)
    implementations: dict[Cell, Times] = field(default_factory=dict)
    window: dict[int, Times] = field(default_factory=dict)  # by length
    memory: dict[int, dict[str, float]] = field(default_factory=dict)  # MB, by length
    first_call: dict[str, list[list[float]]] = field(default_factory=dict)
    machine: str = field(default_factory=common.machine)


# The libraries, called as their users call them.


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
    """Raise unless all compute the same."""
    results = []
    for name, call in calls.items():
        arrays = [x.data if isinstance(x, mh.Tensor) else x for x in call()]
        arrays = [np.asarray(x.detach() if name == "PyTorch" else x) for x in arrays]
        results.append([x.swapaxes(1, 2) for x in arrays] if name == "jax" else arrays)
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)  # other orders of summation


def turn(call: Call, rest: float) -> float:
    """The time of a call."""
    time.sleep(rest)
    times = [seconds(call)]
    if times[0] < 5 * SHORT:
        times = []
        while sum(times) < SHORT:
            times.append(seconds(call))
    return statistics.median(times)


def take_turns(calls: dict[str, Call], quick: bool, rest: float = REST) -> Times:
    """The times, turn by turn: as many as fit into 2 seconds, at least 7, at most 41."""
    least, most, budget = (2, 5, 0.1) if quick else (7, 41, 2.0)
    for call in calls.values():
        call()
    times: Times = {name: [] for name in calls}
    start = time.perf_counter()
    for k in range(most):
        if k >= least and time.perf_counter() - start > budget:
            break
        for name, call in calls.items():
            times[name].append(turn(call, rest))
    return times


@contextlib.contextmanager
def thread_limit(number: int) -> Iterator[None]:
    """The number of threads for all but jax."""
    if torch:
        torch.set_num_threads(number)
    with threads.limit(number), threadpoolctl.threadpool_limits(number, user_api="blas"):
        yield


def measure_peaks(results: Results, n: int) -> None:
    """Flop a second of a matrix product, NumPy's or ours: the best so far."""
    a = np.random.default_rng(0).standard_normal((n, n)).astype("float32")
    for number, product in itertools.product(THREADS, (np.matmul, mh.functional.linear)):
        time.sleep(LONG_REST)
        with thread_limit(number):
            least = min(seconds(partial(product, a, a)) for _ in range(15))
        results.peaks[number] = max(results.peaks.get(number, 0.0), 2 * n**3 / least)


def times_of(cell: Cell, quick: bool) -> Times:
    with thread_limit(cell.threads):
        calls = {name: CALLS[name](cell) for name in dict.fromkeys(("auto", OTHER))}
        if cell.length <= 512:
            check_agreement(calls)
        return take_turns(calls, quick)


def times_of_all(cell: Cell, quick: bool) -> Times:
    """Of all implementations and libraries, but for those that are too slow or need too much."""
    small = 3 * 4 * BATCH * HEADS * cell.length**2 <= LARGE
    with thread_limit(cell.threads):
        calls = {name: make(cell) for name, make in CALLS.items() if small or name in LEAN}
        check_agreement(calls)
        fast = {name: call for name, call in calls.items() if seconds(call) <= SLOW}
        return take_turns(fast, quick, LONG_REST)


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


def first_calls(times: int) -> dict[str, list[list[float]]]:
    """The seconds until the end of forward, and of backward."""
    measured: dict[str, list[list[float]]] = {name: [] for name in FIRST_CALL_BOUNDS}
    for _ in range(times):
        with tempfile.TemporaryDirectory() as cache:
            for runs in measured.values():
                runs.append(printed("-c", MINIMHA_FIRST_CALL, MINIMHA_CACHE_DIR=cache))
    if torch:
        measured["PyTorch"] = [printed("-c", TORCH_FIRST_CALL) for _ in range(times)]
    return measured


def measure(results: Results, parts: list[str], quick: bool, minutes: float) -> Iterator[str]:
    """Fill the results; says after each step what was measured."""
    end, longest = time.perf_counter() + 60 * minutes, 512 if quick else LONGEST
    widths, lengths = (WIDTHS[1:2], LENGTHS[:2]) if quick else (WIDTHS, LENGTHS)
    sizes = itertools.product(THREADS, widths, DIRECTIONS, MASKS, lengths)
    cells = list(itertools.starmap(Cell, sizes)) if "cells" in parts else []
    cells.sort(key=lambda cell: (cell[:2] != (2, 64), cell.flops / cell.threads, cell))
    measure_peaks(results, 512 if quick else 2048)
    if "implementations" in parts:
        lengths, masks = ((128,), ("causal",)) if quick else ((128, 512, 2048), ("causal", "full"))
        for cell in itertools.starmap(
            Cell, itertools.product((2,), (64,), DIRECTIONS, masks, lengths)
        ):
            results.implementations[cell] = times_of_all(cell, quick)
            yield f"implementations, {cell}"
    if "window" in parts:
        named = {mask: Cell(2, 64, BOTH, mask, longest) for mask in ("causal", "window")}
        with thread_limit(2):
            calls = {mask: minimha_call(cell, "auto") for mask, cell in named.items()}
            results.window[longest] = take_turns(calls, quick)
        yield "window"
    if "memory" in parts and sys.platform == "linux":
        results.memory[longest] = {
            name: printed(__file__, "--growth", name, str(longest))[0]
            for name in LEAN
            if name in CALLS
        }
        yield "memory"
    if "first call" in parts:
        results.first_call = first_calls(3)
        yield "the first call"
    for k, cell in enumerate(cells):
        if time.perf_counter() > end:
            results.missing = cells[k:]
            break
        results.cells[cell] = times_of(cell, quick)
        yield str(cell)
    measure_peaks(results, 512 if quick else 2048)


# The page.


def page(results: Results, command: str, picture: str | None) -> str:
    """All of it. picture: the name of its file."""
    judged = [
        statistics.median(ratios(times["auto"], times[OTHER])) <= cell.bound
        for cell, times in results.cells.items()
        if cell.bound and torch
    ]
    parts = [
        f"""# What attention costs

`{command}`, on {time.strftime("%Y-%m-%d")}.
{results.machine}
{common.versions(**PACKAGES)}

`scaled_dot_product_attention` of float32 arrays ({BATCH}, {HEADS}, N, D) as a user calls it: with
Tensors, all memory newly allocated, the forward alone under `no_grad`. A window shows each query
its own key and the {WINDOW - 1} before; PyTorch gets it as a boolean mask, having no other way. The
libraries take turns, and a figure is our time divided by PyTorch's, turn by turn: the median, in
brackets the quartiles. Below 1 we are faster.""",
        f"![Our time divided by PyTorch's, over the length N]({picture})" if picture else "",
        f"Of {len(judged)} bounds, at D = 64 on 2 threads, {sum(judged)} hold." if judged else "",
        f"Not measured in the time: {', '.join(map(str, results.missing))}."
        if results.missing
        else "",
        *map(partial(cells_table, results), dict.fromkeys(cell[:2] for cell in results.cells)),
    ]
    if results.implementations:
        names = {name for times in results.implementations.values() for name in times} - {OTHER}
        columns = [name for name in CALLS if name in names]
        rows = [
            [cell.direction, cell.mask, str(cell.length)]
            + [spread(ratios(times[n], times[OTHER])) if n in times else "—" for n in columns]
            for cell, times in results.implementations.items()
        ]
        parts.append(f"""## The implementations

Times divided by those of {OTHER}, at D = 64 on 2 threads. A dash: a call takes over 2 s, or three
arrays of all scores over 2 GB.

{table(["", "mask", "N", *columns], rows)}""")
    for length, times in results.window.items():
        share = ratios(times["window"], times["causal"])
        bound = verdict(statistics.median(share), WINDOW_BOUND if length == LONGEST else None)
        parts.append(f"""## What a window saves

Forward and backward with a window of {WINDOW}, divided by our own time with a causal mask; D = 64,
2 threads.

{table(["N", "of causal", "bound"], [[str(length), spread(share), bound]])}""")
    for length, grown in results.memory.items():
        bounds = {"auto": grown.get("PyTorch") if length == LONGEST else None}
        rows = [[name, f"{mb:.0f}", verdict(mb, bounds.get(name))] for name, mb in grown.items()]
        parts.append(f"""## Memory

By how many MB a process grows at most in forward and backward with N = {length}, causal, D = 64,
2 threads, after a small call; each in its own process. Implementations that hold all scores are
left out.

{table(["", "MB", "bound"], rows)}""")
    if results.first_call:
        rows = []
        for name, runs in results.first_call.items():
            forward, both = map(statistics.median, zip(*runs, strict=True))
            bound = verdict(both, FIRST_CALL_BOUNDS.get(name))
            rows.append([name, f"{forward:.2f}", f"{both:.2f}", bound])
        parts.append(f"""## The first call

Seconds in a fresh process that has loaded NumPy: importing the library, and attention of 512
queries. The median of {len(runs)}.

{table(["", "forward", "and backward", "bound, s"], rows)}""")
    return "\n\n".join(part for part in parts if part) + "\n"


def cells_table(results: Results, setting: tuple[int, int]) -> str:
    """The section of a number of threads and a width."""
    (threads, width), rows = setting, []
    peak = results.peaks[threads]
    for cell in sorted(cell for cell in results.cells if cell[:2] == setting):
        times = results.cells[cell]
        took = {name: statistics.median(turns) for name, turns in times.items()}
        share = {name: f"{cell.flops / t / peak:.0%}" for name, t in took.items()}
        row, of_torch = [cell.direction, cell.mask, str(cell.length)], ["—", "", "—"]
        if torch:
            compared = ratios(times["auto"], times[OTHER])
            bound = verdict(statistics.median(compared), cell.bound)
            of_torch = [spread(compared), bound, f"{1e3 * took[OTHER]:.3g}"]
        rows.append([*row, *of_torch, share["auto"], share[OTHER] if torch else "—"])
    headers = ["", "mask", "N", "of PyTorch's time", "bound", "PyTorch, ms", "our share of peak"]
    return f"""## D = {width}, {threads} thread{"s" * (threads > 1)}

The peak is {peak / 1e9:.0f} Gflop/s, of the product of two matrices in the same run: NumPy's or
`functional.linear`, whichever was faster.

{table([*headers, "PyTorch's share"], rows)}"""


def picture(results: Results) -> Any:
    """Our time divided by PyTorch's over N: a row for each direction, a column for each width."""
    from matplotlib.figure import Figure

    colours = {"causal": "#0072B2", "full": "#D55E00", "window": "#009E73"}  # of Okabe and Ito
    markers = {"causal": "o", "full": "s", "window": "^"}
    widths = sorted({cell.width for cell in results.cells})
    size = 1.6 + 3.2 * len(widths), 6.6
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(2, len(widths), sharex=True, sharey=True, squeeze=False)
    lines: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
    for cell, times in sorted(results.cells.items()):
        points = lines.setdefault((cell.direction, cell.width, cell.mask, cell.threads), [])
        points.append((cell.length, statistics.median(ratios(times["auto"], times[OTHER]))))
    for (direction, width, mask, number), points in lines.items():
        panels[DIRECTIONS.index(direction), widths.index(width)].plot(
            *zip(*points, strict=True), color=colours[mask], marker=markers[mask], markersize=5,
            linestyle="--" if number == 1 else "-",
            markerfacecolor="white" if number == 1 else colours[mask],
            label=f"{mask}, {number} thread{'s' * (number > 1)}",
        )  # fmt: skip
    ticks = 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3
    lengths = sorted({cell.length for cell in results.cells})
    for (i, j), axes in np.ndenumerate(panels):
        axes.axhline(1, color="0.3", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_yticks(ticks, map("{:g}".format, ticks))
        axes.minorticks_off()
        axes.set_xticks(lengths, map(str, lengths))
        axes.grid(axis="y", color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(f"{DIRECTIONS[i]}, D = {widths[j]}", fontsize=10)
        axes.set_xlabel("length N" if i else "")
        axes.set_ylabel("" if j else "our time / PyTorch's")
    heights = [y for points in lines.values() for _, y in points]
    panels[0, 0].set_ylim(0.92 * min(heights), 1.08 * max(heights))
    handles, labels = panels[0, 0].get_legend_handles_labels()
    columns = 1 if len(widths) == 1 else 3
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    common.add_options(parser, quick="few and small cells, no first call")
    parser.add_argument("--parts", nargs="+", choices=PARTS)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--growth", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.growth:
        print_growth(options.growth[0], int(options.growth[1]))
        return
    parts = options.parts or (PARTS[:-1] if options.quick else PARTS)
    command = " ".join(["python benchmarks/attention.py", *["--quick"] * options.quick])
    drawn = options.save and torch and "cells" in parts
    image: pathlib.Path | None = options.save.with_suffix(".png") if drawn else None
    results, start = Results(), time.perf_counter()
    for step in measure(results, parts, options.quick, options.minutes):
        print(f"{time.perf_counter() - start:5.0f} s  {step}", file=sys.stderr)
        if options.save:
            text = page(results, command, image and image.name)
            options.save.write_text(text, encoding="utf-8")
    if image:
        mh.pictures.save(picture(results), image)
    common.show(page(results, command, image and image.name), options.save)


if __name__ == "__main__":
    main()
