"""Is this gradient right? `gradcheck` compares it with numeric derivatives of the same function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .error import EXPLAINERS, GradcheckError
from .text import aligned, listed, place, ratio, text_table

if TYPE_CHECKING:
    from .compare import Comparison, Target  # noqa: F401  the types that an explainer meets
    from .failure import FailedCheck  # noqa: F401
    from .report import Report

__all__ = [
    "EXPLAINERS",
    "GradcheckError",
    "aligned",
    "gradcheck",
    "listed",
    "place",
    "ratio",
    "text_table",
]

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

    f       of Tensors, if any input is one: returns a Tensor or several. The Tensors of real
            floating-point numbers are checked, other inputs are passed on as they are;
            of arrays, if none is: one of our operations, or a function that returns
            (value, pullback), where the pullback takes one cotangent a value and returns a tuple
            with one gradient an array. All arrays of real floating-point numbers are checked
    names   of the inputs, for the report; by default the names of the parameters of f
    axes    of each input, letters or words: ["B H T D", None, "batch key"]; or by name,
            {"query": "B H T D"}, intermediates too
    rng     a generator or a seed for the random cotangents
    method  "auto": the complex step where f allows it and differences confirm it, otherwise
            Richardson's extrapolation; where there are more than 4096 entries, the largest
            arrays along random directions.
            Or "complex step", "richardson", "fourth-order" (differences), "adjoint" (random
            directions v: ⟨dx, v⟩ = dL along v). Central differences always stand beside,
            but for "adjoint"
    parameters
            Tensors by name, or a module, whose gradients are checked as well; by default those of
            f, if it is a module

    f must be a function: the same inputs give the same value. Where f allows it, gradients in
    float32 are compared with numeric ones in float64.

    Where a gradient is wrong, the step at fault is looked for among the intermediates: all
    operations on Tensors, or, where f has a keyword `tap`, what it passes through that: f calls
    tap(name, x) and goes on with what comes back, and a pullback on arrays returns, after its
    gradients, a dictionary with those of the intermediates by name.

    Returns a Report, which prints as a table: the error by input and method; `report.plot()` draws
    the error over the size of the step.
    Raises GradcheckError, an AssertionError, when a gradient is wrong: it names the input, the
    worst entry by axis, both values and their ratio, the step at fault and its likely cause; or
    when values or gradients are not what they should be, such as a pullback that is not linear, or
    values that are NaN wherever a step leads. TypeError when there is nothing to check,
    and for floats but float64 and float32; ValueError for a method or axes that do not fit.
    """
    from .check import check  # which loads what no program needs that checks no gradients

    return check(f, inputs, names, axes, rng, method, parameters)
