"""Attention on the GPU: which implementations run, their errors, their speed and their memory."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minimha_autograd import Tensor, backend

from .. import masks
from ..attention import explain_dispatch, implementation, scaled_dot_product_attention
from ..kernels.attention import forget_failures
from . import measuring
from .measuring import AnotherRunsError, Prepared, Row, Sizes, failure_noted

DTYPES = "float32", "float16", "bfloat16"
RUNGS = "reference", "fused", "tiled"
TORCH = {
    "torch": None,
    "torch cuDNN": "CUDNN_ATTENTION",
    "torch FlashAttention": "FLASH_ATTENTION",
    "torch math": "MATH",
}
"""PyTorch's attention, once with the backend that PyTorch chooses and once with each of three given
backends: their names in the report, and in PyTorch."""
WAYS = {"forward": 1.0, "forward, backward": 3.5}
"""The passes that are timed, and how many times the operations of a forward pass each of them
does."""
MASKS = {"none": None, "causal": masks.causal()}


def implementations(sizes: Sizes) -> Iterator[Row]:
    """For each implementation, dtype, width and mask, yield a row: which implementation runs when
    this one is requested, how many seconds the call takes, and the error of the output and of each
    gradient. An error is the largest difference from the result in float64, divided by the largest
    entry of that result."""
    for width, name, dtype in itertools.product(sizes.widths, (*RUNGS, "auto"), DTYPES):
        forget_failures()  # a kernel that fails for one dtype or width may run for another
        for mask, hidden in MASKS.items():
            row: Row = {"implementation": name, "dtype": dtype, "D": width, "mask": mask}
            with failure_noted(row):
                q, k, v, dout = on_device(4, 2, sizes.length, width, dtype)
                start = time.perf_counter()
                runs = None
                while runs != (chosen := running(name, q, k, v)):
                    # If an implementation fails, others compute the rest of the same call.
                    runs = chosen
                    found = list(map(backend.to_numpy, attend(name, (q, k, v), mask, dout)))
                row |= {"call, s": time.perf_counter() - start, "runs": runs}

                exact = [backend.to_numpy(x).astype(np.float64) for x in (q, k, v, dout)]
                out, pull = scaled_dot_product_attention.with_pullback(*exact[:3], hidden)
                right = out, *pull(exact[3])[:3]
                for what, x, y in zip(("out", "dq", "dk", "dv"), found, right, strict=True):
                    row[what] = float(np.abs(x.astype(np.float64) - y).max() / np.abs(y).max())
            yield row


def times(sizes: Sizes) -> Iterator[Row]:
    """For each implementation, minimha's and PyTorch's, and each dtype, width, length, mask and
    pass, yield a row with the time, the speed and the peak memory. The passes are the forward pass
    alone, and the forward and backward pass together."""
    names = "reference", "fused", *TORCH, "tiled"  # last, as it might crash the process
    for name, dtype, width in itertools.product(names, DTYPES, sizes.widths):
        forget_failures()  # a kernel that fails for one dtype or width may run for another
        for way, n, mask in itertools.product(WAYS, sizes.lengths, MASKS):
            row: Row = {"pass": way, "dtype": dtype, "D": width, "T": n, "mask": mask}
            row["implementation"] = name
            pairs = n * n / (1 if mask == "none" else 2)
            work = WAYS[way] * 4 * sizes.batch_heads * pairs * width
            with failure_noted(row):
                prepare = by_torch if name in TORCH else by_minimha
                inputs = sizes.batch_heads, n, width, dtype
                run, memory = prepare(name, *inputs, mask, way != "forward")
                ms = measuring.milliseconds(run).gpu
                row |= {"ms": ms, "TFLOP/s": work / ms / 1e9, "MiB": memory() / 2**20}
            yield row


@functools.cache  # takes up to 2.5 GB on the host, but drawing the numbers takes seconds
def numbers(h: int, g: int, n: int, width: int) -> list[np.ndarray]:
    """Random numbers for the arrays q, k, v and dout of attention with h query heads and g key
    heads, on the host. They are drawn from the normal distribution. The arrays q and dout are (1,
    h, n, width), k and v are (1, g, n, width)."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, x, n, width), dtype=np.float32) for x in (h, g, g, h)]


@functools.cache
def rounded(h: int, g: int, n: int, width: int, dtype: str) -> list[np.ndarray]:
    """The arrays q, k, v and dout that `numbers` returns for h, g, n and width, rounded to a dtype.
    Raises ImportError for bfloat16 if the package ml_dtypes is not installed."""
    if dtype == "bfloat16":
        import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
    return [x.astype(dtype, copy=False) for x in numbers(h, g, n, width)]


def on_device(h: int, g: int, n: int, width: int, dtype: str) -> list[Any]:
    """The arrays that `rounded` returns for the same arguments, as CuPy arrays on the GPU."""
    return [backend.library("cupy").asarray(x) for x in rounded(h, g, n, width, dtype)]


def running(name: str, q: Any, k: Any, v: Any) -> str:
    """The name of the implementation that runs for q, k and v if the implementation `name` is
    requested. Raises AnotherRunsError, with the reason, if another one takes over. For "auto",
    whatever runs is right."""
    chosen = explain_dispatch(q, k, v, implementation=name)
    if name not in ("auto", chosen.implementation):
        raise AnotherRunsError(chosen.reasons[name])
    return chosen.implementation


def attend(name: str, inputs: Sequence[Any], mask: str, dout: Any) -> list[Any]:
    """The output of the implementation `name` for inputs (q, k, v), and the gradients of q, k and
    v, each None if dout is None. `mask` is a key of MASKS."""
    q, k, v = tensors = [Tensor(x, requires_grad=dout is not None) for x in inputs]
    with implementation(name):
        out = scaled_dot_product_attention(q, k, v, MASKS[mask])
    if dout is not None:
        out.backward(dout)
    return [out.data, *(x.grad for x in tensors)]


def by_minimha(
    name: str, h: int, n: int, width: int, dtype: str, mask: str, backward: bool
) -> Prepared:
    pool = measuring.empty_pool()
    q, k, v, dout = on_device(h, h, n, width, dtype)
    running(name, q, k, v)

    def memory() -> float:
        running(name, q, k, v)  # raises if the implementation has failed in the meantime
        return float(pool.total_bytes())

    return lambda: attend(name, (q, k, v), mask, dout if backward else None), memory


def by_torch(
    name: str, h: int, n: int, width: int, dtype: str, mask: str, backward: bool
) -> Prepared:
    torch = measuring.torch_without_tf32()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    place = {"device": measuring.TORCH_DEVICE, "dtype": getattr(torch, dtype)}
    q, k, v, dout = (torch.as_tensor(x).to(**place) for x in numbers(h, h, n, width))
    leaves = [x.requires_grad_(backward) for x in (q, k, v)]
    kind = TORCH[name]

    def run() -> None:
        with contextlib.nullcontext() if kind is None else sdpa_kernel(getattr(SDPBackend, kind)):
            out = torch.nn.functional.scaled_dot_product_attention(
                *leaves, is_causal=mask == "causal"
            )
        if backward:
            torch.autograd.grad(out, leaves, dout)

    with refusals_explained():
        run()
    return run, torch.cuda.max_memory_allocated


@contextlib.contextmanager
def refusals_explained() -> Iterator[None]:
    """A context manager: a RuntimeError in the block, such as PyTorch's "No available kernel", gets
    the warnings of the block added to its text, because they say why a backend of PyTorch's
    attention refused to run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except RuntimeError as error:
            texts = [str(warning.message).partition(" (Triggered")[0] for warning in caught]
            why = [x for x in texts if not x.endswith(("because:", "runtime disabled."))]
            raise RuntimeError(" ".join([str(error), *why])) from error
