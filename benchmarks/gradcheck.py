"""What gradient checks find, beside the checkers of PyTorch, HIPS autograd and JAX if installed.

python benchmarks/gradcheck.py [--quick] [--alarms 100] [--save docs/measured/gradcheck.md]

--alarms N checks every operation of tests/samples.py at N draws of its inputs and counts alarms.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from common import add_options, seconds, show, table, versions

import minimha as mh

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
SHAPES = (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6)
attention = mh.attention.attention.with_pullback
Check = Callable[[np.ndarray, np.ndarray, np.ndarray, float, float], bool]


def damaged(query: np.ndarray, key: np.ndarray, value: np.ndarray, factor: float, scale: float):
    """The output of attention times scale, and the pullback to the query, damaged by factor."""
    (out, _), pullback = attention(query, key, value)
    return scale * out, lambda dout: (factor * pullback(scale * dout, None)[0],)


def minimha_check(query, key, value, factor, scale) -> bool:
    """Whether the check passes."""
    try:
        mh.gradcheck(lambda q: damaged(q, key, value, factor, scale), query)
    except mh.GradcheckError:
        return False
    return True


def others() -> Iterator[tuple[str, Check]]:
    """The checkers that are installed, with their defaults."""
    with contextlib.suppress(ImportError):
        import torch

        def torchs(fast):
            def check(query, key, value, factor, scale):
                class Damaged(torch.autograd.Function):
                    @staticmethod
                    def forward(context, q):
                        out, context.pull = damaged(q.detach().numpy(), key, value, factor, scale)
                        return torch.asarray(out)

                    @staticmethod
                    def backward(context, dout):
                        return torch.asarray(context.pull(dout.numpy())[0])

                q = torch.tensor(query, requires_grad=True)
                return torch.autograd.gradcheck(
                    Damaged.apply, q, fast_mode=fast, raise_exception=False
                )

            return check

        yield "torch.autograd.gradcheck", torchs(False)
        yield "torch.autograd.gradcheck, fast_mode", torchs(True)
    with contextlib.suppress(ImportError):
        from autograd.extend import defvjp, primitive
        from autograd.test_util import check_vjp

        def hips(query, key, value, factor, scale):
            f = primitive(lambda q: damaged(q, key, value, factor, scale)[0])
            defvjp(f, lambda _, q: lambda dy: damaged(q, key, value, factor, scale)[1](dy)[0])
            try:
                check_vjp(f, query)
            except AssertionError:
                return False
            return True

        yield "HIPS autograd, check_vjp", hips
    with contextlib.suppress(ImportError):
        from jax.test_util import check_vjp as check_vjp_of_jax

        def jaxs(query, key, value, factor, scale):
            def f(q):
                return damaged(q, key, value, factor, scale)[0].astype(np.float64)

            try:
                check_vjp_of_jax(f, lambda q: damaged(q, key, value, factor, scale), (query,))
            except AssertionError:
                return False
            return True

        yield "JAX, check_vjp", jaxs


def smallest(check: Check, seeds: int, scale: float) -> str:
    """The smallest error 10⁻ⁿ of the whole gradient that is caught for all seeds."""
    caught = "not even a gradient of zeros"
    for damage in (1.0, *(10.0**-n for n in range(1, 14))):
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            np.random.seed(seed)
            inputs = [rng.standard_normal(s) for s in SHAPES]
            if check(*inputs, 1.0 - damage, scale):
                return caught
        caught = "zeros" if damage == 1 else f"{damage:.0e}"
    return caught


def milliseconds(call: Callable[[], object], turns: int) -> float:
    return 1e3 * statistics.median(seconds(call) for _ in range(turns))


def every_operation(seed: int | None) -> tuple[int, list[str]]:
    """Check all operations at their samples, moved by the seed: how many, and the alarms."""
    from samples import SAMPLES

    from minimha_autograd import backend

    alarms, count = [], 0
    for record, case in SAMPLES:
        rng = np.random.default_rng(seed)
        inputs = [
            x * (1 + 0.2 * rng.standard_normal(x.shape))
            if seed is not None and isinstance(x, np.ndarray) and x.dtype == np.float64
            else x
            for x in case.inputs
        ]
        if not any(map(backend.is_floating, inputs)):
            continue
        count += 1
        try:
            mh.gradcheck(partial(record.operation.with_pullback, **case.settings), *inputs, rng=rng)
        except mh.GradcheckError as error:
            alarms.append(f"seed {seed}, {record.operation.__name__} {case}: {error}")
    return count, alarms


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    add_options(parser, quick="few seeds, to see that it runs")
    parser.add_argument("--alarms", type=int, default=0, metavar="N")
    options = parser.parse_args()
    seeds, turns = (2, 2) if options.quick else (20, 7)
    rng, rows = np.random.default_rng(0), []
    inputs = [rng.standard_normal(s) for s in SHAPES]
    warnings.simplefilter("ignore")
    for name, check in (("mh.gradcheck", minimha_check), *others()):
        found = [smallest(check, seeds, scale) for scale in (1.0, 1e-6)]
        rows.append([name, *found, f"{milliseconds(partial(check, *inputs, 1.0, 1.0), turns):.1f}"])
    headers = ["checker", "output as it is", "output times 1e-6", "a check takes, ms"]
    whole = milliseconds(lambda: mh.gradcheck(attention, *inputs), turns)
    text = f"""# What gradient checks find

`python benchmarks/gradcheck.py`. Softmax attention in float64, query (2, 3, 5, 4), 7 keys: how
wrong the whole gradient of the query must be to be caught at each of {seeds} seeds, with every
checker's defaults.

{table(headers, rows)}

A check of all of attention, query, key and value: {whole:.0f} ms.
"""
    if not options.quick:
        counts: list[int] = []
        took = seconds(lambda: counts.append(every_operation(None)[0]))
        text += f"A check of every operation at each of its {counts[0]} samples: {took:.1f} s.\n"
    if options.alarms:
        alarms = [alarm for seed in range(options.alarms) for alarm in every_operation(seed)[1]]
        text += f"With {options.alarms} draws of the inputs of each: {len(alarms)} alarms.\n"
        text += "".join(f"{alarm}\n" for alarm in alarms)
    show(f"{text}\n{versions()}\n", options.save)


if __name__ == "__main__":
    main()
