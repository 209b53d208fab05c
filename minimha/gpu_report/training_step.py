"""A training step of a GPT in minimha and in PyTorch, from the same weights: its times, its memory,
and the kernels that it launches."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from minimha_autograd import backend, half

from .. import interchange
from ..functional import cross_entropy
from ..nn import AdamW
from ..transformers import GPT
from . import measuring
from .measuring import Prepared, Row, Sizes

VOCABULARY = 65
ADAM: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1}


def training_step(sizes: Sizes) -> Iterator[Row]:
    """For minimha and PyTorch, each in float32 and with bfloat16, yield a row with the time of a
    training step on the GPU and on the host, the peak memory, and the loss of the first and of the
    last step."""
    for name, prepare in LIBRARIES.items():
        row: Row = {"library": name}
        with measuring.failure_noted(row):
            step, memory = prepare(*model_and_batch(sizes))
            row["first loss"] = step().item()
            ms = measuring.milliseconds(step, sizes.steps)
            row |= {"ms": ms.gpu, "host, ms": ms.host, "last loss": step().item()}
            row["MiB"] = memory() / 2**20
            ours = name.startswith("minimha")
            row["attention"] = measuring.attention_of(step) if ours else "its own"
        yield row


def kernels(sizes: Sizes) -> Iterator[Row]:
    """For minimha and PyTorch, each in float32 and with bfloat16, yield the rows of `launched` for
    the kernels of a training step: how often each is launched, and how long it takes. The first of
    these rows is the sum over all kernels."""
    for name, prepare in LIBRARIES.items():
        row: Row = {"library": name}
        found: list[Row] = []
        with measuring.failure_noted(row):
            step, _ = prepare(*model_and_batch(sizes))
            for _ in range(2):  # these steps compile kernels and fill the memory pool
                step()
            found = launched(step, sizes.steps)
        yield from [{**row, **kernel} for kernel in found] or [row]


def launched(step: Callable[[], Any], steps: int) -> list[Row]:
    """The kernels that PyTorch's profiler sees in `steps` calls of `step`: a row for all kernels
    together, rows for the 25 that take the most time, the longest first, one for the others
    together, if any, and one for copies and fills of memory. Counts and milliseconds are those of
    one step.

    The profiler gets the kernels of the whole process from NVIDIA's CUPTI, no matter which library
    launches them. Raises ImportError without PyTorch, RuntimeError without CUDA or if the profiler
    sees no kernel.
    """
    torch = measuring.torch_without_tf32()
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]

    launches: Counter[str] = Counter()
    milliseconds: Counter[str] = Counter()  # of all launches
    copies = 0
    for event in events:
        if event.get("cat") == "kernel":
            launches[event["name"]] += 1
            milliseconds[event["name"]] += event["dur"] / 1e3
        copies += event.get("cat") in ("gpu_memcpy", "gpu_memset")
    if not launches:
        raise RuntimeError("the profiler saw no kernel")

    total = sum(milliseconds.values())

    def row(name: str, count: int, ms: float) -> Row:
        each = {
            "launches a step": count / steps,
            "ms a step": ms / steps,
            "% of time": 100 * ms / total,
        }
        return {"kernel": name, **each}

    rows = [row("all kernels", sum(launches.values()), total)]
    rows += [row(name, launches[name], ms) for name, ms in milliseconds.most_common(MOST_KERNELS)]
    others = [name for name, _ in milliseconds.most_common()[MOST_KERNELS:]]
    if others:
        count = sum(launches[name] for name in others)
        ms = sum(milliseconds[name] for name in others)
        rows.append(row(f"{len(others)} others", count, ms))
    return [*rows, {"kernel": "copies and fills of memory", "launches a step": copies / steps}]


MOST_KERNELS = 25
"""How many kernels get their own row; the others share one."""


def model_and_batch(sizes: Sizes) -> tuple[GPT, np.ndarray, np.ndarray]:
    """A GPT of these sizes on the host, and the inputs and targets (B, T) of a batch of random
    tokens."""
    model = GPT(
        VOCABULARY, context=sizes.context, d_model=sizes.width, num_heads=sizes.width // 64,
        num_layers=sizes.layers,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(0, VOCABULARY, (2, sizes.batch, sizes.context))
    return model, inputs, targets


def by_minimha(
    model: GPT, inputs: np.ndarray, targets: np.ndarray, mixed: bool = False
) -> Prepared:
    pool = measuring.empty_pool()
    xp = backend.library("cupy")
    model.to("cupy")
    tokens, following = xp.asarray(inputs), xp.asarray(targets)
    optimiser = AdamW(model.parameters(), **ADAM)

    def step() -> Any:
        optimiser.zero_grad()
        with half.bfloat16_products() if mixed else contextlib.nullcontext():
            loss = cross_entropy(model(tokens), following)
        loss.backward()
        optimiser.step()
        return loss

    return step, pool.total_bytes


def by_torch(model: GPT, inputs: np.ndarray, targets: np.ndarray, mixed: bool = False) -> Prepared:
    torch = measuring.torch_without_tf32()
    from torch.nn import functional

    def there(x: np.ndarray, learned: bool = True) -> Any:
        return torch.as_tensor(x, device=measuring.TORCH_DEVICE).clone().requires_grad_(learned)

    tokens, following = there(inputs, False), there(targets, False)
    arrays = interchange.state(model).items()
    weights = {name: there(x) for name, x in arrays if not name.startswith("blocks.")}
    layers = []
    for block in model.blocks:
        layer = torch.nn.TransformerEncoderLayer(
            model.settings["d_model"], model.settings["num_heads"], block.mlp.widen.weight.shape[1],
            dropout=0.0, activation=lambda x: functional.gelu(x, approximate="tanh"),
            batch_first=True, norm_first=True,
        )  # fmt: skip
        theirs = interchange.block_to_torch(block)
        layer.load_state_dict({name: torch.as_tensor(x) for name, x in theirs.items()})
        layers.append(layer.to(measuring.TORCH_DEVICE))
    learned = [*weights.values(), *(p for layer in layers for p in layer.parameters())]
    optimiser = torch.optim.AdamW(learned, fused=True, **ADAM)
    n = inputs.shape[1]
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(n, measuring.TORCH_DEVICE)

    def logits() -> Any:
        x = weights["tokens.table"][tokens] + weights["positions.table"][:n]
        for layer in layers:
            x = layer(x, src_mask=hidden, is_causal=True)
        x = functional.layer_norm(x, x.shape[-1:], weights["norm.weight"], weights["norm.bias"])
        return x @ weights["head.weight"]

    def step() -> Any:
        optimiser.zero_grad()
        with torch.autocast(measuring.TORCH_DEVICE, torch.bfloat16, enabled=mixed):
            loss = functional.cross_entropy(logits().flatten(0, 1), following.flatten())
        loss.backward()
        optimiser.step()
        return loss

    return step, torch.cuda.max_memory_allocated


LIBRARIES: dict[str, Callable[[GPT, np.ndarray, np.ndarray], Prepared]] = {
    "torch": by_torch,
    "minimha": by_minimha,
    "torch, bfloat16": functools.partial(by_torch, mixed=True),
    "minimha, bfloat16": functools.partial(by_minimha, mixed=True),
}
"""The functions that prepare a step. Those with "bfloat16" use mixed precision: their weights are
float32."""
