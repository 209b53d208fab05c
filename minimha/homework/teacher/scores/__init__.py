"""Scores: what grading found, as text, tables, and files for the systems that keep scores.

Everything here is made from the report, the dictionary that grading returns. It has the following
keys; each list contains dictionaries with the keys that stand after it:

    homework  the name of the graded folder
    minimha   the version
    seed      of the random inputs
    students  a list: student, points, out_of, and
        tasks     a list: task, chapter, file, points, out_of, and
            checks    a list: check, weight, outcome, message, hidden
            adjustment, comment, with --teacher
        notes     on the student's files, such as those that were not graded
        comments, with --teacher
    notes     on all files
"""

from .options import Reports, add_arguments
from .reports import PLACES, printable

__all__ = ["PLACES", "Reports", "add_arguments", "printable"]
