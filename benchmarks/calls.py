"""Files, functions and Python calls of one attention layer and of one training step.

python benchmarks/calls.py

Counts the package's own functions, on the reference path, in one forward and backward pass of an
attention layer, and in one training step of a GPT with two layers. Comprehensions count as calls.
"""

import pathlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

import minimha as mh
import minimha_autograd

ROOTS = tuple(str(pathlib.Path(module.__file__).parent) for module in (mh, minimha_autograd))


def counted(function: Callable[[], None]) -> str:
    """The number of files, their lines, functions and calls in a call of this function."""
    function(), function()  # what is computed once
    codes: list[Any] = []

    def see(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOTS):
            codes.append(frame.f_code)

    sys.setprofile(see)
    try:
        function()
    finally:
        sys.setprofile(None)
    files = {code.co_filename for code in codes}
    lines = sum(len(pathlib.Path(file).read_text(encoding="utf-8").splitlines()) for file in files)
    return f"{len(files)} files ({lines} lines), {len(set(codes))} functions, {len(codes)} calls"


def main() -> None:
    rng = np.random.default_rng(0)
    layer, x = mh.MultiHeadAttention(16, 4, dtype="float64"), rng.standard_normal((2, 5, 16))
    model = mh.GPT(65, context=16, d_model=64, num_heads=4, num_layers=2)
    optimiser = mh.AdamW(model.parameters(), lr=1e-3)
    tokens = rng.integers(0, 65, (4, 17))

    def attend() -> None:
        with mh.implementation("reference"):
            layer(mh.Tensor(x, requires_grad=True)).sum().backward()

    def step() -> None:
        with mh.implementation("reference"):
            logits = model(tokens[:, :-1])
            mh.functional.cross_entropy(logits, tokens[:, 1:]).backward()
            optimiser.step()
            for p in model.parameters():
                p.grad = None

    print(f"layer: {counted(attend)}")
    print(f"step of a GPT: {counted(step)}")


if __name__ == "__main__":
    main()
