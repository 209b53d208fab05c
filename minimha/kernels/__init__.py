"""Fast paths: functions of `functional` once more, compiled, with the same values and pullbacks.

Nothing here is needed for an answer, and nothing is loaded before it is used.
"""

from .choice import accelerated, unavailable

__all__ = ["accelerated", "unavailable"]
