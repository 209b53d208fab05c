"""The pieces of a function around a kink, and whether a gradient is a weighted mean of the
gradients of these pieces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .hull import Hull
from .nearby import Nearby, Radii, ahead

__tracebackhide__ = True

RAYS = 40
MANY = 200
"""If more entries than this may depend on one another, they all form one block."""

LOOKS = 400
"""How many entries are moved, one at a time, far above and far below all others, to find their
pieces."""

HIDDEN = 40
"""How many entries whose gradients never varied change places with an entry whose gradient did,
in the search for more pieces."""

FEW = 8
"""The size of a block up to which a search for its pieces is trusted."""

BUDGET = 20_000
"""How many gradients may be computed to judge a gradient at kinks."""


@dataclass(frozen=True)
class Decision:
    """Whether the gradient of a block, a group of entries at a kink, is right. It is right if
    `undecided` is False and `direction` is None.

    undecided  whether the search ended without an answer
    direction  if the gradient is wrong, a direction that shows it, as an array with the move of
               each entry of all inputs. The slope that the gradient implies along it is one that
               no piece of the function has
    low, high  the smallest and the largest slope of the pieces along this direction
    claimed    the slope along it that the gradient implies
    nearest    the right gradient nearest to the wrong one; for a block of more than MANY entries,
               any right one
    """

    undecided: bool = False
    direction: np.ndarray | None = None
    low: float = 0.0
    high: float = 0.0
    claimed: float = 0.0
    nearest: np.ndarray | None = None


class Pieces:
    """The gradients of the pieces of L around the inputs x. A piece is a region in which L is
    smooth, such as x > 0 for relu. Pieces are found along rays: directions in which to leave x.

    entries    the indices of the entries whose gradients are measured by differences; None if the
               gradients come from the pullback, which computes those of all entries
    asked      a boolean array: the entries whose gradient under check differs from the numeric one
    rays       random directions in which all inputs move alike; for each of up to 8 inputs, some in
               which the others hardly move; one in which later entries move farther than earlier
               ones; the opposite of each of these; then the rays that `_look_closer` adds. Without
               those for which `limit` is None
    limits     for each ray, the gradient of L on it, extrapolated to x: an array as long as x
    smooth     for each entry, the largest change of its gradient between two points near x on one
               ray, which is small if L is smooth along the rays
    tolerance  the error allowed in each entry of a gradient
    varying    a boolean array: the entries whose gradients differ between pieces
    unseen     a boolean array: the entries for which `_look_closer` had to leave out the search,
               because more than LOOKS entries needed one
    """

    def __init__(
        self, nearby: Nearby, radii: Radii, entries: np.ndarray | None, asked: np.ndarray
    ) -> None:
        self._nearby = nearby
        self._radii = radii
        self._entries = entries
        self._asked = asked
        self._rng = np.random.default_rng(1)
        self._left = BUDGET
        self.rays, self.limits = list[np.ndarray](), list[np.ndarray]()
        self.smooth = np.zeros(nearby.x.shape)
        self.unseen = np.zeros(nearby.x.shape, bool)
        drawn = [self._rng.standard_normal(nearby.x.shape) for _ in range(RAYS // 2)]
        for k in range(min(nearby.inputs, 8) if nearby.inputs > 1 else 0):
            # Input k moves alone, or nearly: larger gradients of others would hide its pieces.
            for one_sign in (True, False, False):
                u = self._rng.standard_normal(nearby.x.shape)
                u = abs(u) if one_sign else u
                drawn.append(np.where(nearby.input_of == k, u, 1e-4 * self._fresh()))
        order = np.sort(1.0 + self._rng.random(nearby.x.size))
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
        """Look for pieces that the first rays may have missed: of many tied entries, only a few
        were the largest or the median along these rays.

        An entry seems to have further pieces if its gradient under check is outside the range of
        its gradients in the pieces found so far, or if it differs from the numeric one though its
        gradients in all these pieces are equal. Three new rays are tried for such an entry: along
        two, it moves far above all others and far below them; the third is one of `_exchanged`.
        That third ray is also tried for a few entries whose gradients are equal in all pieces and
        fit the gradient under check.
        """
        nearby = self._nearby
        seen = np.array(self.limits)
        low, high = seen.min(axis=0) - self.tolerance, seen.max(axis=0) + self.tolerance
        varying = self.varying
        odd = ~((low <= nearby.gradient) & (nearby.gradient <= high)) | (self._asked & ~varying)
        entries = np.arange(odd.size) if self._entries is None else self._entries
        odd_entries = entries[odd[entries]]
        self.unseen[odd_entries[LOOKS:]] = True
        for i in odd_entries[:LOOKS]:
            self._look(ahead(self._fresh(), i, 1), ahead(self._fresh(), i, -1))
        hidden = entries[~(varying | odd)[entries]]
        for i in (*odd_entries[:LOOKS], *hidden[:HIDDEN]):
            self._look(self._exchanged(i, seen))
        del self._largest, self.tolerance, self._sharp, self.varying

    def _exchanged(self, i: int, seen: np.ndarray) -> np.ndarray:
        """A new ray along which to look for a piece of entry i. It is a copy of a known ray, chosen
        at random, in which entries i and j are exchanged. j is the entry whose gradient on the
        known ray is the most unusual one: farthest from the median of its gradients on all rays.
        `seen` holds the gradients, one row for each ray."""
        k = int(self._rng.integers(len(seen)))
        j = int(abs(seen[k] - np.median(seen, axis=0)).argmax())
        ray = self.rays[k].copy()
        ray[[i, j]] = ray[[j, i]]
        return ray

    def _gradient(self, x: np.ndarray) -> np.ndarray | None:
        if self._entries is None:
            self._left -= 1
            return self._nearby.pull(x)
        self._left -= 1 + len(self._entries) // 8
        return self._nearby.differences(x, self._entries, self._radii.step)

    def limit(self, u: np.ndarray, everywhere: bool = False) -> np.ndarray | None:
        """The gradient at points of the ray u close to x, extrapolated to x; None if the ray soon
        crosses another kink or leaves the domain of the function.

        everywhere  whether to return None, too, if the gradient farther from x on this ray differs
                    clearly
        """
        point, near = self._nearby.point, self._radii.near
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
        """Whether the gradients of the pieces are those that finite differences measure at points
        nearby, along random directions or along the direction given. Gradients that are themselves
        measured by differences need no such test. False if too few pieces were found."""
        nearby = self._nearby
        if len(self.rays) < 8:
            return False
        if self._entries is not None:
            return True  # they are differences
        agreed: list[bool] = []
        for u in self.rays[:6]:
            x = nearby.point(u, self._radii.far)
            gradient = self._gradient(x)
            if gradient is None:
                return False
            if direction is not None:
                ways = [direction / nearby.unit]
            else:
                ways = [d for d in (nearby.ray(), nearby.ray() * self.varying) if d.any()]
            agreed += [self._agrees(x, gradient, d / (abs(d).max() or 1.0)) for d in ways]
        return 3 * sum(agreed) >= 2 * len(agreed)  # a step may cross a kink

    def _agrees(self, x: np.ndarray, gradient: np.ndarray, d: np.ndarray) -> bool:
        """Whether a central difference along d, in which each entry is measured in its unit, gives
        the slope at x that this gradient implies. Three steps are tried, since a large one may
        cross a kink, and one that agrees is enough."""
        nearby = self._nearby
        terms = gradient * nearby.unit * d
        allowed = self._radii.checked * float(np.linalg.norm(terms))
        allowed += float(np.sum(nearby.noise * abs(nearby.unit * d)))
        for h in (self._radii.step, self._radii.step / 10, self._radii.step / 100):
            slope = nearby.slope(x, d, h)
            if abs(slope - terms.sum()) <= allowed + 6 * nearby.rounding / h:
                return True
        return False

    @cached_property
    def _largest(self) -> np.ndarray:
        """For each entry, the largest absolute value in the gradients of the input it belongs
        to."""
        sizes = {
            name: np.full(part.shape[1:], abs(part).max(initial=0.0))
            for name, part in self._parts(np.array(self.limits)).items()
        }
        return self._nearby.joined(sizes)

    @cached_property
    def tolerance(self) -> np.ndarray:
        """The error allowed in each entry of the gradient under check."""
        return self._radii.bound * self._largest + self._nearby.noise + 0.1 * self.smooth

    @cached_property
    def _sharp(self) -> np.ndarray:
        """For each entry, by how much rounding may make its gradients along two rays in the same
        piece differ, after both are extrapolated to x."""
        noise = self._nearby.noise
        if self._radii.sharp < self._radii.bound:  # computed in float64
            noise = noise * float(np.finfo("float64").eps / np.finfo("float32").eps)
        return 10 * (self._radii.sharp * self._largest + noise + 0.1 * self.smooth)

    def _parts(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        parted = [self._nearby.parted(row) for row in rows]
        return {name: np.array([part[name] for part in parted]) for name in parted[0]}

    @cached_property
    def varying(self) -> np.ndarray:
        """A boolean array: the entries whose gradients differ between pieces by more than
        rounding."""
        return np.asarray(np.ptp(np.array(self.limits), axis=0) > self._sharp)

    @cached_property
    def at(self) -> np.ndarray:
        """A boolean array: the entries at a kink of L or of one of its steps. Either their
        gradients differ between pieces, or their gradient under check, which is that at x, differs
        from the gradient at points nearby, or they are `unseen`. If gradients are measured by
        differences, only the first of these counts."""
        if self._entries is not None:  # the others were not measured
            return self.varying
        other = ~(abs(self._nearby.gradient - self.limits[0]) <= self.tolerance)
        return self.varying | other | self.unseen

    def blocks(self) -> list[np.ndarray]:
        """The indices of the entries at kinks, one array for each group of entries that depend on
        one another: if one of two entries moves far above or below all others, the gradient of the
        other changes.
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
        """Those of the entries `at`, which are at kinks, whose gradients may depend on how other
        entries move. If there are no more than 16 entries, all of them, untested.

        An entry is one of them if its gradient differs between two rays that both increase the
        entry, or both decrease it: then the difference is due to other entries. So is an entry with
        the same gradient along all rays, since nothing is known about it.
        """
        if len(at) <= 16:
            return at
        limits = np.array(self.limits)
        increases = np.array(self.rays) > 0
        along_increases = _range(np.where(increases, limits, np.nan))
        along_decreases = _range(np.where(increases, np.nan, limits))
        changes = np.fmax(along_increases, along_decreases)
        return at[((changes > self._sharp) | ~self.varying)[at]]

    def _fresh(self) -> np.ndarray:
        return self._rng.standard_normal(self._nearby.x.shape)

    # One block

    def decide(self, block: np.ndarray, g: np.ndarray) -> Decision:
        """Decide whether g, the gradient under check of a block, is right: whether it lies in the
        convex hull of the gradients of the pieces. The block is an array with the indices of its
        entries."""
        pieces = Hull(np.array(self.limits)[:, block], self.tolerance[block])
        if len(block) == 1 and pieces.rows.min() <= g[0] <= pieces.rows.max():
            return Decision()
        if not np.isfinite(g).all():
            return self._wrong(block, g, pieces, np.where(np.isfinite(g), 0.0, 1.0))
        plain = self._simple(block, g, pieces) if len(block) > MANY else None
        if plain or self.unseen[block].any() or len(block) > LOOKS:
            return plain or Decision(undecided=True)
        for _ in range(4 * len(block) + 20):
            nearest = pieces.nearest(g)
            if (abs(g - nearest) <= self.tolerance[block]).all():
                return Decision()
            d = (g - nearest) / pieces.scale**2
            found, sure = self._farthest(block, d, pieces, float(g @ d))
            if found is not None:
                pieces.add(found)
            elif sure:
                return self._wrong(block, g, pieces, d)
            else:
                break
        return self._simple(block, g, pieces) or Decision(undecided=True)

    def _farthest(
        self,
        block: np.ndarray,
        d: np.ndarray,
        pieces: Hull,
        wanted: float,
    ) -> tuple[np.ndarray | None, bool]:
        """Search for a piece with a larger slope along d, a direction of the block, than all known
        ones. If the gradient under check is wrong, there may be none.

        block   the indices of its entries
        pieces  the hull of the known gradients of the block
        wanted  the slope along d that the gradient under check implies

        Returns (the gradient of such a piece, False), or (None, sure) if none is found. `sure` is
        True if several searches ended at the same slope, below `wanted`: then no piece has the
        slope wanted.

        The searches start from rays near d and near its opposite, and from the rays with the
        largest slopes. They climb: they keep random changes of the ray that do not decrease the
        slope.
        """
        slopes = pieces.rows @ d  # one for each known piece
        known = float(slopes.max())
        gap = wanted - known

        # Slopes that differ by `little` are equal up to rounding. A new piece has to be better by a
        # share of the gap, since many tiny gains would take long.
        little = float(abs(d) @ self.tolerance[block]) + 1e-13 * abs(known)
        step = max(little, 0.02 * gap)

        tries = 3
        if len(block) > 1:
            tries = 10 + 6 * min(len(block), MANY)
        scores = np.array([limit[block] @ d for limit in self.limits])  # one for each ray
        ends = []  # the slopes at which searches end
        for n, ray in enumerate(self._starts(block, d, scores)):
            limit = self.limit(ray)
            if limit is None:
                continue

            # The first four starts are not close to d: only their own slopes count.
            changes = 0
            if n >= 4:
                changes = tries
            found, end = self._climbed(ray, limit, block, d, known + step, little, changes)
            if found is not None:
                return found, False
            ends.append(end)

        # A round hull, such as that of a norm, has no largest slope that is met twice. There, two
        # searches that end near it are enough if the gradient claims far more.
        spread = float(np.ptp(slopes))
        reached = sum(abs(end - known) <= little for end in ends)
        reached_nearly = sum(abs(end - known) <= step for end in ends)
        met = reached >= 2 or (reached_nearly >= 2 and gap > 0.05 * spread)

        # Among many entries, a search is more likely to miss a piece.
        trusted = len(block) <= FEW or gap > 0.5 * spread or self._each_seen_twice(scores, little)
        return None, gap > little and met and trusted and self._left > 0

    def _starts(self, block: np.ndarray, d: np.ndarray, scores: np.ndarray) -> list[np.ndarray]:
        """The rays from which `_farthest` searches for a large slope along d, a direction of the
        block: three near −d and three near d, in which the other entries are random, and the two
        known rays with the largest slopes. `scores` are the slopes along d on all known rays."""
        straight = d / (abs(d).max() or 1.0)
        rays = []
        for sign in (1, -1):
            for wiggle in (1e-3, 0.01, 0.5):
                ray = self._fresh()
                ray[block] = sign * straight + wiggle * ray[block]
                rays.append(ray)
        rays.reverse()  # the nearest to d last, where the search is thorough
        best = [self.rays[int(k)] for k in np.argsort(-scores)[:2]]
        return rays + best

    def _climbed(
        self,
        ray: np.ndarray,
        limit: np.ndarray,
        block: np.ndarray,
        d: np.ndarray,
        top: float,
        little: float,
        changes: int,
    ) -> tuple[np.ndarray | None, float]:
        """Look for a piece whose slope along d is above `top`, by changing a ray at random.

        The slope of a piece is the dot product of d and its gradient in the block. Of `changes`
        random changes of the ray, each is kept that does not decrease the slope by more than
        `little`, a rounding error. `limit` is the gradient on the ray at the start.

        Returns the gradient and the slope of the first piece above `top`; if none is found, None
        and the slope on the last ray.
        """
        score = float(limit[block] @ d)
        if score > top and self._is_piece(ray, limit, block):
            return limit[block], score

        for _ in range(changes):
            if self._left < 0:
                break
            moved = self._moved(ray, block)
            there = self.limit(moved)
            if there is None:
                continue
            now = float(there[block] @ d)
            if now < score - little:
                continue
            if now <= top:
                ray = moved
                score = now
            elif self._is_piece(moved, there, block):
                return there[block], now
        return None, score

    def _each_seen_twice(self, slopes: np.ndarray, little: float) -> bool:
        """Whether each value among these slopes, one slope for each ray, occurs at least twice, up
        to the rounding error `little`. If so, the rays have probably found all pieces."""
        ordered = np.sort(slopes)
        new = np.diff(ordered, prepend=-np.inf) > little
        return bool(np.bincount(np.cumsum(new))[1:].min() >= 2)

    def _is_piece(self, ray: np.ndarray, limit: np.ndarray, block: np.ndarray) -> bool:
        """Whether `limit`, the gradient on a ray, is that of a piece: whether finite differences
        give the same slope. The pullback may return the gradient of no piece if entries stay equal
        all along the ray, as they do at a tie of a maximum."""
        d = np.zeros(ray.shape)
        d[block] = self._rng.standard_normal(len(block))
        return self._agrees(self._nearby.point(ray, self._radii.far), limit, d)

    def _moved(self, ray: np.ndarray, block: np.ndarray) -> np.ndarray:
        """A copy of a ray with a random change of some entries of the block, which holds their
        indices. The change is one of three: one or two entries are drawn anew; two are exchanged;
        or those of one input, or about half of all, are multiplied by the same factor. The factor
        is often small: an input with a large gradient dominates the slope, so changes that another
        input makes go unnoticed unless the first one moves less."""
        moved = ray.copy()
        rng = self._rng
        some = rng.choice(block, size=min(2, len(block)), replace=False)
        way = rng.random()
        if way < 0.3:
            moved[some] = moved[some[::-1]]
        elif way < 0.7:
            far = rng.choice([1.0, 3.0 * np.sqrt(len(block))])
            some = some[: rng.integers(1, 3)]
            moved[some] = far * rng.standard_normal(len(some))
        else:
            # The entries of one input, or about half of all entries.
            inputs = self._nearby.input_of[block]
            if rng.random() < 0.5:
                part = inputs == rng.choice(inputs)
            else:
                part = rng.random(len(block)) < 0.5
            moved[block[part]] *= 10.0 ** rng.uniform(-3, 1)
        return moved

    def _simple(self, block: np.ndarray, g: np.ndarray, pieces: Hull) -> Decision | None:
        """The decision that g is wrong, if one of a few simple directions shows it, else None. A
        direction shows it if the slope that g implies along it is larger than that of every piece,
        also after a search for further pieces.

        The directions move a single entry of the block, or all its entries by the same amount, or
        are found by `_fixed`. For a block of more than MANY entries, only the second kind is tried.

        block   the indices of its entries
        pieces  the hull of the known gradients of the block; pieces that are found are added
        """
        ones = np.ones(len(block))
        directions = [ones, -ones]
        if len(block) <= MANY:
            eye = np.eye(len(block))
            directions = [*self._fixed(block, g, pieces), *directions, *eye, *-eye]
        for d in directions:
            if g @ d > (pieces.rows @ d).max() + abs(d) @ self.tolerance[block]:
                found, sure = self._farthest(block, d, pieces, float(g @ d))
                if found is not None:
                    pieces.add(found)
                elif sure:
                    return self._wrong(block, g, pieces, d)
        return None

    def _fixed(self, block: np.ndarray, g: np.ndarray, pieces: Hull) -> list[np.ndarray]:
        """A list with one direction of the block, along which all known pieces have the same slope
        and g implies another; an empty list if there is none, or if there are too few rays to know
        that further pieces have this slope, too."""
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
        d: np.ndarray,
    ) -> Decision:
        """The decision that g, the gradient of the block, is wrong. d is a direction that shows it:
        g implies a slope along d that no piece has. `pieces` is the hull of the known gradients of
        the block. The decision names a simpler direction, such as that of a single entry, if one
        shows it as well."""
        g = np.where(np.isfinite(g), g, np.inf)
        nearest = pieces.rows.mean(axis=0)
        if len(block) <= MANY:  # otherwise the search would take long
            nearest = pieces.nearest(np.where(np.isfinite(g), g, nearest))
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
                found, sure = self._farthest(block, sign * way, pieces, sign * off)
                if sure and found is None:
                    d = way
                    break
        if np.count_nonzero(d) and d[np.flatnonzero(d)[0]] < 0:
            d = -d
        slopes = pieces.rows @ d
        direction = np.zeros(self._nearby.x.shape)
        direction[block] = d + 0.0
        claimed = float(np.sum((g * d)[d != 0]))
        return Decision(
            False, direction, float(slopes.min()), float(slopes.max()), claimed, nearest
        )


def _range(rows: np.ndarray) -> np.ndarray:
    """The largest minus the smallest number of each column, leaving out NaN."""
    return np.fmax.reduce(rows) - np.fmin.reduce(rows)
