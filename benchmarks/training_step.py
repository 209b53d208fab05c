"""One training step of a small GPT, beside the same model in PyTorch eager in the same run.

python benchmarks/training_step.py [--quick] [--breakdown] [--save docs/measured/training_step.md]

Both start from the same weights and see the same batches, and their losses must agree. Each has
two threads, which spin for a while when idle and slow the other library down. So the libraries take
turns of several steps, and the first steps of a turn, while the other's threads come to rest, do
not count. --breakdown shows the time of each of our operations.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import common
from common import ratios, seconds, spread, table

THREADS = 2
common.blas_threads(THREADS)  # before NumPy is loaded
import numpy as np

import minimha as mh
from minimha.functional import cross_entropy
from minimha_autograd.operation import registry

torch = common.optional("torch")

BATCH, CONTEXT, VOCABULARY = 12, 64, 65
SIZES = {"d_model": 128, "num_heads": 4, "num_layers": 4}
ADAM: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.01}
SKIPPED, COUNTED = 3, 10  # steps of a turn
BOUND = 1.0
TITLE = f"""# What a training step costs

`python benchmarks/training_step.py`. Forward, loss, backward and fused AdamW of a GPT at nanoGPT's
size for a CPU: {SIZES["num_layers"]} layers, {SIZES["num_heads"]} heads, width {SIZES["d_model"]},
{BATCH} sequences of {CONTEXT} characters out of {VOCABULARY}, float32, {THREADS} threads. PyTorch
runs eagerly, with its `scaled_dot_product_attention` and `AdamW(fused=True)`. The libraries take
turns of {SKIPPED + COUNTED} steps, of which the last {COUNTED} count. Times, and the ratio of two
turns next to each other, are medians over the turns, in brackets the quartiles. The aim is at most
{BOUND} of PyTorch.

"""


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless inputs and targets (B, T), of a text whose next character is predictable."""
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
    """The same with the same model in PyTorch."""
    from torch import nn
    from torch.nn import functional

    heads = SIZES["num_heads"]
    state = {k: torch.tensor(p.data.copy()) for k, p in model.named_parameters()}

    def linear(weight: Any, bias: Any = None) -> Any:
        layer = nn.Linear(*weight.shape, bias=bias is not None)
        layer.weight.data = weight.T.contiguous()
        if bias is not None:
            layer.bias.data = bias
        return layer

    def norm(path: str) -> Any:
        layer = nn.LayerNorm(SIZES["d_model"])
        layer.weight.data, layer.bias.data = state[f"{path}.weight"], state[f"{path}.bias"]
        return layer

    class Block(nn.Module):
        def __init__(self, path: str) -> None:
            super().__init__()
            a = f"{path}.attention"
            self.norm_attention = norm(f"{path}.norm_attention")
            self.norm_mlp = norm(f"{path}.norm_mlp")
            columns = [torch.cat([state[f"{a}.{x}_{r}"] for r in "qkv"], -1) for x in "wb"]
            self.project_in = linear(*columns)  # one matmul for all three, as nanoGPT has it
            self.project_out = linear(state[f"{a}.w_o"], state[f"{a}.b_o"])
            self.widen = linear(state[f"{path}.widen.weight"], state[f"{path}.widen.bias"])
            self.narrow = linear(state[f"{path}.narrow.weight"], state[f"{path}.narrow.bias"])

        def forward(self, x: Any) -> Any:
            b, t, m = x.shape
            qkv = self.project_in(self.norm_attention(x)).split(m, dim=2)
            q, k, v = (a.view(b, t, heads, m // heads).transpose(1, 2) for a in qkv)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.project_out(y.transpose(1, 2).reshape(b, t, m))
            widened = functional.gelu(self.widen(self.norm_mlp(x)), approximate="tanh")
            return x + self.narrow(widened)

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding.from_pretrained(state["tokens.table"], freeze=False)
            self.positions = nn.Embedding.from_pretrained(state["positions.table"], freeze=False)
            self.blocks = nn.ModuleList(Block(f"blocks.{k}") for k in range(SIZES["num_layers"]))
            self.norm, self.head = norm("norm"), linear(state["head.weight"])

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    gpt, draws = GPT(), batches()
    optimiser = torch.optim.AdamW(gpt.parameters(), fused=True, **ADAM)

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


def measured(steps: dict[str, Callable[[], float]], turns: int) -> dict[str, list[float]]:
    """The times of the libraries, turn by turn."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(turns):
        for name, step in steps.items():
            times[name].append(turn(step))
    return times


def contents(function: Any) -> list[Any]:
    """The variables of its closure."""
    return [cell.cell_contents for cell in function.__closure__]


class Clock:
    """The time of operations, forward and backward, without that of operations they call.

    It replaces the function that an operation calls, in the cell of the closure that holds it.
    """

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0, 0.0])
        self._inner: list[float] = [0.0]
        for operation in registry.values():
            function: Any = operation.__wrapped__  # type: ignore[attr-defined]
            (call,) = (x for x in contents(operation) if getattr(x, "__name__", "") == "call")
            index = contents(call).index(function)
            call.__closure__[index].cell_contents = self._forward(operation.__name__, function)

    def _forward(self, name: str, function: Any) -> Any:
        def timed(*arrays: Any, **settings: Any) -> Any:
            self.spent[name][0] += 1
            value, pull = self._timed(name, 1, function, *arrays, **settings)
            return value, lambda *dy: self._timed(name, 2, pull, *dy)

        return timed

    def _timed(self, name: str, place: int, call: Any, *arrays: Any, **settings: Any) -> Any:
        self._inner.append(0.0)
        start = time.perf_counter()
        result = call(*arrays, **settings)
        whole = time.perf_counter() - start
        self.spent[name][place] += whole - self._inner.pop()
        self._inner[-1] += whole
        return result


def breakdown(step: Callable[[], float], count: int) -> str:
    """Our operations by the time they take in a step, and what is left for the rest."""
    step()
    clock, start = Clock(), time.perf_counter()
    optimising = 0.0
    original = mh.AdamW.step

    def timed(self: Any) -> None:
        nonlocal optimising
        began = time.perf_counter()
        original(self)
        optimising += time.perf_counter() - began

    mh.AdamW.step = timed  # type: ignore[method-assign]
    for _ in range(count):
        step()
    mh.AdamW.step = original  # type: ignore[method-assign]
    whole = time.perf_counter() - start
    rows = [
        [name, f"{n / count:g}", f"{1e3 * f / count:.2f}", f"{1e3 * b / count:.2f}", ""]
        for name, (n, f, b) in sorted(clock.spent.items(), key=lambda x: -sum(x[1][1:]))
    ]
    known = sum(f + b for _, f, b in clock.spent.values())
    rows += [
        ["AdamW", "1", f"{1e3 * optimising / count:.2f}", "", ""],
        ["the tape and the rest", "", f"{1e3 * (whole - known - optimising) / count:.2f}", "", ""],
        ["all", "", f"{1e3 * whole / count:.2f}", "", ""],
    ]
    return table(["operation", "calls", "forward, ms", "backward, ms"], [row[:4] for row in rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    common.add_options(parser, quick="3 turns")
    parser.add_argument("--breakdown", action="store_true", help="our operations alone")
    options = parser.parse_args()
    model = mh.GPT(VOCABULARY, context=CONTEXT, **SIZES)
    steps = {"minimha": minimha_step(model)}
    if torch and not options.breakdown:
        torch.set_num_threads(THREADS)
        steps["PyTorch"] = torch_step(model)
        losses = [[step() for step in steps.values()] for _ in range(5)]
        np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-3)
    text = TITLE
    if not options.breakdown:
        times = measured(steps, 3 if options.quick else 31)
        rows = [[name, spread([1e3 * t for t in seen])] for name, seen in times.items()]
        text += table(["library", "a step, ms"], rows)
        if torch:
            compared = ratios(times["minimha"], times["PyTorch"])
            bound = common.verdict(statistics.median(compared), BOUND)
            text += f"\n\nOf PyTorch's time: {spread(compared)}; the bound {bound}."
        text += "\n\nOur operations, timed one by one, which itself takes time:\n\n"
    text += breakdown(steps["minimha"], 5 if options.quick else 50)
    text += f"\n\n{common.versions(**({'PyTorch': 'torch'} if torch else {}))}\n"
    common.show(text, options.save)


if __name__ == "__main__":
    main()
