"""One gradient against the numeric ones of the same array."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .numeric import (
    BOUNDS,
    NODES,
    Loss,
    along,
    complex_step,
    differences,
    jiggled,
    scales,
    slopes,
)

METHODS = ("auto", *BOUNDS, "adjoint")
LARGE = 4096
"""Entries above which "auto" looks along random directions instead."""
DIRECTIONS = 4

ZERO = "structural zero"
LOST = "lost in rounding"
OUT = "out of reach"


@dataclass(frozen=True)
class Bound:
    """How far a gradient may be from a numeric one: relative · (largest entry) + theirs + ours.

    theirs is the noise of the numeric gradient, of each entry or of all, and ours that of the other
    side. A numeric gradient that lies below its own noise altogether is a structural zero. Entries
    whose noise is infinite are left out.
    """

    relative: float
    theirs: np.ndarray | float
    ours: np.ndarray | float = 0.0

    def compare(self, analytic: np.ndarray, numeric: np.ndarray) -> Comparison:
        """Compare entry by entry; the outcome is that of the worst entry."""
        if not numeric.size:
            return Comparison(0.0, 0.0, (), "no entries")
        known = np.broadcast_to(np.isfinite(self.theirs), numeric.shape)
        if not known.all():
            return self._compare_known(analytic, numeric, known)
        size, floor = abs(numeric), np.broadcast_to(self.theirs + self.ours, numeric.shape)
        unit, note = float(size.max()), ""
        if (size <= floor).all():
            zero = (size <= self.theirs).all()
            unit, note = float(floor.max()) or 1.0, ZERO if zero else LOST
        limit = self.relative * float(size.max()) + floor
        deviation = abs(analytic - numeric)
        excess = np.where(np.isnan(deviation), np.inf, deviation - limit)
        worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
        error, allowed = float(deviation[worst] / unit), float(limit[worst] / unit)
        if not note and allowed > max(1e-3, 3 * self.relative):
            note = f"noise leaves {allowed:.0e} open"
        return Comparison(error, allowed, tuple(map(int, worst)), note)

    def _compare_known(
        self, analytic: np.ndarray, numeric: np.ndarray, known: np.ndarray
    ) -> Comparison:
        theirs = np.broadcast_to(self.theirs, numeric.shape)[known]
        found = Bound(self.relative, theirs, self.ours).compare(analytic[known], numeric[known])
        at = np.argwhere(known)[found.worst] if found.worst else ()
        lost = f"{int((~known).sum())} of {known.size} entries {OUT}"
        note = "; ".join(filter(None, (found.note, lost)))
        return found._replace(worst=tuple(map(int, np.ravel(at))), note=note)


class Comparison(NamedTuple):
    """The worst entry's error and the error allowed there, in units of the largest entry or, where
    that is below the noise, of the noise."""

    error: float
    allowed: float
    worst: tuple[int, ...]
    note: str

    @property
    def passed(self) -> bool:
        """Whether the error is allowed; a NaN is not."""
        return self.error <= self.allowed


class Compared(NamedTuple):
    """The outcome by one method, and what was compared."""

    method: str
    analytic: np.ndarray
    numeric: np.ndarray
    outcome: Comparison


@dataclass(frozen=True)
class Target:
    """An array whose gradient is under check: an input, a parameter or an intermediate.

    x         its value, on the numeric side
    gradient  the one under check
    loss      L as a function of it
    rounding  about how far L is rounded
    noise     how far the gradient moves when all is rounded in another way
    scales    those of the entries of x; by default, their sizes
    confirmed whether the complex step is known to hold, so that differences need not confirm it
    """

    name: str
    x: np.ndarray
    gradient: np.ndarray
    loss: Loss
    rounding: float
    noise: float
    scales: np.ndarray | None = None
    confirmed: bool = False

    def compare(self, method: str = "auto", entrywise: bool | None = None) -> Iterator[Compared]:
        """The outcome by each method, the sharpest first.

        entrywise  for "auto", whether there is time for each entry

        Central differences are always there. With "auto" the complex step is, where the function
        takes complex numbers and differences confirm it, and otherwise Richardson's; where there
        is no time, by default above LARGE entries, these along random directions.
        """
        entrywise = self.x.size <= LARGE if entrywise is None else entrywise
        if method == "adjoint" or (method == "auto" and not entrywise):
            yield self._adjoint("" if method == "adjoint" else f"{self.x.size} entries")
            return
        note = ""
        if method in ("auto", "complex step"):
            sharp, theirs, note = self._complex_step
            if sharp is not None:
                coarser = min(self.x.dtype.name, self.gradient.dtype.name)
                bound = Bound(BOUNDS["complex step"][coarser], theirs, self._ours)
                outcome = bound.compare(self.gradient, sharp)
                yield Compared("complex step", self.gradient, sharp, outcome)
            elif method == "complex step":
                raise ValueError(f"{self.name}: {note}")
        if method in NODES and method != "central":
            yield self._by_differences(method, "")
        elif note:
            yield self._by_differences("richardson", note)
        yield self._by_differences("central", note)

    def numeric(self) -> np.ndarray:
        """The gradient by the sharpest method that the function allows, entry by entry."""
        sharp, _, _ = self._complex_step
        return sharp if sharp is not None else self._differences("richardson")[0]

    @cached_property
    def _ours(self) -> float:
        eps = float(np.finfo(self.gradient.dtype).eps)
        size = self.rounding / float(np.finfo(self.x.dtype).eps)
        return 30 * self.noise + 4 * eps * size / max(1.0, self._largest)

    @property
    def _largest(self) -> float:
        return float(abs(self.x[np.isfinite(self.x)]).max(initial=0.0))

    @property
    def _scales(self) -> np.ndarray:
        return scales(self.x) if self.scales is None else self.scales

    @property
    def analytic(self) -> bool:
        """Whether there is a complex step that differences confirm."""
        return self._complex_step[0] is not None

    @cached_property
    def _complex_step(self) -> tuple[np.ndarray | None, float, str]:
        """The gradient by the complex step, its noise, and, where there is none, why.

        It counts only where differences confirm it, in each entry and, more sharply, along a random
        direction: it is silently wrong where a function drops imaginary parts.
        """
        rng = np.random.default_rng(0)
        h = 1e-20 * self._scales
        try:
            sharp = complex_step(self.loss, self.x, h)
            again = complex_step(self.loss, jiggled([self.x], rng)[0], h / 2)
        except Exception as error:  # whatever f raises, it does not take complex numbers
            return None, 0.0, f"no complex step: {type(error).__name__}"
        noise = 30 * float(abs(again - sharp).max(initial=0.0))
        theirs = self.rounding / max(1.0, self._largest) + noise
        if self.confirmed:
            return sharp, theirs, ""
        central, doubt = self._differences("central")
        bound = Bound(BOUNDS["central"][self.x.dtype.name], 3 * doubt + theirs)
        v = self._direction(rng)
        slope, open_ = self.line(v)._differences("richardson")
        expected = np.sum(sharp * v)
        allowed = BOUNDS["richardson"][self.x.dtype.name] * np.sum(abs(sharp * v))
        allowed += 3 * open_ + theirs * np.sum(abs(v))
        if bound.compare(sharp, central).passed and not abs(slope - expected) > allowed:
            return sharp, theirs, ""
        return None, 0.0, "no complex step: not analytic"

    def _differences(self, method: str) -> tuple[np.ndarray, np.ndarray]:
        known = self.__dict__.setdefault("_known", {})
        if method not in known:
            settled = 0.1 * BOUNDS[method][self.x.dtype.name]
            known[method] = differences(
                self.loss, self.x, self._scales, method, self.rounding, settled
            )
        return known[method]

    def _by_differences(self, method: str, note: str) -> Compared:
        numeric, doubt = self._differences(method)
        bound = Bound(BOUNDS[method][self.x.dtype.name], 3 * doubt, self._ours)
        outcome = bound.compare(self.gradient, numeric)
        if not outcome.passed and self.gradient.shape == self.x.shape:
            limit = bound.relative * abs(numeric).max() + bound.theirs + bound.ours
            smoothed, kinks = self._without_kinks(numeric, limit)
            if kinks:
                outcome = bound.compare(smoothed, numeric)
                note = "; ".join(filter(None, (f"kink at {kinks}", note)))
        note = "; ".join(filter(None, (outcome.note, note)))
        return Compared(method, self.gradient, numeric, outcome._replace(note=note))

    def _without_kinks(self, numeric: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, str]:
        """The gradient, with the numeric one wherever L has a kink and the gradient lies between
        its slopes from the left and from the right; and how many entries those are."""
        smoothed, count = self.gradient.copy(), 0
        for k in zip(*np.nonzero(abs(self.gradient - numeric) > limit), strict=True):
            left, right = slopes(self.loss, self.x, k, self.rounding)
            if min(left, right) - limit[k] <= self.gradient[k] <= max(left, right) + limit[k]:
                smoothed[k], count = numeric[k], count + 1
        return smoothed, f"{count} of {self.x.size} entries" if count else ""

    def _adjoint(self, why: str) -> Compared:
        """⟨dx, v⟩ against the derivative of L along v, for random directions v."""
        rng, analytic, numeric, doubts = np.random.default_rng(0), [], [], []
        methods = set()
        for _ in range(DIRECTIONS):
            v = self._direction(rng)
            line = self.line(v)
            sharp, theirs, _ = line._complex_step
            slope, doubt = (sharp, theirs) if sharp is not None else line._differences("richardson")
            methods.add("complex step" if sharp is not None else "richardson")
            analytic.append(np.sum(self.gradient * v, dtype=np.float64))
            numeric.append(float(slope))
            ours = self._ours * np.sqrt(v.size) * float(abs(v).max(initial=0.0))
            doubts.append(3 * float(doubt) + ours)
        coarser = min(self.x.dtype.name, self.gradient.dtype.name)
        relative = max(BOUNDS[m][coarser] for m in methods)
        bound = Bound(relative, np.array(doubts))
        outcome = bound.compare(np.array(analytic), np.array(numeric))
        note = "; ".join(filter(None, (outcome.note, why, f"{DIRECTIONS} random directions")))
        return Compared(
            "adjoint", np.array(analytic), np.array(numeric), outcome._replace(note=note)
        )

    def _direction(self, rng: np.random.Generator) -> np.ndarray:
        v = rng.standard_normal(self.x.shape) * max(1.0, self._largest)
        return v.astype(self.x.dtype)

    def line(self, v: np.ndarray) -> Target:
        """The same along a direction v, with a place on that line for x."""
        scale = np.asarray(self._scales.min(initial=1.0) / max(1.0, self._largest))
        loss = along(self.loss, self.x, v)
        return replace(self, x=np.zeros((), self.x.dtype), loss=loss, scales=scale)
