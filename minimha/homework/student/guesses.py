"""Guesses: a reader writes down a guess before the measurement, and sees it beside the result.

mh.homework.guess("largest weight", 0.9)            keeps the guess
mh.homework.guessed("largest weight", 0.97, axes)   prints both, and draws the guess
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import progress_file

_KEPT = "guesses"
"""The key under which the record of a student's progress stores the guesses."""

_session: dict[str, Any] = {}
"""The guesses made in this process, which count even if the record cannot be written."""


def guess(question: str, answer: Any) -> None:
    """Record a guess, which replaces an earlier guess at the same question. If the answer is `...`,
    print a request to replace it by a guess.

    question  a few words, by which `guessed` finds the guess
    answer    a number, text, True or False, or a list or an array of these

    Raises TypeError for any other answer.
    """
    if answer is ...:
        print(f"{question}: replace ... with your guess, and run the cell again")
        return
    try:
        plain = np.asarray(answer)
    except ValueError:  # lists of different lengths
        plain = np.empty(0, object)
    if plain.dtype.kind not in "biufU":
        raise TypeError(f"a guess is a number, text, or a list of these, not {answer!r}")
    _session[question] = plain.tolist()
    progress_file.add(Path(), _KEPT, **{question: plain.tolist()})


def guessed(
    question: str, measured: Any, axes: Any = None, *, axis: str = "y", at: Any = None
) -> None:
    """Print the student's guess, or that there is none, and what was measured. With `axes`, also
    draw the guess, if it consists of numbers.

    question  the words that were given to `guess`
    measured  a number, text, or a list or an array of these
    axes      matplotlib axes, in which each number guessed becomes a line across or, with `at`, a
              star; None draws nothing
    axis      "y" or "x", the axis on which the guessed numbers lie
    at        the positions of the stars on the other axis, one for each number guessed; if the
              guess has another count of numbers, it is not drawn. None draws lines
    """
    kept = progress_file.read(Path()).get(_KEPT, {})
    answer = _session.get(question, kept.get(question))
    yours = "no guess" if answer is None else f"your guess {_text(answer)}"
    print(f"{question}: {yours}, the result {_text(measured)}")
    numbers = np.ravel([] if answer is None else answer)
    places = None if at is None else np.ravel(at)
    if axes is None or numbers.dtype.kind not in "iuf" or numbers.size == 0:
        return
    if places is not None and places.shape != numbers.shape:
        print(f"(your guess is not in the picture: {places.size} numbers fit into it)")
        return
    style = {"color": "#AA4499", "label": "your guess"}
    if places is None:
        for number in numbers:
            line = axes.axhline if axis == "y" else axes.axvline
            line(number, linestyle=(0, (1, 1)), linewidth=2, **style)
            style["label"] = "_"  # one entry of the legend is enough
    else:
        pair = (places, numbers) if axis == "y" else (numbers, places)
        axes.plot(*pair, "*", markersize=12, **style)
    axes.legend(fontsize=8)


def _text(x: Any) -> str:
    x = np.asarray(x).tolist()
    if isinstance(x, list):
        return ", ".join(map(_text, x))
    return f"{x:.4g}" if isinstance(x, float) else str(x)
