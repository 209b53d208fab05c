"""Points close to the checked inputs: the loss, its slopes and its gradients there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from .gradients import Gradients

__tracebackhide__ = True


class Checked(Protocol):
    """An input whose gradient is under check, with the attributes that `Nearby` uses. `Target` is
    such a class, and explains them."""

    @property
    def x(self) -> np.ndarray: ...
    @property
    def gradient(self) -> np.ndarray: ...
    @property
    def entry_scales(self) -> np.ndarray: ...
    def allowed_for(self, noise: float) -> float: ...


class Radii(NamedTuple):
    """At which distances from the input x to look for kinks, in units of the scale of each entry,
    and relative tolerances.

    far, near  two distances: a kink at x looks the same at both, a kink beside x does not
    step       the step of central differences at distance far
    sharp      the error of a gradient that is extrapolated along a ray to x, relative to its
               largest entry
    bound      the error allowed in the gradient under check, relative to the largest entry
    checked    the relative error allowed where a slope by central differences confirms a gradient
    """

    far: float
    near: float
    step: float
    sharp: float
    bound: float
    checked: float


def ahead(ray: np.ndarray, entry: int, side: float) -> np.ndarray:
    """A copy of the ray, a direction from x, along which this entry moves far above all others or,
    if side is −1, far below them."""
    moved = ray.copy()
    moved[entry] = side * 4 * np.linalg.norm(ray)
    return moved


PULLED = {
    ("float64", "float64"): Radii(1e-5, 1e-9, 5e-8, 1e-10, 1e-10, 1e-5),
    ("float64", "float32"): Radii(1e-4, 1e-5, 5e-6, 1e-10, 1e-5, 1e-4),
    ("float32", "float32"): Radii(1e-2, 1e-3, 2e-3, 1e-3, 1e-3, 5e-2),
}
"""The radii for gradients by the pullback, by the dtypes of the numeric side and of the gradient
under check."""

MEASURED = {
    "float64": Radii(1e-3, 1e-4, 1e-6, 1e-5, 1e-5, 1e-5),
    "float32": Radii(3e-2, 1e-2, 2e-3, 5e-2, 5e-2, 5e-2),
}
"""The radii for gradients by central differences, by the dtype of the numeric side."""


class Nearby:
    """L, the number that is differentiated, and its gradient, by the pullback or by differences, at
    points near the checked inputs. All these inputs together form one vector.

    x         the entries of all inputs, one input after the other
    gradient  the gradient under check, in the same order
    unit      for each entry, the length that counts as distance 1
    input_of  for each entry, the number of the input to which it belongs
    inputs    the number of inputs
    rounding  roughly the rounding error of L
    pulled    distances and tolerances for gradients by the pullback
    measured  distances and tolerances for gradients by differences
    """

    def __init__(self, gradients: Gradients, targets: Mapping[str, Checked]) -> None:
        self._gradients = gradients
        self._targets = targets
        function = gradients.function

        # For each target, the number of the input in f.
        self._numbers = {
            name: k for k in function.checked if (name := function.names[k]) in targets
        }

        # All inputs as one vector.
        self.shapes = {name: target.x.shape for name, target in targets.items()}
        self.x = self.joined({name: target.x for name, target in targets.items()})
        self.gradient = self.joined({name: target.gradient for name, target in targets.items()})
        self.gradient = self.gradient.astype(np.float64)
        self.input_of = self.joined(
            {n: np.full(shape, k) for k, (n, shape) in enumerate(self.shapes.items())}
        )
        self.inputs = len(self.shapes)

        size = np.where(np.isfinite(self.x), abs(self.x), 0).astype(np.float64)
        scales = self.joined({name: t.entry_scales for name, t in targets.items()})
        numeric = self.x.dtype.name
        gradient = "float64"
        smallest = 2e-3  # share of an entry: points nearby must be rounded to different numbers
        if "float32" in {numeric, *(t.gradient.dtype.name for t in targets.values())}:
            gradient = "float32"
            smallest = 0.3
        self.pulled = PULLED[numeric, gradient]
        self.measured = MEASURED[numeric]
        self.unit = np.maximum(scales, smallest * size)
        self.rng = np.random.default_rng(0)
        self.rounding = gradients.rounding

    def joined(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = [np.ravel(arrays[name]) for name in self._numbers]
        return np.concatenate(parts) if parts else np.zeros(0)

    def parted(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        parts = {}
        start = 0
        for name in self._numbers:
            shape = self.shapes[name]
            size = int(np.prod(shape))
            parts[name] = flat[start : start + size].reshape(shape)
            start += size
        return parts

    def _loss(self, x: np.ndarray) -> float:
        parts = self.parted(x)
        return self._gradients.value({k: parts[name] for name, k in self._numbers.items()})

    def point(self, u: np.ndarray, radius: float) -> np.ndarray:
        return (self.x + radius * self.unit * u).astype(self.x.dtype)

    def slope(self, x: np.ndarray, d: np.ndarray, h: float) -> float:
        """The slope of L at x along the direction d, in which each entry is measured in its unit,
        by a central difference with step h."""
        step = h * self.unit * d
        up = (x + step).astype(x.dtype)
        down = (x - step).astype(x.dtype)
        return (self._loss(up) - self._loss(down)) / (2 * h)

    def ray(self) -> np.ndarray:
        return self.rng.standard_normal(self.x.shape)

    @cached_property
    def noises(self) -> dict[str, float]:
        """The error that rounding may cause in each gradient, by the name of the input. It is
        measured at a few points beside the kink. The smallest value counts, since at some points a
        rounding error leads to another piece of the function, with another gradient."""
        noises = []
        for _ in range(5):
            parts = self.parted(self.point(self.ray(), self.pulled.far))
            hosts = {k: parts[name] for name, k in self._numbers.items()}
            noises.append(self._gradients.noise_at(hosts, self.rng))
        numbers = self._numbers.items()
        return {n: self._targets[n].allowed_for(min(x[k] for x in noises)) for n, k in numbers}

    @cached_property
    def noise(self) -> np.ndarray:
        """The error that rounding may cause in the gradient of each entry: that of the input to
        which the entry belongs."""
        shapes = self.shapes.items()
        return self.joined({n: np.full(shape, self.noises[n]) for n, shape in shapes})

    def pull(self, x: np.ndarray) -> np.ndarray | None:
        parts = self.parted(x)
        found = self._gradients.at({k: parts[name] for name, k in self._numbers.items()})
        if found is None or not set(self._numbers.values()) <= found.keys():
            return None
        return self.joined({n: found[k] for n, k in self._numbers.items()}).astype(np.float64)

    def differences(self, x: np.ndarray, entries: np.ndarray, h: float) -> np.ndarray:
        result = np.zeros(x.shape)
        for i in entries:
            d = np.zeros(x.shape)
            d[i] = 1.0
            result[i] = self.slope(x, d, h) / self.unit[i]
        return result
