"""How long a check may take: mostly a limit on what it computes, not on the clock.

Beside other busy processes a function waits for its turn: the clock runs on, but its processor time
stays the same. The clock counts in two cases only:

- A function that sleeps, or waits for something that never happens, uses no processor time. On the
  clock it has PATIENCE times as long.
- Threads that compute at once, such as those of a matrix product, use several seconds of processor
  time in one second. So nothing is stopped before the clock shows as much as the limit, too.
"""

from __future__ import annotations

from typing import NamedTuple

PATIENCE = 6
"""How many times its limit of processor time a check may take on the clock."""


class Spent(NamedTuple):
    """Seconds of processor time, and seconds on the clock."""

    computing: float
    clock: float

    def since(self, start: Spent) -> Spent:
        """What was spent after this start."""
        return Spent(self.computing - start.computing, self.clock - start.clock)

    def exceeds(self, limit: float) -> str:
        """Which limit this exceeds, and why that may be; "" if none.

        limit  seconds of processor time
        """
        if min(self.computing, self.clock) > limit:
            return f"{limit:g} seconds of processor time: an endless loop?"
        if self.clock > PATIENCE * limit:
            return (
                f"{PATIENCE * limit:g} seconds, although it computed for only "
                f"{self.computing:.1f} of them: does it sleep or wait, or is the computer busy?"
            )
        return ""
