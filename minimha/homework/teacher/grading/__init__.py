"""Grading: reads a folder of submissions and computes scores. No submission ever runs in this
process.

`grade` runs the checks and writes the reports, `submissions` finds the files, and `process` starts
`worker`, the confined process that runs a submission, and talks to it through a `connection`.
"""

from .grade import add_arguments, grade_submissions
from .submissions import find

__all__ = ["add_arguments", "find", "grade_submissions"]
