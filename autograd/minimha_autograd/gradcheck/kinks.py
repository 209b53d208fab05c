"""Whether a gradient fits the function at a kink, over all checked inputs jointly.

At a kink there is no derivative, but there is one at almost all points nearby. Seen from the kink,
the function consists of pieces, each with one gradient G along all rays that lead into it:

    G(u) = lim ∇L(x + ρ u)        as ρ falls to 0

A gradient is right if it is a weighted mean of these: if it lies in their convex hull, which is
Clarke's generalised gradient. So at 0 each number from 0 to 1 is right for relu, and for the
maximum of three equal entries (1, 0, 0) and (⅓, ⅓, ⅓) are right, but not (1, 1, 1): if the three
move together, the slope is 1. An entry at a time, nothing is wrong with it.

The pieces are found along random rays, whose points break every tie. Entries whose pieces do not
depend on one another are judged apart. A gradient outside the hull of the pieces seen so far
differs from all of them along a direction d. Either a search finds a piece whose slope along d is
as large as the gradient claims, or it finds the same largest slope again and again: then the
gradient is wrong. Where it does neither, the answer is that nothing was decided.

Source: Clarke, "Optimization and nonsmooth analysis" (1983), theorem 2.5.1: the hull is the same
whichever set of measure zero the points leave out. Burke, Lewis and Overton, "A robust gradient
sampling algorithm for nonsmooth, nonconvex optimization", SIAM Journal on Optimization 15 (2005),
also sample it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from .gradients import Gradients
from .text import listed

__tracebackhide__ = True

RAYS = 40
MANY = 200
"""Entries above which those that depend on one another are not told apart."""

FEW = 8
"""Entries that depend on one another up to which a search for pieces is trusted."""

BUDGET = 20_000
"""Gradients that may be computed to decide about a kink."""


class Checked(Protocol):
    """An input whose gradient is under check, as in compare.py."""

    @property
    def x(self) -> np.ndarray: ...
    @property
    def gradient(self) -> np.ndarray: ...
    @property
    def entry_scales(self) -> np.ndarray: ...
    def allowed_for(self, noise: float) -> float: ...


class Radii(NamedTuple):
    """Distances from x, in units of the scale of each entry, and relative tolerances.

    far, near  a kink at x looks the same at both distances, one beside x does not
    step       of central differences at distance far
    sharp      the error of a limit of gradients, relative to the largest entry
    bound      the same for the gradient under check
    checked    the error allowed in a slope by central differences
    """

    far: float
    near: float
    step: float
    sharp: float
    bound: float
    checked: float


PULLED = {
    ("float64", "float64"): Radii(1e-5, 1e-9, 5e-8, 1e-10, 1e-10, 1e-5),
    ("float64", "float32"): Radii(1e-4, 1e-5, 5e-6, 1e-10, 1e-5, 1e-4),
    ("float32", "float32"): Radii(1e-2, 1e-3, 2e-3, 1e-3, 1e-3, 5e-2),
}
"""By the dtypes of the numeric side and of the gradient, for gradients by the pullback."""

MEASURED = {
    "float64": Radii(1e-3, 1e-4, 1e-6, 1e-5, 1e-5, 1e-5),
    "float32": Radii(3e-2, 1e-2, 2e-3, 5e-2, 5e-2, 5e-2),
}
"""The same for gradients by central differences."""


class Claim(NamedTuple):
    """What a gradient claims at a kink along a direction, and what the function does nearby.

    entries    the input, the place and the share of each entry that moves
    low, high  the range of the slopes nearby
    claimed    the slope that the gradient claims
    """

    entries: tuple[tuple[str, tuple[int, ...], float], ...]
    low: float
    high: float
    claimed: float

    def text(self) -> str:
        """In words."""
        moves = [f"{name}{list(at) if at else ''}" for name, at, _ in self.entries]
        if len(moves) > 6:
            moves = [*moves[:5], f"{len(moves) - 5} more entries"]
        shares = [share for *_, share in self.entries]
        if len(shares) == 1:
            how = f"If {moves[0]} increases"
        elif len(set(shares)) == 1:
            how = f"If {listed(moves)} increase together"
        elif set(shares) == {1.0, -1.0}:
            up, down = (
                [m for m, share in zip(moves, shares, strict=False) if share == sign]
                for sign in (1.0, -1.0)
            )
            how = f"If {listed(up)} increase and {listed(down)} decrease together"
            how = how.replace("increase", "increases") if len(up) == 1 else how
            how = how.replace("decrease", "decreases") if len(down) == 1 else how
        else:
            told = ", ".join(f"{share:.3g}" for share in shares[: len(moves)])
            how = f"If {listed(moves)} move in the proportions {told}"
        near = min(abs(self.claimed - self.low), abs(self.claimed - self.high))
        digits = 6 if near > 1e-4 * abs(self.claimed) else 12
        low, high, claimed = (f"{x + 0.0:.{digits}g}" for x in (self.low, self.high, self.claimed))
        seen = f"the slopes nearby lie between {low} and {high}"
        if self.high - self.low <= 1e-6 * max(abs(self.high), abs(self.low)):
            seen = f"the slope nearby is {high}"
        return f"{how}, {seen}; the gradient claims {claimed}"


@dataclass(frozen=True)
class Verdict:
    """About the gradient of one input.

    at         the entries that are at a kink
    fitting    the gradient where it is right or not decided, and otherwise the right one nearest
    tolerance  what rounding may add to an entry
    noise      what rounding may add where there is no kink
    undecided  the number of entries for which nothing was decided
    claims     what is wrong, a direction each
    """

    at: np.ndarray
    fitting: np.ndarray
    tolerance: np.ndarray
    noise: float
    undecided: int
    claims: tuple[Claim, ...]

    @property
    def note(self) -> str:
        """As in a report."""
        count, size = int(self.at.sum()), self.at.size
        note = f"kink at {count} of {size} entr{'y' if size == 1 else 'ies'}"
        if self.undecided:
            note += f", {self.undecided if self.undecided < count else 'which is'} not decided"
        return note


class Kinks:
    """The pieces of L around the checked inputs, which move jointly, and what they allow."""

    def __init__(self, gradients: Gradients, targets: Mapping[str, Checked]) -> None:
        self._gradients, self._targets = gradients, targets
        function = gradients.function
        self._numbers = {
            name: k for k in function.checked if (name := function.names[k]) in targets
        }
        self._shapes = {name: target.x.shape for name, target in targets.items()}
        self._x = self._joined({name: target.x for name, target in targets.items()})
        self._g = self._joined({name: target.gradient for name, target in targets.items()})
        self._g = self._g.astype(np.float64)
        size = np.where(np.isfinite(self._x), abs(self._x), 0).astype(np.float64)
        scales = self._joined({name: t.entry_scales for name, t in targets.items()})
        numeric = self._x.dtype.name
        lower = {t.gradient.dtype.name for t in targets.values()} | {numeric}
        gradient = "float32" if "float32" in lower else "float64"
        self._pulled, self._measured = PULLED[numeric, gradient], MEASURED[numeric]
        # Points nearby must be rounded to different numbers.
        self._unit = np.maximum(scales, size * (2e-3 if gradient == "float64" else 0.3))
        self.input_of = self._joined(
            {n: np.full(shape, k) for k, (n, shape) in enumerate(self._shapes.items())}
        )
        self.inputs = len(self._shapes)
        self._rng = np.random.default_rng(0)
        self._rounding = gradients.rounding
        self._settled: dict[str, Verdict] | None = None
        self._looked = False
        self._asked = np.zeros(self._x.shape, bool)

    def verdict(self, name: str, suspects: np.ndarray | None = None) -> Verdict | None:
        """About the gradient of one input; None if there is no kink.

        suspects  the entries whose gradient is not the numeric one: a kink there is looked for
        """
        if not self._looked and self._x.size:
            self._looked = True
            if self._varies(np.ones(self._x.shape)):
                self._settled = self._judge()
        if suspects is not None and suspects.any():
            none = {n: np.zeros(shape) for n, shape in self._shapes.items()}
            asked = self._joined(none | {name: suspects.astype(float)}) > 0
            at = {n: v.at for n, v in (self._settled or {}).items()}
            if (asked & ~(self._joined(none | at) > 0) & ~self._asked).any():
                self._asked |= asked
                smooth = not self._settled and not self._varies(asked.astype(float))
                self._settled = self._judge(smooth)
        return (self._settled or {}).get(name)

    @property
    def found(self) -> bool:
        """Whether there is an entry at a kink."""
        return any(verdict.at.any() for verdict in (self._settled or {}).values())

    # Points and slopes

    def _joined(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = [np.ravel(arrays[name]) for name in self._numbers]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _parted(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        parts, start = {}, 0
        for name in self._numbers:
            shape = self._shapes[name]
            size = int(np.prod(shape))
            parts[name] = flat[start : start + size].reshape(shape)
            start += size
        return parts

    def _loss(self, x: np.ndarray) -> float:
        parts = self._parted(x)
        return self._gradients.value({k: parts[name] for name, k in self._numbers.items()})

    def _point(self, u: np.ndarray, radius: float) -> np.ndarray:
        return (self._x + radius * self._unit * u).astype(self._x.dtype)

    def _slope(self, x: np.ndarray, d: np.ndarray, h: float) -> float:
        """The slope of L along d, in units of each entry, by a central difference."""
        step = h * self._unit * d
        up, down = (x + step).astype(x.dtype), (x - step).astype(x.dtype)
        return (self._loss(up) - self._loss(down)) / (2 * h)

    def _ray(self) -> np.ndarray:
        return self._rng.standard_normal(self._x.shape)

    def _varies(self, mask: np.ndarray) -> bool:
        """Whether the slope along a random direction differs between points near x, and does so
        however near they are. The direction moves the entries of the mask."""
        d, first = mask * self._ray(), self._ray()
        rays = [first, -first, *(self._ray() for _ in range(6))]
        far, step = self._pulled.far, self._pulled.step

        def slopes(shrink: float) -> np.ndarray:
            return np.array(
                [self._slope(self._point(u, far * shrink), d, step * shrink) for u in rays]
            )

        wide = slopes(1.0)
        wide_spread = _spread(wide)
        noise = 6 * self._rounding / step
        if not wide_spread > 1e-6 * float(abs(wide[np.isfinite(wide)]).max(initial=0.0)) + noise:
            return False
        narrow = slopes(0.1)
        # The slope along a ray stays the same, or x is so large that nothing near it has a number.
        changes = abs(wide - narrow)[np.isfinite(wide - narrow)]
        same = changes.size and np.median(changes) <= max(0.2 * wide_spread, 10 * noise)
        return bool(same and _spread(narrow) > max(0.5 * wide_spread, 10 * noise))

    @cached_property
    def _noises(self) -> dict[str, float]:
        """The noise of each gradient, measured beside the kink: the least at a few points, since at
        some of them other rounding leads to another piece."""
        noises = []
        for _ in range(5):
            parts = self._parted(self._point(self._ray(), self._pulled.far))
            hosts = {k: parts[name] for name, k in self._numbers.items()}
            noises.append(self._gradients.noise_at(hosts, self._rng))
        numbers = self._numbers.items()
        return {n: self._targets[n].allowed_for(min(x[k] for x in noises)) for n, k in numbers}

    @cached_property
    def _noise(self) -> np.ndarray:
        """The same for each entry."""
        shapes = self._shapes.items()
        return self._joined({n: np.full(shape, self._noises[n]) for n, shape in shapes})

    # Gradients nearby

    def _judge(self, smooth: bool = False) -> dict[str, Verdict]:
        """The verdicts by the pullback's own gradients at points nearby, where differences confirm
        these, and otherwise by differences.

        smooth  whether L has no kink. Its steps may have some, as in relu(x) − relu(−x), which is x
        """
        if smooth and self._same_nearby():
            return {}
        pieces = Pieces(self, self._pulled, None)
        found = self._verdicts(pieces) if pieces.confirmed() else None
        if found is not None:
            return found
        if smooth:
            return {}
        entries = self._different()
        found = self._verdicts(Pieces(self, self._measured, entries)) if len(entries) else None
        return found or {}

    def _same_nearby(self) -> bool:
        """Whether the gradient at a point nearby is about the one here: the common case."""
        nearby = self._pull(self._point(self._ray(), self._pulled.near))
        close = 10 * self._pulled.checked * abs(self._g).max(initial=0.0)
        return nearby is None or not (abs(nearby - self._g) > close).any()

    def _different(self) -> np.ndarray:
        """Up to MANY entries whose numeric gradients differ between a few points nearby."""
        far, step, bound = self._measured.far, self._measured.step, self._measured.bound
        everything, u = np.arange(self._x.size)[: 10 * MANY], self._ray()
        found = np.array(
            [
                self._differences(self._point(ray, far), everything, step)
                for ray in (u, -u, self._ray(), self._ray())
            ]
        )
        apart = np.ptp(found, axis=0) > 100 * bound * abs(found).max(initial=0.0)
        return np.flatnonzero(apart | ~np.isfinite(self._g))[:MANY]

    def _pull(self, x: np.ndarray) -> np.ndarray | None:
        parts = self._parted(x)
        found = self._gradients.at({k: parts[name] for name, k in self._numbers.items()})
        if found is None or not set(self._numbers.values()) <= found.keys():
            return None
        return self._joined({n: found[k] for n, k in self._numbers.items()}).astype(np.float64)

    def _differences(self, x: np.ndarray, entries: np.ndarray, h: float) -> np.ndarray:
        result = np.zeros(x.shape)
        for i in entries:
            d = np.zeros(x.shape)
            d[i] = 1.0
            result[i] = self._slope(x, d, h) / self._unit[i]
        return result

    def _verdicts(self, pieces: Pieces) -> dict[str, Verdict] | None:
        """The verdicts by input; None if differences contradict a finding."""
        if len(pieces.rays) < 8:
            return {}
        at, fitting = pieces.at, self._g.copy()
        undecided = np.zeros(at.shape, bool)
        claims: list[tuple[np.ndarray, Claim]] = []
        for block in pieces.blocks():
            found = pieces.decide(block, self._g[block])
            if found.undecided:
                undecided[block] = True
            elif found.direction is not None:
                if not pieces.confirmed(found.direction):
                    return None
                fitting[block] = found.nearest
                claims.append((block, self._claim(found)))
        parts = map(self._parted, (at, fitting, pieces.tolerance, undecided))
        ats, fittings, tolerances, undecideds = parts
        numbers = self._parted(np.arange(at.size))
        return {
            name: Verdict(
                ats[name],
                fittings[name],
                tolerances[name],
                self._noises[name],
                int(undecideds[name].sum()),
                tuple(c for block, c in claims if np.isin(block, numbers[name]).any()),
            )
            for name in self._numbers
        }

    def _claim(self, found: Decision) -> Claim:
        entries = []
        assert found.direction is not None
        for name, d in self._parted(found.direction).items():
            for place in np.argwhere(d):
                at = tuple(map(int, place))
                entries.append((name, at, float(d[at])))
        return Claim(tuple(entries), found.low, found.high, found.claimed)


def _spread(x: np.ndarray) -> float:
    """The distance between the smallest and the largest of the finite entries."""
    finite = x[np.isfinite(x)]
    return float(np.ptp(finite)) if finite.size else 0.0


@dataclass(frozen=True)
class Decision:
    """About the entries of a block: right unless undecided or with a direction of a mistake.

    direction  of all entries; the slopes along it lie between low and high
    nearest    the right gradient of the block that is nearest
    """

    undecided: bool = False
    direction: np.ndarray | None = None
    low: float = 0.0
    high: float = 0.0
    claimed: float = 0.0
    nearest: np.ndarray | None = None


class Pieces:
    """The gradients of the pieces around x.

    entries    those whose gradient is measured by differences; None for all, by the pullback
    rays       random directions, with opposite ones, and two that order the entries
    limits     the gradients along the rays
    tolerance  how exactly each entry is known
    varying    the entries that differ between pieces
    """

    def __init__(self, kinks: Kinks, radii: Radii, entries: np.ndarray | None) -> None:
        self._kinks, self._radii, self._entries = kinks, radii, entries
        self._rng = np.random.default_rng(1)
        self._left = BUDGET
        self.rays, self.limits = list[np.ndarray](), list[np.ndarray]()
        self.smooth = np.zeros(kinks._x.shape)
        drawn = [self._rng.standard_normal(kinks._x.shape) for _ in range(RAYS // 2)]
        for k in range(min(kinks.inputs, 8) if kinks.inputs > 1 else 0):
            # One input alone decides: others, with larger gradients, would hide its pieces.
            for one_sign in (True, False, False):
                u = self._rng.standard_normal(kinks._x.shape)
                u = abs(u) if one_sign else u
                drawn.append(np.where(kinks.input_of == k, u, 1e-4 * self._fresh()))
        order = np.sort(1.0 + self._rng.random(kinks._x.size))
        for u in (*drawn, order):
            self._look(u, -u)
        if len(self.rays) >= 8:
            self._look_closer()

    def _look(self, *rays: np.ndarray) -> None:
        for ray in rays:
            if (limit := self.limit(ray, everywhere=True)) is not None:
                self.rays.append(ray)
                self.limits.append(limit)

    def _look_closer(self) -> None:
        """Move the entries whose gradient does not fit what was seen so far in front of and behind
        all others: of many tied entries, few were the largest along the first rays."""
        kinks = self._kinks
        seen = np.array(self.limits)
        low, high = seen.min(axis=0) - self.tolerance, seen.max(axis=0) + self.tolerance
        varying = self.varying
        odd = ~((low <= kinks._g) & (kinks._g <= high)) | (kinks._asked & ~varying)
        entries = np.arange(odd.size) if self._entries is None else self._entries
        for i in entries[odd[entries]][:MANY]:
            u = self._fresh()
            u[i] = 4 * np.linalg.norm(u)
            v = self._fresh()
            v[i] = -4 * np.linalg.norm(v)
            self._look(u, v)
        del self._largest, self.tolerance, self._sharp, self.varying

    def _gradient(self, x: np.ndarray) -> np.ndarray | None:
        if self._entries is None:
            self._left -= 1
            return self._kinks._pull(x)
        self._left -= 1 + len(self._entries) // 8
        return self._kinks._differences(x, self._entries, self._radii.step)

    def limit(self, u: np.ndarray, everywhere: bool = False) -> np.ndarray | None:
        """The gradient along a ray, extrapolated to its beginning; None if the ray crosses another
        kink, or leaves the domain.

        everywhere  whether it must be the same farther away
        """
        point, near = self._kinks._point, self._radii.near
        full, half = (self._gradient(point(u, near * part)) for part in (1.0, 0.5))
        if full is None or half is None:
            return None
        found = 2 * half - full
        change = abs(full - half)
        size = abs(found).max(initial=0.0)
        loose = 1e-3 if self._radii.bound < 1e-4 else 0.1
        if not (np.isfinite(found).all() and change.max(initial=0.0) <= loose * size):
            return None
        if everywhere:
            far = self._gradient(point(u, self._radii.far))
            if far is None or not abs(far - found).max(initial=0.0) <= 10 * loose * size:
                return None
        self.smooth = np.maximum(self.smooth, change)
        return found

    def confirmed(self, direction: np.ndarray | None = None) -> bool:
        """Whether differences confirm these gradients at points nearby, along random directions or
        along this one."""
        kinks = self._kinks
        if len(self.rays) < 8:
            return False
        if self._entries is not None:
            return True  # they are differences
        agreed: list[bool] = []
        for u in self.rays[:6]:
            x = kinks._point(u, self._radii.far)
            gradient = self._gradient(x)
            if gradient is None:
                return False
            if direction is not None:
                ways = [direction / kinks._unit]
            else:
                ways = [kinks._ray(), kinks._ray() * self.varying]
            agreed += [self._agrees(x, gradient, d / (abs(d).max() or 1.0)) for d in ways]
        return 3 * sum(agreed) >= 2 * len(agreed)  # a step may cross a kink

    def _agrees(self, x: np.ndarray, gradient: np.ndarray, d: np.ndarray) -> bool:
        """Whether a central difference along d confirms the gradient: one of several steps, since a
        large one may cross a kink."""
        kinks = self._kinks
        terms = gradient * kinks._unit * d
        allowed = self._radii.checked * float(np.linalg.norm(terms))
        allowed += float(np.sum(kinks._noise * abs(kinks._unit * d)))
        for h in (self._radii.step, self._radii.step / 10, self._radii.step / 100):
            slope = kinks._slope(x, d, h)
            if abs(slope - terms.sum()) <= allowed + 6 * kinks._rounding / h:
                return True
        return False

    @cached_property
    def _largest(self) -> np.ndarray:
        """For each entry, the size of the largest entry of its input."""
        sizes = {
            name: np.full(part.shape[1:], abs(part).max(initial=0.0))
            for name, part in self._parts(np.array(self.limits)).items()
        }
        return self._kinks._joined(sizes)

    @cached_property
    def tolerance(self) -> np.ndarray:
        """The error allowed in each entry of the gradient under check."""
        return self._radii.bound * self._largest + self._kinks._noise + 0.1 * self.smooth

    @cached_property
    def _sharp(self) -> np.ndarray:
        """By how much two limits may differ that are the same."""
        noise = self._kinks._noise
        if self._radii.sharp < self._radii.bound:  # computed in float64
            noise = noise * float(np.finfo("float64").eps / np.finfo("float32").eps)
        return 10 * (self._radii.sharp * self._largest + noise + 0.1 * self.smooth)

    def _parts(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        parted = [self._kinks._parted(row) for row in rows]
        return {name: np.array([part[name] for part in parted]) for name in parted[0]}

    @cached_property
    def varying(self) -> np.ndarray:
        """The entries at a kink."""
        return np.asarray(np.ptp(np.array(self.limits), axis=0) > self._sharp)

    @cached_property
    def at(self) -> np.ndarray:
        """The entries at a kink, of L or of a step: those that differ between pieces, and those
        whose gradient is another one here than at all points nearby."""
        if self._entries is not None:  # the others were not measured
            return self.varying
        other = ~(abs(self._kinks._g - self.limits[0]) <= self.tolerance)
        return self.varying | other

    def blocks(self) -> list[np.ndarray]:
        """The entries at kinks, those together whose pieces depend on one another.

        If an entry moves far in front of or behind all others and the gradient of another one
        changes, then the two belong together.
        """
        at = np.flatnonzero(self.at)
        group = {int(i): int(i) for i in at}

        def root(i: int) -> int:
            while group[i] != i:
                i = group[i]
            return i

        together = self._not_alone(at)
        if len(together) > MANY:
            for i in together:
                group[root(int(i))] = root(int(together[0]))
            together = together[:0]
        for u in (self._fresh(), self._fresh()):
            base = self.limit(u)
            for i in together if base is not None else ():
                for side in (-4.0, 4.0):
                    moved = u.copy()
                    moved[i] = side * np.linalg.norm(u[at])
                    found = self.limit(moved)
                    if found is None or base is None:
                        continue
                    for j in at[(abs(found - base) > self._sharp)[at]]:
                        group[root(int(j))] = root(int(i))
        roots = np.array([root(int(i)) for i in at])
        return [at[roots == r] for r in np.unique(roots)]

    def _not_alone(self, at: np.ndarray) -> np.ndarray:
        """The entries whose gradient changes when others move, half of them at a time."""
        changed = np.zeros(self._kinks._x.shape, bool)
        for _ in range(20 if len(at) > 16 else 0):
            u = self._fresh()
            moved = u.copy()
            half = at[self._rng.random(len(at)) < 0.5]
            far = self._rng.choice([1.0, np.sqrt(len(at))], len(half))
            moved[half] = far * self._rng.standard_normal(len(half))
            base, found = self.limit(u), self.limit(moved)
            if base is not None and found is not None:
                apart = abs(found - base) > self._sharp
                apart[half] = False
                changed |= apart
        return at[changed[at]] if len(at) > 16 else at

    def _fresh(self) -> np.ndarray:
        return self._rng.standard_normal(self._kinks._x.shape)

    # One block

    def decide(self, block: np.ndarray, g: np.ndarray) -> Decision:
        """Whether the gradient g of a block lies in the hull of its pieces."""
        pieces = Hull(np.array(self.limits)[:, block], self.tolerance[block])
        starts = self.rays
        if len(block) == 1 and pieces.rows.min() <= g[0] <= pieces.rows.max():
            return Decision()
        if not np.isfinite(g).all():
            return self._wrong(block, g, pieces, starts, np.where(np.isfinite(g), 0.0, 1.0))
        for _ in range(4 * len(block) + 20):
            nearest = pieces.nearest(g)
            if (abs(g - nearest) <= self.tolerance[block]).all():
                return Decision()
            d = (g - nearest) / pieces.scale**2
            found, sure = self._farthest(block, d, pieces, starts, float(g @ d))
            if found is not None:
                pieces.add(found)
            elif sure:
                return self._wrong(block, g, pieces, starts, d)
            else:
                break
        return self._simple(block, g, pieces, starts) or Decision(undecided=True)

    def _farthest(
        self,
        block: np.ndarray,
        d: np.ndarray,
        pieces: Hull,
        starts: list[np.ndarray],
        wanted: float,
    ) -> tuple[np.ndarray | None, bool]:
        """A piece whose slope along d is larger than those known; and, if none is found, whether
        the search came to the same largest slope several times.

        It starts along d and the opposite ray, and from the pieces with the largest slopes, and
        climbs by changing one or two entries of the ray at a time.
        """
        slopes = pieces.rows @ d
        known = float(slopes.max())
        little = float(abs(d) @ self.tolerance[block]) + 1e-13 * abs(known)
        gap = wanted - known
        step = max(little, 0.02 * gap)
        quick = d / (abs(d).max() or 1.0)
        scores = np.array([limit[block] @ d for limit in self.limits])
        climbs = [starts[int(k)] for k in np.argsort(-scores)[:2]]
        for sign in (1, -1):
            for wiggle in (1e-3, 0.01, 0.5):
                ray = self._fresh()
                ray[block] = sign * quick + wiggle * ray[block]
                climbs.insert(0, ray)
        tries = 10 + 6 * len(block) if len(block) > 1 else 3
        reached = reached_nearly = 0
        for n, ray in enumerate(climbs):
            limit = self.limit(ray)
            if limit is None:
                continue
            best, score = ray, float(limit[block] @ d)
            if score > known + step and self._is_piece(ray, limit, block):
                return limit[block], False
            for _ in range(tries if n >= 4 else 0):
                if self._left < 0:
                    break
                limit = self.limit(moved := self._moved(best, block))
                if limit is None or (now := float(limit[block] @ d)) < score - little:
                    continue
                if now <= known + step:
                    best, score = moved, now
                elif self._is_piece(moved, limit, block):
                    return limit[block], False
            reached += abs(score - known) <= little
            reached_nearly += abs(score - known) <= step
        spread = float(np.ptp(slopes))
        # A round hull, such as that of a norm, has no largest slope that is met twice.
        met = reached >= 2 or (reached_nearly >= 2 and gap > 0.05 * spread)
        few = len(block) <= FEW or gap > 0.5 * spread or self._each_seen_twice(scores, little)
        return None, gap > little and met and few and self._left > 0

    def _each_seen_twice(self, slopes: np.ndarray, little: float) -> bool:
        """Whether none of the slopes along the random rays was seen once only: then there are
        hardly any that were not seen."""
        ordered = np.sort(slopes)
        new = np.diff(ordered, prepend=-np.inf) > little
        return bool(np.bincount(np.cumsum(new))[1:].min() >= 2)

    def _is_piece(self, ray: np.ndarray, limit: np.ndarray, block: np.ndarray) -> bool:
        """Whether differences confirm a gradient along a ray: it may be one along which entries
        stay tied."""
        d = np.zeros(ray.shape)
        d[block] = self._rng.standard_normal(len(block))
        return self._agrees(self._kinks._point(ray, self._radii.far), limit, d)

    def _moved(self, ray: np.ndarray, block: np.ndarray) -> np.ndarray:
        """A ray with one or two entries drawn anew, or exchanged, or with some on another scale: a
        large gradient of one input may hide the pieces that depend on another one."""
        moved, rng = ray.copy(), self._rng
        some = rng.choice(block, size=min(2, len(block)), replace=False)
        way = rng.random()
        if way < 0.3:
            moved[some] = moved[some[::-1]]
        elif way < 0.7:
            far = rng.choice([1.0, 3.0 * np.sqrt(len(block))])
            some = some[: rng.integers(1, 3)]
            moved[some] = far * rng.standard_normal(len(some))
        else:
            inputs = self._kinks.input_of[block]
            part = (
                inputs == rng.choice(inputs) if rng.random() < 0.5 else rng.random(len(block)) < 0.5
            )
            moved[block[part]] *= 10.0 ** rng.uniform(-3, 1)
        return moved

    def _simple(
        self, block: np.ndarray, g: np.ndarray, pieces: Hull, starts: list[np.ndarray]
    ) -> Decision | None:
        """A mistake along an axis, or if all entries move together; None if there is none."""
        if len(block) > MANY:
            return None
        eye = np.eye(len(block))
        ones = np.ones(len(block))
        for d in (*self._fixed(block, g, pieces), ones, -ones, *eye, *-eye):
            if g @ d > (pieces.rows @ d).max() + abs(d) @ self.tolerance[block]:
                found, sure = self._farthest(block, d, pieces, starts, float(g @ d))
                if found is not None:
                    pieces.add(found)
                elif sure:
                    return self._wrong(block, g, pieces, starts, d)
        return None

    def _fixed(self, block: np.ndarray, g: np.ndarray, pieces: Hull) -> list[np.ndarray]:
        """The direction, if any, along which all pieces have one slope, and g another one."""
        seen = np.array(self.limits)[:, block] / pieces.scale
        _, sizes, axes = np.linalg.svd(seen - seen[0], full_matrices=False)
        axes = axes[sizes > 1e-6 * sizes[0]]
        if len(axes) + 10 > len(seen):  # further rays may show further pieces
            return []
        off = g / pieces.scale - seen[0]
        d = (off - axes.T @ (axes @ off)) / pieces.scale
        return [d] if abs(d).max() > 1e-6 * abs(off / pieces.scale).max() else []

    def _wrong(
        self,
        block: np.ndarray,
        g: np.ndarray,
        pieces: Hull,
        starts: list[np.ndarray],
        d: np.ndarray,
    ) -> Decision:
        """The mistake along the plainest direction that shows it."""
        g = np.where(np.isfinite(g), g, np.inf)
        nearest = pieces.nearest(np.where(np.isfinite(g), g, pieces.rows.mean(axis=0)))
        size = abs(d).max()
        strong = np.sign(d) * (abs(d) > 0.3 * size)
        ones = np.ones(len(block))
        plain = [np.eye(len(block))[k] for k in np.argsort(-abs(d))[:4]]
        for way in (*plain, ones, strong, strong * (strong > 0), np.round(d / size, 1)):
            off = g @ way if np.isfinite(g).all() else np.inf
            slopes = pieces.rows @ way
            slack = abs(way) @ self.tolerance[block]
            if off > slopes.max() + slack or off < slopes.min() - slack:
                sign = 1.0 if off > slopes.max() else -1.0
                found, sure = self._farthest(block, sign * way, pieces, starts, sign * off)
                if sure and found is None:
                    d = way
                    break
        if np.count_nonzero(d) and d[np.flatnonzero(d)[0]] < 0:
            d = -d
        slopes = pieces.rows @ d
        direction = np.zeros(self._kinks._x.shape)
        direction[block] = d + 0.0
        claimed = float(np.sum((g * d)[d != 0]))
        return Decision(
            False, direction, float(slopes.min()), float(slopes.max()), claimed, nearest
        )


class Hull:
    """The convex hull of some points.

    rows   the points, each once
    scale  of each coordinate
    """

    def __init__(self, points: np.ndarray, tolerance: np.ndarray) -> None:
        self._tolerance = tolerance
        self.scale = np.maximum(abs(points).max(axis=0), np.finfo(float).tiny)
        if points.shape[1] == 1:
            points = np.array([points.min(axis=0), points.max(axis=0)])
        self.rows = points[:0]
        for point in points:
            self.add(point)

    def add(self, point: np.ndarray) -> None:
        """Add a point, unless it is there."""
        if not (abs(self.rows - point) <= 3 * self._tolerance).all(axis=1).any():
            self.rows = np.vstack([self.rows, point])

    def nearest(self, g: np.ndarray) -> np.ndarray:
        """The point of the hull nearest to g, with each coordinate in units of its scale.

        The weights of the rows are the least squares solution without negative ones, by an active
        set. Source: Lawson and Hanson, "Solving least squares problems" (1974), chapter 23.
        """
        rows = (self.rows - g) / self.scale
        # The weights sum to one in a row of its own. For the point nearest to 0 it may weigh
        # anything: it only changes the weights' common factor (Wolfe 1976).
        a = np.vstack([rows.T, np.ones(len(rows))])
        b = np.zeros(len(a))
        b[-1] = 1.0
        weights, used = np.zeros(len(rows)), np.zeros(len(rows), bool)
        for _ in range(10 * len(rows) + 10):
            rise = a.T @ (b - a @ weights)
            rise[used] = -np.inf
            k = int(rise.argmax())
            if not rise[k] > 1e-13 * (1 + abs(a).max()):
                break
            used[k] = True
            while True:
                trial = np.zeros(len(rows))
                trial[used] = np.linalg.lstsq(a[:, used], b, rcond=None)[0]
                if (trial[used] > 0).all():
                    weights = trial
                    break
                low = used & (trial <= 0)
                steps = weights[low] / np.maximum(weights[low] - trial[low], 1e-300)
                step = float(steps.min())
                weights = weights + step * (trial - weights)
                dropped = used & (weights <= 1e-14)
                dropped[np.flatnonzero(low)[steps.argmin()]] = True
                used &= ~dropped
                weights[~used] = 0.0
        total = weights.sum()
        return (weights / total) @ self.rows if total else self.rows[0]
