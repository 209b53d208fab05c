"""A training step of a small GPT, compared with the same model in eager PyTorch in the same run.

python benchmarks/training_step.py [--quick] [--breakdown] [--save docs/measured/training_step.md]

Both start from the same weights and see the same batches, and their losses must agree. Each has
two threads, which spin for a while when idle and slow the other library down. So the libraries take
turns of several steps, and the first steps of a turn do not count, because the threads of the other
library may still spin. --breakdown shows the time of each of our operations.
"""

from __future__ import annotations

import collections
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import common
from common import ratios, seconds, spread, table

THREADS = 2
common.blas_threads(THREADS)  # before NumPy is loaded
import numpy as np

import minimha as mh
from minimha.functional import cross_entropy
from minimha_autograd.operation import Signature, registry

torch = common.optional("torch")

BATCH, CONTEXT, VOCABULARY = 12, 64, 65
SIZES = {"d_model": 128, "num_heads": 4, "num_layers": 4}
ADAM: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.01}
SKIPPED, COUNTED = 3, 10  # steps of a turn
BOUND = 0.9
TITLE = f"""# What a training step costs

`python benchmarks/training_step.py`. Forward, loss, backward and fused AdamW of a GPT of the size
that nanoGPT uses on a CPU: {SIZES["num_layers"]} layers, {SIZES["num_heads"]} heads, width
{SIZES["d_model"]}, {BATCH} sequences of {CONTEXT} characters, a vocabulary of {VOCABULARY},
float32, {THREADS} threads. PyTorch runs eagerly, with its `scaled_dot_product_attention` and
`AdamW(fused=True)`. The libraries take turns of {SKIPPED + COUNTED} steps, of which the last
{COUNTED} count, by their median. The first table shows the median over the turns, with the
quartiles in brackets; a ratio compares two consecutive turns. The aim is at most {BOUND} times
PyTorch's time.

"""


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless inputs and targets (B, T) from a text whose next character is predictable."""
    rng = np.random.default_rng(0)
    while True:
        start = rng.integers(VOCABULARY, size=(BATCH, 1))
        text = (start + 3 * np.arange(CONTEXT + 1)) % VOCABULARY
        yield text[:, :-1], text[:, 1:]


def minimha_step(model: mh.GPT) -> Callable[[], float]:
    """A function that makes one step and returns the loss."""
    optimiser, draws = mh.AdamW(model.parameters(), **ADAM), batches()

    def step() -> float:
        inputs, targets = next(draws)
        optimiser.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimiser.step()
        return loss.item()

    return step


def torch_step(model: mh.GPT) -> Callable[[], float]:
    """The same for the same model in PyTorch."""
    from torch.nn import functional

    def leaf(*arrays: np.ndarray) -> Any:
        return torch.tensor(np.concatenate(arrays)).contiguous().requires_grad_()

    state = {name: p.data for name, p in model.named_parameters()}
    weights = {name: leaf(x if name.endswith("table") else x.T) for name, x in state.items()}
    blocks = [f"blocks.{k}" for k in range(SIZES["num_layers"])]
    for path in blocks:  # one product for queries, keys and values, as in nanoGPT
        for kind in "wb":
            names = [f"{path}.attention.{kind}_{role}" for role in "qkv"]
            weights[f"{path}.{kind}_qkv"] = leaf(*(state[name].T for name in names))
            for name in names:
                del weights[name]

    def linear(x: Any, path: str) -> Any:
        return functional.linear(x, weights[f"{path}.weight"], weights.get(f"{path}.bias"))

    def norm(x: Any, path: str) -> Any:
        weight, bias = weights[f"{path}.weight"], weights[f"{path}.bias"]
        return functional.layer_norm(x, x.shape[-1:], weight, bias)

    def attention(x: Any, path: str) -> Any:
        qkv = functional.linear(x, weights[f"{path}.w_qkv"], weights[f"{path}.b_qkv"])
        q, k, v = (
            y.unflatten(2, (SIZES["num_heads"], -1)).transpose(1, 2) for y in qkv.chunk(3, dim=2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        w, b = (weights[f"{path}.attention.{name}"] for name in ("w_o", "b_o"))
        return functional.linear(y.transpose(1, 2).flatten(2), w, b)

    def gpt(tokens: Any) -> Any:
        positions = torch.arange(tokens.shape[1])
        x = functional.embedding(tokens, weights["tokens.table"])
        x = x + functional.embedding(positions, weights["positions.table"])
        for path in blocks:
            x = x + attention(norm(x, f"{path}.norm_attention"), path)
            widened = linear(norm(x, f"{path}.norm_mlp"), f"{path}.mlp.widen")
            x = x + linear(functional.gelu(widened, approximate="tanh"), f"{path}.mlp.narrow")
        return linear(norm(x, "norm"), "head")

    draws = batches()
    optimiser = torch.optim.AdamW(weights.values(), fused=True, **ADAM)

    def step() -> float:
        inputs, targets = map(torch.from_numpy, next(draws))
        optimiser.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(gpt(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimiser.step()
        return float(loss.item())

    return step


def turn(step: Callable[[], float]) -> float:
    """The median time of a step, in seconds."""
    return statistics.median([seconds(step) for _ in range(SKIPPED + COUNTED)][SKIPPED:])


class Clock:
    """The time of each operation, forward and backward, without the operations that it calls.

    Replaces the function of an operation by a timed one.
    """

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0, 0.0])
        self.inner = [0.0]  # seconds spent in inner calls, for each call that has not returned
        for operation in registry.values():
            signature = next(x for x in closure(operation) if isinstance(x, Signature))
            signature._function = partial(self.forward, signature.name, signature._function)

    def forward(self, name: str, function: Any, *arrays: Any, **settings: Any) -> Any:
        self.spent[name][0] += 1
        value, pull = self.timed(name, 1, function, *arrays, **settings)
        return value, partial(self.timed, name, 2, pull)

    def timed(self, name: str, place: int, call: Any, *arrays: Any, **settings: Any) -> Any:
        self.inner.append(0.0)
        start = time.perf_counter()
        result = call(*arrays, **settings)
        whole = time.perf_counter() - start
        self.spent[name][place] += whole - self.inner.pop()
        self.inner[-1] += whole
        return result


def closure(function: Any) -> Iterator[Any]:
    return (cell.cell_contents for cell in function.__closure__)


def breakdown(step: Callable[[], float], count: int) -> str:
    """The time of our operations in a step, sorted, and of all other code."""
    step()
    clock, original = Clock(), mh.AdamW.step
    mh.AdamW.step = lambda self: clock.forward("AdamW", lambda: (original(self), None))
    start = time.perf_counter()
    for _ in range(count):
        step()
    whole = time.perf_counter() - start
    rest = whole - clock.inner[0]
    spent = sorted(clock.spent.items(), key=lambda item: -sum(item[1][1:]))
    spent += [("the tape and other code", [0, rest, 0]), ("all", [0, whole, 0])]
    rows = [
        [
            name,
            *(f"{x / count:.{d}f}" if x else "" for x, d in ((n, 0), (1e3 * f, 2), (1e3 * b, 2))),
        ]
        for name, (n, f, b) in spent
    ]
    return table(["operation", "calls", "forward, ms", "backward, ms"], rows)


def main() -> None:
    parser = common.arguments(__doc__, quick="2 turns")
    parser.add_argument("--breakdown", action="store_true", help="our operations alone")
    options = parser.parse_args()
    model = mh.GPT(VOCABULARY, context=CONTEXT, **SIZES)
    steps = {"minimha": minimha_step(model)}
    if torch and not options.breakdown:
        torch.set_num_threads(THREADS)
        steps["PyTorch"] = torch_step(model)
        losses = [[step() for step in steps.values()] for _ in range(5)]
        np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-3)
    text, count = TITLE, 5 if options.quick else 50
    if not options.breakdown:
        calls = {name: partial(turn, step) for name, step in steps.items()}
        times = common.take_turns(calls, 2 if options.quick else 31)
        rows = [[name, spread([1e3 * t for t in seen])] for name, seen in times.items()]
        text += table(["library", "time of a step, ms"], rows)
        if torch:
            compared = ratios(times["minimha"], times["PyTorch"])
            bound = common.verdict(statistics.median(compared), BOUND)
            text += f"\n\nRatio to PyTorch's time: {spread(compared)}; the bound {bound}."
        text += (
            f"\n\nThe mean time of each operation of minimha in {count} more steps, including the "
            "overhead of\nmeasuring it:\n\n"
        )
    text += breakdown(steps["minimha"], count)
    text += f"\n\n{common.versions(**({'PyTorch': 'torch'} if torch else {}))} {common.machine()}\n"
    common.show(text, options.save)


if __name__ == "__main__":
    main()
