"""Where the package or a chapter shows a line of a task's solution.

PYTHONPATH=tests python -m solution_lines   prints each that is shown too early, with its place
"""

import bisect
import re
import sys
from itertools import accumulate
from pathlib import Path

from minimha import homework
from minimha.homework.checks.task import source_of
from minimha.homework.teacher.release.public import public

ROOT = Path(__file__).parents[1]
TASKS = ROOT / "minimha" / "homework" / "tasks"

SHOWN = {
    # as files for every week contain it: the package computes the same
    "x_hat = centred / sigma": 1,
    # from the chapter on that shows how a step is done, or what goes wrong with it
    "step = np.zeros(x.shape)": 3,
    "z = x.astype(complex)": 3,
    "return weights @ value": 5,
    "dweights = dout @ value.mT": 5,
    "dy = np.where(mask, dy, 0.0)": 6,
    'heads = tap("heads", heads)': 7,
    "return dx_q + dx_k + dx_v, dw_q, dw_k, dw_v, dw_o, steps": 7,
    "cos, sin = np.cos(angles), np.sin(angles)": 8,
    "centred = x - x.mean(axis=-1, keepdims=True)": 9,
    "return x_hat * weight + bias, pullback": 9,
    "peak = ct.full((m, 1), -np.inf, ct.float64)": 12,
    "total = ct.full((m, 1), 0.0, ct.float64)": 12,
    "right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size": 13,
    # from the chapter on whose tasks give it, solved
    "root = query.shape[-1] ** 0.5": 5,
    'weights = tap("weights", weights)': 5,
    "return x @ weight, pullback": 7,
    "dscores = weights * (dweights - (dweights * weights).sum(axis=-1, keepdims=True))": 7,
    "total = e.sum(axis=-1, keepdims=True)": 11,
}
"""The lines of solutions that a release shows, and the first chapter with which it does."""

EVERYWHERE = re.compile(r"def .*:|for .*:|return [\w, ]+")
"""Lines that many functions have in common, as they have short ones."""


def squeezed(text):
    return "".join(text.split())


def solution_lines(task):
    marked = re.findall(
        r"# BEGIN SOLUTION[^\n]*\n(.*?)# END SOLUTION", source_of(task.solution), re.DOTALL
    )
    found = {line.strip() for text in marked for line in text.splitlines()}
    return {x for x in found if len(squeezed(x)) > 12 and not EVERYWHERE.fullmatch(x)}


def solutions():
    """The lines of all solutions, sorted."""
    return sorted(set().union(*map(solution_lines, homework.course().values())))


def texts():
    """What students get, without making a release: triples of a file, the chapter with which a
    release first contains it, and its text."""
    for folder in (ROOT / "minimha", ROOT / "autograd"):
        for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.cu*")]):
            if not path.is_relative_to(TASKS):
                yield path, 1, path.read_text(encoding="utf-8")
    for path in sorted(ROOT.glob("notebooks/source/*.md")):
        yield path, int(path.name[:2]), path.read_text(encoding="utf-8")
    for path in sorted(TASKS.glob("ch*.py")):
        if not path.stem.endswith("_mistakes"):
            yield path, int(path.name[2:4]), public(path.read_text(encoding="utf-8"))


def places(lines):
    """Where the lines stand, however spaced: for each the chapters, with a file and a number of its
    line each. (The number is missing for a file of tasks, of which a release has a part.)"""
    found = {}
    for path, chapter, text in texts():
        everything = squeezed(text)
        ends = None
        for line in lines:
            at = everything.find(squeezed(line))
            if at < 0:
                continue
            ends = ends or list(accumulate(len(squeezed(x)) for x in text.splitlines()))
            place = str(path.relative_to(ROOT))
            if not path.is_relative_to(TASKS):
                place += f":{bisect.bisect_right(ends, at) + 1}"
            found.setdefault(line, []).append((chapter, place))
    return found


def too_early(lines):
    """Messages: a line of a solution, and a place that shows it before SHOWN allows it."""
    for line, shown in places(lines).items():
        for chapter, place in shown:
            if chapter < SHOWN.get(line, 99):
                yield f"{place} shows a line of a solution: {line}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{message}\n" for message in too_early(solutions()))
