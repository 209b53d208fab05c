"""Fast paths on the host, compiled by Numba."""
