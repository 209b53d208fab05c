"""A task to grade, verdicts on submissions to it, and the files and options of commands."""

import argparse
import json
import textwrap
from pathlib import Path

import minimha
from minimha import homework
from minimha.homework.checks.task import Task
from minimha.homework.teacher.grading import judge
from minimha.homework.teacher.grading.process import Limits, Submission

LIMITS = Limits(seconds=20, megabytes=250)
SHORT = Limits(seconds=3, megabytes=250)  # for code that never ends
ROOT = Path(__file__).parents[1]
PACKAGE = Path(minimha.__file__).parent  # outside ROOT if a wheel is installed
HINTS = ("look", "do", "write")


def scaled(x, factor, *, tap=lambda name, x: x):
    """Return factor · x, and its pullback, which takes dy to (dx,)."""
    y = tap("y", factor * x)

    def pullback(dy):
        # BEGIN SOLUTION: return a tuple
        return (factor * dy,)
        # END SOLUTION

    return y, pullback


TASK = Task(scaled, 1, 3, 5, HINTS, ())


@TASK.check
def values(yours, rng):
    x = rng.standard_normal((2, 3))
    homework.same(homework.value_of(yours(x, 3), "scaled"), 3 * x, "y")


@TASK.check(weight=2)
def gradients(yours, rng):
    x, dy = rng.standard_normal((2, 2, 3))
    _, pullback = yours(x, 3, tap=lambda name, y: y)
    (dx,) = pullback(dy)
    homework.same(dx, 3 * dy, "dx")


RIGHT = f"import numpy as np\n\n{TASK.code(solved=True)}"
STUB = f"import numpy as np\n{TASK.code()}"


def options(command, *arguments):
    """The options that a command, given as its module, makes of these arguments."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    parser.set_defaults(tasks=None)
    return parser.parse_args([str(argument) for argument in arguments])


def write(folder, texts):
    """Write files, a dictionary from their paths below the folder to their texts."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def notebook(*cells):
    """The text of a notebook with these code cells, whose outputs and metadata claim full points."""
    passed = "ok     scaled: values\nok     scaled: gradients\nok     twice: of ones"
    grades = {"nbgrader": {"grade": True, "points": 100, "score": 100}, "otter": {"tests": []}}
    stored = {"outputs": [{"output_type": "stream", "name": "stdout", "text": passed}]}
    code = [{"cell_type": "code", "source": x, "metadata": grades} | stored for x in cells]
    prose = {"cell_type": "markdown", "source": f"# minimha homework: twice\n{RIGHT}"}
    return json.dumps(
        {"cells": [prose, *code], "metadata": grades, "nbformat": 4, "nbformat_minor": 5}
    )


def judged(source, limits=LIMITS, task=TASK):
    return judge.judged(task, textwrap.dedent(source).encode(), 0, limits)


def outcomes(verdicts):
    return [verdict.outcome for verdict in verdicts]


def called(source, name, *arguments, **settings):
    """The result of the function with this name in the source, run as a submission."""
    with Submission(textwrap.dedent(source).encode(), name, LIMITS) as submission:
        return submission.function()(*arguments, **settings)
