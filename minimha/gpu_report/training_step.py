"""A training step of a GPT in minimha and in PyTorch, from the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from minimha_autograd import backend

from .. import interchange
from ..functional import cross_entropy
from ..nn import AdamW
from ..transformers import GPT
from . import measuring
from .measuring import Prepared, Row, Sizes

VOCABULARY = 65
ADAM: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1}


def training_step(sizes: Sizes) -> Iterator[Row]:
    """The time of a step, and the losses of the first and of the last step."""
    model = GPT(
        VOCABULARY, context=sizes.context, d_model=sizes.width, num_heads=sizes.width // 64,
        num_layers=sizes.layers,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(0, VOCABULARY, (2, sizes.batch, sizes.context))
    for name, prepare in {"torch": by_torch, "minimha": by_minimha}.items():
        row: Row = {"library": name}
        with measuring.failure_noted(row):
            step, memory = prepare(model, inputs, targets)
            row["first loss"] = step().item()
            row["ms"] = measuring.milliseconds(step, sizes.steps)
            row["last loss"] = step().item()
            row["MiB"] = memory() / 2**20
        yield row


def by_minimha(model: GPT, inputs: np.ndarray, targets: np.ndarray) -> Prepared:
    pool = measuring.empty_pool()
    xp = backend.library("cupy")
    model.to("cupy")
    tokens, following = xp.asarray(inputs), xp.asarray(targets)
    optimiser = AdamW(model.parameters(), **ADAM)

    def step() -> Any:
        optimiser.zero_grad()
        loss = cross_entropy(model(tokens), following)
        loss.backward()
        optimiser.step()
        return loss

    return step, pool.total_bytes


def by_torch(model: GPT, inputs: np.ndarray, targets: np.ndarray) -> Prepared:
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
        loss = functional.cross_entropy(logits().flatten(0, 1), following.flatten())
        loss.backward()
        optimiser.step()
        return loss

    return step, torch.cuda.max_memory_allocated
