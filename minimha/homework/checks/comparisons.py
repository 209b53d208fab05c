"""Comparisons for the checks of homework, with messages that help a student."""

from __future__ import annotations

import inspect
import itertools
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minimha_autograd import gradcheck
from minimha_autograd.gradcheck import first_largest, labelled, place, ratio, type_name

from ...diagnosis.closeness import is_close
from ...diagnosis.explanation import AXES
from .replay import Sketch
from .resemblance import resemblance
from .shown import name_of, shown


class DifferenceError(AssertionError):
    """An array is not what was expected. The message may end with guesses at the cause and with
    advice; the attribute `facts` is the message without them.

    facts   the lines that say how the two arrays differ
    labels  the names of their axes, if known
    guess   what the array looks like; if "", a relation to the expected array is looked for
    advice  what to try
    """

    def __init__(
        self, facts: list[str], yours: Any, expected: np.ndarray, labels: Sequence[str] | None,
        guess: str, advice: str = "",
    ) -> None:  # fmt: skip
        related = len(facts) > 1 and not guess
        relation = resemblance(np.asarray(yours), expected, labels) if related else ""
        more = [("looks like", guess), ("relation", relation), ("try", advice)]
        super().__init__("\n".join([*facts, *(labelled(*line) for line in more if line[1])]))
        self.facts = "\n".join(facts)


def same(
    yours: Any, expected: Any, name: str = "the result", axes: str | None = None, *,
    tolerance: float = 1e-12, guess: str = "", advice: str = "",
) -> None:  # fmt: skip
    """Raise AssertionError, with the worst entry, if yours differs from the expected array.

    expected   the right array, or a `Sketch` of it
    name       the name of the array in the task
    axes       its axes, letters or words: "B H T D" or "batch query key"
    tolerance  the largest error allowed, relative to the largest expected entry
    guess      what the array looks like, "this is dx", if the check has found out; otherwise this
               function looks for a relation to the expected array
    advice     a last line: the likely mistake, or what to try
    """
    if isinstance(expected, Sketch):
        if isinstance(yours, np.ndarray) and yours.shape == expected.shape:
            yours, expected = Sketch.of(yours).products, expected.products
            name, axes = f"{name}, multiplied by random arrays,", "array"
        else:
            expected = np.zeros(expected.shape)  # only the shape matters
    expected = np.asarray(expected)
    labels = axes.split() if axes else AXES.get((name, expected.ndim))
    if facts := _facts(yours, expected, name, labels, tolerance):
        raise DifferenceError(facts, yours, expected, labels, guess, advice)


@np.errstate(invalid="ignore")  # ∞ − ∞
def _facts(
    yours: Any, expected: np.ndarray, name: str, labels: Sequence[str] | None, tolerance: float
) -> list[str]:
    """Return the lines of a message that say how the student's array differs from the expected
    array; no lines if it is right. `name` names the array, and `labels` its axes; `tolerance` is as
    for `same`."""
    if not isinstance(yours, np.ndarray | np.generic | float | int | complex):
        wanted = f"an array of shape {expected.shape}" if expected.shape else "a number"
        advice = "np.array, np.stack or np.concatenate makes one array of a list"
        is_list = isinstance(yours, list) and expected.shape
        return [instead(f"{name} is", yours, f"be {wanted}", advice if is_list else "")]
    yours = np.asarray(yours)
    if yours.shape != expected.shape:
        lettered = f"  ({', '.join(labels)})" if labels else ""
        return [
            f"{name} has the wrong shape",
            labelled("yours", str(yours.shape)),
            labelled("expected", f"{expected.shape}{lettered}"),
            *_side_by_side(yours, expected, labels),
        ]
    if (yours.dtype == bool) != (expected.dtype == bool):
        return [f"{name} holds {yours.dtype}; it should hold {expected.dtype}"]
    a = _as_numbers(yours)
    b = _as_numbers(expected)

    # Relative to the largest entry: a small sum of large terms is rounded as much as a large one.
    largest = np.max(abs(b), initial=0.0, where=np.isfinite(b))  # with ∞ anything would pass
    fine = abs(a - b) <= tolerance * largest
    fine |= a == b  # ∞ = ∞, although ∞ − ∞ is NaN
    fine |= np.isnan(a) & np.isnan(b)
    if fine.all():
        return []
    if yours.dtype == object:
        return [f"{name} holds objects; it should hold {expected.dtype}"]

    # A NaN where a number is expected is the worst error of all.
    off = np.where(fine, -1.0, np.nan_to_num(abs(a - b), nan=np.inf))
    worst = first_largest(off)
    facts = [("worst entry", place(worst, labels))]
    facts += zip(("yours", "expected"), _entries(yours[worst], expected[worst]), strict=True)
    if yours.dtype.kind == "f" and b[worst] and np.isfinite(a).all():
        facts.append(("ratio", ratio(a, b, worst)))
    if yours.dtype.kind in "fc" and yours.dtype.itemsize < expected.dtype.itemsize:
        facts.append(("dtype", f"{yours.dtype}, where {expected.dtype} is expected"))
    wrong = int((~fine).sum())
    facts.append(("wrong", f"{wrong} of {fine.size} entries"))
    lines = [labelled(*fact) for fact in facts]
    return [f"{name} is wrong", *lines, *_side_by_side(yours, expected, labels, worst)]


def _as_numbers(x: np.ndarray) -> np.ndarray:
    return x.astype(complex if x.dtype.kind == "c" else float)


def _side_by_side(
    yours: np.ndarray, expected: np.ndarray, labels: Any, at: tuple[int, ...] = ()
) -> list[str]:
    """Return lines that draw two boolean arrays beside each other, if they are small; of arrays
    with more than two axes, only the matrix with the worst entry, whose index is `at`. `labels` has
    the names of the axes. Returns no lines for other arrays."""
    both = yours, expected
    if not all(x.dtype == bool and x.ndim > 1 and max(x.shape[-2:]) <= 10 for x in both):
        return []
    if yours.ndim != expected.ndim:
        return []
    part = at[:-2] or (0,) * (yours.ndim - 2)
    drawn = [[" ".join("·■"[int(entry)] for entry in row) for row in x[part]] for x in both]
    width = max(map(len, ["yours", *drawn[0]])) + 4
    rows = itertools.zip_longest(["yours", *drawn[0]], ["expected", *drawn[1]], fillvalue="")
    rest = f", at {place(at[:-2], labels and labels[:-2])}" if at[:-2] else ""
    along = f"; rows: {labels[-2]}, columns: {labels[-1]}{rest}" if labels else rest
    title = labelled("drawn", f"■ True, · False{along}")
    return [title, *(f"{'':15}{left:<{width}}{right}".rstrip() for left, right in rows)]


def _entries(*entries: Any) -> list[str]:
    """Return the entries as text, with enough digits to tell them apart."""
    for digits in (9, 17):
        texts = [str(x) if x.dtype == bool else f"{x:.{digits}g}" for x in entries]
        if len(set(texts)) > 1:
            break
    return texts


def named(returned: Any, names: Sequence[str], function: str = "yours") -> dict[str, Any]:
    """Return the arrays in a tuple that a function returned, as a dictionary with these names.
    Raises AssertionError, whose message calls the function by the name `function`, unless there is
    one array for each name."""
    several = isinstance(returned, tuple | list) or getattr(returned, "ndim", 0) > 0
    if not several or len(returned) != len(names):
        raise AssertionError(instead(f"{function} returns", returned, f"return {', '.join(names)}"))
    return dict(zip(names, returned, strict=True))


def value_of(returned: Any, name: str = "the function") -> Any:
    """Return the value of a pair (value, pullback). Raises AssertionError, whose message calls the
    function by `name`, if it returned anything else."""
    value = _value(returned)
    if value is not returned:
        return value
    wanted = "return two things, its value and its pullback"
    raise AssertionError(instead(f"{name} returns", returned, wanted))


def same_operation(
    yours: Callable[..., Any], right: Callable[..., Any], *inputs: Any, large: Sequence[Any],
    name: str = "y", axes: Any = None,
) -> None:  # fmt: skip
    """Raise AssertionError unless an operation has the right value and the right gradients. They
    are compared in three steps: the value; the gradients by `gradcheck`, which says more about a
    wrong gradient than `same_pullback`; and value and gradients for large inputs, by
    `same_pullback`.

    yours, right  the student's and the right operation: functions of arrays that return
                  (value, pullback)
    inputs        the arrays for the first two steps
    large         inputs for `same_pullback`, with 30,000 entries or more in all, so that a pullback
                  that computes a numeric derivative takes too long to pass. If a check calls this
                  function several times, one call with such inputs is enough
    name          the name of the value in the task
    axes          the axes of the inputs, as for `gradcheck`
    """
    same(value_of(yours(*inputs), right.__name__), right(*inputs)[0], name)
    gradcheck(yours, *inputs, axes=axes)
    same_pullback(yours, right, *large, name=name)


def same_pullback(
    yours: Callable[..., Any], right: Callable[..., Any], *inputs: Any, name: str = "y",
    tolerance: float = 1e-11,
) -> None:  # fmt: skip
    """Raise AssertionError unless an operation, `yours`, has the same value as the right operation
    and, for a random cotangent, the same gradients of its inputs. Both operations return
    (value, pullback). `name` names the value, and `tolerance` is as for `same`.

    A gradient check compares a pullback only with its own forward pass, so a pullback that computes
    a numeric derivative passes it. Here such a pullback should exceed the time that a check may
    take: choose inputs for which a numeric derivative, entry by entry, takes a minute, but Python
    loops over rows, or over queries and keys, take only about a second.
    """
    parameters = list(inspect.signature(right).parameters)
    when = f" for {parameters[0]} of shape {inputs[0].shape}"
    expected, pull = right(*inputs)
    returned = yours(*inputs)
    same(value_of(returned, right.__name__), expected, f"{name}{when}", tolerance=tolerance)

    dy = np.random.default_rng(0).standard_normal(expected.shape)
    dy = np.asarray(dy, expected.dtype)[()]  # of a number without axes, a number again
    gradients = returned[1](dy)
    right_gradients = pull(dy)
    names = [
        f"a dictionary of {', '.join(x)}" if isinstance(x, dict) else f"d{parameter}"
        for parameter, x in zip(parameters, right_gradients, strict=False)
    ]
    pairs = zip(named(gradients, names, "the pullback").items(), right_gradients, strict=True)
    for (gradient_name, gradient), right_gradient in pairs:
        if not isinstance(right_gradient, dict):
            same(gradient, right_gradient, f"{gradient_name}{when}", tolerance=tolerance)


def same_steps(yours: Callable[..., Any], reference: Callable[..., Any], *inputs: Any) -> None:
    """Raise AssertionError unless, for these inputs, the student's function, `yours`, passes the
    same intermediates through `tap(name, x)` as the reference, and has the same value.

    The message names only the first wrong step, since later errors may follow from it. The
    functions may return a value, or a value and its pullback.
    """
    value, found = recorded(yours, *inputs)
    expected, steps = recorded(reference, *inputs)
    found["the result"], steps["the result"] = value, np.asarray(expected)
    right: list[str] = []
    for name, step in steps.items():
        if name not in found:
            raise AssertionError(
                f"yours does not pass {name} to tap; it should, where it is computed:\n"
                f'{name} = tap("{name}", {name})'
            )
        labels = AXES.get((name, step.ndim))
        if facts := _facts(found[name], step, name, labels, 1e-12):
            facts[0] += f"; {', '.join(right)}: right" if right else ""
            raise DifferenceError(facts, found[name], step, labels, guess="")
        right.append(name)


def tap_is_used(yours: Callable[..., Any], reference: Callable[..., Any], *inputs: Any) -> None:
    """Call the student's function, `yours`, with a `tap` that doubles one intermediate, for each
    intermediate in turn. Raise AssertionError unless the value changes as that of the reference
    does, which shows that the function continues with what tap returns."""
    for step in recorded(reference, *inputs)[1]:

        def doubled(name: str, x: Any, step: str = step) -> Any:
            return 2 * x if name == step else x

        value, expected = (_value(f(*inputs, tap=doubled)) for f in (yours, reference))
        advice = f'{step} = tap("{step}", …): continue with what tap returns'
        same(value, expected, f"the result, when tap doubles {step},", advice=advice)


def same_gradients(yours: Any, expected: dict[str, Any], values: dict[str, Any]) -> None:
    """Raise AssertionError unless the gradients of the intermediates are right, which a pullback
    returns last, in a dictionary.

    yours     what the pullback returned last
    expected  the right gradients, by the names of the intermediates
    values    the intermediates themselves, by name: if the pullback returned one of them in place
              of its gradient, the message says so
    """
    names = ", ".join(expected)
    if not isinstance(yours, dict) or not set(expected) <= set(yours):
        last, wanted = "the last thing that the pullback returns is", f"be a dictionary of {names}"
        raise AssertionError(instead(last, yours, wanted))
    known = {f"d{name}": x for name, x in expected.items()} | values
    for name, gradient in expected.items():
        what = next((k for k, x in known.items() if _is_equal(yours[name], x)), "")
        guess = f'this is {what}; the entry "{name}" is d{name}, the gradient of {name}'
        same(
            yours[name], gradient, f"the gradient of {name} in the dictionary",
            " ".join(AXES.get((name, len(gradient.shape)), ())), guess=guess if what else "",
            advice=f"is d{name} changed after it is computed?",
        )  # fmt: skip


def _is_equal(yours: Any, known: Any) -> bool:
    return all(isinstance(x, np.ndarray) for x in (yours, known)) and is_close(yours, known)


def recorded(f: Callable[..., Any], *inputs: Any) -> tuple[Any, dict[str, Any]]:
    """Call f with these inputs, and return its value and a dictionary of the intermediates that it
    passed through its keyword `tap`, by name."""
    seen: dict[str, Any] = {}

    def tap(name: str, x: Any) -> Any:
        seen[name] = np.array(x) if isinstance(x, np.ndarray) else x
        return x

    return _value(f(*inputs, tap=tap)), seen


def _value(returned: Any) -> Any:
    """Return the value of a pair (value, pullback), and anything else unchanged."""
    pair = isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1])
    return returned[0] if pair else returned


def instead(yours: str, found: Any, wanted: str, advice: str = "") -> str:
    """Return a message about a result of the wrong kind. If `yours` is "y is", `found` is None and
    `wanted` is "be an array", the message is "y is None; it should be an array: is a return
    missing?". If something else is found, `advice`, if any, follows the colon."""
    advice = "is a return missing?" if found is None else advice
    text = f"{yours} {_described(found)}; it should {wanted}"
    return textwrap.fill(f"{text}: {advice}" if advice else text, 80)


def _described(x: Any) -> str:
    if x is None:
        return "None"
    if isinstance(x, tuple | list | dict):
        inside = ", ".join(map(str, x) if isinstance(x, dict) else map(type_name, x))
        return f"a {type(x).__name__} of {inside or 'nothing':.60}"
    if isinstance(x, np.ndarray):
        return f"an array of shape {x.shape}"
    kind = type_name(x)
    text = name_of(x) if kind == "function" else shown(x)
    return f"a{'n' * (kind[0] in 'aeiou')} {kind}: {text:.60}"
