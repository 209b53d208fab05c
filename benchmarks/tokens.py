"""What a token and a prompt cost with a model of GPT-2's size, beside transformers in the same run.

python benchmarks/tokens.py [--quick] [--save docs/measured/tokens.md]

A token reads every weight once, so its time is compared with the time in which two threads read as
many bytes. The two libraries take turns of several calls, with rests between them, because the
threads of each wait actively for a while.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import common
from common import ratios, seconds, spread, table, verdict

THREADS = 2
common.blas_threads(THREADS)  # before NumPy is loaded
import numpy as np

import minimha as mh
from minimha.multihead import KeyValueCache

torch = common.optional("torch")
os.environ["HF_HUB_OFFLINE"] = "1"
transformers = common.optional("transformers")

SIZES = {"context": 1024, "d_model": 768, "num_heads": 12, "num_layers": 12, "tie": True}
VOCABULARY, PAST, END, PROMPT = 50257, 64, 72, 512
REST = 0.25  # seconds
BOUNDS = {"a token": 0.75, "a prompt": 0.9}
TITLE = f"""# What a token costs

`python benchmarks/tokens.py`. A model with the sizes of GPT-2 (124 million parameters), in float32
on {THREADS} threads: one token after {PAST} others, whose keys and values are cached; and a prompt
of {PROMPT} tokens, which fills a cache. transformers runs eagerly, with its own cache. The two take
turns, with rests of {1000 * REST:.0f} ms. The table shows the median over the turns, with the
quartiles in brackets; a ratio compares two consecutive turns.

"""


def ours(model: mh.GPT, tokens: np.ndarray) -> dict[str, Callable[[], float]]:
    """The seconds of a token and of a prompt here."""

    def token() -> float:
        with mh.no_grad():
            caches = [KeyValueCache() for _ in model.blocks]
            model(tokens[:, :PAST], caches=caches)
            return seconds(
                lambda: [model(tokens[:, k : k + 1], caches=caches) for k in range(PAST, END)]
            ) / (END - PAST)

    def prompt() -> float:
        with mh.no_grad():
            return seconds(lambda: model(tokens, caches=[KeyValueCache() for _ in model.blocks]))

    return {"a token": token, "a prompt": prompt}


def theirs(folder: str, tokens: np.ndarray) -> dict[str, Callable[[], float]]:
    """The same of transformers, with the model in a folder."""
    torch.set_num_threads(THREADS)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    ids = torch.tensor(tokens)

    def token() -> float:
        with torch.inference_mode():
            past = model(ids[:, :PAST], use_cache=True).past_key_values
            return seconds(
                lambda: [
                    model(ids[:, k : k + 1], past_key_values=past, use_cache=True)
                    for k in range(PAST, END)
                ]
            ) / (END - PAST)

    def prompt() -> float:
        with torch.inference_mode():
            return seconds(lambda: model(ids, use_cache=True))

    return {"a token": token, "a prompt": prompt}


def reading(nbytes: int) -> float:
    """The seconds in which the threads read so many bytes, once each."""
    parts = np.ones((THREADS, nbytes // 4 // THREADS), "float32")
    with ThreadPoolExecutor(THREADS) as pool:
        return min(seconds(lambda: list(pool.map(np.max, parts))) for _ in range(9))


def main() -> None:
    options = common.arguments(__doc__, quick="small models, two turns").parse_args()
    sizes = SIZES | ({"d_model": 96, "num_layers": 2} if options.quick else {})
    model = mh.GPT(VOCABULARY, **sizes)
    tokens = np.random.default_rng(0).integers(VOCABULARY, size=(1, PROMPT))
    nbytes = sum(p.data.nbytes for p in model.parameters())
    calls = {("minimha", name): call for name, call in ours(model, tokens).items()}
    if transformers:
        with tempfile.TemporaryDirectory() as folder:
            mh.interchange.save_pretrained(model, folder)
            calls |= {("transformers", k): call for k, call in theirs(folder, tokens).items()}
    times = common.take_turns(
        {key: lambda call=call: (time.sleep(REST), call())[1] for key, call in calls.items()},
        2 if options.quick else 15,
    )
    rows = []
    for name, bound in BOUNDS.items():
        mine, ms = times["minimha", name], lambda x: spread([1e3 * t for t in x])
        other = times.get(("transformers", name))
        ratio = ratios(mine, other) if other else []
        rows.append([name, ms(mine), ms(other) if other else "", spread(ratio) if ratio else "",
                     verdict(statistics.median(ratio), bound) if ratio else ""])  # fmt: skip
    page = TITLE + table(["", "minimha, ms", "transformers, ms", "ratio", "bound"], rows)
    read, taken = reading(nbytes), statistics.median(times["minimha", "a token"])
    page += (
        f"\n\nThe weights have {nbytes / 1e6:.0f} MB, which {THREADS} threads read in "
        f"{1e3 * read:.1f} ms ({nbytes / read / 1e9:.1f} GB/s): a token takes "
        f"{taken / read:.1f} times as long.\n\n{common.versions()} {common.machine()}\n"
    )
    common.show(page, options.save)


if __name__ == "__main__":
    main()
