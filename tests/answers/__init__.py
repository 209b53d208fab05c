"""Right and wrong answers to the homework, written only from the texts of the tasks.

They share no code with the solutions, so they measure what matters to students: whether a right
answer in any style passes, and whether the message about a wrong one names the mistake.

A file of a chapter goes from task to task. `unusual` and `blind` hold answers to all chapters that
were written in another way.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from minimha import homework
from minimha.homework.checks.verdicts import FAILED, Verdict


@dataclass(frozen=True)
class Answer:
    """The text of a function as a student would write it below `import numpy as np`.

    mistake  what is wrong with it; empty for a right answer
    words    a regular expression: a message that names the mistake contains it, in any case
    edited   the text of the answer that it is an edit of; empty if it is none
    """

    task: str
    text: str
    mistake: str = ""
    words: str = ""
    edited: str = ""

    def wrong(self, mistake: str, words: str, *edits: str) -> Answer:
        """Add a wrong answer: this one with edits, old, new, old, new …, each applied everywhere."""
        text = self.text
        for old, new in zip(edits[::2], edits[1::2], strict=True):
            assert old in text, (
                f"the answer {mistake!r} to {self.task} in tests/answers: {old!r} is not in the text "
                "of the right answer that it edits"
            )
            text = text.replace(old, new)
        return wrong(self.task, mistake, words, text, self.text)

    def code(self):
        """The text of the student's file, which starts with what the task gives."""
        return homework.course()[self.task].code().rpartition(f"def {self.task}(")[0] + self.text

    def where(self) -> str:
        """The file of answers to this chapter, for messages."""
        return f"tests/answers/ch{homework.course()[self.task].chapter:02}.py, {self.task}"

    def verdicts(self) -> list[Verdict]:
        with _quietly():
            return list(self._checked())

    def failure(self) -> Verdict | None:
        """The verdict of the first check that fails, if one does; no later check runs."""
        with _quietly():
            return next((v for v in self._checked() if v.outcome == FAILED), None)

    def _checked(self) -> Iterator[Verdict]:
        task = homework.course()[self.task]
        return task.verdicts(function(task.name, self.code()))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


RIGHT: list[Answer] = []
WRONG: list[Answer] = []


def right(task: str, *texts: str) -> list[Answer]:
    """Add right answers. Returns them, for wrong ones to edit."""
    answers = [Answer(task, text) for text in texts]
    RIGHT.extend(answers)
    return answers


def wrong(task: str, mistake: str, words: str, text: str, edited: str = "") -> Answer:
    """Add a wrong answer. Returns it, for others to edit."""
    WRONG.append(Answer(task, text, mistake, words, edited))
    return WRONG[-1]


def function(name: str, code: str):
    """The function of this name that the text defines, as in a student's file."""
    names, lines = {"np": np}, code.splitlines(keepends=True)
    linecache.cache["answer.py"] = len(code), None, lines, "answer.py"
    exec(compile(code, "answer.py", "exec"), names)
    return names[name]


def mistakes_of(task) -> str:
    """The file with the mistakes of a task."""
    return f"minimha/homework/tasks/ch{task.chapter:02}_mistakes.py"


def misfit(task) -> str:
    """The first mistake of a task that is not an edit of one place of its solution; "" if none is."""
    right = task.code(solved=True)
    for mistake in task.mistakes:
        where = f"{mistakes_of(task)}, {task.name}, “{mistake.text}”: "
        times = right.count(mistake.old)
        if times != 1:
            advice = "the lines with − must stand there exactly once"
            return f"{where}{mistake.old!r} is in the solution {times} times: {advice}"
        try:
            wrong = ast.parse(mistake.made_in(right))
        except SyntaxError as error:
            return f"{where}the edited solution is not Python: {error}"
        if ast.dump(wrong) == ast.dump(ast.parse(right)):
            return f"{where}the edit changes nothing"
    return ""


from . import (  # noqa: E402, F401
    blind,
    ch01,
    ch02,
    ch03,
    ch04,
    ch05,
    ch06,
    ch07,
    ch08,
    ch09,
    ch10,
    ch11,
    ch12,
    ch13,
    ch14,
    ch15,
    unusual,
)
