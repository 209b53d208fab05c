"""Solutions marked in a source: the code for students, without them, and the complete code.

    # BEGIN SOLUTION: return a tuple with one gradient, (dx,)
    return (y * (dy - (dy * y).sum(-1, keepdims=True)),)
    # END SOLUTION

Instead of the marked lines, the student gets
`raise NotImplementedError  # return a tuple with one gradient, (dx,)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_MARKED = re.compile(
    r"^( *)# BEGIN SOLUTION(?:: ([^\n]*))?\n(.*?)^ *# END SOLUTION\n", re.MULTILINE | re.DOTALL
)


def stubbed(text: str) -> str:
    """Return the text with each solution, the lines from # BEGIN SOLUTION to # END SOLUTION,
    replaced by `raise NotImplementedError`."""

    def placeholder(found: re.Match[str]) -> str:
        comment = f"  # {found[2]}" if found[2] else ""
        return f"{found[1]}raise NotImplementedError{comment}\n"

    return _replaced(text, placeholder)


def solved(text: str) -> str:
    """Return the text with its solutions, but without the lines that mark where they begin and
    end."""
    return _replaced(text, lambda found: found[3])


def _replaced(text: str, replacement: Callable[[re.Match[str]], str]) -> str:
    text = _MARKED.sub(replacement, text if text.endswith("\n") else f"{text}\n")
    if re.search(r"# (BEGIN|END) SOLUTION", text):
        first = text.partition("\n")[0]
        raise ValueError(f"a BEGIN SOLUTION without an END SOLUTION, or the reverse, below {first}")
    return text
