"""How long a generated token takes, with a cache of keys and values and without one.

python benchmarks/generation.py [--quick] [--save docs/measured/generation.md]

A `Module` around the model's norm notes when each token is computed, so `mh.generate` is measured
as users call it.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import common
from common import table, verdict

THREADS = 2
common.blas_threads(THREADS)  # before NumPy is loaded
import numpy as np

import minimha as mh

SIZES = {"context": 512, "d_model": 128, "num_heads": 4, "num_layers": 4}
TOKENS, EARLY, LATE, AROUND = 272, 32, 256, 8
BOUND = 1.3
TITLE = f"""# What a generated token costs

`python benchmarks/generation.py`. `mh.generate` writes one sequence of {TOKENS} tokens with a GPT
of {SIZES["num_layers"]} layers, {SIZES["num_heads"]} heads and width {SIZES["d_model"]}, in float32
on {THREADS} threads. We take the median time of each token over all runs; the table shows the
median of these over the {2 * AROUND} tokens around a token. With the cache, token {LATE} should
take at most {BOUND} times as long as token {EARLY}.

"""


class Stamped(mh.Module):
    """A norm that notes the time of each call."""

    def __init__(self, norm: Any) -> None:
        self.norm, self.times = norm, list[float]()

    def __call__(self, x: Any) -> Any:
        self.times.append(time.perf_counter())
        return self.norm(x)


def token_times(model: mh.GPT, *, cache: bool) -> np.ndarray:
    """The seconds between each token and the next."""
    model.norm.times.clear()
    mh.generate(model, np.zeros((1, 1), int), TOKENS, cache=cache)
    return np.diff(model.norm.times)


def main() -> None:
    options = common.arguments(__doc__, quick="one run").parse_args()
    model = mh.GPT(65, **SIZES, bias=False, tie=True)
    model.norm = Stamped(model.norm)
    places, runs = (EARLY, 64, 128, LATE), 1 if options.quick else 7
    rows, ratios = [], {}
    for name, cache in (("with the cache", True), ("without", False)):
        seen = np.median([token_times(model, cache=cache) for _ in range(runs)], axis=0)
        at = {k: 1e3 * statistics.median(seen[k - AROUND : k + AROUND]) for k in places}
        ratios[name] = at[LATE] / at[EARLY]
        rows.append([name, *(f"{at[k]:.2f}" for k in places), f"{ratios[name]:.2f}"])
    headers = ["", *(f"token {k}, ms" for k in places), "ratio"]
    page = TITLE + table(headers, rows)
    page += f"\n\nWith the cache, the bound {verdict(ratios['with the cache'], BOUND)}."
    page += f"\n\n{common.versions()} {common.machine()}\n"
    common.show(page, options.save)


if __name__ == "__main__":
    main()
