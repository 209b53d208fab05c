"""The command `minimha gpu-report`."""

from .report import PARTS, Part, Setting, add_arguments

__all__ = ["PARTS", "Part", "Setting", "add_arguments"]
