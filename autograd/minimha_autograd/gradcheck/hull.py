"""The convex hull of some points, and its point nearest to another one."""

from __future__ import annotations

import numpy as np


class Hull:
    """The convex hull of some points, which are the rows of an array.

    rows   the points. Of points that are equal up to 3 · `tolerance`, which has an entry for each
           coordinate, only the first is kept. Of points with a single coordinate, only the smallest
           and the largest are
    scale  for each coordinate, its largest absolute value in the points: the unit of distances
    """

    def __init__(self, points: np.ndarray, tolerance: np.ndarray) -> None:
        self._tolerance = tolerance
        sizes = abs(points).max(axis=0)
        # A coordinate that is 0 in all points has no scale of its own.
        self.scale = np.where(sizes > 0, sizes, sizes.max() or 1.0)
        if points.shape[1] == 1:
            points = np.array([points.min(axis=0), points.max(axis=0)])
        self.rows = points[:0]
        for point in points:
            self.add(point)

    def add(self, point: np.ndarray) -> None:
        """Add a point to the rows, unless one of them equals it up to three times the tolerance."""
        if not (abs(self.rows - point) <= 3 * self._tolerance).all(axis=1).any():
            self.rows = np.vstack([self.rows, point])

    def nearest(self, g: np.ndarray) -> np.ndarray:
        """The point of the hull nearest to the point g, if each coordinate is measured in units of
        its scale.

        It is a weighted mean of the rows. Its weights are a least squares solution in which
        no weight may be negative, found by the active set method. Source: Lawson and Hanson,
        "Solving least squares problems" (1974), chapter 23.
        """
        rows = (self.rows - g) / self.scale  # now the point nearest to 0 is wanted

        # The weights sum to one in a row of its own. For the point nearest to 0 it may weigh
        # anything: it only changes the weights' common factor (Wolfe 1976).
        a = np.vstack([rows.T, np.ones(len(rows))])
        b = np.zeros(len(a))
        b[-1] = 1.0
        weights = np.zeros(len(rows))
        used = np.zeros(len(rows), bool)  # the active set: the rows whose weight is not 0
        for _ in range(10 * len(rows) + 10):
            # Of the other rows, add the one whose weight would lower the distance most.
            rise = a.T @ (b - a @ weights)
            rise[used] = -np.inf
            k = int(rise.argmax())
            if not rise[k] > 1e-13 * (1 + abs(a).max()):
                break  # none would
            used[k] = True

            while True:
                # The best weights of the rows used, were they allowed to be negative.
                trial = np.zeros(len(rows))
                trial[used] = np.linalg.lstsq(a[:, used], b, rcond=None)[0]
                if (trial[used] > 0).all():
                    weights = trial
                    break

                # Go towards them until the first weight is 0, and drop its row.
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
