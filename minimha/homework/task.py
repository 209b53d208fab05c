"""A task: a function to write, what must hold of it, and three hints.

    @task(chapter=5, difficulty=2, minutes=15, hints=("…", "…", "…"))
    def softmax(x):
        '''What is to be written, in the glossary's letters.'''
        # BEGIN SOLUTION: return y and its pullback
        …
        # END SOLUTION

    @softmax.check
    def rows_sum_to_one(yours, rng):
        y, _ = yours(rng.standard_normal((3, 5)))
        same(y.sum(-1), np.ones(3), "the sum of each row")

The function is the solution, and the only place where it is written: students get the same text
with the marked lines taken out.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .marks import stubbed, unmarked
from .told import file_of, line_of, told, watched

TASKS: dict[str, Task] = {}
"""All tasks by name, in the order of the course."""
PASSED, FAILED, TO_DO = "ok", "wrong", "to do"


@dataclass(frozen=True)
class Check:
    """Something that must hold: `holds(yours, rng)` raises an AssertionError where it does not."""

    name: str
    holds: Callable[[Any, np.random.Generator], None]
    weight: float


@dataclass(frozen=True)
class Verdict:
    """How one check of one function went: outcome is PASSED, FAILED or TO_DO."""

    task: str
    check: Check
    outcome: str
    message: str = ""


class Task:
    """A function to write. Called, it is its own solution.

    chapter, difficulty (1 to 3), minutes, hints (three, each telling more) and given (functions
    that the student gets as they are) as they were said; checks in the order to be passed.
    """

    def __init__(
        self,
        solution: Callable[..., Any],
        chapter: int,
        difficulty: int,
        minutes: int,
        hints: tuple[str, str, str],
        given: tuple[Callable[..., Any], ...],
    ) -> None:
        self.solution, self.given, self.hints = solution, given, hints
        self.chapter, self.difficulty, self.minutes = chapter, difficulty, minutes
        self.checks: list[Check] = []
        functools.update_wrapper(self, solution)
        self.name = solution.__name__

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self.solution(*arguments, **settings)

    def check(
        self, holds: Callable[[Any, np.random.Generator], None] | None = None, *, weight: float = 1
    ) -> Any:
        """Add a check: `holds(yours, rng)`, whose name says what it states.

        weight  of the check in the score of the task, relative to the other checks
        """
        if holds is None:
            return functools.partial(self.check, weight=weight)
        self.checks.append(Check(holds.__name__.replace("_", " "), holds, weight))
        return holds

    def code(self, *, solved: bool = False) -> str:
        """What the student gets, or with solved what was meant: the functions, without imports."""
        own = _source(self.solution)
        functions = [unmarked(_source(f)) for f in self.given]
        return "\n\n".join([*functions, unmarked(own) if solved else stubbed(own)])

    def verdicts(self, yours: Callable[..., Any], seed: int = 0) -> Iterator[Verdict]:
        """Check a function, one check after the other."""
        return (self.verdict(check, yours, seed) for check in self.checks)

    def verdict(self, check: Check, yours: Callable[..., Any], seed: int = 0) -> Verdict:
        """Whether this check holds of a function, which leaves its arguments as they are; what it
        raises becomes a message."""
        rng = np.random.default_rng([seed, *f"{self.name}: {check.name}".encode()])
        file, changed = file_of(yours), set[str]()
        outcome, message = PASSED, ""
        try:
            check.holds(watched(yours, changed), rng)
        except NotImplementedError as error:
            return Verdict(self.name, check, TO_DO, line_of(error, file))
        except (Exception, SystemExit) as error:  # whatever a student's code does
            outcome, message = FAILED, told(error, file)
            if isinstance(error, TypeError) and not line_of(error, file):
                message += self._misfit(yours)
        if changed and "in place" not in message:
            given = " and ".join(sorted(changed))
            message = f"{self.name} changes {given} in place: work on a copy\n{message}".rstrip()
            outcome = FAILED
        return Verdict(self.name, check, outcome, message)

    def _misfit(self, yours: Callable[..., Any]) -> str:
        """How the function should begin, if it does not take the arguments of the task."""
        taken = inspect.signature(self.solution).parameters.values()
        words = {x.name: None for x in taken if x.kind is x.KEYWORD_ONLY}
        try:
            inspect.signature(yours).bind(*[x.name for x in taken if x.name not in words], **words)
        except TypeError:
            beginning = re.search(rf"^def {self.name}\(.*?\)[^\n]*:$", self.code(), re.M | re.S)
            return f"\n  it should begin  {' '.join(beginning[0].split())}" if beginning else ""
        except ValueError:  # it has no signature
            pass
        return ""


def task(
    *,
    chapter: int,
    difficulty: int,
    minutes: int,
    hints: tuple[str, str, str],
    given: tuple[Callable[..., Any], ...] = (),
) -> Callable[[Callable[..., Any]], Task]:
    """Make a task of its solution; see the top of this file.

    chapter     number of the chapter that it belongs to
    difficulty  1 to 3
    minutes     that a student needs, about
    hints       three: where to look, what to do, nearly how it is written
    given       functions that the student's file starts with

    Raises ValueError for a second task of the same name.
    """

    def made(solution: Callable[..., Any]) -> Task:
        new = Task(solution, chapter, difficulty, minutes, hints, given)
        if new.name in TASKS:
            raise ValueError(f"there is a task {new.name} already, of chapter {chapter}")
        TASKS[new.name] = new
        return new

    return made


def _source(function: Callable[..., Any]) -> str:
    """The text of a function, without its decorators."""
    text = textwrap.dedent(inspect.getsource(function))
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.FunctionDef)
    return "".join(text.splitlines(keepends=True)[node.lineno - 1 :])
