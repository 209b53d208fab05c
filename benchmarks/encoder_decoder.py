"""The paper's encoder-decoder learns to copy, to reverse and to add, all three in one run.

python benchmarks/encoder_decoder.py [--quick] [--save docs/measured/encoder_decoder.md]

For each seed a new model is trained, and then decodes every item that was held out. A run counts as
successful if each answer is exact. The time is that of training and decoding.
"""

from __future__ import annotations

import time

import common
from common import table

THREADS = 2
common.blas_threads(THREADS)  # before NumPy is loaded
import minimha as mh
from minimha.training import sequence_tasks as tasks

SIZES = {"d_model": 64, "num_heads": 4, "num_layers": 2}
STEPS, BATCH, LR, WORDS, SEEDS = 1500, 256, 7e-3, 4000, 5
BOUND = 120.0  # seconds
TITLE = f"""# The encoder-decoder copies, reverses and adds

`python benchmarks/encoder_decoder.py`. One model with the architecture of "Attention Is All You
Need" learns three tasks at once: to copy words (`>hello` → `hello`), to reverse them (`<hello` →
`olleh`), and to add numbers of two digits (`27+58` → `85`, with the digits in the usual order).
Words have 1 to 6 letters. The items are {WORDS} words for each of the first two tasks and all 8100
sums. A random tenth of each task is held out and never seen in training; 27+58 and 58+27 are held
out together.

Encoder and decoder each have {SIZES["num_layers"]} blocks of width {SIZES["d_model"]} with
{SIZES["num_heads"]} heads, with the norm after each sum, ReLU and sinusoidal positions, and no
dropout. Training takes {STEPS} steps with batches of {BATCH} items, AdamW (betas 0.9 and 0.98,
decay 0.1 on matrices), gradients clipped at 1, and a learning rate that rises to {LR} over 100
steps and falls to 0 along a cosine. An answer counts only if every character is right. Training and
decoding should take at most {BOUND:g} s on {THREADS} cores.

"""


def run(seed: int, steps: int) -> tuple[float, dict[str, tuple[int, int]]]:
    """Train and decode once: the seconds, and (wrong answers, all answers) for each task."""
    start = time.perf_counter()
    items = {
        "copy": tasks.copying(WORDS, rng=seed),
        "reverse": tasks.reversing(WORDS, rng=seed + SEEDS),
        "add": tasks.adding(),
    }
    splits = {name: tasks.hold_out(pairs, rng=seed) for name, pairs in items.items()}
    model = mh.EncoderDecoder(len(tasks.SYMBOLS), **SIZES, rng=seed)
    pairs = [pair for train, _ in splits.values() for pair in train]
    for _ in tasks.train(model, pairs, steps=steps, batch=BATCH, lr=LR, rng=seed):
        pass
    counts = {
        name: (len(tasks.mistakes(model, held_out)), len(held_out))
        for name, (_, held_out) in splits.items()
    }
    return time.perf_counter() - start, counts


def main() -> None:
    options = common.arguments(__doc__, quick="one seed and 10 steps").parse_args()
    where = common.machine()
    results = [
        run(seed, 10 if options.quick else STEPS) for seed in range(1 if options.quick else SEEDS)
    ]
    rows = [
        [str(seed), f"{seconds:.1f}", *(f"{n - wrong} of {n}" for wrong, n in counts.values())]
        for seed, (seconds, counts) in enumerate(results)
    ]
    text = TITLE + table(["seed", "time, s", *results[0][1]], rows)
    longest = max(seconds for seconds, _ in results)
    missed = sum(wrong for _, counts in results for wrong, _ in counts.values())
    text += f"\n\nThe longest run took {longest:.1f} s; the bound {common.verdict(longest, BOUND)}."
    text += f" Wrong answers in all runs: {missed}; the bound {common.verdict(missed, 0)}."
    text += f"\n\n{where} {common.versions()}\n"
    common.show(text, options.save)


if __name__ == "__main__":
    main()
