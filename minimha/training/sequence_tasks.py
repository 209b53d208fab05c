"""Three tasks that turn one text into another: copying words, reversing them, and adding numbers.

    >hello -> hello        <hello -> olleh        27+58 -> 85

The digits of a sum are in the usual order, so its first digit needs the carry from the last ones.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from minimha_autograd import Tensor, backend
from minimha_autograd.backend import Array, namespace

from .. import masks
from ..functional import cross_entropy
from ..nn import AdamW, clip_gradients, decay_groups, warmup_cosine
from ..transformers import EncoderDecoder, greedy_decode
from .loop import tokens_for

SYMBOLS = "^$<>+" + string.digits + string.ascii_lowercase
START, END = 0, 1
"""The tokens before and after each target; END also fills up short texts."""
Pair = tuple[str, str]


def words(count: int, longest: int, rng: np.random.Generator) -> list[str]:
    """`count` distinct random words of 1 to `longest` letters. In each draw all lengths are equally
    likely, but a word that was drawn before is dropped: so few words are very short."""
    found: dict[str, None] = {}  # a dictionary keeps the order, which a set does not
    while len(found) < count:
        letters = rng.choice(list(string.ascii_lowercase), rng.integers(1, longest + 1))
        found["".join(letters)] = None
    return list(found)


def copying(count: int, *, longest: int = 6, rng: np.random.Generator | int = 0) -> list[Pair]:
    """Pairs such as (">hello", "hello"), from `count` distinct words of 1 to `longest` letters.
    rng, a generator or a seed, draws the words."""
    return [(f">{word}", word) for word in words(count, longest, np.random.default_rng(rng))]


def reversing(count: int, *, longest: int = 6, rng: np.random.Generator | int = 0) -> list[Pair]:
    """Pairs such as ("<hello", "olleh"), from `count` distinct words of 1 to `longest` letters.
    rng, a generator or a seed, draws the words."""
    return [(f"<{word}", word[::-1]) for word in words(count, longest, np.random.default_rng(rng))]


def adding() -> list[Pair]:
    """Pairs such as ("27+58", "85"): all 8100 sums of two numbers from 10 to 99."""
    return [(f"{a}+{b}", f"{a + b}") for a in range(10, 100) for b in range(10, 100)]


def hold_out(
    pairs: Sequence[Pair], rng: np.random.Generator | int = 0
) -> tuple[list[Pair], list[Pair]]:
    """Divide the pairs (source, target) into two lists: those to train on, and about a tenth,
    which rng, a generator or a seed, draws, to keep out of the training.

    27+58 and 58+27 are held out together, because a model that has seen one could answer the other
    from memory.
    """
    groups: dict[tuple[str, ...], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(tuple(sorted(pair[0].split("+"))), []).append(pair)
    order = [list(groups.values())[k] for k in np.random.default_rng(rng).permutation(len(groups))]
    count = round(0.1 * len(order))
    train, held_out = (list(chain(*part)) for part in (order[count:], order[:count]))
    return train, held_out


def encode(texts: Sequence[str]) -> np.ndarray:
    """The texts as an array of tokens (N, length of the longest text). A token is the index of a
    character in SYMBOLS; shorter texts are filled up with the token END."""
    tokens = np.full((len(texts), max(map(len, texts))), END)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = [SYMBOLS.index(c) for c in text]
    return tokens


def arrays(pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of the sources (N, S), and of the targets (N, T + 1), for N pairs (source,
    target). Each target begins with the token START and ends with END."""
    return encode([source for source, _ in pairs]), encode([f"^{target}$" for _, target in pairs])


def padding(source: Array) -> masks.Mask:
    """The mask that hides the END tokens, which fill up the shorter ones of the sources (B, S)."""
    xp = namespace(source)
    return masks.padding(xp.sum(xp.astype(source != END, xp.int64), axis=1))


def loss(model: EncoderDecoder, source: np.ndarray, target: np.ndarray) -> Tensor:
    """The cross entropy, in nats per token, of the model on sources (B, S) and targets (B, T + 1)
    from `arrays`: the targets begin with START.

    The decoder reads target[:, :-1] and predicts target[:, 1:]. After END there is nothing to
    predict, so these positions do not count.
    """
    inputs, targets = target[:, :-1], target[:, 1:]
    counts = np.nonzero(inputs != END)
    source, inputs, targets = (tokens_for(model, x) for x in (source, inputs, targets[counts]))
    return cross_entropy(model(source, inputs, padding(source))[counts], targets)


def train(
    model: EncoderDecoder,
    pairs: Sequence[Pair],
    *,
    steps: int,
    batch: int = 256,
    lr: float = 7e-3,
    rng: np.random.Generator | int = 0,
) -> Iterator[float]:
    """Train with AdamW on random batches of `batch` pairs each, and yield the loss of each step.
    rng, a generator or a seed, draws the batches.

    The learning rate rises to lr over 100 steps, or a fifth of all steps if that is less, then
    falls along a cosine towards 0.
    """
    rng = np.random.default_rng(rng)
    sources, targets = arrays(pairs)
    optimiser = AdamW(decay_groups(model, 0.1), betas=(0.9, 0.98))
    for step in range(steps):
        optimiser.lr = warmup_cosine(
            step, steps=steps, warmup=min(100, steps // 5), lr=lr, min_lr=0.0
        )
        optimiser.zero_grad()
        chosen = rng.integers(0, len(pairs), batch)
        value = loss(model, sources[chosen], targets[chosen])
        value.backward()
        clip_gradients(optimiser.parameters, 1.0)
        optimiser.step()
        yield value.item()


def answers(model: EncoderDecoder, sources: Sequence[str], count: int = 16) -> list[str]:
    """A list with the text that the model decodes for each of the sources, texts such as ">hello":
    up to `count` characters each."""
    tokens = tokens_for(model, encode(sources))
    decoded = greedy_decode(model, tokens, padding(tokens), start=START, end=END, count=count)
    rows = backend.to_numpy(decoded)
    return ["".join(SYMBOLS[c] for c in row).partition("$")[0] for row in rows]


def mistakes(model: EncoderDecoder, pairs: Sequence[Pair]) -> list[tuple[str, str, str]]:
    """A list of (source, target, answer) for the pairs whose answer is not exactly the target."""
    answered = zip(pairs, answers(model, [source for source, _ in pairs]), strict=True)
    return [(*pair, answer) for pair, answer in answered if answer != pair[1]]
