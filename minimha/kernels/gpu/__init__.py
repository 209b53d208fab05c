"""Kernels for GPUs, and a stand-in for cuTile that runs the tiled ones with NumPy on any computer.

Untried: no GPU has run these kernels as they are now. Earlier forms of `fused`, of `tiled` and of
AdamW ran on an NVIDIA H200; the others have never run on a GPU.
"""
