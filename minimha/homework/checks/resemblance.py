"""Describes how a wrong array is related to the right one: it may have axes or slices in another
order, or be a part, a sum or a multiple. Such a relation points to the same mistake in every
task."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np

from ...diagnosis.closeness import factor, rounding

MOST_SLICES = 16
"""The greatest length of an axis for which its slices are compared with each other."""

Close = Callable[[np.ndarray, np.ndarray], bool]
"""close(x, y) says whether two arrays have the same shape and are equal up to rounding."""


@np.errstate(divide="ignore", invalid="ignore")  # an entry, or all of a row, may be 0
def resemblance(yours: np.ndarray, right: np.ndarray, axes: Sequence[str] | None = None) -> str:
    """Return a text that says how yours is related to the right array, such as "the sign is
    flipped": the first relation that is found, or "" if there is none.

    axes  the names of the axes of the right array; without them they are numbered
    """
    if not {yours.dtype.kind, right.dtype.kind} <= set("biuf"):
        return ""
    if yours.dtype == bool and np.array_equal(~yours, right):
        return "True and False are exchanged"
    a, b = yours.astype(float), right.astype(float)
    if not (b.any() and np.isfinite(a).all() and np.isfinite(b).all()):
        return ""
    most = rounding(yours, right) * abs(b).max()

    def close(x: np.ndarray, y: np.ndarray) -> bool:
        return x.shape == y.shape and bool((abs(x - y) <= most).all())

    if close(a, b):  # only the rounding differs
        return ""
    names = axes or range(b.ndim)
    along = [f"the axis {name}" if axes else f"axis {name}" for name in names]
    found = [_scaled(a, b, along, close)]
    if np.ptp(b) > most:  # in an array of ones every order is right
        found = [_moved(a, b, names, close), _part(a, b, along, close), *found]
    return next(itertools.chain(*found), "")


def _moved(a: np.ndarray, b: np.ndarray, names: Sequence[object], close: Close) -> Iterator[str]:
    """Yield a description for each way in which yours (a) becomes the right array (b) by reordering
    the axes or by reshaping. `names` has the names of the axes of b, or their numbers; close(x, y)
    says whether two arrays have the same shape and are equal up to rounding."""
    for order in list(itertools.permutations(range(b.ndim)))[1:] if b.ndim <= 4 else ():
        axes = f"({', '.join(str(names[axis]) for axis in order)})"
        if close(a, b.transpose(order)):
            yield (
                f"the right numbers, but the axes are in the order {axes}: reorder them with "
                "swapaxes or np.moveaxis"
            )
        if close(a.ravel(), b.transpose(order).ravel()):
            yield (
                f"the right numbers, but reshaped from an array with the axes {axes}: a reshape "
                "does not exchange axes, swapaxes does"
            )
    if a.shape != b.shape and close(a.ravel(), b.ravel()):
        yield "the right numbers in the right order; only the shape is wrong"


def _part(a: np.ndarray, b: np.ndarray, along: list[str], close: Close) -> Iterator[str]:
    """Yield a description for each way in which yours (a) consists of slices of the right array (b)
    along an axis: in another order, only one of them, or only their sum or mean. If yours has all
    the right numbers in another order, the last description says so. `along` has a phrase for each
    axis, such as "the axis T"."""
    for axis, name in enumerate(along):
        slices, many = np.moveaxis(b, axis, 0), b.shape[axis]
        if not 1 < many <= MOST_SLICES:
            continue
        if a.ndim == b.ndim and 1 < a.shape[axis] <= 2 * MOST_SLICES:
            pairs = itertools.product(np.moveaxis(a, axis, 0), slices)
            equal = np.array([close(x, y) for x, y in pairs]).reshape(-1, many)
            if (equal.sum(axis=1) == 1).all():
                places, found = list(range(len(equal))), equal.argmax(axis=1).tolist()
                wanted = "" if len(equal) == many else f", but {many} are expected"
                yield f"along {name}, {places} are the right {found}{wanted}"
        if a.squeeze().shape == slices[0].squeeze().shape:
            one = a.reshape(slices[0].shape)
            for k in range(many):
                if close(one, slices[k]):
                    yield (
                        f"only [{k}] along {name}, which has {many} entries: does a loop "
                        "overwrite the result, or return too early?"
                    )
            if close(one, slices.sum(axis=0)) or close(one, slices.mean(axis=0)):
                yield f"the sum or the mean over {name}, which should stay"
    if len(np.unique(b)) > b.size // 2 and close(np.sort(a, axis=None), np.sort(b, axis=None)):
        where = "the wrong places" if a.shape == b.shape else "another shape and order"
        yield f"the right numbers in {where}: follow where 0, 1, 2 … go in a small case"


def _scaled(a: np.ndarray, b: np.ndarray, along: list[str], close: Close) -> Iterator[str]:
    """Yield a description for each way in which yours (a) is the right array (b) multiplied by a
    factor or with a number added: the same for all entries, or for all entries along an axis. Also
    say if yours was not summed over an axis, or has many zeros where b has none. `along` has a
    phrase for each axis, such as "the axis T"."""
    if a.shape != b.shape:
        for axis in range(a.ndim):
            if any(close(a.sum(axis=axis, keepdims=kept), b) for kept in (False, True)):
                yield f"not summed over axis {axis}"
        return

    def multiple(x: np.ndarray, y: np.ndarray, axis: int | None = None) -> bool:
        times = factor(y, x, axis)
        return bool(np.all(times)) and close(x, times * y)

    times = _written(float(factor(b, a)))
    telling = b.size > 1 or ("." not in times and "." in _written(b.item()))  # any 2 have a ratio
    if multiple(a, b) and telling:
        yield (
            "the sign is flipped"
            if times == "−1"
            else f"{times} times the right result: a factor is missing, or there is one too many"
        )
    for axis, name in reversed(list(enumerate(along))):
        if b.shape[axis] < 3 or close(b, b.round()):  # or it may be by chance
            continue
        x, y = (z - z.mean(axis=axis, keepdims=True) for z in (a, b))
        if close(x, y):
            yield f"along {name}, all are off by the same number: what you add or subtract is wrong"
        if multiple(a, b, axis):
            yield (
                f"along {name}, all are off by the same factor: what you multiply or divide by is "
                "wrong"
            )
        if multiple(x, y, axis):
            yield (
                f"along {name}, all are off by the same factor and the same number: what you "
                "divide by is wrong, and what you subtract too"
            )
    zeros = int(((a == 0) & (b != 0)).sum())
    if 4 * zeros >= b.size > 3:
        yield f"{zeros} of {b.size} entries are 0 that should not be: never computed, or masked?"


def _written(factor: float) -> str:
    """Write a factor as a fraction or a root, such as "1/√2", or with a decimal point."""
    for root, power in (("", 1), ("√", 2)):
        near = Fraction(factor**power).limit_denominator(100)
        if 0 < abs(near) <= 100 and abs(float(near) / factor**power - 1) < 1e-9:
            n, m = (f"{root}{x}" if x > 1 else "1" for x in (abs(near.numerator), near.denominator))
            return ("−" if factor < 0 else "") + (n if m == "1" else f"{n}/{m}")
    return f"{factor:.6f}"
