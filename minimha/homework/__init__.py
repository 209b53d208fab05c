"""Homework: functions to write, checked in a notebook, by `minimha homework`, or by pytest.

mh.homework.check(softmax)    in a notebook: checks your function
mh.homework.hint("softmax")   a hint, one more each time
mh.homework.mine("softmax")   your own function, to build on
mh.homework.guess("…", 0.9)   a guess, which `guessed` shows beside the result
mh.homework.patient(3)        a model with a hidden fault, for chapter 10
mh.homework.progress()        what you have done, in notebooks and files
mh.homework.task(…)           defines a task of your own
"""

from .checks.comparisons import (
    recorded,
    same,
    same_gradients,
    same_operation,
    same_pullback,
    same_steps,
    tap_is_used,
    value_of,
)
from .checks.task import TASKS, Task, task
from .student.guesses import guess, guessed
from .student.hospital import CAUSES, Patient, patient
from .student.notebook import check, hint, progress
from .student.student_functions import mine
from .tasks.catalogue import course, load_tasks

__all__ = [
    "CAUSES", "TASKS", "Patient", "Task", "check", "course", "guess", "guessed", "hint",
    "load_tasks", "mine", "patient", "progress", "recorded", "same", "same_gradients",
    "same_operation", "same_pullback", "same_steps", "tap_is_used", "task", "value_of",
]  # fmt: skip
