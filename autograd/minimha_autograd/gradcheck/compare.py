"""One gradient against the numeric ones of the same array.

Errors are relative to the largest entry of the numeric gradient, plus the measured noise. There is
no absolute tolerance, so the units of inputs and outputs do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from .kinks import Verdict
from .numeric import (
    BOUNDS,
    NODES,
    Loss,
    along,
    complex_step,
    differences,
    largest,
    perturbed,
    scales,
    slopes,
)
from .text import first_largest

METHODS = ("auto", *BOUNDS, "adjoint")
DIRECTIONS = 4  # of "adjoint"

# Notes on gradients of which nothing is left to compare.
ZERO = "structural zero"  # the numeric gradient is only noise
LOST = "lost in rounding"  # it is smaller than the noise of the gradient under check
UNREACHED = "out of reach"  # no two steps gave numbers


class Comparison(NamedTuple):
    """A gradient, `analytic`, beside a numeric one, and by how much they differ at the worst entry.

    method   the name of the numeric method
    error    the deviation of the worst entry, in units of the largest entry of the numeric
             gradient; if all entries of this gradient are below the noise, in units of the noise
    allowed  the largest error that passes at this entry, in the same units
    at       the index of the worst entry
    note     what else the report says about this comparison, or empty
    """

    method: str
    analytic: np.ndarray
    numeric: np.ndarray
    error: float
    allowed: float
    at: tuple[int, ...]
    note: str

    @property
    def passed(self) -> bool:
        """Whether the error is allowed; a NaN is not."""
        return self.error <= self.allowed

    def noting(self, *notes: str) -> Comparison:
        """The same comparison with these texts added to its note, except for empty ones."""
        return self._replace(note="; ".join(filter(None, (self.note, *notes))))


def compared(
    method: str,
    analytic: np.ndarray,
    numeric: np.ndarray,
    relative: float,
    noise: np.ndarray | float,
    own_noise: np.ndarray | float = 0.0,
) -> Comparison:
    """Compare a gradient, `analytic`, with a numeric one by this method, entry by entry. The error
    allowed is relative · (largest numeric entry) + noise + own_noise.

    noise      by how much each entry of the numeric gradient may be off. Entries where it is
               infinite are left out; if all entries are below it, the note says "structural zero"
    own_noise  by how much rounding may change the analytic gradient, which is under check
    """
    # Where differences found no number, there is nothing to compare with.
    noise = np.broadcast_to(noise, numeric.shape)
    known = np.isfinite(noise)
    notes = []
    if not known.all():
        unknown = int((~known).sum())
        notes.append(f"{unknown} of {known.size} entries {UNREACHED}")
    if not known.any():
        note = "; ".join(["no entries", *notes])
        return Comparison(method, analytic, numeric, 0.0, 0.0, (), note)

    # From here on, only the entries that are known, in one row.
    size = abs(numeric[known])  # (n,) for n known entries, as are those below
    deviation = abs(analytic[known] - numeric[known])
    floor = (noise + own_noise)[known]
    largest_size = float(size.max())
    limit = relative * largest_size + floor

    # Errors are reported in units of the largest entry, or of the noise if that is larger.
    unit = largest_size
    only_noise = bool((size <= floor).all())
    if only_noise:
        unit = float(floor.max()) or 1.0
        zero = (size <= noise[known]).all()
        notes.insert(0, ZERO if zero else LOST)

    # The worst entry exceeds its own limit by most. A NaN is worse than any number.
    excess = np.where(np.isnan(deviation), np.inf, deviation - limit)
    (worst,) = first_largest(excess)
    error = float(deviation[worst] / unit)
    allowed = float(limit[worst] / unit)

    # A reader should know when so much is allowed that mistakes could pass.
    if not only_noise and allowed > max(1e-3, 3 * relative):
        notes.insert(0, f"noise leaves {allowed:.0e} open")

    # Its place among all entries, known or not.
    place = np.argwhere(known)[worst]
    at = tuple(map(int, place))
    return Comparison(
        method,
        analytic,
        numeric,
        error,
        allowed,
        at,
        note="; ".join(notes),
    )


@dataclass(frozen=True)
class Target:
    """An array whose gradient is under check: an input, a parameter or an intermediate.

    x         its value, in the dtype of the numeric derivatives
    gradient  the gradient under check
    loss      L, the number that is differentiated, as a function of this array
    rounding  roughly the rounding error of L
    noise     how much the gradient changes if its inputs change in their last digits
    scales    for each entry of x, the unit of its steps; by default about its absolute value, as
              the function `scales` computes it
    confirmed whether the complex step is known to be right, so that differences need not confirm it
    at_kinks  a function that returns the Verdict on the kinks of this array, None if there are
              none. Given a boolean array of the entries whose gradient differs from the numeric
              one, it looks again for kinks there. None instead of a function for an intermediate
              and for L along a line, where `_between_slopes` looks for kinks
    """

    MANY: ClassVar[int] = 4096
    """If an array has more entries than this, "auto" uses random directions instead of entries."""

    name: str
    x: np.ndarray
    gradient: np.ndarray
    loss: Loss
    rounding: float
    noise: float
    scales: np.ndarray | None = None
    confirmed: bool = False
    at_kinks: Callable[[np.ndarray | None], Verdict | None] | None = None

    def compare(
        self,
        method: str = "auto",
        entrywise: bool | None = None,
    ) -> Iterator[Comparison]:
        """Yield one comparison for each numeric method, most precise first.

        method     as for `gradcheck`
        entrywise  for "auto", whether to compare entry by entry, which takes long for a large
                   array, or along random directions; by default, entry by entry if the array has at
                   most MANY entries

        A comparison along random directions is the only one. Entry by entry, "auto" compares with
        the complex step if the function accepts complex numbers and differences confirm it, and
        otherwise with Richardson's method; any other method is used as named. The last comparison
        is with central differences, for every method. Raises ValueError if "complex step" is asked
        for and is not possible.
        """
        if entrywise is None:
            entrywise = self.x.size <= self.MANY
        if method == "adjoint":
            yield self._adjoint("")
            return
        if method == "auto" and not entrywise:
            yield self._adjoint(f"{self.x.size} entries")
            return

        note = ""  # why there is no complex step
        if method in ("auto", "complex step"):
            sharp, noise, note = self._complex_step
            if sharp is not None:
                bound = self._bound("complex step")
                yield self._compared("complex step", sharp, bound, noise)
            elif method == "complex step":
                raise ValueError(f"{self.name}: {note}")

        # Without a complex step, "auto" falls back on the most precise differences.
        if method in NODES and method != "central":
            yield self._by_differences(method, "")
        elif note:
            yield self._by_differences("richardson", note)

        # Central differences have the simplest formula: what they say is easy to check by hand.
        yield self._by_differences("central", note)

    def numeric(self) -> np.ndarray:
        """The numeric gradient by the most precise method that the function allows, entry by entry.
        At a kink, where no derivative exists, several gradients are right: of these, the one that
        is nearest to the gradient under check."""
        numeric, _, _ = self._complex_step
        if numeric is None:
            numeric, _ = self._differences("richardson")
        kinks = self.kinks
        if kinks is None:
            return numeric
        return np.where(kinks.at, kinks.fitting, numeric)

    def line(self, v: np.ndarray) -> Target:
        """This target along a direction v: L(x + t · v) as a function of the number t, at t = 0."""
        # A step along v then moves each entry by about the smallest scale of an entry.
        smallest = self.entry_scales.min(initial=1.0)
        scale = np.asarray(smallest / max(1.0, largest(self.x)))  # ()

        # The verdict on kinks is about single entries, and says nothing about a line.
        return replace(
            self,
            x=np.zeros((), self.x.dtype),
            loss=along(self.loss, self.x, v),
            scales=scale,
            at_kinks=None,
        )

    @property
    def kinks(self) -> Verdict | None:
        """The Verdict on the kinks found so far; None if none was found or `at_kinks` is None."""
        if self.at_kinks is None:
            return None
        return self.at_kinks(None)

    @property
    def analytic(self) -> bool:
        """Whether the complex step gives a gradient that differences confirm or that is known to be
        right (see `confirmed`)."""
        return self._complex_step[0] is not None

    @cached_property
    def noise_allowed(self) -> float:
        """The error allowed in the gradient under check because of its own rounding."""
        return self.allowed_for(self.noise)

    def allowed_for(self, noise: float) -> float:
        """The error allowed in a gradient that changes by `noise` if its inputs change in their
        last digits."""
        # L is rounded by eps times the size of its terms, about.
        eps_of_x = float(np.finfo(self.x.dtype).eps)
        size = self.rounding / eps_of_x

        # The measured noise may be small by chance, so add what such terms lead to expect.
        eps = float(np.finfo(self.gradient.dtype).eps)
        expected = 4 * eps * size / max(1.0, largest(self.x))
        return 30 * noise + expected

    @property
    def entry_scales(self) -> np.ndarray:
        """The scale of each entry of x: finite differences take steps in this unit."""
        if self.scales is None:
            return scales(self.x)
        return self.scales

    def _bound(self, method: str) -> float:
        """The relative error allowed in a comparison with this numeric method: that for float32 if
        x or the gradient under check is float32, else that for float64."""
        coarser = min(self.x.dtype.name, self.gradient.dtype.name)  # "float32" < "float64"
        return BOUNDS[method][coarser]

    @cached_property
    def _complex_step(self) -> tuple[np.ndarray | None, float, str]:
        """The gradient by the complex step, its noise, and "". If it cannot be computed or is not
        confirmed: None, 0, and a note that says why.

        The complex step is silently wrong where a function drops imaginary parts. So differences
        must confirm it, in each entry and, with less tolerance, along a random direction.
        """
        rng = np.random.default_rng(0)
        h = 1e-20 * self.entry_scales  # x's shape

        # The second time with another step and other rounding, to see how much that changes.
        (moved,) = perturbed([self.x], rng)
        try:
            sharp = complex_step(self.loss, self.x, h)
            again = complex_step(self.loss, moved, h / 2)
        except Exception as error:  # whatever f raises, it does not take complex numbers
            return None, 0.0, f"no complex step: {type(error).__name__}"

        # The complex step itself is off by the rounding of L, and by what a change of x in the last
        # places does.
        from_rounding = self.rounding / max(1.0, largest(self.x))
        change = float(abs(again - sharp).max(initial=0.0))
        noise = from_rounding + 30 * change
        if self.confirmed or self._confirms(sharp, noise, rng):
            return sharp, noise, ""
        return None, 0.0, "no complex step: not analytic"

    def _confirms(
        self,
        sharp: np.ndarray,
        noise: float,
        rng: np.random.Generator,
    ) -> bool:
        """Whether finite differences confirm `sharp`, the gradient by the complex step, which may
        be off by `noise`. `rng` draws a direction."""
        # In each entry.
        dtype = self.x.dtype.name
        central, doubt = self._differences("central")
        entrywise = compared(
            "central",
            analytic=sharp,
            numeric=central,
            relative=BOUNDS["central"][dtype],
            noise=3 * doubt + noise,
        )

        # Along a random direction, where even the most precise differences take little time.
        v = self._direction(rng)  # x's shape
        slope, doubt = self.line(v)._differences("richardson")  # () both
        terms = sharp * v
        error = abs(slope - np.sum(terms))

        # In the worst case the errors of all entries add up.
        allowed = BOUNDS["richardson"][dtype] * np.sum(abs(terms))
        allowed += 3 * doubt + noise * np.sum(abs(v))
        return bool(entrywise.passed and not error > allowed)

    def _differences(self, method: str) -> tuple[np.ndarray, np.ndarray]:
        """The numeric gradient by finite differences, and the uncertainty of each of its entries,
        called its doubt. Both are computed once for each method: "central", "fourth-order" or
        "richardson"."""
        computed = self.__dict__.setdefault("_computed", {})  # the dataclass is frozen
        if method not in computed:
            bound = BOUNDS[method][self.x.dtype.name]
            computed[method] = differences(
                self.loss,
                self.x,
                self.entry_scales,
                method,
                self.rounding,
                relative=0.1 * bound,  # a tenth of the error that the comparison allows
            )
        return computed[method]

    def _by_differences(self, method: str, note: str) -> Comparison:
        numeric, doubt = self._differences(method)
        bound = BOUNDS[method][self.x.dtype.name]
        return self._compared(method, numeric, bound, 3 * doubt).noting(note)

    def _compared(
        self,
        method: str,
        numeric: np.ndarray,
        bound: float,
        noise: np.ndarray | float,
    ) -> Comparison:
        """Compare the gradient under check with a numeric one, which may be off by `noise`; `bound`
        is the relative error allowed. Where L has a kink and several gradients are right, the one
        nearest to the gradient under check replaces the numeric one."""

        def against(
            fitting: np.ndarray,
            noise: np.ndarray | float,
            own: float,
        ) -> Comparison:
            return compared(method, self.gradient, fitting, bound, noise, own)

        kinks = self.kinks
        own = self._own_noise(kinks)
        comparison = against(numeric, noise, own)

        # Entries that differ may lie at a kink that has not been found yet.
        if not comparison.passed:
            limit = bound * largest(numeric) + noise + own
            close = abs(self.gradient - numeric) <= limit  # x's shape
            suspects = ~close  # a NaN is one, too

            # A target that stands alone has only its own slopes.
            if self.at_kinks is None:
                fitting, note = self._between_slopes(numeric, limit, suspects)
                return against(fitting, noise, own).noting(note)
            kinks = self.at_kinks(suspects)
        if kinks is None or not kinks.at.any():
            return comparison

        # At a kink the numeric gradient means nothing.
        fitting = np.where(kinks.at, kinks.fitting, numeric)
        noise = np.where(kinks.at, kinks.tolerance, noise)
        found = against(fitting, noise, kinks.noise)

        # Zero is one right gradient among others here, so "structural zero" would be misleading.
        if found.passed and found.note.startswith(ZERO):
            found = found._replace(note="")
        return found.noting(kinks.note)

    def _own_noise(self, kinks: Verdict | None) -> float:
        """The error that rounding may cause in the gradient under check, away from kinks. `kinks`
        is what was found about these, None if there are none."""
        if kinks is None:
            return self.noise_allowed
        return kinks.noise

    def _between_slopes(
        self,
        numeric: np.ndarray,
        limit: np.ndarray | float,
        suspects: np.ndarray,
    ) -> tuple[np.ndarray, str]:
        """The numeric gradient, and a note on kinks, empty if there are none. Where L has a kink,
        the gradient under check is right if it lies between the slopes from the left and from the
        right, or outside by no more than `limit`. So it is copied into the numeric gradient there.
        Only the entries in `suspects`, a boolean array that is True where the two gradients differ,
        are examined.

        This is for targets without `at_kinks`, such as an intermediate or L along a line.
        """
        fitting = np.array(numeric)
        count = 0  # of the entries that were copied
        limit = np.broadcast_to(limit, fitting.shape)
        for k in map(tuple, np.argwhere(suspects)):
            # Comparisons with NaN are false: without a kink nothing is copied.
            left, right = slopes(self.loss, self.x, k, self.rounding)
            lowest = min(left, right) - limit[k]
            highest = max(left, right) + limit[k]
            if lowest <= self.gradient[k] <= highest:
                fitting[k] = self.gradient[k]
                count += 1
        note = ""
        if count:
            note = f"kink at {count} of {self.x.size} entries"
        return fitting, note

    def only_kinks(self) -> Comparison | None:
        """Compare only those entries of the gradient under check that are at a kink with the
        nearest right ones; None if there are no such entries."""
        kinks = self.kinks
        if kinks is None or not kinks.at.any():
            return None

        # The other entries count as equal: 0 beside 0.
        yours = np.where(kinks.at, self.gradient, 0)
        fitting = np.where(kinks.at, kinks.fitting, 0)
        found = compared(
            "nearby",
            yours,
            fitting,
            relative=BOUNDS["central"][self.x.dtype.name],
            noise=kinks.tolerance,
            own_noise=kinks.noise,
        )
        return found.noting(kinks.note, "another cotangent")

    def _adjoint(self, why: str) -> Comparison:
        """Compare ⟨dx, v⟩ with the derivative of L along v, for random directions v, where dx is
        the gradient under check. The directions do not move entries that are at a kink; the worst
        of these entries is compared by itself with the nearest right gradient. `why` is a note
        that says why entries are not compared one by one, or empty."""
        rng = np.random.default_rng(0)
        kinks = self.kinks
        own = self._own_noise(kinks)

        # L has no derivative along a direction that moves an entry at a kink.
        still = np.zeros(self.x.shape, bool)
        if kinks is not None:
            still = kinks.at

        bound = 0.0
        found = []  # for each direction: yours, numeric, noise
        for _ in range(DIRECTIONS):
            drawn = self._direction(rng)
            zero = np.zeros((), self.x.dtype)
            v = np.where(still, zero, drawn)  # x's shape and dtype

            # Along a line L has one slope: the most precise method is affordable.
            line = self.line(v)
            doubt: np.ndarray | float
            method = "complex step"
            slope, doubt, _ = line._complex_step
            if slope is None:
                method = "richardson"
                slope, doubt = line._differences(method)

            # If one direction needs the coarser method, its bound holds for all.
            bound = max(bound, self._bound(method))

            # Errors of n entries with random signs add up to about √n of them.
            own_noise = own * np.sqrt(v.size) * largest(v)
            noise = 3 * float(doubt) + own_noise
            yours = np.sum(self.gradient * v, dtype=np.float64)  # ⟨dx, v⟩
            found.append((yours, float(slope), noise))

        # The worst of the entries at kinks.
        note = ""
        if kinks is not None and still.any():
            note = kinks.note
            off = np.where(still, abs(self.gradient - kinks.fitting), 0)
            k = first_largest(off)
            found.append((self.gradient[k], kinks.fitting[k], kinks.tolerance[k]))

        yours, numeric, noises = np.array(found).T  # (DIRECTIONS,) each, one more with kinks
        comparison = compared("adjoint", yours, numeric, bound, noises)
        return comparison.noting(note, why, f"{DIRECTIONS} random directions")

    def _direction(self, rng: np.random.Generator) -> np.ndarray:
        """A random direction, with entries about as large as those of x."""
        drawn = rng.standard_normal(self.x.shape)
        v = drawn * max(1.0, largest(self.x))
        return v.astype(self.x.dtype)
