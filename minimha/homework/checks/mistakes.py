"""Finds a student's mistake by making it: if the solution with a known mistake returns what the
student's function returned, the message names this mistake.

A task lists common mistakes as edits of its solution. While a check runs, the calls of the
student's function are recorded. If the check fails, they are repeated on each edited solution.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ...diagnosis.causes import ALL_PAIRS
from ...diagnosis.closeness import is_close
from .calls import Call, Raised, copied, raised
from .error_messages import file_of
from .nested import agree


class Patch(NamedTuple):
    """A common mistake: replacing the text `old` in the solution by `new` makes the mistake, and
    `text` describes it."""

    old: str
    new: str
    text: str

    def made_in(self, solution: str) -> str:
        """Return the solution with this mistake. Raises ValueError unless it contains `old` exactly
        once."""
        if (times := solution.count(self.old)) != 1:
            raise ValueError(f"{self.old!r} is in the solution {times} times, not once")
        return solution.replace(self.old, self.new)


def patches(text: str) -> list[Patch]:
    """Read common mistakes from a text in which each mistake is written as a patch.

        - query.shape[-1] ** 0.5
        + 1.0
        the factor 1/√D is missing
        + query.shape[-1]
        Q Kᵀ is divided by D; divide by √D

    The lines with + replace the lines with − above them; a patch without lines with − replaces the
    same lines as the patch before it. The text below a patch describes its mistake. If
    several patches follow each other without a text, the next text describes the mistake of each.
    """
    found, unnamed, old = list[Patch](), list[tuple[str, str]](), ""
    for removed, added, said in PATCH.findall(text):
        old = _lines(removed) or old
        unnamed.append((old, _lines(added)))
        if said:
            found += [Patch(*edit, " ".join(said.split())) for edit in unnamed]
            unnamed = []
    return found


PATCH = re.compile(r"((?:-(?: .*)?\n)*)((?:\+(?: .*)?\n)+)((?:(?![-+](?: |\n)).+\n)*)")


def _lines(marked: str) -> str:
    return "\n".join(line[2:] for line in marked.splitlines())


def with_dot(solution: str) -> Iterator[str]:
    """Yield copies of the solution in which np.dot replaces @: for each product a @ b, a copy in
    which only this one is replaced, and then a copy in which all of them are.

    `np.inner(a, b)` equals `np.dot(a, b.mT)`, so this covers np.inner, too.
    """
    count = sum(isinstance(node, ast.MatMult) for node in ast.walk(ast.parse(solution)))
    for places in [*({k} for k in range(count)), set(range(count))]:
        tree = _Dot(places).visit(ast.parse(solution))
        yield ast.unparse(ast.fix_missing_locations(tree))


class _Dot(ast.NodeTransformer):
    """Replaces some of the products a @ b in a source by np.dot(a, b): those in `places`, which
    has their numbers, counted from 0 in the order in which they are visited."""

    def __init__(self, places: set[int]) -> None:
        self.places = places
        self.seen = 0

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.MatMult):
            return node
        place = self.seen
        self.seen += 1
        if place not in self.places:
            return node
        dot = ast.parse("np.dot", mode="eval").body
        return ast.Call(dot, [node.left, node.right], [])


def text_of_mistake(
    mistakes: Iterable[Patch], solution: str, name: str, calls: list[Call],
    passes_earlier: Callable[[Callable[..., Any]], bool] = lambda function: True,
) -> str:  # fmt: skip
    """Return the description of the mistake that the student probably made: the first one with
    which the solution gives, in all calls, the results of the student's function; "" if there is
    none. After `mistakes`, np.dot in place of @ is tried.

    mistakes        the common mistakes in the task
    solution        the source of the solution, which defines a function called `name`
    calls           the recorded calls of the student's function
    passes_earlier  says whether a function passes the checks before the failed one. This rules out
                    mistakes that have the same results in the failed check, but would have failed
                    an earlier one

    If no mistake gives the same results in all calls and the values are wrong, a mistake that gives
    the same values is enough, whatever the pullbacks return. Returns "" if the solution itself
    gives the recorded results, because then they are right.
    """
    right = defined(solution, name)
    if not calls or _repeats(right, calls):
        return ""

    made = [(defined(mistake.made_in(solution), name), mistake.text) for mistake in mistakes]
    made += [(defined(code, name), ALL_PAIRS) for code in with_dot(solution)]
    # If only the pullbacks are wrong, then every mistake in a pullback has the same values.
    rounds = [True]
    if not _repeats(right, calls, pulled=False):
        rounds.append(False)
    for pulled in rounds:
        for function, text in made:
            if _repeats(function, calls, pulled) and passes_earlier(function):
                return text
    return ""


@functools.cache
def defined(code: str, name: str) -> Callable[..., Any]:
    """Run a source, in which np is NumPy, and return the function of this name that it defines."""
    names: dict[str, Any] = {"np": np}
    file = f"<{name} {hash(code)}>"
    linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file
    exec(compile(code, file, "exec"), names)
    return names[name]


def _repeats(function: Callable[..., Any], calls: list[Call], pulled: bool = True) -> bool:
    """Whether a function returns or raises in each call what was recorded, and passes the same
    arrays to `tap`. If `pulled` is true, the pullbacks that it returns must do so, too."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are not the student's
        return all(_repeats_one(function, call, pulled) for call in calls)


def _repeats_one(function: Callable[..., Any], call: Call, pulled: bool) -> bool:
    given: dict[str, list[Any]] = {}
    result = _answer(function, call, given)
    recorded = _by_name((name, x) for name, x, _ in call.tapped)
    return (
        _same(result, call.result)
        and all(_same(given[name], recorded[name]) for name in given.keys() & recorded.keys())
        and (not pulled or all(_repeats(result[k], inner) for k, inner in call.pulled.items()))
    )


def _answer(function: Callable[..., Any], call: Call, given: dict[str, list[Any]]) -> Any:
    """Call a function with the arguments of a recorded call, and return its result or a record of
    its error.

    `tap` returns what it returned in the recorded call. The arrays that the function passes to it
    are added to `given`, by name.
    """
    answers = _by_name((name, answer) for name, _, answer in call.tapped)

    def tap(name: str, x: Any) -> Any:
        given.setdefault(name, []).append(copied(x))
        answer = answers[name].pop(0) if answers.get(name) else None
        return x if answer is None else answer

    settings = copied(call.settings) | ({"tap": tap} if "tap" in call.settings else {})
    try:
        return function(*copied(call.arguments), **settings)
    except Exception as error:  # a mistake may raise, as the student's function did
        return raised(error, file_of(function))


def _by_name(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, x in pairs:
        found.setdefault(name, []).append(x)
    return found


def _same(a: Any, b: Any) -> bool:
    """Whether two results agree up to rounding, or are the same error."""
    if isinstance(a, Raised) or isinstance(b, Raised):
        return type(a) is type(b) and _known_by(a) == _known_by(b)
    return agree(_close, a, b)


def _close(a: Any, b: Any) -> bool:
    if callable(a) or callable(b):
        return callable(a) and callable(b)
    try:
        return is_close(np.asarray(a), np.asarray(b))
    except Exception:  # whatever a student's function returned: it is not what a solution returns
        return False


def _known_by(error: Raised) -> tuple[str, str]:
    """Return what two errors must share to count as the same: the class and, unless the error was
    raised by the student's own `raise`, the first line of the text."""
    return error.kind, "" if error.is_own else error.text.partition("\n")[0].strip()
