"""Naming the fault behind a wrong gradient. `mh.gradcheck` loads this when a check fails."""

from . import attention

__all__ = ["attention"]
