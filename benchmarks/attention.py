"""Attention by minimha beside PyTorch and jax in the same run: time, memory, the first call.

python benchmarks/attention.py [--quick] [--save docs/measured/attention.md] [--parts PART …]
    [--width 64 …] [--length 512 2048 …] [--threads 2 …] [--mask causal …] [--minutes 12]

--save writes the page after every step, and a picture beside it. When the minutes are over, no
further cell is begun; the dearest come last, and the page says which are missing.

Contenders take turns: a rest, then a call that does not count if it is short, then calls for 20 ms;
their median is the turn. The rest is for the threads of PyTorch, which spin for some milliseconds
after their work. Where the libraries alternate call by call on two cores, they are in each other's
way: PyTorch's forward of 128 positions took 10 ms in place of 0.2. The first call is to have its
threads spin again, as they do in a user's loop. The other cure, OMP_WAIT_POLICY=passive, costs
PyTorch up to half its speed where calls are short, so its threads stay as they are.
"""

from __future__ import annotations

import os

os.environ.setdefault("NPROC", "2")  # jax's threads, else as many as there are cores

import argparse
import contextlib
import itertools
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import threadpoolctl
from attention_page import BATCH, HEADS, LONGEST, WINDOW, Cell, Results, Times, page, picture
from common import growth, optional, show

import minimha as mh
from minimha.attention import IMPLEMENTATIONS
from minimha.kernels import threads

torch, jax = map(optional, ("torch", "jax"))
PACKAGES = {k: m.__name__ for k, m in {"PyTorch": torch, "jax": jax}.items() if m}
WIDTHS, LENGTHS, THREADS = (64, 32, 128), (128, 512, 2048, 4096, LONGEST), (2, 1)
WAYS = "forward", "forward + backward"
MASKS = {
    "causal": mh.masks.causal(),
    "full": None,
    "window": mh.masks.sliding_window(WINDOW - 1, 0),
}
LEAN = "tiled", "microkernel", "auto", "PyTorch"  # hold no array of all scores
REST, SHORT = 0.02, 0.02  # seconds before a turn, and of its calls
LONG_REST = 0.1  # after BLAS, whose threads spin for 60 ms
SLOW, LARGE = 2.0, 2e9  # seconds and bytes from which on a rung is left out
PARTS = "cells", "rungs", "window", "memory", "start"

Call = Callable[[], list[Any]]  # gives the output, after a backward the three gradients too


def inputs(cell: Cell) -> list[np.ndarray]:
    """Query, key, value, and the gradient of the output."""
    rng, shape = np.random.default_rng(0), (BATCH, HEADS, cell.length, cell.width)
    return [rng.standard_normal(shape, "float32") for _ in range(4)]


def ours(cell: Cell, implementation: str) -> Call:
    *arrays, dout = inputs(cell)
    leaves = [mh.Tensor(x, requires_grad=cell.way != "forward") for x in arrays]
    settings = {"mask": MASKS[cell.mask], "implementation": implementation}
    attend = partial(mh.scaled_dot_product_attention, *leaves, **settings)
    return called(cell, attend, leaves, dout, mh.no_grad)


def torchs(cell: Cell) -> Call:
    *arrays, dout = map(torch.from_numpy, inputs(cell))
    leaves = [x.requires_grad_(cell.way != "forward") for x in arrays]
    settings: dict[str, Any] = {"is_causal": cell.mask == "causal"}
    if cell.mask == "window":
        seen = MASKS["window"].array((cell.length, cell.length))  # type: ignore[union-attr]
        settings["attn_mask"] = torch.from_numpy(seen)
    attend = partial(torch.nn.functional.scaled_dot_product_attention, *leaves, **settings)
    return called(cell, attend, leaves, dout, torch.no_grad)


def called(cell: Cell, attend: Any, leaves: Any, dout: Any, no_grad: Any) -> Call:
    """As users of both libraries write it."""

    def forward() -> list[Any]:
        with no_grad():
            return [attend()]

    def both() -> list[Any]:
        for x in leaves:
            x.grad = None
        out = attend()
        out.backward(dout)
        return [out, *(x.grad for x in leaves)]

    return forward if cell.way == "forward" else both


def jaxs(cell: Cell) -> Call:
    arrays = [jax.numpy.asarray(x.swapaxes(1, 2)) for x in inputs(cell)]  # (B, N, H, D)
    settings: dict[str, Any] = {"is_causal": cell.mask == "causal"}
    if cell.mask == "window":
        settings["local_window_size"] = WINDOW - 1, 0
    attend = partial(jax.nn.dot_product_attention, **settings)

    def forward(q: Any, k: Any, v: Any, dout: Any) -> list[Any]:
        return [attend(q, k, v)]

    def both(q: Any, k: Any, v: Any, dout: Any) -> list[Any]:
        out, pullback = jax.vjp(attend, q, k, v)
        return [out, *pullback(dout)]

    compiled = jax.jit(forward if cell.way == "forward" else both)
    return lambda: jax.block_until_ready(compiled(*arrays))


CONTENDERS: dict[str, Callable[[Cell], Call]] = {
    **{name: partial(ours, implementation=name) for name in (*IMPLEMENTATIONS, "auto")},
    **({"PyTorch": torchs} if torch else {}),
    **({"jax": jaxs} if jax else {}),
}


def agree(calls: dict[str, Call]) -> None:
    """Raise unless all compute the same."""
    results = []
    for name, call in calls.items():
        arrays = [x.data if isinstance(x, mh.Tensor) else x for x in call()]
        arrays = [np.asarray(x.detach() if name == "PyTorch" else x) for x in arrays]
        results.append([x.swapaxes(1, 2) for x in arrays] if name == "jax" else arrays)
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)  # sums in other orders


def seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def turn(call: Call, rest: float = REST) -> float:
    """The time of a call."""
    time.sleep(rest)
    times = [seconds(call)]
    if times[0] < 5 * SHORT:
        times = []
        while sum(times) < SHORT:
            times.append(seconds(call))
    return statistics.median(times)


def race(calls: dict[str, Call], least: int, most: int, budget: float, rest: float = REST) -> Times:
    """The times of those who take turns: so many as fit into a budget of seconds."""
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
def limited(number: int) -> Iterator[None]:
    """So many threads for all but jax."""
    if torch:
        torch.set_num_threads(number)
    with threads.limit(number), threadpoolctl.threadpool_limits(number, user_api="blas"):
        yield


def find_peaks(r: Results, numbers: tuple[int, ...], n: int) -> None:
    """The flop a second of a product of matrices, NumPy's or ours: the best now and before."""
    a = np.random.default_rng(0).standard_normal((n, n)).astype("float32")
    for number, product in itertools.product(numbers, (np.matmul, mh.functional.linear)):
        time.sleep(LONG_REST)
        with limited(number):
            least = min(seconds(partial(product, a, a)) for _ in range(15))
        r.peaks[number] = max(r.peaks.get(number, 0.0), 2 * n**3 / least)


def beside_peer(cell: Cell, effort: dict[str, Any]) -> Times:
    calls = {name: CONTENDERS[name](cell) for name in ("auto", "PyTorch") if name in CONTENDERS}
    if cell.length <= 512:
        agree(calls)
    return race(calls, **effort)


def of_all(cell: Cell, effort: dict[str, Any]) -> Times:
    """The times of all contenders but for those that are too slow or take too much."""
    fits = 3 * 4 * BATCH * HEADS * cell.length**2 <= LARGE
    calls = {name: make(cell) for name, make in CONTENDERS.items() if fits or name in LEAN}
    agree(calls)
    fast = {name: call for name, call in calls.items() if seconds(call) <= SLOW}
    return race(fast, **effort, rest=LONG_REST)


def of_window(length: int, effort: dict[str, Any]) -> Times:
    cells = {mask: Cell(2, 64, WAYS[1], mask, length) for mask in ("causal", "window")}
    return race({mask: ours(cell, "auto") for mask, cell in cells.items()}, **effort)


def printed(*arguments: str, **environment: str) -> list[float]:
    """The numbers that a new Python process prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return [float(number) for number in done.stdout.split()]


def print_growth(name: str, length: int) -> None:
    cell = Cell(2, 64, WAYS[1], "causal", length)
    with limited(cell.threads):
        CONTENDERS[name](cell._replace(length=256))()
        print(growth(CONTENDERS[name](cell)))


START = """
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
OURS = START.format("""
import minimha as mh
q, k, v = (mh.Tensor(x, requires_grad=True) for x in (q, k, v))
out = mh.scaled_dot_product_attention(q, k, v, mh.masks.causal())
""")
TORCHS = START.format("""
import torch
q, k, v = (torch.from_numpy(x).requires_grad_() for x in (q, k, v))
dout = torch.from_numpy(dout)
out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
""")


def starts(times: int) -> dict[str, list[list[float]]]:
    """The seconds until the end of forward, and of backward."""
    cold: list[list[float]] = []
    warm: list[list[float]] = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as cache:
            for seen in (cold, warm):
                seen.append(printed("-c", OURS, MINIMHA_CACHE_DIR=cache))
    seen = {"minimha, cold": cold, "minimha, warm": warm}
    return seen | ({"PyTorch": [printed("-c", TORCHS) for _ in range(times)]} if torch else {})


def measured(options: argparse.Namespace, r: Results) -> Iterator[str]:
    """Fill the results, saying after each step what was done."""
    quick, end = options.quick, time.perf_counter() + 60 * options.minutes
    effort: dict[str, Any] = {"least": 7, "most": 41, "budget": 2.0}
    if quick:
        effort = {"least": 2, "most": 5, "budget": 0.1}
    chosen = options.threads, options.width, WAYS, options.mask, options.length
    cells = list(itertools.starmap(Cell, itertools.product(*chosen))) * ("cells" in options.parts)
    first = [cell for cell in cells if cell[:2] == (2, 64)]
    rest = sorted(set(cells) - set(first), key=lambda cell: (cell.flops / cell.threads, cell))
    find_peaks(r, options.threads, 512 if quick else 2048)
    for cell in first:
        with limited(cell.threads):
            r.cells[cell] = beside_peer(cell, effort)
        yield str(cell)
    if "rungs" in options.parts:
        lengths, masks = ((128,), ("causal",)) if quick else ((128, 512, 2048), ("causal", "full"))
        for way, mask, length in itertools.product(WAYS, masks, lengths):
            cell = Cell(2, 64, way, mask, length)
            with limited(cell.threads):
                r.rungs[cell] = of_all(cell, effort)
            yield f"rungs, {cell}"
    longest = 512 if quick else LONGEST
    if "window" in options.parts:
        with limited(2):
            r.window[longest] = of_window(longest, effort)
        yield "window"
    if "memory" in options.parts and sys.platform == "linux":
        for name in LEAN:
            if name in CONTENDERS:
                grown = printed(__file__, "--growth", name, str(longest))[0]
                r.memory.setdefault(longest, {})[name] = grown
                yield f"memory of {name}"
    if "start" in options.parts:
        r.start = starts(3)
        yield "the first call"
    for cell in rest:
        if time.perf_counter() > end:
            r.missing.append(cell)
            continue
        with limited(cell.threads):
            r.cells[cell] = beside_peer(cell, effort)
        yield str(cell)
    find_peaks(r, options.threads, 512 if quick else 2048)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few and small cells, no start")
    parser.add_argument("--save", type=pathlib.Path, help="write the page and its picture, too")
    parser.add_argument("--parts", nargs="+", choices=PARTS)
    parser.add_argument("--width", nargs="+", type=int)
    parser.add_argument("--length", nargs="+", type=int)
    parser.add_argument("--threads", nargs="+", type=int)
    parser.add_argument("--mask", nargs="+", choices=MASKS)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--growth", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.growth:
        print_growth(options.growth[0], int(options.growth[1]))
        return
    said = {k: v for k, v in vars(options).items() if k not in ("save", "growth")}
    words = [f"--{k} {' '.join(map(str, v))}" for k, v in said.items() if isinstance(v, list)]
    command = " ".join(["python benchmarks/attention.py", *["--quick"] * options.quick, *words])
    usual = {
        "parts": PARTS[:-1] if options.quick else PARTS,
        "width": WIDTHS[1:2] if options.quick else WIDTHS,
        "length": LENGTHS[:2] if options.quick else LENGTHS,
        "threads": THREADS,
        "mask": tuple(MASKS),
    }
    for name, values in usual.items():
        setattr(options, name, getattr(options, name) or values)
    r, start = Results(command, PACKAGES), time.perf_counter()
    drawn = options.save and torch and "cells" in options.parts
    image = options.save.with_suffix(".png") if drawn else None
    for done in measured(options, r):
        print(f"{time.perf_counter() - start:5.0f} s  {done}", file=sys.stderr)
        if options.save:
            options.save.write_text(page(r, image and image.name), encoding="utf-8")
    if image:
        mh.pictures.save(picture(r), image)
    show(page(r, image and image.name), options.save)


if __name__ == "__main__":
    main()
