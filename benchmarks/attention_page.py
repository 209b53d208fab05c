"""What `attention.py` measured, as a page: cells and their bars, results, tables, the picture."""

from __future__ import annotations

import contextlib
import os
import pathlib
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from common import spread, table, versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH, HEADS, WINDOW, LONGEST = 2, 4, 256, 8192
BARS = {  # the most of PyTorch's time that is allowed, at width 64 on 2 threads
    ("forward", "causal"): {512: 0.60, 2048: 0.80, 4096: 0.85, 8192: 0.95},
    ("forward", "full"): {512: 0.90, 2048: 0.90, 4096: 0.90, 8192: 0.95},
    ("forward + backward", "causal"): {512: 0.45, 2048: 0.65, 4096: 0.75, 8192: 0.85},
    ("forward + backward", "full"): {512: 0.80, 2048: 0.90, 4096: 0.95, 8192: 0.95},
}
WINDOW_BAR, WARM_BAR, COLD_BAR = 0.15, 1.0, 15.0
TICKS = 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3
LINES = {  # colours of Okabe and Ito, which do not depend on telling red from green
    "causal": ("#0072B2", "o"),
    "full": ("#D55E00", "s"),
    "window": ("#009E73", "^"),
}


class Cell(NamedTuple):
    """What is computed, and on how many threads."""

    threads: int
    width: int
    way: str  # "forward" or "forward + backward"
    mask: str
    length: int

    @property
    def bar(self) -> float | None:
        counts = self[:2] == (2, 64)
        return BARS.get((self.way, self.mask), {}).get(self.length) if counts else None

    @property
    def flops(self) -> float:
        """Of the pairs that are seen: two products of matrices forward, and five backward."""
        n, reach = self.length, WINDOW if self.mask == "window" else self.length
        pairs = n * n if self.mask == "full" else sum(min(i, reach) for i in range(1, n + 1))
        products = 2 if self.way == "forward" else 7
        return 2.0 * products * BATCH * HEADS * pairs * self.width

    def __str__(self) -> str:
        return f"D={self.width} N={self.length} {self.mask} {self.way} {self.threads}t"


Times = dict[str, list[float]]  # of each contender, in seconds, turn by turn


def machine() -> str:
    """The processor, its cores, and how busy they are."""
    name = "a processor that does not say its name"
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((x.partition(": ")[2] for x in lines if x.startswith("model name")), name)
    load = f", load {os.getloadavg()[0]:.1f} before the run" if hasattr(os, "getloadavg") else ""
    return f"{name}, {os.cpu_count()} cores{load}."


@dataclass
class Results:
    """What was measured so far, and with what."""

    command: str
    packages: dict[str, str]
    peaks: dict[int, float] = field(default_factory=dict)  # flop/s, by threads
    cells: dict[Cell, Times] = field(default_factory=dict)
    missing: list[Cell] = field(default_factory=list)
    rungs: dict[Cell, Times] = field(default_factory=dict)
    window: dict[int, Times] = field(default_factory=dict)  # by length
    memory: dict[int, dict[str, float]] = field(default_factory=dict)  # MB, by length
    start: dict[str, list[list[float]]] = field(default_factory=dict)
    machine: str = field(default_factory=machine)

    @property
    def peer(self) -> str:
        return "PyTorch" if "PyTorch" in self.packages else "auto"


def ratios(times: Times, name: str, peer: str) -> list[float]:
    return [a / b for a, b in zip(times[name], times[peer], strict=True)]


def verdict(value: float, bar: float | None) -> str:
    if bar is None:
        return ""
    return f"{bar:.3g} {'holds' if value <= bar else '**misses**'}"


def page(r: Results, picture: str | None) -> str:
    """All of it. picture: the name of its file."""
    parts = [
        f"""# What attention costs

`{r.command}`, on {time.strftime("%Y-%m-%d")}.
{r.machine}
{versions(**r.packages)}

`scaled_dot_product_attention` of float32 arrays ({BATCH}, {HEADS}, N, D) as a user calls it: with
Tensors, all memory taken anew, the forward alone under `no_grad`. A window shows each query its own
key and the {WINDOW - 1} before; PyTorch is given it as a boolean mask, having no other way. The
libraries take turns, and a figure is our time as a part of PyTorch's, turn by turn: the median, in
brackets the quarter and the three-quarter mark. Below 1 we are faster."""
    ]
    if picture:
        parts.append(f"![Our time as a part of PyTorch's, over the length N]({picture})")
    parts += [_told(r), *_tables(r), _rungs(r), _window(r), _memory(r), _start(r)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _told(r: Results) -> str:
    """How many bars hold, and what is missing."""
    text = ""
    judged = {c: ratios(times, "auto", r.peer) for c, times in r.cells.items() if c.bar}
    if judged and r.peer != "auto":
        held = sum(statistics.median(v) <= c.bar for c, v in judged.items() if c.bar)
        text += f"Of {len(judged)} bars for the time, at D = 64 on 2 threads, {held} hold."
    if r.missing:
        text += f"\n\nThe time did not suffice for {', '.join(map(str, r.missing))}."
    return text.strip()


def _tables(r: Results) -> list[str]:
    """A section for each width and number of threads."""
    parts = []
    for threads, width in dict.fromkeys(cell[:2] for cell in r.cells):
        cells = [cell for cell in r.cells if cell[:2] == (threads, width)]
        rows = [_row(c, r.cells[c], r.peaks[threads], r.peer) for c in sorted(cells)]
        headers = ["", "mask", "N", "of PyTorch's time", "bar", "PyTorch, ms", "our share of peak"]
        parts.append(f"## D = {width}, {threads} thread{'s' * (threads > 1)}")
        parts.append(
            f"The peak is {r.peaks[threads] / 1e9:.0f} Gflop/s, of the product of two matrices in "
            "the same run: NumPy's or `functional.linear`, whichever was faster."
        )
        parts.append(table([*headers, "PyTorch's share"], rows))
    return parts


def _row(cell: Cell, times: Times, peak: float, peer: str) -> list[str]:
    took = {name: statistics.median(seen) for name, seen in times.items()}
    share = {name: f"{cell.flops / t / peak:.0%}" for name, t in took.items()}
    row = [cell.way, cell.mask, str(cell.length)]
    if peer == "auto":
        return [*row, "—", "", "—", share["auto"], "—"]
    of_peer = ratios(times, "auto", peer)
    bar = verdict(statistics.median(of_peer), cell.bar)
    return [*row, spread(of_peer), bar, f"{1e3 * took[peer]:.3g}", share["auto"], share[peer]]


def _rungs(r: Results) -> str:
    if not r.rungs:
        return ""
    names = dict.fromkeys(name for times in r.rungs.values() for name in times)
    others = [name for name in names if name != r.peer]
    rows = [
        [cell.way, cell.mask, str(cell.length)]
        + [spread(ratios(times, n, r.peer)) if n in times else "—" for n in others]
        for cell, times in r.rungs.items()
    ]
    width = next(iter(r.rungs)).width
    return f"""## The rungs

Times as parts of those of {r.peer}, at D = {width} on 2 threads. A dash stands where a call takes
over 2 s, or three arrays of all scores over 2 GB.

{table(["", "mask", "N", *others], rows)}"""


def _window(r: Results) -> str:
    if not r.window:
        return ""
    rows = []
    for length, times in r.window.items():
        share = ratios(times, "window", "causal")
        bar = WINDOW_BAR if length == LONGEST else None
        rows.append([str(length), spread(share), verdict(statistics.median(share), bar)])
    return f"""## What a window saves

Forward and backward with a window of {WINDOW}, as a part of our own time with a causal mask;
D = 64, 2 threads.

{table(["N", "of causal", "bar"], rows)}"""


def _memory(r: Results) -> str:
    if not r.memory:
        return ""
    rows = []
    for length, grown in r.memory.items():
        for name, megabytes in grown.items():
            bar = grown.get("PyTorch") if (name, length) == ("auto", LONGEST) else None
            rows.append([str(length), name, f"{megabytes:.0f}", verdict(megabytes, bar)])
    return f"""## Memory

By how many MB a process grows at most in forward and backward, causal, D = 64, 2 threads, after a
small call; each in a process of its own. Implementations that hold all scores are left out.

{table(["N", "", "MB", "bar"], rows)}"""


def _start(r: Results) -> str:
    if not r.start:
        return ""
    bars = {"minimha, cold": COLD_BAR, "minimha, warm": WARM_BAR}
    rows = []
    for name, seen in r.start.items():
        forward, both = (statistics.median(times) for times in zip(*seen, strict=True))
        rows.append([name, f"{forward:.2f}", f"{both:.2f}", verdict(both, bars.get(name))])
    return f"""## The first call

Seconds in a fresh process that has NumPy: importing the library, and attention of 512 queries. Cold
is with no kernel compiled before, warm the next process. The median of {len(seen)}.

{table(["", "forward", "and backward", "bar, s"], rows)}"""


def picture(r: Results) -> Figure:
    """Our time as a part of PyTorch's over N: a row for each way, a column for each width."""
    from matplotlib.figure import Figure

    ways, widths = (list(dict.fromkeys(sorted(c[k] for c in r.cells))) for k in (2, 1))
    size = 1.6 + 3.2 * len(widths), 0.8 + 2.9 * len(ways)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(ways), len(widths), sharex=True, sharey=True, squeeze=False)
    for (i, way), (j, width) in ((a, b) for a in enumerate(ways) for b in enumerate(widths)):
        _panel(panels[i, j], r, way, width)
        panels[i, j].set_title(f"{way}, D = {width}", fontsize=10)
    seen = [y for axes in panels.flat for line in axes.get_lines() for y in line.get_ydata()]
    panels[0, 0].set_ylim(0.92 * min(seen), 1.08 * max(seen))
    for axes in panels[-1]:
        axes.set_xlabel("length N")
    for axes in panels[:, 0]:
        axes.set_ylabel("our time / PyTorch's")
    lines = {}
    for axes in panels.flat:
        handles, labels = axes.get_legend_handles_labels()
        lines |= dict(zip(labels, handles, strict=True))
    columns = 1 if len(widths) == 1 else 3
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _panel(axes: Any, r: Results, way: str, width: int) -> None:
    lengths = sorted({cell.length for cell in r.cells})
    axes.axhline(1, color="0.3", linewidth=1)
    for mask, (colour, marker) in LINES.items():
        for threads in sorted({cell.threads for cell in r.cells}):
            points = {
                c.length: statistics.median(ratios(times, "auto", r.peer))
                for c, times in sorted(r.cells.items())
                if c[:4] == (threads, width, way, mask)
            }
            if not points:
                continue
            axes.plot(
                list(points), list(points.values()), color=colour, marker=marker, markersize=5,
                linestyle="--" if threads == 1 else "-",
                markerfacecolor="white" if threads == 1 else colour,
                label=f"{mask}, {threads} thread{'s' * (threads > 1)}",
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_yticks(TICKS, map("{:g}".format, TICKS))
    axes.minorticks_off()
    axes.set_xticks(lengths, map(str, lengths))
    axes.grid(axis="y", color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
