"""Releases: what a class gets, an edition of minimha whose tasks have no solutions.

`public` takes the solutions out of the source of tasks, `wheel` packs the editions for students and
for grading, and `command` writes the folder with the wheel, files to fill in, and notebooks.
"""

from .command import add_arguments, write_release

__all__ = ["add_arguments", "write_release"]
