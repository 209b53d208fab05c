"""`minimha homework grade`: the scores of a folder of submissions, and reports on them."""

from __future__ import annotations

import argparse
import functools
import hashlib
import multiprocessing
import os
import secrets
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from ...checks import replay
from ...checks.time_limit import PATIENCE
from ...tasks.catalogue import course, load_tasks
from .. import scores
from ..chosen import add_only, chosen
from ..scores import printable
from . import journal, judge, submissions, system_calls
from .process import Limits

_LOOKED_UP = (
    "graded with the students' edition: its wheel contains the results that the checks expect, and "
    "an answer can look them up"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `grade` to the parser."""
    seconds, megabytes = Limits()
    for option, settings, text in (
        ("folder", {"type": Path, "metavar": "FOLDER"},
         "one folder per student, or files named STUDENT_TASK.py"),
        ("--student", {"metavar": "NAME"},
         "the whole folder is the work of this one student"),
        ("--seed", {"type": int, "metavar": "N"},
         "seed of the random inputs, to repeat a run (default: a new one)"),
        ("--time", {"type": float, "default": seconds, "metavar": "SECONDS"},
         f"processor time that one check may take (default: {seconds:g}); on the clock it may take "
         f"{PATIENCE} times as long"),
        ("--memory", {"type": int, "default": megabytes, "metavar": "MB"},
         f"memory limit of a submission (default: {megabytes})"),
        ("--jobs", {"type": int, "default": _cores(), "metavar": "N"},
         "grade this many students at the same time (default: one for each core)"),
        ("--continue", {"dest": "resume", "action": "store_true"},
         "continue the last run: keep the results of answers that have not changed"),
    ):  # fmt: skip
        parser.add_argument(option, help=text, **settings)
    add_only(parser)
    scores.add_arguments(parser)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(usable(0)) if usable else os.cpu_count() or 1


def grade_submissions(options: Any) -> int:
    """Grade the folder `options.folder` and write the reports for which the options ask. Returns
    the exit status 0 whatever the scores are.

    Raises ValueError for unusable options and on Windows, OSError for files that cannot be read or
    written.
    """
    if sys.platform == "win32":
        raise ValueError("grading needs Linux or macOS: on Windows run it in WSL")
    limits = Limits(options.time, options.memory)
    if not (0 < limits.seconds < 1e6 and limits.megabytes > 0):
        raise ValueError("--time and --memory must be positive")
    seed = options.seed
    if seed is None and options.resume:
        seed = journal.seed(options.folder)
    if seed is None:
        seed = 0 if replay.results() else secrets.randbits(32)
    if seed and replay.results():  # the results of the solutions were recorded with seed 0
        raise ValueError("the students' edition grades only with --seed 0")
    if seed < 0 or options.jobs < 1:
        raise ValueError("--seed must not be negative, and --jobs must be at least 1")
    if not system_calls.protects():
        sys.stderr.write(
            "warning: on this system a submission that attacks Python itself could change your\n"
            "files or end your processes: grade in a container, as docs/sandbox.md shows\n"
        )
    names = tuple(task.name for task in chosen(options.only))
    reports = scores.Reports(options)
    report = grade(
        options.folder, Run(names, options.tasks, seed, limits), jobs=options.jobs,
        student=options.student, resume=options.resume, expect=reports.expect,
    )  # fmt: skip
    reports.write(report)
    return 0


class Run(NamedTuple):
    """The settings of a run: the names of the tasks; the file with the teacher's own tasks, None if
    there is none; the seed of the random inputs; and the limits on the time and memory of
    submissions."""

    tasks: tuple[str, ...]
    own: Path | None
    seed: int
    limits: Limits

    def settings(self) -> dict[str, Any]:
        """Return these settings, and the version of minimha, in a form that JSON can store, for the
        journal, the file from which a run can be continued. The file of the teacher's own tasks is
        replaced by its hash."""
        own = hashlib.sha256(self.own.read_bytes()).hexdigest() if self.own else None
        return self._asdict() | {"own": own, "minimha": version("minimha")}


def grade(
    folder: Path, run: Run, *, jobs: int = 1, student: str | None = None, resume: bool = False,
    expect: Callable[[Collection[str], Collection[str]], None] = lambda students, tasks: None,
) -> dict[str, Any]:  # fmt: skip
    """Grade a folder, and return a report with the results of all students, in a form that JSON can
    store. Prints progress to standard error.

    run      the tasks, the seed and the limits
    jobs     how many students are graded at the same time
    student  the student to whom the whole folder belongs; None if it contains the work of several
    resume   whether to keep the results of the last run for answers that have not changed; has no
             effect if `student` is given
    expect   a function called before grading with the names of the students and of the tasks; may
             raise ValueError to prevent grading

    Raises ValueError if there are no submissions, or if `resume` is true and the last run had other
    settings or there was none; OSError if there is no folder.
    """
    found, notes = submissions.find(folder, {x: course()[x].chapter for x in run.tasks}, student)
    if not found:
        raise ValueError(
            f"{folder} contains no submissions: use one folder per student, or STUDENT_TASK.py"
        )
    if replay.results():
        notes.insert(0, submissions.Note("", _LOOKED_UP))
    expect(found, run.tasks)
    log = None if student else journal.Journal(folder, run.settings(), resume=resume)
    known = {name: log and log.result(name, answers) for name, answers in found.items()}
    results = {name: result for name, result in known.items() if result}
    rest = {name: answers for name, answers in found.items() if name not in results}
    try:
        for name, result in _graded(folder, run, rest, jobs):
            results[name] = result
            if log:
                log.add(name, rest[name], result)
            handed_in = f"{len(rest[name])} of {len(run.tasks)} answers found"
            sys.stderr.write(f"{len(results)} of {len(found)}  {printable(name)}: {handed_in}\n")
    except KeyboardInterrupt:
        sys.stderr.write("stopped: to grade the others, repeat the command with --continue\n")
        raise
    return {
        "homework": printable(folder.resolve().name),
        "minimha": version("minimha"),
        "seed": run.seed,
        "students": [
            results[name] | {"notes": [printable(x.text) for x in notes if x.student == name]}
            for name in found
        ],
        "notes": [printable(note.text) for note in notes],
    }


def _graded(
    folder: Path, run: Run, found: submissions.Found, jobs: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Grade the students in `found`, up to `jobs` at a time, and yield each student's name and
    result as soon as it is ready. `found` has the answers of each student."""
    work = functools.partial(_student, folder, run)
    if min(jobs, len(found)) <= 1:
        yield from map(work, found.items())
        return
    processes = multiprocessing.get_context("spawn")  # each loads the tasks anew
    started = processes.Value("i", 0)
    with processes.Pool(min(jobs, len(found)), _prepare, (run.own, started)) as pool:
        yield from pool.imap_unordered(work, found.items())


def _prepare(own: Path | None, started: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    if hasattr(os, "sched_setaffinity"):
        # One core for this process and its submissions, of which only one is ever busy: to wake up
        # another core takes longer than most calls.
        with started.get_lock():
            k, started.value = started.value, started.value + 1
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[k % len(cores)]})
    if own:
        load_tasks(own)


def _student(
    folder: Path, run: Run, whose: tuple[str, dict[str, submissions.Answer]]
) -> tuple[str, dict[str, Any]]:
    name, answers = whose
    tasks = [course()[task] for task in run.tasks]
    return name, judge.student(name, answers, tasks, folder, run.seed, run.limits)
