"""The cost of a step of training a GPT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .attention import attention, multi_head
from .primitives import linear, product
from .setting import Setting


@dataclass(frozen=True)
class Step:
    """What a step of training a GPT with Adam takes.

    parameters  learned numbers
    flops       of the matrix products, forward and backward
    state       bytes of the parameters, their gradients, and the two moments of Adam
    update      bytes that Adam moves: it reads all of the state, and writes all but the gradients
    kept        bytes of the attention weights that are stored for the backward pass
    """

    parameters: int
    flops: int
    state: int
    update: int
    kept: int


def gpt_step(vocabulary: int, layers: int, **letters: Any) -> Step:
    """What a step of training with Adam takes, on B sequences of T tokens, for the model
    `GPT(vocabulary, context=T, d_model=M, num_layers=layers, num_heads=H)`.

    letters  the sizes, such as M, H, B and T: see `Setting.of`

        parameters  layers · (12 M² + 13 M) + 2 M + (2 · vocabulary + T) · M
        flops       3 · B·T · (layers · (24 M² + 4 T·M) + 2 M · vocabulary)
        kept        layers · B·H·T² numbers

    in the usual case H·D = M with G = H, Dv = D and biases. The bytes are those of numbers of the
    dtype among the letters. `kept` counts the attention weights that the implementation "reference"
    stores, not the other activations that a step keeps; "tiled" stores no weights.
    """
    s = Setting.of(**letters)
    width, n = s.sizes.d_model, s.B * s.T
    perceptron = linear(n, width, 4 * width, s.bias) + linear(n, 4 * width, width, s.bias)
    head = product(1, n, width, vocabulary)
    attended = multi_head(**letters)
    narrow, wide = (width, 4 * width) if s.bias else (0, 0)
    norms = 2 * width + 2 * narrow  # factor and shift of two layer norms
    block = attended.parameters + 8 * width**2 + wide + narrow + norms
    parameters = layers * block + norms // 2 + (2 * vocabulary + s.T) * width
    flops = layers * (attended.flops + sum(p.flops for p in perceptron))
    size = parameters * s.itemsize
    return Step(
        parameters=parameters,
        flops=flops + sum(p.flops for p in head),
        state=4 * size,
        update=7 * size,
        kept=layers * attention(**letters).saved,
    )
