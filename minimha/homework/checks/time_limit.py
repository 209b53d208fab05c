"""How long a check may take: the limit counts processor time, not time on the clock.

On a busy machine, a function waits while other processes compute: it takes longer on the clock, but
its processor time stays the same. The clock matters in only two cases:

- A function that sleeps, or waits for something that never happens, uses no processor time. So
  there is a limit on the clock, too, which is PATIENCE times as long.
- Several threads that compute at the same time, such as those of a matrix product, use several
  seconds of processor time in one second. So nothing is stopped before the limit has also passed on
  the clock.
"""

from __future__ import annotations

from typing import NamedTuple

PATIENCE = 6
"""The limit on the clock, in multiples of the limit of processor time."""


class Spent(NamedTuple):
    """Seconds of processor time and seconds on the clock: a reading of both, or what was spent
    between two readings."""

    computing: float
    clock: float

    def since(self, start: Spent) -> Spent:
        """Return the seconds spent between two readings, `start` and this one."""
        return Spent(self.computing - start.computing, self.clock - start.clock)

    def exceeds(self, limit: float) -> str:
        """Return a text that says which limit was exceeded, that of processor time or that on the
        clock, and suggests why; "" if neither was.

        limit  seconds of processor time, which must have passed on the clock, too; the limit on
               the clock alone is PATIENCE times as long
        """
        if min(self.computing, self.clock) > limit:
            return f"{limit:g} seconds of processor time: an endless loop?"
        if self.clock > PATIENCE * limit:
            return (
                f"{PATIENCE * limit:g} seconds, although it computed for at most {limit:g} of "
                "them: does it sleep or wait, or is the computer busy?"
            )
        return ""
