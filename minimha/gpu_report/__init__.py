"""The command `minimha gpu-report`: what a GPU computes, how exactly and how fast."""

from .report import add_arguments

__all__ = ["add_arguments"]
