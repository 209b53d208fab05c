"""`minimha homework questions`: oral questions about a student's own functions, with the answers.

If a student's line contains what a common mistake changes, the question is what would happen with
the mistake. Other questions ask for the shape of an array: a copy of the student's function, which
notes the shapes of its variables, runs confined on the arguments of a check.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import math
import random
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..checks import replay
from ..checks.calls import Call, calls_recorded
from ..checks.task import Task
from ..student.answers import decoded, is_stub
from ..student.student_files import WIDTH
from .chosen import add_only, chosen
from .grading import find
from .grading.connection import ConnectionLost
from .grading.process import Limits, Submission
from .grading.submissions import Answer
from .scores import printable

COUNT = 3
_WATCH = """
import numpy as _numpy


def _see(name, line, x, _seen={{}}):
    if isinstance(x, _numpy.ndarray):
        _seen.setdefault((name, line), x.shape)
    return [(*key, shape) for key, shape in _seen.items()]


def _shapes(*arguments):
    result = {name}(*arguments)
    if isinstance(result, tuple) and len(result) == 2 and callable(result[1]):
        result[1](_numpy.ones(_numpy.shape(result[0])))
    return _see("", 0, None)
"""
"""Code that is added to the source of a function: `_see` notes the shape of an array; `_shapes`
calls the function and its pullback, and returns what was noted."""


class Question(NamedTuple):
    """A question about a line of a student's file.

    file    the name of the file
    line    the number of the line
    code    the line itself
    text    the question
    answer  the expected answer; "" for a question with many good answers
    """

    file: str
    line: int
    code: str
    text: str
    answer: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `questions` to the parser."""
    parser.add_argument("student", metavar="STUDENT", help="the name, as grade writes it")
    parser.add_argument(
        "--from", dest="folder", type=Path, default=Path(), metavar="FOLDER",
        help="the folder that you grade (default: this folder)",
    )  # fmt: skip
    add_only(parser)


def print_questions(options: Any) -> int:
    """Print questions about the answers of the student `options.student`. Returns 0, the exit
    status of the command.

    Raises ValueError if there is no such student or nothing to ask about, and in the students'
    edition, which has no solutions; OSError for files that cannot be read.
    """
    if replay.results():
        raise ValueError("questions need the teacher's copy of minimha, which has the solutions")
    tasks = {task.name: task for task in chosen(options.only)}
    found, _ = find(options.folder, {name: task.chapter for name, task in tasks.items()})
    names = {printable(name): name for name in found}
    if options.student not in names:
        near = difflib.get_close_matches(options.student, names, 1)
        advice = f": did you mean {near[0]}?" if near else ""
        raise ValueError(f"no student in {options.folder} is called {options.student!r}{advice}")
    answers = found[names[options.student]]
    asked = questions(options.student, {tasks[name]: answers[name] for name in answers})
    if not asked:
        raise ValueError(f"{options.student} has written nothing to ask about")
    for number, question in enumerate(asked, 1):
        sys.stdout.write(f"{number}. {_printed(question)}\n")
    return 0


def _printed(question: Question) -> str:
    where = question.file + f", line {question.line}" * question.file.endswith(".py")
    lines = [where, f"       {question.code.strip()}", textwrap.indent(question.text, "   ")]
    if question.answer:
        answer = textwrap.fill(question.answer, WIDTH - 11, break_on_hyphens=False)
        lines.append(f"   answer  {textwrap.indent(answer, ' ' * 11).lstrip()}")
    return printable("\n".join([*lines, ""]), keep="\n")


def questions(student: str, answers: dict[Task, Answer]) -> list[Question]:
    """Return three questions about a student's answers, the same each time; fewer if the answers
    have too few lines. If possible, the questions are about different lines, and about lines that
    the student wrote rather than lines of the code that all students get."""
    order = random.Random(student)
    distinct, repeated = list[Question](), list[Question]()
    written = {
        task: answer
        for task, answer in answers.items()
        if not answer.problem and not is_stub(answer.source)
    }
    for given in (False, True):
        edits, shapes, others = list[Question](), list[Question](), list[Question]()
        for task, answer in written.items():
            lines = _lines(task, answer, given=given)
            edits += _on_mistakes(task, lines)
            shapes += _on_shapes(task, answer, lines)
            what = "What does this line do, and what would happen without it?"
            others += [Question(*x, what) for x in lines if re.search(r"=|\breturn\b", x[2])]
        for kind in (edits, shapes, others):
            order.shuffle(kind)
        mixed = [*edits[: COUNT - 1], *shapes[:1], *edits, *shapes, *others]
        first = dict[tuple[str, int], Question]()
        for question in mixed:
            first.setdefault((question.file, question.line), question)
        distinct += first.values()
        repeated += mixed
    return list(dict.fromkeys([*distinct, *repeated]))[:COUNT]


def _lines(task: Task, answer: Answer, *, given: bool) -> list[tuple[str, int, str]]:
    """Return lines of the answer and its modules: the file, the number and the text of each. With
    given=True, these are the lines that also occur in the code that all students get; with
    given=False, all others. Imports, comments and empty lines are left out."""
    files = {answer.path.name: answer.source} | dict(answer.modules)
    theirs = {line.strip() for line in task.code().splitlines()}
    return [
        (file, k, line)
        for file, source in files.items()
        for k, line in enumerate(decoded(source).splitlines(), 1)
        if (line.strip() in theirs) == given and re.match(r"\s*(?!#|import |from )\S", line)
    ]


def _on_mistakes(task: Task, lines: list[tuple[str, int, str]]) -> Iterator[Question]:
    """Yield a question for each common mistake that can be made in one of these lines, as `_lines`
    returns them: what would happen if the line contained the mistake?"""
    solution = task.code(solved=True)
    for mistake in task.mistakes:
        before = solution[: solution.index(mistake.old)].rpartition("\n")[2]
        margin = " " * (len(before) - len(before.lstrip()))
        for file, k, line in lines:
            if mistake.old.replace(" ", "") in line.replace(" ", ""):
                new = textwrap.indent(textwrap.dedent(margin + mistake.new), "    ")
                text = f"What would happen with\n{new}\nin place of\n    {mistake.old}"
                yield Question(file, k, line, text, mistake.text)


def _on_shapes(task: Task, answer: Answer, lines: list[tuple[str, int, str]]) -> Iterator[Question]:
    """Yield a question for each array that the answer assigns to a variable in one of these lines,
    as `_lines` returns them: which shape does the array have?"""
    own = {k: line for file, k, line in lines if file == answer.path.name}
    calls = list[Call]()
    for check in task.checks:
        if not any(map(_plain, calls)):
            check.holds(calls_recorded(task.solution, calls), task.rng(check))
    names = task.solution.__code__.co_varnames
    arguments = max((call.arguments for call in calls if _plain(call)), key=_worth, default=())
    given = ", ".join(
        f"{name} has shape {x.shape}"
        for name, x in zip(names, arguments, strict=False)
        if isinstance(x, np.ndarray)
    )
    for name, k, shape in _seen(task, answer, arguments) if given else ():
        if k in own:
            text = textwrap.fill(f"{given}. What is the shape of {name}?", WIDTH - 3)
            yield Question(answer.path.name, k, own[k], text, str(shape))


def _plain(call: Call) -> bool:
    """Whether a call can be repeated: its arguments are arrays and numbers, and it has no keyword
    arguments, except perhaps `tap`."""
    return set(call.settings) <= {"tap"} and all(
        isinstance(x, np.ndarray | int | float) for x in call.arguments
    )


def _worth(arguments: tuple[Any, ...]) -> tuple[int, int]:
    """Return a key that says how good a call with these arguments is for a question: more distinct
    sizes are better, then fewer entries."""
    sizes = [n for x in arguments if isinstance(x, np.ndarray) for n in x.shape]
    return len({*sizes} - {1}), -math.prod(sizes)


def _seen(
    task: Task, answer: Answer, arguments: tuple[Any, ...]
) -> list[tuple[str, int, tuple[int, ...]]]:
    """Call the function of the answer with these arguments, and return the name of each variable to
    which it assigns an array, the number of the line and the shape of the array; empty if the call
    fails."""
    try:
        tree = ast.fix_missing_locations(_Watched().visit(ast.parse(answer.source)))
        source = ast.unparse(tree) + _WATCH.format(name=task.name)
        with Submission(source.encode(), "_shapes", Limits(), answer.modules) as submission:
            seen = submission.function()(*arguments)
        return [(str(name), int(line), tuple(shape)) for name, line, shape in seen]
    except (Exception, ConnectionLost):  # whatever a student's code does
        return []


class _Watched(ast.NodeTransformer):
    """Adds, after each assignment to a variable, a call that notes the shape of its value."""

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        inside = (x for target in node.targets for x in ast.walk(target))
        names = [x.id for x in inside if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)]
        calls = (f"_see({name!r}, {node.lineno}, {name})" for name in names)
        return [node, *(ast.parse(call).body[0] for call in calls)]
