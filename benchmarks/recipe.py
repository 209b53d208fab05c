"""nanoGPT's recipe for a CPU: a GPT learns tiny Shakespeare, next to the same run in PyTorch.

python benchmarks/recipe.py [--text FILE] [--quick] [--save docs/measured/recipe.md]

Both libraries train with each of three seeds, one run after the other. They start from weights with
the same distribution and draw their batches from the same generator. Without --text, the text
is fetched once (`mh.training.data.shakespeare`).
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
from common import table, verdict

THREADS = 2
common.blas_threads(THREADS)  # before NumPy is loaded
import numpy as np

import minimha as mh
from minimha import training
from minimha.nn import warmup_cosine
from minimha.training import data

torch = common.optional("torch")

STEPS, BATCH, CONTEXT = 2000, 12, 64
SIZES = {"d_model": 128, "num_heads": 4, "num_layers": 4}
RATES = {"lr": 1e-3, "min_lr": 1e-4, "warmup": 100}
BETAS, DECAY, CLIP = (0.9, 0.99), 0.1, 1.0
BATCHES = 200  # of which the validation loss is the mean
SEEDS = 1, 2, 3
WORSE, SLOWER = 0.01, 0.9
"""The bounds: nats above PyTorch's validation loss, and the fraction of PyTorch's time."""
REST = 0.25  # seconds for the threads of the other library to fall asleep

TITLE = f"""# What nanoGPT's recipe gives

`python benchmarks/recipe.py`. A GPT with {SIZES["num_layers"]} layers, {SIZES["num_heads"]} heads,
width {SIZES["d_model"]} and a tied embedding, without biases or dropout, learns the characters of
tiny Shakespeare: {STEPS} steps of {BATCH} sequences of {CONTEXT} characters with AdamW. After
{RATES["warmup"]} steps of warm-up, the learning rate falls from 1e-3 to 1e-4; matrices have a
weight decay of {DECAY}, and gradients are clipped at {CLIP}. PyTorch runs the same recipe eagerly,
with `scaled_dot_product_attention` and `AdamW(fused=True)`. Both use {THREADS} threads and float32.
The validation loss is the mean over {BATCHES} random batches of the last tenth of the text. The
time is that of the whole run. Losses and times are those of three seeds.

"""


def ours(text: data.Split, vocabulary: int, steps: int, seed: int) -> Callable[[Any, int], float]:
    """Train, through the public interface; returns the loss on tokens, the mean over batches."""
    model = mh.GPT(vocabulary, context=CONTEXT, **SIZES, bias=False, tie=True, rng=seed)
    for _ in training.Training(
        model, text.train, steps=steps, batch=BATCH, **RATES, betas=BETAS, weight_decay=DECAY,
        clip=CLIP, seed=seed,
    ):  # fmt: skip
        pass

    def estimate(tokens: Any, batches: int) -> float:
        draws = data.random_batches(
            tokens, batch=BATCH, context=CONTEXT, rng=np.random.default_rng(0)
        )
        with mh.no_grad():
            losses = [
                mh.functional.cross_entropy(model(inputs), targets).item()
                for inputs, targets in itertools.islice(draws, batches)
            ]
        return statistics.fmean(losses)

    return estimate


def theirs(text: data.Split, vocabulary: int, steps: int, seed: int) -> Callable[[Any, int], float]:
    """The same in PyTorch."""
    from torch.nn import functional

    m, layers, heads = SIZES["d_model"], SIZES["num_layers"], SIZES["num_heads"]
    torch.manual_seed(seed)
    residual = 0.02 / math.sqrt(2 * layers)
    weights = {
        "tokens": 0.02 * torch.randn(vocabulary, m),
        "places": 0.02 * torch.randn(CONTEXT, m),
    }
    for k in range(layers):
        weights |= {
            f"qkv{k}": 0.02 * torch.randn(3 * m, m),
            f"out{k}": residual * torch.randn(m, m),
        }
        weights |= {f"widen{k}": 0.02 * torch.randn(4 * m, m)}
        weights |= {f"narrow{k}": residual * torch.randn(m, 4 * m)}
    norms = {f"norm{k}": torch.ones(m) for k in range(2 * layers + 1)}
    for x in (*weights.values(), *norms.values()):
        x.requires_grad_()

    def norm(x: Any, k: int) -> Any:
        return functional.layer_norm(x, x.shape[-1:], norms[f"norm{k}"])

    def attention(x: Any, k: int) -> Any:
        qkv = functional.linear(x, weights[f"qkv{k}"]).chunk(3, dim=-1)
        q, k_, v = (y.unflatten(2, (heads, -1)).transpose(1, 2) for y in qkv)
        y = functional.scaled_dot_product_attention(q, k_, v, is_causal=True)
        return functional.linear(y.transpose(1, 2).flatten(2), weights[f"out{k}"])

    def loss(inputs: Any, targets: Any) -> Any:
        x = functional.embedding(inputs, weights["tokens"]) + weights["places"][: inputs.shape[1]]
        for k in range(layers):
            x = x + attention(norm(x, 2 * k), k)
            wide = functional.linear(norm(x, 2 * k + 1), weights[f"widen{k}"])
            x = x + functional.linear(
                functional.gelu(wide, approximate="tanh"), weights[f"narrow{k}"]
            )
        logits = functional.linear(norm(x, 2 * layers), weights["tokens"])
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    groups = [{"params": [*weights.values()], "weight_decay": DECAY}]
    groups += [{"params": [*norms.values()], "weight_decay": 0.0}]
    parameters = [p for group in groups for p in group["params"]]
    optimiser = torch.optim.AdamW(groups, lr=RATES["lr"], betas=BETAS, fused=True)
    draws = data.random_batches(
        text.train, batch=BATCH, context=CONTEXT, rng=np.random.default_rng(seed)
    )
    for step, pair in zip(range(steps), draws, strict=False):
        for group in optimiser.param_groups:
            group["lr"] = warmup_cosine(step, steps=steps, **RATES)
        error = loss(*map(torch.from_numpy, pair))
        optimiser.zero_grad(set_to_none=True)
        error.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimiser.step()

    def estimate(tokens: Any, batches: int) -> float:
        rng = np.random.default_rng(0)
        draws = data.random_batches(tokens, batch=BATCH, context=CONTEXT, rng=rng)
        with torch.no_grad():
            pairs = (
                map(torch.from_numpy, pair) for _, pair in zip(range(batches), draws, strict=False)
            )
            return statistics.mean(loss(*pair).item() for pair in pairs)

    return estimate


def listed(numbers: list[float], digits: int) -> str:
    return ", ".join(f"{x:.{digits}f}" for x in numbers)


def main() -> None:
    parser = common.arguments(__doc__, quick="two steps, one seed, few batches")
    parser.add_argument("--text", type=Path, help="a text in place of tiny Shakespeare")
    options = parser.parse_args()
    characters = data.read_text(options.text) if options.text else data.shakespeare()
    tokenizer = data.CharacterTokenizer(characters)
    text = data.split(tokenizer.encode(characters), CONTEXT)
    steps, seeds, batches = (2, SEEDS[:1], 5) if options.quick else (STEPS, SEEDS, BATCHES)
    runs: dict[str, Any] = {"minimha": ours, "PyTorch": theirs}
    if torch:
        torch.set_num_threads(THREADS)
    else:
        del runs["PyTorch"]
    losses: dict[str, list[float]] = {name: [] for name in runs}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for seed in seeds:
        for name, run in runs.items():
            time.sleep(REST)
            run(text, len(tokenizer), 3, seed)  # compiles, and wakes the threads
            start = time.perf_counter()
            loss = run(text, len(tokenizer), steps, seed)
            times[name].append(time.perf_counter() - start)
            losses[name].append(loss(text.validation, batches))
    rows = [
        [name, listed(losses[name], 3), f"{statistics.median(losses[name]):.3f}", listed(seen, 1)]
        for name, seen in times.items()
    ]
    page = TITLE + table(["library", "validation loss, nats", "median", "whole run, s"], rows)
    if torch:
        above = statistics.median(losses["minimha"]) - statistics.median(losses["PyTorch"])
        compared = common.ratios(times["minimha"], times["PyTorch"])
        page += (
            f"\n\nMedian loss minus PyTorch's: {above:+.3f}; the bound {verdict(above, WORSE)}. "
            f"Time relative to PyTorch's: {listed(compared, 2)}; the bound "
            f"{verdict(statistics.median(compared), SLOWER)}."
        )
    page += f"\n\n{common.versions(**({'PyTorch': 'torch'} if torch else {}))} {common.machine()}\n"
    common.show(page, options.save)


if __name__ == "__main__":
    main()
