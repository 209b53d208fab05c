"""A task: a function to write, the checks it must pass, and three hints.

    @task(chapter=5, difficulty=2, minutes=15, hints=("…", "…", "…"))
    def softmax(x):
        '''What to write, in the glossary's letters.'''
        # BEGIN SOLUTION: return y and its pullback
        …
        # END SOLUTION

    @softmax.check
    def rows_sum_to_one(yours, rng):
        y, _ = yours(rng.standard_normal((3, 5)))
        same(y.sum(-1), np.ones(3), "the sum of each row")

    softmax.mistake(
        "e.sum(axis=-1, keepdims=True)",
        "e.sum()",
        "e.sum() is the sum of the whole array; each row needs its own: axis=-1, keepdims=True",
    )

The decorated function is the solution and the only copy of it: students get the same text without
the marked lines.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from minimha_autograd.gradcheck import labelled

from . import replay
from .calls import Call, calls_recorded, changed_in_place
from .error_messages import error_message, file_of, line_of
from .forward_calls import limited
from .mistakes import Patch, text_of_mistake
from .solutions import solved as with_solution
from .solutions import stubbed
from .verdicts import FAILED, PASSED, TO_DO, Check, Verdict

TASKS: dict[str, Task] = {}
"""All tasks by name, in the order of the course."""


class Task:
    """A function for students to write. Calling the task calls its solution; in a release, the
    edition for students, which has no solutions, a call returns the recorded result of the
    solution.

    solution  the function that solves the task
    name      the name of this function and of the task
    checks    the checks, in the order in which they run
    mistakes  the common mistakes, in the order in which a wrong answer is compared with them

    chapter, difficulty, minutes, hints and given are the arguments of `task`.
    """

    def __init__(
        self,
        solution: Callable[..., Any],
        chapter: int,
        difficulty: int,
        minutes: int,
        hints: tuple[str, ...],
        given: tuple[Callable[..., Any], ...],
    ) -> None:
        self.solution = solution
        self.answer = solution  # what a call of the task calls: in a release, a replay
        self.given = given
        self.hints = hints
        self.chapter = chapter
        self.difficulty = difficulty
        self.minutes = minutes
        self.checks: list[Check] = []
        self.mistakes: list[Patch] = []
        functools.update_wrapper(self, solution)
        self.name = solution.__name__

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self.answer(*arguments, **settings)

    def check(
        self, holds: Callable[[Any, np.random.Generator], None] | None = None, *,
        weight: float = 1, hidden: bool = False,
    ) -> Any:  # fmt: skip
        """Add a check, a function `holds(yours, rng)` that raises AssertionError if the student's
        function `yours` is wrong. Students read the name of `holds`, with spaces in place of
        underscores. This is a decorator: write @softmax.check or, without `holds`,
        @softmax.check(weight=2).

        weight  of the check in the task's score, relative to the other checks
        hidden  whether `minimha homework release --hidden` leaves out the check
        """
        if holds is None:
            return functools.partial(self.check, weight=weight, hidden=hidden)
        self._add(Check(holds.__name__.replace("_", " "), holds, weight, hidden))
        return holds

    def case(
        self, name: str, holds: Callable[..., None], *cases: tuple[Any, ...], weight: float = 1,
        hidden: bool = False,
    ) -> None:  # fmt: skip
        """Add a check with this name, which calls `holds(yours, rng, *case)` for each of the cases.
        `weight` and `hidden` are as for `check`."""

        def all_hold(yours: Any, rng: np.random.Generator) -> None:
            for case in cases:
                holds(yours, rng, *case)

        self._add(Check(name, all_hold, weight, hidden))

    def _add(self, check: Check) -> None:
        if any(known.name == check.name for known in self.checks):
            raise ValueError(f"{self.name} has two checks called {check.name}")
        self.checks.append(check)

    def mistake(self, old: str, new: str, text: str) -> None:
        """Add a common mistake, which is made by replacing the text `old` by `new` in the solution,
        where `old` occurs once. If a student's function fails a check and returns what the solution
        with this mistake returns, the message shows `text`."""
        self.mistakes.append(Patch(old, new, text))

    def code(self, *, solved: bool = False) -> str:
        """Return the code of the task without imports: the functions that students are given, and
        below them the function that they fill in or, with `solved`, its solution."""
        own = source_of(self.solution)
        functions = [with_solution(source_of(f)) for f in self.given]
        return "\n\n".join([*functions, with_solution(own) if solved else stubbed(own)])

    def verdicts(self, yours: Callable[..., Any], seed: int = 0) -> Iterator[Verdict]:
        """Run the checks on a function, one after another, and yield the verdict of each. The seed
        determines the random inputs."""
        return (self.verdict(check, yours, seed) for check in self.checks)

    def verdict(self, check: Check, yours: Callable[..., Any], seed: int = 0) -> Verdict:
        """Run one check on a student's function, and return the verdict. If the check raises an
        error, the message describes the error. The function gets copies of its arguments, and fails
        if it changes them. The seed determines the random inputs."""
        # In a release, the solutions that this check calls are replays of recorded calls.
        for name, stored in self._stored(check).items():
            TASKS[name].answer = replay.replaying(stored)

        rng = self.rng(check, seed)
        file = file_of(yours)
        calls = list[Call]()
        outcome = PASSED
        message = ""
        try:
            check.holds(calls_recorded(limited(yours), calls), rng)
        except NotImplementedError as error:
            return Verdict(self.name, check, TO_DO, line_of(error, file))
        except (Exception, SystemExit) as error:  # a student's code may raise anything
            outcome = FAILED
            message = error_message(error, file)
            message = self._with_mistake(error, message, calls, check, seed)
            # No line of the student's failed: the function does not take these arguments.
            if isinstance(error, TypeError) and not line_of(error, file):
                message += self._expected_signature(yours)

        if changed := changed_in_place(yours, calls):
            outcome = FAILED
            given = " and ".join(sorted(changed))
            message = (
                f"yours changes {given} in place; it should work on a copy\n{message}".rstrip()
            )
        return Verdict(self.name, check, outcome, message)

    def _stored(self, check: Check) -> dict[str, replay.Calls]:
        return replay.results().get(self.name, {}).get(check.name, {})

    def rng(self, check: Check, seed: int = 0) -> np.random.Generator:
        """Return a new random generator for a check. The seed and the names of the task and of the
        check determine its numbers."""
        return np.random.default_rng([seed, *f"{self.name}: {check.name}".encode()])

    def _with_mistake(
        self, error: BaseException, message: str, calls: list[Call], check: Check, seed: int
    ) -> str:
        """Return the message of a failed check. If one of the common mistakes explains the results
        in `calls`, the recorded calls of the student's function, the description of this mistake
        replaces the guesses in `message` at what is wrong.

        error, check, seed  the error that the check raised, the check, and the seed of its inputs
        """

        def passes_earlier(function: Callable[..., Any]) -> bool:
            """Whether a function passes all checks of the task that come before the failed one."""
            with np.errstate(all="ignore"):
                try:
                    for earlier in self.checks[: self.checks.index(check)]:
                        earlier.holds(function, self.rng(earlier, seed))
                except Exception:  # a mistake fails in any way
                    return False
            return True

        solution = self.code(solved=True)
        text = text_of_mistake(self.mistakes, solution, self.name, calls, passes_earlier)
        facts = getattr(getattr(error, "diagnosis", error), "facts", message)
        return f"{facts}\n{labelled('looks like', text)}" if text else message

    def _expected_signature(self, yours: Callable[..., Any]) -> str:
        """Return a line that quotes the `def` line of the task, for a student's function that does
        not accept the arguments of the solution; "" if it accepts them."""
        taken = inspect.signature(self.solution).parameters.values()
        words = {x.name: None for x in taken if x.kind is x.KEYWORD_ONLY}
        try:
            inspect.signature(yours).bind(*[x.name for x in taken if x.name not in words], **words)
        except TypeError:
            beginning = re.search(rf"^def {self.name}\(.*?\)[^\n]*:$", self.code(), re.M | re.S)
            return f"\n  it should begin  {' '.join(beginning[0].split())}" if beginning else ""
        except ValueError:  # the function has no signature
            pass
        return ""


def task(
    *,
    chapter: int,
    difficulty: int,
    minutes: int,
    hints: tuple[str, ...],
    given: tuple[Callable[..., Any], ...] = (),
) -> Callable[[Callable[..., Any]], Task]:
    """Return a decorator that turns a solution into a Task; the top of this file shows how.

    chapter     the number of its chapter
    difficulty  1 to 3
    minutes     roughly how long a student needs
    hints       three: where to look, what to do, almost the code; a release has the first two
    given       functions that the student's file starts with

    Raises ValueError for a second task of the same name.
    """

    def made(solution: Callable[..., Any]) -> Task:
        new = Task(solution, chapter, difficulty, minutes, hints, given)
        if known := TASKS.get(new.name):
            raise ValueError(f"there is a task {new.name} already, of chapter {known.chapter}")
        TASKS[new.name] = new
        return new

    return made


def source_of(function: Callable[..., Any]) -> str:
    """Return the source of a function without its decorators."""
    text = textwrap.dedent(inspect.getsource(function))
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.FunctionDef)
    return "".join(text.splitlines(keepends=True)[node.lineno - 1 :])
