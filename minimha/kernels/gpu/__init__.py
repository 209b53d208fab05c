"""Kernels for GPUs, and NumPy's stand-in that runs them on any computer.

Untried: no GPU has run the kernels as they are now. Earlier forms of `fused`, of the tiles and of
AdamW ran on an NVIDIA H200.
"""
