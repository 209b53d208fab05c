"""What gradient checks find, compared with PyTorch, HIPS autograd and JAX if installed.

python benchmarks/gradcheck.py [--quick] [--save docs/measured/gradcheck.md]
"""

from __future__ import annotations

import pathlib
import statistics
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from common import arguments, optional, seconds, show, table, versions

import minimha as mh

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
SHAPES = (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)
attention = mh.scaled_dot_product_attention.with_pullback


def damaged(query: np.ndarray, key: np.ndarray, value: np.ndarray, factor: float, scale: float):
    """The output of attention times scale, and the pullback to the query, damaged by factor."""
    out, pullback = attention(query, key, value)
    return scale * out, lambda dout: (factor * pullback(scale * dout)[0],)


Damaged = Callable[[np.ndarray], tuple[np.ndarray, Callable[..., Any]]]


def minimha_check(f: Damaged, query: np.ndarray) -> None:
    mh.gradcheck(f, query)


def torch_check(f: Damaged, query: np.ndarray, fast_mode: bool = False) -> None:
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, q: Any) -> Any:
            out, context.pull = f(q.detach().numpy())
            return torch.asarray(out)

        @staticmethod
        def backward(context: Any, dout: Any) -> Any:
            return torch.asarray(context.pull(dout.numpy())[0])

    q = torch.tensor(query, requires_grad=True)
    assert torch.autograd.gradcheck(Function.apply, q, fast_mode=fast_mode, raise_exception=False)


def hips_check(f: Damaged, query: np.ndarray) -> None:
    function = hips.primitive(lambda q: f(q)[0])
    hips.defvjp(function, lambda _, q: lambda dy: f(q)[1](dy)[0])
    hips_tests.check_vjp(function, query)


def jax_check(f: Damaged, query: np.ndarray) -> None:
    jax.check_vjp(lambda q: f(q)[0].astype(np.float64), f, (query,))


torch, jax = map(optional, ("torch", "jax.test_util"))
hips, hips_tests = map(optional, ("autograd.extend", "autograd.test_util"))
CHECKS: dict[str, Callable[..., None]] = {"mh.gradcheck": minimha_check}
if torch:
    CHECKS["torch.autograd.gradcheck"] = torch_check
    CHECKS["torch.autograd.gradcheck, fast_mode"] = partial(torch_check, fast_mode=True)
if hips:
    CHECKS["HIPS autograd, check_vjp"] = hips_check
if jax:
    CHECKS["JAX, check_vjp"] = jax_check


def passes(check: Callable[..., None], inputs: list[np.ndarray], *factors: float) -> bool:
    query, *others = inputs
    try:
        check(lambda q: damaged(q, *others, *factors), query)
    except AssertionError:
        return False
    return True


def smallest(check: Callable[..., None], seeds: int, scale: float) -> str:
    """The smallest relative error 10⁻ⁿ of the gradient that is caught for all seeds."""
    caught = "not even a gradient of zeros"
    for damage in (1.0, *(10.0**-n for n in range(1, 14))):
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            np.random.seed(seed)
            inputs = [rng.standard_normal(s) for s in SHAPES]
            if passes(check, inputs, 1.0 - damage, scale):
                return caught
        caught = "a gradient of zeros" if damage == 1 else f"{damage:.0e}"
    return caught


def milliseconds(call: Callable[[], object], turns: int) -> float:
    return 1e3 * statistics.median(seconds(call) for _ in range(turns))


def check_every_operation() -> int:
    """Check all operations on their samples, and return the number of checks."""
    from samples import SAMPLES

    from minimha_autograd import backend

    checked = [(r, case) for r, case in SAMPLES if any(map(backend.is_floating, case.inputs))]
    for record, case in checked:
        mh.gradcheck(partial(record.operation.with_pullback, **case.settings), *case.inputs)
    return len(checked)


def main() -> None:
    options = arguments(__doc__, quick="few seeds, to see that it runs").parse_args()
    seeds, turns = (2, 2) if options.quick else (20, 7)
    rng, rows = np.random.default_rng(0), []
    inputs = [rng.standard_normal(s) for s in SHAPES]
    warnings.simplefilter("ignore")
    for name, check in CHECKS.items():
        found = [smallest(check, seeds, scale) for scale in (1.0, 1e-6)]
        took = milliseconds(partial(passes, check, inputs, 1.0, 1.0), turns)
        rows.append([name, *found, f"{took:.1f}"])
    headers = ["checker", "plain output", "output times 1e-6", "time of a check, ms"]
    whole = milliseconds(lambda: mh.gradcheck(attention, *inputs), turns)
    text = f"""# What gradient checks find

`python benchmarks/gradcheck.py`. Each checker gets softmax attention in float64, with a query (2,
3, 5, 4) and 7 keys, and a gradient of the query that is wrong by a known amount. The table shows
the smallest error, a power of ten relative to the gradient, that the checker finds with its default
settings for each of {seeds} seeds.

{table(headers, rows)}

A check of the gradients of query, key and value takes {whole:.0f} ms.
"""
    if not options.quick:
        counts: list[int] = []
        took = seconds(lambda: counts.append(check_every_operation()))
        text += f"A check of the operations on {counts[0]} samples of inputs from the tests "
        text += f"takes {took:.1f} s.\n"
    rivals = {"PyTorch": ("torch", torch), "HIPS autograd": ("autograd", hips), "JAX": ("jax", jax)}
    packages = {name: package for name, (package, module) in rivals.items() if module}
    show(f"{text}\n{versions(**packages)}\n", options.save)


if __name__ == "__main__":
    main()
