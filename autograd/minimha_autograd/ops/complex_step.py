"""What a choice means for complex numbers: the real part decides.

Complex numbers come only from the complex-step check, which computes f(x + ih) with a tiny h and
reads the derivative off the imaginary part. So an operation that compares numbers, or takes their
size, must treat x + ih as it treats x. For real arrays these functions are those of the library.
"""

from __future__ import annotations

from ..backend import Array, is_complex, namespace


def real(x: Array) -> Array:
    """The real part of x, the numbers that operations compare; x itself if it is real."""
    if is_complex(x):
        return namespace(x).real(x)
    return x


def sign(x: Array) -> Array:
    """The sign of x, or of its real part if x is complex: −1, 0 or 1, in the dtype of x."""
    xp = namespace(x)

    # The library's sign of a complex z is z / |z|, which is no longer the sign of x.
    signs = xp.sign(real(x))
    return xp.astype(signs, x.dtype)


def absolute(x: Array) -> Array:
    """|x| for real x. For complex x = a + ih: x where a > 0, −x where a < 0, and 0 where a = 0."""
    # The standard's |a + ih| has no derivative; this one is analytic away from a = 0.
    if is_complex(x):
        return sign(x) * x
    return namespace(x).abs(x)
