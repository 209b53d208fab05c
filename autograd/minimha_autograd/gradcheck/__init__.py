"""Is this gradient right? `gradcheck` compares it with numeric derivatives of the same function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .error import GradcheckError
from .text import first_largest, labelled, listed, place, ratio, text_table, type_name

if TYPE_CHECKING:
    from .report import Report

__all__ = [
    "GradcheckError", "first_largest", "gradcheck", "labelled", "listed", "place", "ratio",
    "text_table", "type_name",
]  # fmt: skip

__tracebackhide__ = True  # pytest shows the user's lines


def gradcheck(
    f: Callable[..., Any],
    *inputs: Any,
    names: Sequence[str] | None = None,
    axes: str | Sequence[Any] | Mapping[str, Any] | None = None,
    rng: Any = 0,
    method: str = "auto",
    parameters: Any = None,
) -> Report:
    """Check the gradient of f at the inputs: print the report, or read the error.

    f       a function of Tensors, if any input is one: it returns a Tensor or several. The Tensors
            of real floating-point numbers are checked; other inputs are passed on unchanged.
            Otherwise a function of arrays: one of our operations, or a function that returns
            (value, pullback), whose pullback takes one cotangent for each value and returns a
            tuple with one gradient for each array of real floating-point numbers
    names   the names of the inputs in the report; by default those of the parameters of f
    axes    the names of the axes of each input, letters or words: ["B H T D", None, "batch key"];
            or by name, {"query": "B H T D"}, which may name intermediates too
    rng     a generator or a seed for the random cotangents
    method  "auto": the complex step where f allows it and finite differences confirm it, otherwise
            Richardson's extrapolation; if there are more than 4096 entries in total, the largest
            arrays, or all, are checked along random directions only. Or "complex step",
            "richardson", "fourth-order" or "central" (differences), "adjoint" (slopes along random
            directions only). Wherever entries are compared, central differences are checked as well
    parameters
            Tensors by name, or a module, whose gradients are checked as well; by default those of
            f, if it is a module

    f must be deterministic: the same inputs must give the same value. Where f allows it, gradients
    in float32 are compared with numeric ones in float64.

    If a check passes, the gradients are right at these inputs up to the errors in the report. The
    check does not see a factor of 1 + 5·10⁻¹³, a mistake 10¹³ times smaller than the largest entry
    of its gradient, or what was not decided according to a note in the report: a gradient lost in
    rounding (in float64, too), or a kink at which the search found no answer. At a kink every
    gradient passes that is a weighted mean of the gradients at points nearby, over all inputs
    jointly (Clarke 1983): for relu at 0 any number from 0 to 1, for max(a, b) at a = b any
    (w, 1 − w) with w from 0 to 1.

    If a gradient is wrong, the check searches the intermediate values for the wrong step. In a
    function of Tensors these are the results of all operations. A function of arrays may have a
    keyword `tap`: it calls tap(name, x) for each intermediate value and continues with the array
    that tap returns; its pullback returns, after the gradients of the inputs, a dictionary with
    those of the intermediate values by name.

    Returns a Report, which prints as a table: the error by input and method; `report.plot()` draws
    the error over the size of the step.
    Raises GradcheckError, an AssertionError, if a gradient is wrong: it names the input, the worst
    entry and its axes, both values and their ratio, the wrong step and its likely cause. Also
    raises it if nothing can be compared, for example if the pullback is not linear, if the value is
    NaN for every step, or if f or its pullback changes arrays in place. Raises TypeError if there
    is nothing to check, and for floats other than float64 and float32; ValueError for an unknown
    method, for the complex step of a function that is not analytic, and for axes that do not match.
    """
    from .check import check  # loaded on first use: most programs check no gradients

    return check(f, inputs, names, axes, rng, method, parameters)
