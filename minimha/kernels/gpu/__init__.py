"""Kernels for GPUs, and NumPy's stand-in that runs them on any computer. Not yet run on a GPU."""
