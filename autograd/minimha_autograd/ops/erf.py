"""The error function, which the array-API standard lacks."""

from __future__ import annotations

import functools

from ..backend import Array, is_complex, is_exact, is_half, namespace

_ERF_NEAR = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2,
     3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
     2.84423683343917062e3),
)  # fmt: skip
_ERF_FAR = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
     1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3,
     1.23033935480374942e3),
)  # fmt: skip


def erf(x: Array) -> Array:
    """The error function, to 2e-16, also of complex numbers close to the real line.

    Near zero x R(x²), farther out ±(1 − e^(−x²) R(|x|)), with rational functions R.
    Source: Cody, "Rational Chebyshev approximations for the error function", Mathematics of
    Computation 23 (1969).
    """
    xp = namespace(x)
    if is_half(x):  # its largest number, 65504, is too small for the sums below
        return xp.astype(erf(xp.astype(x, xp.float32)), x.dtype)
    if is_exact(x):
        x = xp.astype(x, xp.float64)
    real = xp.real(x) if is_complex(x) else x
    sign = xp.astype(xp.sign(real), x.dtype)
    size = x * sign
    near, far = abs(real) <= 0.46875, abs(real) >= 6  # from 6 on it is ±1
    one = xp.ones_like(x)
    inner, outer = xp.where(near, x, 0 * one), xp.where(near | far, one, size)
    by_series = inner * _ratio(_ERF_NEAR, inner * inner)
    by_tail = sign * (1 - xp.exp(-outer * outer) * _ratio(_ERF_FAR, outer))
    return xp.where(near, by_series, xp.where(far, sign, by_tail))


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
    """A rational function, by Horner's rule."""
    above, below = (
        functools.reduce(lambda total, c: total * x + c, rest, first + 0 * x)
        for first, *rest in coefficients
    )
    return above / below
