"""All implementations of attention. Importing this file loads the kernels."""

from ..functional.implementations import implementations

IMPLEMENTATIONS = implementations("attention")
"""Every implementation of attention, by name."""
