"""A teacher's own task, which docs/teaching.md explains."""

import numpy as np

from minimha.homework import same, same_operation, task, value_of


@task(
    chapter=2,
    difficulty=1,
    minutes=5,
    hints=(
        "Derive dy/dx with the rule for 1 / u. Which factor is y, and which is 1 − y?",
        "dy/dx = exp(−x) / (1 + exp(−x))², and exp(−x) / (1 + exp(−x)) = 1 − y.",
        "return (dy * y * (1 - y),)",
    ),
)
def sigmoid(x):
    """The logistic function, and its pullback.

    x  (T, M)
    Returns y (T, M) with y = 1 / (1 + exp(−x)), and a function that maps dy (T, M) to
    the tuple of one gradient, (dx,).
    """
    # BEGIN SOLUTION: return y, and a function pullback(dy)
    y = 1 / (1 + np.exp(-x))

    def pullback(dy):
        return (dy * y * (1 - y),)

    return y, pullback
    # END SOLUTION


@sigmoid.check
def values(yours, rng):
    x = rng.standard_normal((3, 4))
    same(value_of(yours(x), "sigmoid"), 1 / (1 + np.exp(-x)), "y", axes="T M")


@sigmoid.check(weight=2)
def gradients(yours, rng):
    x, large = rng.standard_normal((3, 4)), rng.standard_normal((300, 400))
    same_operation(yours, sigmoid, x, large=[large], axes=["T M"])


sigmoid.mistake(
    "dy * y * (1 - y)",
    "dy * y",
    "dx = dy · y: the factor 1 − y is missing.\nCorrect: dx = dy · y · (1 − y)",
)
