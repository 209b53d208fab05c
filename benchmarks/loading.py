"""How long `from_pretrained` takes, and how much memory the model then needs.

python benchmarks/loading.py [--quick] [--save docs/measured/loading.md]
"""

from __future__ import annotations

import pathlib
import statistics
import sys
import tempfile
from functools import partial
from typing import Any

import common
import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
import numpy as np
from common import growth, printed, seconds, spread, table, take_turns, verdict

import minimha as mh
from minimha import interchange
from minimha_autograd import backend

GPT2 = {"d_model": 768, "num_heads": 12, "num_layers": 12, "context": 1024, "vocabulary": 50257}
QWEN3 = {
    "d_model": 1024, "num_heads": 16, "num_kv_heads": 8, "head_dim": 128, "hidden": 3072,
    "num_layers": 28, "context": 4096, "vocabulary": 151936, "norm": "rms", "activation": "swiglu",
    "bias": False, "qk_norm": True, "rope": mh.positions.Rope(1e6),
}  # fmt: skip
MODELS = {"GPT-2, 124M": (GPT2, "float32"), "Qwen3, 596M": (QWEN3, "bfloat16")}
SECONDS, MEMORY = 1.0, 1.3
"""The bounds: seconds to load the GPT-2, and the memory of the other in sizes of its file."""
TITLE = f"""# What loading a model costs

`python benchmarks/loading.py`. Models with random weights, of the sizes of published ones, are
loaded in new processes, which take turns; the files are in the cache of the system. The table shows
the seconds that `from_pretrained` takes, and those that the first logits take, for eight tokens:
they need nearly all weights. It also shows by how much the memory of the process grows at most
during both, as a multiple of the size of the file. All numbers are medians, with the quartiles in
brackets. The aims are to load GPT-2 in at most {SECONDS:g} s, and to let the memory grow by at most
{MEMORY} times the size of the file with the bfloat16 model.

"""


def make(folder: pathlib.Path, settings: dict[str, Any], dtype: str) -> None:
    """Write a model with random weights."""
    model, rng = mh.GPT(**settings, tie=True, rng=backend.EMPTY), np.random.default_rng(0)
    for p in model.parameters():
        drawn = rng.standard_normal(p.shape, dtype="float32") / 50
        p.data = (drawn + (p.ndim == 1)).astype(dtype)
    interchange.save_pretrained(model, folder)


def load(folder: str, dtype: str) -> None:
    """Print the seconds of loading and of the first logits, and the memory."""
    times = []

    def run() -> None:
        model: Any = None

        def loaded() -> None:
            nonlocal model
            model = interchange.from_pretrained(folder, dtype=dtype)

        times.append(seconds(loaded))
        with mh.no_grad():
            times.append(seconds(lambda: model(np.arange(8)[None])))

    size = (pathlib.Path(folder) / "model.safetensors").stat().st_size / 2**20
    memory = growth(run) / size
    print(*times, memory)


def main() -> None:
    options = common.arguments(__doc__, quick="small models, twice each").parse_args()
    small = {"num_layers": 2, "vocabulary": 500} if options.quick else {}
    with tempfile.TemporaryDirectory() as folder:
        calls = {}
        for name, (settings, dtype) in MODELS.items():
            place = pathlib.Path(folder) / dtype
            make(place, settings | small, dtype)
            calls[name] = partial(printed, __file__, "load", str(place), dtype)
        results = take_turns(calls, 2 if options.quick else 9)
    rows = [
        [name, MODELS[name][1], *(spread(values) for values in zip(*runs, strict=True))]
        for name, runs in results.items()
    ]
    loading, memory = (
        [run[k] for run in results[name]] for name, k in zip(MODELS, (0, 2), strict=True)
    )
    bounds = (
        verdict(statistics.median(loading), SECONDS),
        verdict(statistics.median(memory), MEMORY),
    )
    rows.append(["bound", "", bounds[0], "", bounds[1]])
    headers = ["model", "dtype", "loading, s", "first logits, s", "memory / file"]
    text = f"{TITLE}{table(headers, rows)}\n\n{common.machine()}\n"
    common.show(f"{text}{common.versions(ml_dtypes='ml_dtypes')}\n", options.save)


if __name__ == "__main__":
    load(*sys.argv[2:]) if sys.argv[1:2] == ["load"] else main()
