"""What a token and a prompt cost with a model of GPT-2's size, beside transformers in the same run.

python benchmarks/tokens.py [--quick] [--save docs/measured/tokens.md]

A token reads nearly every weight once, so its time is compared with the time in which two threads
read as many bytes, for weights of float32, bfloat16 and int8. Libraries and dtypes take turns of
several calls, with rests between them, because threads wait actively for a while.
"""

from __future__ import annotations

import copy
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
import ml_dtypes  # noqa: F401  registers bfloat16 with NumPy
import numpy as np

import minimha as mh
from minimha.functional import Quantised
from minimha.multihead import KeyValueCache
from minimha.nn import quantise

torch = common.optional("torch")
os.environ["HF_HUB_OFFLINE"] = "1"
transformers = common.optional("transformers")

SIZES = {"context": 1024, "d_model": 768, "num_heads": 12, "num_layers": 12, "tie": True}
VOCABULARY, PAST, END, PROMPT = 50257, 64, 72, 512
REST = 0.25  # seconds
KINDS = "float32", "bfloat16", "int8"
BOUNDS = {  # the numerator, the denominator, and the largest ratio
    "a token": (("float32", "a token"), ("transformers", "a token"), 0.75),
    "a prompt": (("float32", "a prompt"), ("transformers", "a prompt"), 0.9),
    "a token, bfloat16": (("bfloat16", "a token"), ("float32", "a token"), 0.65),
    "a token, int8": (("int8", "a token"), ("float32", "a token"), 0.45),
}
TITLE = f"""# What a token costs

`python benchmarks/tokens.py`. A model with the sizes of GPT-2 (124 million parameters), on
{THREADS} threads: one token after {PAST} others, whose keys and values are cached; and a prompt of
{PROMPT} tokens, which fills a cache. Activations are float32, and so are the weights unless the row
says otherwise. transformers runs eagerly, in float32, with its own cache. The libraries and
dtypes take turns, and rest for {1000 * REST:.0f} ms between turns and between the first {PAST}
tokens and the next {END - PAST}. The time of a token is the mean over these {END - PAST}. The
tables show the median over the turns, with the quartiles in brackets; a ratio compares two calls
of the same turn.

"""


def ours(model: mh.GPT, tokens: np.ndarray) -> dict[str, Callable[[], float]]:
    """The seconds of a token and of a prompt here."""

    def token() -> float:
        with mh.no_grad():
            caches = [KeyValueCache() for _ in model.blocks]
            model(tokens[:, :PAST], caches=caches)
            time.sleep(REST)
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
            time.sleep(REST)
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


def matrices(model: mh.GPT, kind: str) -> mh.GPT:
    """The model with matrices of bfloat16 or int8."""
    if kind == "bfloat16":
        other = mh.GPT(**model.settings | {"dtype": kind})
        for p, wide in zip(other.parameters(), model.parameters(), strict=True):
            p.data = wide.data.astype(p.dtype)
        return other
    return quantise(copy.deepcopy(model)) if kind == "int8" else model


def size(model: mh.GPT) -> int:
    """The bytes of all weights."""
    weights = [x for part in model.modules() for x in vars(part).values()]
    arrays = [a for x in weights if isinstance(x, Quantised) for a in (x.values, x.scale)]
    return sum(a.nbytes for a in [*arrays, *(p.data for p in model.parameters())])


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
    models = {kind: matrices(model, kind) for kind in KINDS}
    calls = {
        (kind, name): call
        for kind, narrow in models.items()
        for name, call in ours(narrow, tokens).items()
    }
    if transformers:
        with tempfile.TemporaryDirectory() as folder:
            mh.interchange.save_pretrained(model, folder)
            calls |= {("transformers", k): call for k, call in theirs(folder, tokens).items()}
    times = common.take_turns(
        {key: lambda call=call: (time.sleep(REST), call())[1] for key, call in calls.items()},
        2 if options.quick else 15,
    )
    milliseconds = {key: spread([1e3 * t for t in ts]) for key, ts in times.items()}
    rows = []
    for name, (one, other, bound) in BOUNDS.items():
        ratio = ratios(times[one], times[other]) if other in times else []
        found = [spread(ratio), verdict(statistics.median(ratio), bound)] if ratio else ["", ""]
        peer = "our float32" if other[0] == "float32" else other[0]
        rows.append([name, milliseconds[one], peer, milliseconds.get(other, ""), *found])
    page = TITLE + table(["", "minimha, ms", "compared with", "ms", "ratio", "bound"], rows)
    with mh.no_grad():
        logits = {kind: narrow(tokens).data for kind, narrow in models.items()}
    rows, whole = [], np.linalg.norm(logits["float32"])
    for kind, narrow in models.items():
        error = np.linalg.norm(logits[kind] - logits["float32"]) / whole
        nbytes, taken = size(narrow), statistics.median(times[kind, "a token"])
        read = reading(nbytes)
        cells = [nbytes / 1e6, 1e3 * read, 1e3 * taken]
        rows.append([kind, *(f"{x:.1f}" for x in cells), f"{100 * read / taken:.0f} %",
                     milliseconds[kind, "a prompt"], f"{100 * error:.1f} %"])  # fmt: skip
    page += (
        "\n\nA token reads all weights but the embeddings of other positions, which are 0.6% of\n"
        f'them. The column "reading" is the time in which {THREADS} threads that do nothing else\n'
        "read as many bytes as all weights have, the shortest of nine; the share is this time\n"
        "divided by that of a token. The last column shows how much the narrower weights change\n"
        "the logits of the prompt, relative to the norm of the logits. The weights are random.\n\n"
    )
    headers = ["weights", "MB", "reading, ms", "a token, ms", "share", "a prompt, ms", "change"]
    peers = {"transformers": "transformers", "PyTorch": "torch"} if transformers else {}
    page += table(headers, rows) + f"\n\n{common.versions(**peers)} {common.machine()}\n"
    common.show(page, options.save)


if __name__ == "__main__":
    main()
