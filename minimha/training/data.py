"""Data to train on: texts, their tokens, batches of windows, and a bigram baseline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..interchange.pretrained_tokenizer import package

_SHAKESPEARE = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
)
_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
REFERENCE = "python_reference.txt"
"""The file that stands for the language reference in a browser, beside the chapters."""


def python_reference() -> str:
    """The documentation of the Python language, as `help()` shows it: real text that comes with
    Python, without a download.

    It differs between versions of Python. A browser's Python comes without it; there it is read
    from the file python_reference.txt in the current folder, which is that of the chapters. Raises
    ValueError if there is neither the documentation nor the file.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        if Path(REFERENCE).exists():
            return read_text(REFERENCE)
        raise ValueError("this Python has no language reference: use a text file") from error
    return "\n".join(topics[name] for name in sorted(topics))


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file.

    Raises ValueError for a file that is missing, unreadable, empty or not text.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    if "\0" in text:
        raise ValueError(f"{path} is binary, not text")
    if not text.strip():
        raise ValueError(f"{path} is empty")
    return text


def shakespeare() -> str:
    """Tiny Shakespeare: 1,115,394 characters of his plays, the text of Karpathy's char-rnn (2015).

    The first call downloads the file and checks its SHA-256; later calls read it from the user's
    cache folder. Raises ValueError if the download fails or its checksum is wrong, RuntimeError if
    the package pooch is not installed.
    """
    pooch = package("pooch")
    pooch.get_logger().setLevel("WARNING")
    try:
        path = pooch.retrieve(
            _SHAKESPEARE, f"sha256:{_SHA256}", "tiny-shakespeare.txt", pooch.os_cache("minimha")
        )
    except OSError as error:  # as all errors of the network
        raise ValueError(
            f"cannot download {_SHAKESPEARE}: connect to the network once, or use another text"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{_SHAKESPEARE} is not the expected text: its SHA-256 differs from {_SHA256}"
        ) from error
    return read_text(path)


class CharacterTokenizer:
    """A tokenizer whose vocabulary is the distinct characters of a text, sorted. A token is the
    index of a character.

    stop  the tokens that end a text: an empty tuple, since no character does
    """

    stop: tuple[int, ...] = ()

    def __init__(self, text: Iterable[str]) -> None:
        self.characters = sorted(set(text))
        self._index = {c: k for k, c in enumerate(self.characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> np.ndarray:
        """The tokens (T,) of a text. Raises ValueError for a character that has none."""
        for c in text:
            if c not in self._index:
                raise ValueError(f"{c!r} is not among the {len(self)} characters of the vocabulary")
        return np.array([self._index[c] for c in text], dtype=np.int64)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens (T,)."""
        return "".join(self.stream(tokens))

    def stream(self, tokens: Iterable[int], prompt: Iterable[int] = ()) -> Iterator[str]:
        """Yield the character of each token as it arrives. The prompt, which
        `PretrainedTokenizer.stream` needs, is ignored."""
        return (self.characters[k] for k in tokens)


class Split(NamedTuple):
    """The tokens to train on, and those at the end of the text for validation."""

    train: np.ndarray
    validation: np.ndarray


def split(tokens: np.ndarray, context: int, fraction: float = 0.1) -> Split:
    """Divide the tokens (N,) of a text: the last fraction · N of them are for validation, but at
    least context + 1, enough for one window of `context` tokens and its targets.

    Raises ValueError if either part would have fewer than context + 1 tokens.
    """
    held_out = max(int(fraction * len(tokens)), context + 1)
    if len(tokens) - held_out < context + 1:
        raise ValueError(
            f"the text has {len(tokens)} characters: a context of {context} needs at least "
            f"{2 * (context + 1)}, half to train on and half to validate on: use a longer text"
        )
    return Split(tokens[:-held_out], tokens[-held_out:])


def random_batches(
    tokens: np.ndarray, *, batch: int, context: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pairs (inputs, targets), both (B, T) with B = batch and T = context, without end. Each
    row of inputs is a window of the text, tokens (N,), that begins at a random token; its targets
    begin one token later. rng draws where windows begin."""
    while True:
        starts = rng.integers(0, len(tokens) - context, size=batch)
        windows = tokens[starts[:, None] + np.arange(context + 1)]
        yield windows[:, :-1], windows[:, 1:]


def windows(tokens: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut the tokens of a text into N consecutive windows of T = context tokens. Returns
    (inputs, targets), both (N, T).
    The targets of a window begin one token later than its inputs. Tokens at the end that do not
    fill a window are left out."""
    count = (len(tokens) - 1) // context
    starts = context * np.arange(count)[:, None]
    every = tokens[starts + np.arange(context + 1)]
    return every[:, :-1], every[:, 1:]


def bigram_loss(parts: Split, vocabulary: int) -> float:
    """Cross entropy, in nats, of a bigram table on the validation tokens; parts is from `split`.

    p(b | a) = (count(a, b) + 0.1) / (count(a) + 0.1 · V), where V = vocabulary is the number of
    different tokens, is the probability that token b follows token a; the counts are those of the
    training tokens. A baseline for models that see more than the last character.
    """
    p = np.full((vocabulary, vocabulary), 0.1)
    np.add.at(p, (parts.train[:-1], parts.train[1:]), 1)
    p /= p.sum(axis=1, keepdims=True)
    return float(-np.mean(np.log(p[parts.validation[:-1], parts.validation[1:]])))
