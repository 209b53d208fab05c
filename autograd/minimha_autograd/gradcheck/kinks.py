"""Whether a gradient fits the function at a kink, over all checked inputs jointly.

At a kink there is no derivative, but there is one at almost all points nearby. Seen from the kink,
the function consists of pieces, each with one gradient G along all rays that lead into it:

    G(u) = lim ∇L(x + ρ u)        as ρ falls to 0

A gradient is right if it is a weighted mean of these: if it lies in their convex hull, which is
Clarke's generalised gradient. So at 0 each number from 0 to 1 is right for relu, and for the
maximum of three equal entries (1, 0, 0) and (⅓, ⅓, ⅓) are right, but not (1, 1, 1): if the three
move together, the slope is 1. If only one entry moves at a time, this mistake does not show.

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
from typing import NamedTuple

import numpy as np

from .gradients import Gradients
from .nearby import Checked, Nearby, ahead
from .pieces import MANY, Decision, Pieces
from .text import listed

__tracebackhide__ = True


class Claim(NamedTuple):
    """A direction at a kink along which a gradient claims a slope that the function has at no
    point nearby.

    entries    for each entry that moves along the direction: the name of the input, the index of
               the entry, and how far it moves relative to the others
    low, high  the smallest and the largest slope along the direction at points nearby
    claimed    the slope along it that the gradient claims, its dot product with the direction
    """

    entries: tuple[tuple[str, tuple[int, ...], float], ...]
    low: float
    high: float
    claimed: float

    def text(self) -> str:
        """A sentence for the message of the error: "If x[2] increases, the slope nearby is 1; the
        gradient claims 0.5", without a full stop."""
        moves = [f"{name}{list(at) if at else ''}" for name, at, _ in self.entries]
        if len(moves) > 6:
            moves = [*moves[:5], f"{len(moves) - 5} more entries"]
        shares = [share for *_, share in self.entries]
        if len(shares) == 1:
            how = f"If {moves[0]} increases"
        elif len(set(shares)) == 1:
            how = f"If {listed(moves)} increase together"
        elif set(shares) == {1.0, -1.0}:
            named = list(zip(moves, shares, strict=False))
            up = [move for move, share in named if share == 1.0]
            down = [move for move, share in named if share == -1.0]
            how = f"If {listed(up)} increase and {listed(down)} decrease together"
            if len(up) == 1:
                how = how.replace("increase", "increases")
            if len(down) == 1:
                how = how.replace("decrease", "decreases")
        else:
            told = ", ".join(f"{share:.3g}" for share in shares[: len(moves)])
            how = f"If {listed(moves)} move in the proportions {told}"

        # Enough digits to tell the claim from the slopes.
        near = min(abs(self.claimed - self.low), abs(self.claimed - self.high))
        digits = 6 if near > 1e-4 * abs(self.claimed) else 12
        low, high, claimed = (f"{x + 0.0:.{digits}g}" for x in (self.low, self.high, self.claimed))
        seen = f"the slopes nearby lie between {low} and {high}"
        if self.high - self.low <= 1e-6 * max(abs(self.high), abs(self.low)):
            seen = f"the slope nearby is {high}"
        return f"{how}, {seen}; the gradient claims {claimed}"


@dataclass(frozen=True)
class Verdict:
    """What was found about kinks and the gradient of one input.

    at         a boolean array: the entries that are at a kink
    fitting    a gradient to compare with the one under check: the same numbers in entries where
               that is right or the search found no answer, otherwise the nearest right ones
    tolerance  the error allowed in each entry at a kink
    noise      the error that rounding may cause in an entry that is not at a kink
    undecided  the number of entries for which the search found no answer
    claims     one for each direction along which the gradient has a wrong slope
    """

    at: np.ndarray
    fitting: np.ndarray
    tolerance: np.ndarray
    noise: float
    undecided: int
    claims: tuple[Claim, ...]

    @property
    def note(self) -> str:
        """A short note for the report: how many entries are at a kink, and how many were not
        decided."""
        count, size = int(self.at.sum()), self.at.size
        note = f"kink at {count} of {size} entr{'y' if size == 1 else 'ies'}"
        if self.undecided:
            note += f", {self.undecided if self.undecided < count else 'which is'} not decided"
        return note


class Kinks:
    """Finds the pieces of L around the checked inputs, and judges from them whether gradients are
    right at kinks. A piece is a region in which L is smooth, such as x > 0 for relu. The search
    moves all inputs at once."""

    def __init__(self, gradients: Gradients, targets: Mapping[str, Checked]) -> None:
        self._nearby = Nearby(gradients, targets)
        self._settled: dict[str, Verdict] | None = None
        self._looked = False
        self._asked = np.zeros(self._nearby.x.shape, bool)

    def verdict(self, name: str, suspects: np.ndarray | None = None) -> Verdict | None:
        """The verdict on the gradient of one input; None if there is no kink.

        suspects  a boolean array of the entries whose gradient under check differs from the numeric
                  one: if no kink is known there, the search is repeated to look for one
        """
        if not self._looked and self._nearby.x.size:
            self._looked = True
            if self._varies(np.ones(self._nearby.x.shape)):
                self._settled = self._judge()
        if suspects is not None and suspects.any():
            none = {n: np.zeros(shape) for n, shape in self._nearby.shapes.items()}
            asked = self._nearby.joined(none | {name: suspects.astype(float)}) > 0
            at = {n: v.at for n, v in (self._settled or {}).items()}
            if (asked & ~(self._nearby.joined(none | at) > 0) & ~self._asked).any():
                self._asked |= asked
                smooth = not self._settled and not self._varies(asked.astype(float))
                self._settled = self._judge(smooth)
        return (self._settled or {}).get(name)

    @property
    def found(self) -> bool:
        """Whether a kink has been found at any entry of the checked inputs."""
        return any(verdict.at.any() for verdict in (self._settled or {}).values())

    def _varies(self, mask: np.ndarray) -> bool:
        """Whether L seems to have a kink at x: whether its slope along a random direction differs
        between points near x, both at some distance and at a tenth of it. Only the entries where
        the mask, an array of 0 and 1, is 1 move."""
        nearby = self._nearby
        d = mask * nearby.ray()
        first = nearby.ray()
        rays = [first, -first, *(nearby.ray() for _ in range(6))]
        far = nearby.pulled.far
        step = nearby.pulled.step

        def slopes(shrink: float) -> np.ndarray:
            found = []
            for u in rays:
                point = nearby.point(u, far * shrink)
                found.append(nearby.slope(point, d, step * shrink))
            return np.array(found)

        wide = slopes(1.0)
        wide_spread = _spread(wide)
        noise = 6 * nearby.rounding / step
        largest = float(abs(wide[np.isfinite(wide)]).max(initial=0.0))
        if not wide_spread > 1e-9 * largest + noise:
            return False

        # At a kink, the slope at a point ten times nearer on the same ray is the same, and the rays
        # still differ. Without a kink all approach one slope. If x is so large that no slope near
        # it is a number, nothing is known.
        narrow = slopes(0.1)
        changes = abs(wide - narrow)[np.isfinite(wide - narrow)]
        same = changes.size and np.median(changes) <= max(0.2 * wide_spread, 10 * noise)
        return bool(same and _spread(narrow) > max(0.5 * wide_spread, 10 * noise))

    def _judge(self, smooth: bool = False) -> dict[str, Verdict]:
        """The verdict on each input, by name; empty if no kink is found. The gradients at points
        nearby are computed by the pullback if differences confirm them, and otherwise by
        differences.

        smooth  whether L itself has no kink. The steps that compute it may still have kinks, as the
                two relus in relu(x) − relu(−x), which is x
        """
        if smooth and self._same_nearby():
            return {}
        pieces = Pieces(self._nearby, self._nearby.pulled, None, self._asked)
        found = self._verdicts(pieces) if pieces.confirmed() else None
        if found is not None:
            return found
        if smooth:
            return {}

        entries = self._different()
        if not len(entries):
            return {}
        pieces = Pieces(self._nearby, self._nearby.measured, entries, self._asked)
        return self._verdicts(pieces) or {}

    def _different(self) -> np.ndarray:
        """The indices of up to MANY entries whose numeric gradients differ between a few random
        points nearby, or whose gradient under check is NaN or infinite.

        If many entries are tied, as in a maximum, most of them are the largest at none of these
        points, so their gradient is always 0. Therefore a suspect, an entry whose gradient under
        check differs from the numeric one at x, is also moved far above all other entries and far
        below them.
        """
        far, step, bound = (
            self._nearby.measured.far,
            self._nearby.measured.step,
            self._nearby.measured.bound,
        )
        everything, u = np.arange(self._nearby.x.size)[: 10 * MANY], self._nearby.ray()
        found = np.array(
            [
                self._nearby.differences(self._nearby.point(ray, far), everything, step)
                for ray in (u, -u, self._nearby.ray(), self._nearby.ray())
            ]
        )
        little = 100 * bound * abs(found).max(initial=0.0)
        apart = np.ptp(found, axis=0) > little
        for i in np.flatnonzero(self._asked & ~apart)[:MANY]:
            ends = []
            for side in (1, -1):
                point = self._nearby.point(ahead(self._nearby.ray(), i, side), far)
                ends.append(self._nearby.differences(point, np.array([i]), step)[i])
            apart[i] = abs(ends[0] - ends[1]) > little
        return np.flatnonzero(apart | ~np.isfinite(self._nearby.gradient))[:MANY]

    def _same_nearby(self) -> bool:
        """Whether the pullback gives almost the same gradient at a random point nearby as at x, as
        it does unless a step has a kink at x. True if the pullback fails at this point."""
        nearby = self._nearby.pull(self._nearby.point(self._nearby.ray(), self._nearby.pulled.near))
        close = 10 * self._nearby.pulled.checked * abs(self._nearby.gradient).max(initial=0.0)
        return nearby is None or not (abs(nearby - self._nearby.gradient) > close).any()

    def _verdicts(self, pieces: Pieces) -> dict[str, Verdict] | None:
        """The verdict on each input by name, from the pieces found. It is empty if too few rays led
        into a piece, and None if a gradient seems to be wrong but finite differences do not confirm
        the pieces."""
        if len(pieces.rays) < 8:
            return {}
        at, fitting = pieces.at, self._nearby.gradient.copy()
        undecided = np.zeros(at.shape, bool)
        claims: list[tuple[np.ndarray, Claim]] = []
        for block in pieces.blocks():
            found = pieces.decide(block, self._nearby.gradient[block])
            if found.undecided:
                undecided[block] = True
            elif found.direction is not None:
                if not pieces.confirmed(found.direction):
                    return None
                fitting[block] = found.nearest
                claims.append((block, self._claim(found)))
        parts = map(self._nearby.parted, (at, fitting, pieces.tolerance, undecided))
        ats, fittings, tolerances, undecideds = parts
        numbers = self._nearby.parted(np.arange(at.size))
        return {
            name: Verdict(
                ats[name],
                fittings[name],
                tolerances[name],
                self._nearby.noises[name],
                int(undecideds[name].sum()),
                tuple(c for block, c in claims if np.isin(block, numbers[name]).any()),
            )
            for name in self._nearby.shapes
        }

    def _claim(self, found: Decision) -> Claim:
        entries = []
        assert found.direction is not None
        for name, d in self._nearby.parted(found.direction).items():
            for place in np.argwhere(d):
                at = tuple(map(int, place))
                entries.append((name, at, float(d[at])))
        return Claim(tuple(entries), found.low, found.high, found.claimed)


def _spread(x: np.ndarray) -> float:
    """The distance between the smallest and the largest finite entry of x, 0 if there are none."""
    finite = x[np.isfinite(x)]
    return float(np.ptp(finite)) if finite.size else 0.0
