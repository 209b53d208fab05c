"""The V-curve: the error of each numeric method as a function of its step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .compare import Target
from .numeric import NODES, along, weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOKS = {  # told apart in grey by their dashes, and by the colour-blind
    "central": ("#0072b2", "-", "o"),
    "fourth-order": ("#d55e00", "--", "s"),
    "richardson": ("#009e73", "-.", "^"),
    "complex step": ("black", ":", None),
}


def curves(name: str, targets: Sequence[Target]) -> Figure:
    """A figure with a panel for each target, an array whose gradient is under check: for each
    numeric method, the error of the gradient plotted against the size of the method's step. The
    title names the function by `name`. See `Report.plot`. Raises ValueError if there are no
    targets."""
    from matplotlib.figure import Figure

    if not targets:
        raise ValueError(
            f"{name}: no gradient has the shape of its input: there is no curve to draw"
        )
    columns = min(len(targets), 3)
    rows = -(-len(targets) // columns)
    figure = Figure(figsize=(max(3.6 * columns + 0.4, 5.4), 2.7 * rows + 0.9), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(targets) :]:
        axes.set_axis_off()
    for axes, target in zip(grid.flat, targets, strict=False):
        for method, (steps, errors) in _errors_over_steps(target).items():
            colour, dashes, marker = _LOOKS[method]
            axes.loglog(
                steps, errors, color=colour, linestyle=dashes, marker=marker, markersize=3,
                linewidth=1.3, label=method,
            )  # fmt: skip
        axes.set_title(target.name, fontsize=9)
        axes.grid(color="0.9")
        axes.tick_params(labelsize=7)
        axes.set_xlabel("step h", fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("error, relative", fontsize=8)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.suptitle(
        f"{name}: how far your derivative along a random direction\nis from numeric ones",
        fontsize=9,
    )
    return figure


def _errors_over_steps(target: Target) -> dict[str, tuple[np.ndarray, list[float]]]:
    """For each method, its steps and the errors of the gradient, along one random direction.

    The error is relative to the numeric derivative. Errors below eps are returned as eps, since a
    logarithmic plot cannot show 0.
    """
    dtype = target.x.dtype
    eps = float(np.finfo(dtype).eps)
    steps = np.logspace(0, -13, 40)

    # Along one direction, L is a function of one number, and the gradient is one slope.
    v = np.random.default_rng(0).standard_normal(target.x.shape).astype(dtype)
    loss = along(target.loss, target.x, v)
    yours = float(np.sum(target.gradient * v, dtype=np.float64))

    def error(derivative: float) -> float:
        return max(abs(derivative - yours) / (abs(derivative) or 1.0), eps)

    def central(h: float) -> float:
        up = float(loss(np.asarray(h, dtype=dtype)))
        down = float(loss(np.asarray(-h, dtype=dtype)))
        return (up - down) / (2 * h)

    found = {}
    for method, nodes in NODES.items():
        terms = list(zip(weights(method), nodes, strict=True))
        found[method] = steps, [error(sum(w * central(s * h) for w, s in terms)) for h in steps]
    if target.line(v).analytic:
        sharp = [error(complex(loss(np.asarray(1j * h))).imag / h) for h in steps]
        found["complex step"] = steps, sharp
    return found
