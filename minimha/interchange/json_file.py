"""JSON files from outside: read, and checked entry by entry."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """What an entry of a JSON file must be: a description in words, which follow "must be" in
    messages, and a function that tests a value."""

    words: str
    fits: Callable[[Any], bool]

    def or_none(self) -> Kind:
        """A kind that also allows None (in JSON, null)."""
        return Kind(f"None or {self.words}", lambda x: x is None or self.fits(x))


BOOLEAN = Kind("True or False", lambda x: isinstance(x, bool))
STRING = Kind("a string", lambda x: isinstance(x, str))
CHARACTER = Kind("one character", lambda x: isinstance(x, str) and len(x) == 1)
LIST = Kind("a list", lambda x: isinstance(x, list))
OBJECT = Kind("a JSON object", lambda x: isinstance(x, dict))


def integer(least: int) -> Kind:
    """The `Kind` of an entry that is an integer of at least `least`."""
    words = f"an integer of at least {least}"
    return Kind(words, lambda x: isinstance(x, int) and not isinstance(x, bool) and x >= least)


def number(words: str, valid: Callable[[float], bool]) -> Kind:
    """The `Kind` of an entry that is a finite number x for which valid(x) is True; the words
    describe such numbers in messages."""

    def fits(x: Any) -> bool:
        is_number = isinstance(x, int | float) and not isinstance(x, bool)
        return is_number and abs(x) <= sys.float_info.max and valid(x)

    return Kind(words, fits)


def one_of(known: Collection[str]) -> Kind:
    """The `Kind` of an entry that is one of the strings in `known`."""
    return Kind(" or ".join(map(repr, known)), lambda x: isinstance(x, str) and x in known)


def read_json(path: Path, kind: Kind) -> Any:
    """Return what the JSON file at `path` contains. Raises ValueError if the file is not JSON or
    its content is not of this kind, OSError if the file cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if wrong := mistake(str(path), content, kind):
        raise ValueError(wrong)
    return content


def mistake(name: str, value: Any, kind: Kind) -> str:
    """A sentence about the entry called `name`, if its value is not of this kind, or if the entry
    is missing (then its value is `...`); "" if the entry is as it must be."""
    if value is ...:
        return f"{name} is missing"
    return "" if kind.fits(value) else f"{name} is {shown(value)}, but must be {kind.words}"


class Reader:
    """Reads entries of a JSON object, and collects the mistakes of all of them.

    entries  the JSON object, as a dictionary
    where    what stands before the name of an entry in messages, such as "rope_parameters."
    wrong    the mistakes found so far: an attribute, a list of sentences
    """

    def __init__(self, entries: Mapping[str, Any], where: str = "") -> None:
        self.entries, self.where, self.wrong = entries, where, list[str]()
        self._read: set[str] = set()

    def __call__(self, name: str, kind: Kind, default: Any = ...) -> Any:
        """Return the value of an entry, or the default if the entry is absent or not of this kind.
        An entry of another kind is noted as a mistake, and so is an absent entry whose default is
        `...` (Ellipsis): such an entry must be present."""
        self._read.add(name)
        value = self.entries.get(name, default)
        if wrong := mistake(self.where + name, value, kind):
            self.wrong.append(wrong)
            return default
        return value

    def unread(self) -> dict[str, Any]:
        """The entries that have not been read, except those that are None."""
        return {k: x for k, x in self.entries.items() if x is not None and k not in self._read}


def require(path: Path, name: str, value: Any, kind: Kind) -> None:
    """Raise ValueError, with the path of the file, if an entry is missing or not of this kind."""
    if wrong := mistake(name, value, kind):
        raise ValueError(f"{path}: {wrong}")


def shown(value: Any) -> str:
    """A value as text for a message, cut to at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


@contextmanager
def naming(path: Path, names: Mapping[str, str]) -> Iterator[None]:
    """A context manager: a ValueError inside the block is raised again with the path of the file in
    front. In its message, names of a GPT's settings are replaced by the names that the file has for
    them: `names` maps the former to the latter."""
    try:
        yield
    except ValueError as error:
        text = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(error))
        raise ValueError(f"{path}: {text}") from error
