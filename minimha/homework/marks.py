"""Solutions marked in a source: the text that a student gets, and the one with the solution.

    # BEGIN SOLUTION: return a tuple with one gradient, (dx,)
    return (y * (dy - (dy * y).sum(-1, keepdims=True)),)
    # END SOLUTION

The student gets `raise NotImplementedError  # return a tuple with one gradient, (dx,)` instead.
"""

from __future__ import annotations

import re

_MARKED = re.compile(
    r"^( *)# BEGIN SOLUTION(?:: ([^\n]*))?\n(.*?)^ *# END SOLUTION\n", re.MULTILINE | re.DOTALL
)


def stubbed(text: str) -> str:
    """The text with each marked solution replaced by a line that is to do."""

    def to_do(found: re.Match[str]) -> str:
        comment = f"  # {found[2]}" if found[2] else ""
        return f"{found[1]}raise NotImplementedError{comment}\n"

    return _checked(_MARKED.sub(to_do, _ended(text)))


def unmarked(text: str) -> str:
    """The text with its solutions, without the marks."""
    return _checked(_MARKED.sub(lambda found: found[3], _ended(text)))


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _checked(text: str) -> str:
    if re.search(r"# (BEGIN|END) SOLUTION", text):
        raise ValueError(f"a solution that begins and does not end, or the reverse:\n{text}")
    return text
