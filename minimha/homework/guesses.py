"""Guesses: what a reader expects, kept before it is measured and shown beside the result.

mh.homework.guess("largest weight", 0.9)            keeps the guess
mh.homework.guessed("largest weight", 0.97, axes)   prints both, and draws the guess
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import progress_file

_KEPT = "guesses"
"""Their place in the record of a student's progress, beside the tasks."""


def guess(question: str, answer: Any) -> None:
    """Keep a guess, which replaces an earlier one; `...` asks for one.

    question  a few words, by which `guessed` finds it
    answer    a number, a text, True or False, or a list or an array of these

    Raises TypeError for any other answer.
    """
    if answer is ...:
        print(f"your guess, please: replace ... with it  ({question})")
        return
    plain = np.asarray(answer)
    if plain.dtype.kind not in "biufU":
        raise TypeError(f"a guess is a number, a text, or a list of these, not {answer!r}")
    progress_file.add(Path(), _KEPT, **{question: plain.tolist()})


def guessed(
    question: str, measured: Any, axes: Any = None, *, axis: str = "y", at: Any = None
) -> None:
    """Print the guess and what was measured; with `axes`, draw a guess that is a number.

    measured  a number, a text, or a list or an array of these
    axes      of matplotlib: the guess is a line across them, or markers at `at`
    axis      "y" or "x", along which the guess is measured
    at        the positions of the guess on the other axis; one number, or as many as were guessed
    """
    answer = progress_file.read(Path()).get(_KEPT, {}).get(question)
    yours = "(none)" if answer is None else _text(answer)
    print(f"{question}: your guess {yours}, the result {_text(measured)}")
    if axes is None or answer is None or np.asarray(answer).dtype.kind not in "biuf":
        return
    style = {"color": "#AA4499", "label": "your guess"}
    if at is None:
        line = axes.axhline if axis == "y" else axes.axvline
        line(answer, linestyle=(0, (1, 1)), linewidth=2, **style)
    else:
        pair = (at, answer) if axis == "y" else (answer, at)
        axes.plot(*pair, "*", markersize=12, linestyle="none", **style)


def _text(x: Any) -> str:
    if isinstance(x, float | np.floating):
        return f"{x:.4g}"
    if isinstance(x, list | tuple | np.ndarray):
        return ", ".join(map(_text, x))
    return str(x)
