"""The command `minimha gpu-report`: what this machine's GPU computes, how exactly and how fast.

The report has one part for each function in `PARTS`. A part that fails is reported as failed, and
the next one begins. Not yet run on a GPU: the tests run it on a stand-in for CuPy.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import minimha
from minimha_autograd import Tensor, backend

from .. import masks, nn
from ..attention import (
    attention,
    explain_dispatch,
    implementation,
    scaled_dot_product_attention,
)

BUDGET = 420
"""Seconds after which no further part or measurement begins."""
RUNGS = "reference", "fused", "tiled"
TORCH = "default", "CUDNN_ATTENTION", "MATH"
"""PyTorch's choice of a backend for its attention, and two that can be requested."""


class Part(NamedTuple):
    """A part of the report: a table with a few words about it."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    def markdown(self) -> str:
        """The part as Markdown."""
        lines = [f"## {self.title}\n", *([f"{self.about}\n"] if self.about else [])]
        if self.rows:
            lines += ["| " + " | ".join(self.columns) + " |", "| --- " * len(self.columns) + "|"]
            lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"


def _cell(x: Any) -> str:
    return f"{x:.3g}" if isinstance(x, float) else str(x)


class Setting(NamedTuple):
    """Sizes for the whole report, and when to stop."""

    end: float  # by time.perf_counter(): no part and no measurement begins later
    lengths: tuple[int, ...] = (1024, 4096)
    batch_heads: int = 64
    layers: int = 6
    width: int = 384
    context: int = 256
    batch: int = 32
    repeats: int = 20
    suite: bool = True

    def left(self) -> float:
        """The seconds left."""
        return self.end - time.perf_counter()


QUICK: dict[str, Any] = {
    "lengths": (256,), "batch_heads": 4, "layers": 1, "width": 64, "context": 32, "repeats": 3,
    "suite": False,
}  # fmt: skip


def machine(_: Setting) -> Part:
    """The card, the driver and the versions."""
    import cupy

    card = cupy.cuda.runtime.getDeviceProperties(0)
    driver = cupy.cuda.runtime.driverGetVersion()
    rows = [
        ("card", card["name"].decode()),
        ("compute capability", f"{card['major']}.{card['minor']}"),
        ("memory", f"{card['totalGlobalMem'] / 2**30:.0f} GiB"),
        ("CUDA version of the driver", f"{driver // 1000}.{driver % 1000 // 10}"),
        ("Python", sys.version.partition(" ")[0]),
    ]
    names = "minimha", "numpy", "cupy", "cuda-tile", "array-api-compat", "torch"
    installed = {d.name.lower(): d.version for d in importlib.metadata.distributions()}
    for name in names:
        found = (v for k, v in installed.items() if k == name or k.startswith(f"{name}-cuda"))
        rows.append((name, next(found, "not installed")))
    return Part("The machine", "", ("", ""), rows)


def rungs(_: Setting) -> Part:
    """Which implementation runs, and why the others do not."""
    rows = []
    for dtype in _dtypes():
        q = _arrays(1, 128, 64, dtype)[0]
        for name in ("auto", *RUNGS):
            chosen = explain_dispatch(q, q, q, implementation=name)
            why = chosen.reasons.get(name, "") if name != chosen.implementation else ""
            rows.append((str(dtype), name, chosen.implementation, why))
    about = (
        "The implementation of attention that runs when one is requested, and the reason if it is "
        "another one."
    )
    return Part("The implementations", about, ("dtype", "requested", "runs", "because"), rows)


def suite(setting: Setting) -> Part:
    """The package's tests on CuPy's arrays."""
    title, columns = "The tests on CuPy", ("last line of pytest",)
    folder = Path(minimha.__file__).parents[1] / "tests"
    if not setting.suite or not folder.exists():
        why = "--quick leaves them out" if folder.exists() else "the tests come with a clone only"
        return Part(title, f"Not run: {why}.", columns, [])
    command = [sys.executable, "-m", "pytest", "-q", "--array-backend", "cupy", str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=max(1, setting.left())
        )
        lines = done.stdout.splitlines()
    except subprocess.TimeoutExpired as error:
        lines = [f"stopped after {error.timeout:.0f} s"]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    rows = [(line.strip("= ").replace("|", "/"),) for line in [*failed[:50], *lines[-1:]]]
    return Part(title, f"`pytest --array-backend cupy`: {len(failed)} failed.", columns, rows)


def errors(_: Setting) -> Part:
    """The errors of every implementation against the reference in float64 on the host."""
    rows = []
    for dtype, name, causal in _each():
        q, k, v, dout = _arrays(2, 200, 64, dtype)
        exact = [backend.to_numpy(x).astype("float64") for x in (q, k, v, dout)]
        mask = masks.causal() if causal else None
        (y, _), pull = attention.with_pullback(*exact[:3], mask=mask)
        right = [y, *pull(exact[3], None)[:3]]
        query, key, value = (Tensor(x, requires_grad=True) for x in (q, k, v))
        with implementation(name):
            out = scaled_dot_product_attention(query, key, value, mask)
        out.backward(dout)
        found = out.data, query.grad, key.grad, value.grad
        distances = [
            float(abs(backend.to_numpy(a).astype("float64") - b).max() / abs(b).max())
            for a, b in zip(found, right, strict=True)
        ]
        rows.append((str(dtype), name, _kind(causal), *distances))
    about = (
        "The largest error of each result, relative to its largest entry. B·H = 2, T = S = 200, "
        "D = 64. The inputs are rounded to the dtype first."
    )
    columns = "dtype", "implementation", "mask", "out", "dq", "dk", "dv"
    return Part("Errors against float64", about, columns, rows)


def times(setting: Setting) -> Part:
    """Times and memory of attention, next to PyTorch's."""
    import cupy

    rows = []
    for n in setting.lengths:
        for dtype, name, causal in _each(torch=True):
            if setting.left() < 0:
                break
            q, k, v, dout = _arrays(setting.batch_heads, n, 64, dtype)
            make = _torch_attention if name.startswith("torch") else _our_attention
            try:
                pool = cupy.get_default_memory_pool()
                pool.free_all_blocks()
                forward, both = make(name, q, k, v, dout, causal)
                seconds = [_seconds(f, setting.repeats) for f in (forward, both)]
                flops = 4 * setting.batch_heads * n * n * 64 / (2 if causal else 1)
                speeds = [f * flops / s / 1e12 for f, s in zip((1, 3.5), seconds, strict=True)]
                memory = "" if name.startswith("torch") else f"{pool.total_bytes() / 2**20:.0f}"
                cells = *(1e3 * s for s in seconds), *speeds, memory
            except Exception as error:
                cells = (_first_line(error),)
            rows.append((str(dtype), n, _kind(causal), name, *cells))
    about = (
        f"B·H = {setting.batch_heads}, D = 64, medians of CUDA events. A forward takes 4·B·H·T·S·D "
        "floating-point operations, forward and backward together 3.5 times as many, and with a "
        "causal mask half as many. TF32 is off. MiB is the memory that CuPy's pool held at the end."
    )
    columns = "dtype", "T", "mask", "", "forward ms", "both ms", "TFLOP/s", "TFLOP/s", "MiB"
    return Part("Times of attention", about, columns, rows)


def training_step(setting: Setting) -> Part:
    """A training step of a GPT, next to PyTorch's."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 65, (2, setting.batch, setting.context))
    rows: list[tuple[Any, ...]] = []
    for name, make in (("minimha", _our_step), ("torch, eager", _torch_step)):
        try:
            rows.append((name, 1e3 * _seconds(make(setting, *tokens), setting.repeats)))
        except Exception as error:
            rows.append((name, _first_line(error)))
    if all(isinstance(row[1], float) for row in rows):
        rows.append(("ratio", rows[0][1] / rows[1][1]))
    about = (
        f"Forward, loss, backward and AdamW of a GPT with {setting.layers} layers, width "
        f"{setting.width} and context {setting.context}, for {setting.batch} sequences in float32, "
        "with TF32 off."
    )
    return Part("A training step", about, ("", "ms"), rows)


PARTS = machine, rungs, errors, times, training_step, suite


def _each(torch: bool = False) -> Iterator[tuple[Any, str, bool]]:
    """Every dtype, implementation that runs with it, and whether the mask is causal."""
    names = [f"torch, {backend_name}" for backend_name in TORCH] if torch else []
    for dtype in _dtypes():
        for name in (*RUNGS, *names):
            q = _arrays(1, 128, 64, dtype)[0]
            ours = name in RUNGS
            if ours and explain_dispatch(q, q, q, implementation=name).implementation != name:
                continue
            for causal in (False, True):
                yield dtype, name, causal


@functools.cache
def _dtypes() -> tuple[Any, ...]:
    """float32, float16 and, if CuPy supports it, bfloat16."""
    found: list[Any] = ["float32", "float16"]
    with suppress(Exception):
        from ml_dtypes import bfloat16

        x = backend.library("cupy").ones((2, 2), dtype=bfloat16)
        scaled_dot_product_attention(x, x, x)
        found.append(np.dtype(bfloat16))
    return tuple(found)


def _arrays(batch_heads: int, n: int, d: int, dtype: Any) -> list[Any]:
    """q, k, v and dout (1, B·H, N, D)."""
    xp, rng = backend.library("cupy"), np.random.default_rng(0)
    shape = 1, batch_heads, n, d
    return [xp.asarray(rng.standard_normal(shape, "float32").astype(dtype)) for _ in range(4)]


def _kind(causal: bool) -> str:
    return "causal" if causal else "none"


def _first_line(error: Exception) -> str:
    text = (str(error).splitlines() or [""])[0][:100].replace("|", "/")
    return f"failed: {type(error).__name__}: {text}"


def _seconds(run: Callable[[], Any], repeats: int) -> float:
    """The median time of run on the GPU."""
    import cupy

    first, last = cupy.cuda.Event(), cupy.cuda.Event()

    def once() -> float:
        first.record()
        run()
        last.record()
        last.synchronize()
        return float(cupy.cuda.get_elapsed_time(first, last)) / 1e3

    once(), once()  # compiles, and fills the pool of memory
    return statistics.median(once() for _ in range(repeats))


def _our_attention(name: str, q: Any, k: Any, v: Any, dout: Any, causal: bool) -> Any:
    mask = masks.causal() if causal else None

    def forward() -> Any:
        with implementation(name):
            return scaled_dot_product_attention(q, k, v, mask)

    def both() -> None:
        query, key, value = (Tensor(x, requires_grad=True) for x in (q, k, v))
        with implementation(name):
            scaled_dot_product_attention(query, key, value, mask).backward(dout)

    return forward, both


def _torch_attention(name: str, q: Any, k: Any, v: Any, dout: Any, causal: bool) -> Any:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.backends.cuda.matmul.allow_tf32 = False
    wanted = name.removeprefix("torch, ")
    leaves = [torch.from_dlpack(x).clone().requires_grad_() for x in (q, k, v)]
    dy = torch.from_dlpack(dout)

    def forward() -> Any:
        chosen = nullcontext() if wanted == "default" else sdpa_kernel(getattr(SDPBackend, wanted))
        with chosen:
            return torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)

    return forward, lambda: torch.autograd.grad(forward(), leaves, dy)


def _our_step(setting: Setting, inputs: np.ndarray, targets: np.ndarray) -> Callable[[], None]:
    from ..functional import cross_entropy
    from ..transformers import GPT

    model = GPT(
        65, context=setting.context, d_model=setting.width, num_heads=setting.width // 64,
        num_layers=setting.layers,
    )  # fmt: skip
    model.to("cupy")
    optimiser = nn.AdamW(model.parameters(), lr=1e-3)
    xp = backend.library("cupy")
    x, y = xp.asarray(inputs), xp.asarray(targets)

    def step() -> None:
        optimiser.zero_grad()
        cross_entropy(model(x), y).backward()
        optimiser.step()

    return step


def _torch_step(setting: Setting, inputs: np.ndarray, targets: np.ndarray) -> Callable[[], None]:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    x, y = (torch.as_tensor(a, device="cuda") for a in (inputs, targets))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = torch.nn.Embedding(65, setting.width)
            self.positions = torch.nn.Embedding(setting.context, setting.width)
            block = torch.nn.TransformerEncoderLayer(
                setting.width, setting.width // 64, 4 * setting.width, 0.0, "gelu",
                batch_first=True, norm_first=True,
            )  # fmt: skip
            norm = torch.nn.LayerNorm(setting.width)
            self.blocks = torch.nn.TransformerEncoder(block, setting.layers, norm)
            self.head = torch.nn.Linear(setting.width, 65, bias=False)

        def forward(self, x: Any) -> Any:
            places = torch.arange(x.shape[1], device=x.device)
            mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
            y = self.tokens(x) + self.positions(places)
            return self.head(self.blocks(y, mask=mask, is_causal=True))

    model = Model().cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimiser.step()

    return step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `minimha gpu-report`."""
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="FOLDER",
        help="where the two files of the report go (default: the current folder)",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="small sizes and no tests: a minute")
    parser.set_defaults(run=_run, command=parser)


def _run(options: argparse.Namespace) -> int:
    try:
        backend.library("cupy").zeros(1)
        options.out.mkdir(parents=True, exist_ok=True)
    except (RuntimeError, OSError) as error:
        print(f"minimha: {error}", file=sys.stderr)
        return 2
    parts, setting = [], Setting(time.perf_counter() + BUDGET)
    if options.quick:
        setting = setting._replace(**QUICK)
    for make in PARTS:
        title = make.__name__.replace("_", " ")
        print(f"{title} …", flush=True)
        try:
            if setting.left() < 0:
                raise TimeoutError(f"{BUDGET} s had passed before it began")
            part = make(setting)
        except Exception as error:
            part = Part(title.capitalize(), _first_line(error), (), [])
        print(part.markdown(), flush=True)
        parts.append(part)
    for path in _written(parts, options.out):
        print(f"wrote {path}")
    return 0


def _written(parts: list[Part], folder: Path) -> list[Path]:
    """The report as Markdown and as JSON; returns both paths."""
    rows = parts[0].rows
    card = str(rows[0][1]) if rows else "GPU"
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    name = "-".join(["gpu", *card.lower().split(), today])
    text = "\n".join(
        [f"# {card}, {today}\n\n`minimha gpu-report`\n", *(p.markdown() for p in parts)]
    )
    data = {"card": card, "date": today, "parts": [p._asdict() for p in parts]}
    paths = [folder / f"{name}.md", folder / f"{name}.json"]
    for path, content in zip(paths, (text, json.dumps(data, indent=1) + "\n"), strict=True):
        path.write_text(content, encoding="utf-8")
    return paths
