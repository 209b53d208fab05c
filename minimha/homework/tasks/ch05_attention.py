"""Tasks of chapter 05: attention, forward and backward."""

import numpy as np

from minimha_autograd import gradcheck

from .. import same, task, value_of


@task(
    chapter=5,
    difficulty=2,
    minutes=15,
    hints=(
        "Take the largest entry of each row away before exp: it changes nothing, and 1000 no "
        "longer overflows. For the gradient look at the section on the Jacobian.",
        "dx = Jᵀ dy with J = diag(y) − y yᵀ. Multiply that out for one row, then write it for all "
        "rows at once with keepdims=True.",
        "y * (dy - (dy * y).sum(axis=-1, keepdims=True)), as a tuple with one gradient.",
    ),
)
def softmax(x):
    """Softmax over the last axis, and its pullback.

    x  (…, S)
    Returns y (…, S) with y = exp(x) / Σ exp(x), and the function that takes dy (…, S) to a tuple
    with one gradient, (dx,). Large entries, such as 1000, must not overflow.
    """
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))  # real: checks send complex numbers
    y = e / e.sum(axis=-1, keepdims=True)

    def pullback(dy):
        # BEGIN SOLUTION: return a tuple with one gradient, (dx,)
        return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)
        # END SOLUTION

    return y, pullback


@softmax.check
def values(yours, rng):
    x = rng.standard_normal((3, 5))
    expected, _ = softmax(x)
    same(value_of(yours(x), "softmax"), expected, axes="row column")


@softmax.check(weight=2)
def gradients(yours, rng):
    gradcheck(yours, rng.standard_normal((3, 5)), axes=["row column"])
