"""Right and wrong answers to the homework, written only from the texts of the tasks.

They share no code with the solutions, so they measure what matters to students: whether a right
answer in any style passes, and whether the message about a wrong one names the mistake.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """The text of a function as a student would write it below `import numpy as np`.

    mistake  what is wrong with it; empty for a right answer
    words    a regular expression: a message that names the mistake contains it, in any case
    """

    task: str
    text: str
    mistake: str = ""
    words: str = ""


RIGHT: list[Answer] = []
WRONG: list[Answer] = []


def right(task: str, text: str) -> str:
    """Add a right answer. Returns its text, for wrong ones to edit."""
    RIGHT.append(Answer(task, text))
    return text


def wrong(task: str, mistake: str, words: str, text: str, *edits: str) -> None:
    """Add a wrong answer: a text with edits, old, new, old, new …, each applied everywhere."""
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        assert old in text, f"{task}, {mistake}: {old!r} is not in the text"
        text = text.replace(old, new)
    WRONG.append(Answer(task, text, mistake, words))


from . import ch01, ch02, ch03, ch04, ch05, ch06, ch07, ch08, ch09, ch10, ch11, ch12, ch13  # noqa: E402, F401
