"""The command `minimha homework`: its subcommands and what they print."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .checks import replay
from .checks.verdicts import FAILED, PASSED, TO_DO, Verdict, lines
from .student import checking, package, progress_file, student_files
from .student.progress import by_chapter, command_line, next_step, print_bar, print_progress
from .student.progress_file import NOT_STARTED
from .student.student_files import WIDTH
from .tasks.catalogue import course, load_tasks, task_named
from .teacher import ci, grading, jplag, questions, release
from .teacher.contradictions import refuse
from .teacher.grading.refused import refused

SHOWN = 30
"""The largest number of lines shown of what a student's code printed: the last lines are shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands to the parser. The namespace that `parse_args` returns then also has
    `run`, the function that runs the subcommand, and `command`, the subcommand's own parser."""
    arguments: dict[str, dict[str, Any]] = {
        "name": {"nargs": "?", "metavar": "NAME", "help": "the task"},
        "--from": {
            "dest": "place", "type": Path, "default": Path(), "metavar": "DIR",
            "help": "where your files are (default: this folder and the folders inside it)",
        },
        "--into": {
            "type": Path, "metavar": "DIR",
            "help": "where to write the file (default: beside your other files, or in ./homework)",
        },
        "--all": {"action": "store_true", "help": "show all hints at once"},
        "--agents": {
            "action": "store_true",
            "help": "also write AGENTS.md and CLAUDE.md, which ask coding agents to tutor you "
            "instead of solving the tasks",
        },
        "tasks": {"type": Path, "metavar": "FILE", "help": "a file with tasks of your own"},
        "--tasks": {"type": Path, "metavar": "FILE", "help": "more tasks, from your teacher"},
    }  # fmt: skip
    with_own_arguments = {
        "export": package, "grade": grading, "release": release, "ci": ci, "questions": questions,
        "jplag": jplag,
    }  # fmt: skip
    commands = parser.add_subparsers(metavar="COMMAND")
    parser.set_defaults(run=functools.partial(_explain, parser), command=parser)
    for name, function, taken, text in (
        ("list", _list, ["--from"], "list all tasks, with their difficulty and your progress"),
        ("start", _start, ["name", "--into", "--agents"], "write a file for you to fill in"),
        ("check", _check, ["name", "--from"],
         "check a task or a file, or everything that you have started"),
        ("hint", _hint, ["name", "--from", "--all"], "show a hint for a task, one more each time"),
        ("progress", _progress, ["--from"],
         "show what you have done in each chapter, without running your code"),
        ("export", package.export_package, ["--from"],
         "write your functions as a package of your own"),
        ("key", _key, ["name"], "print the solution of a task, or of all tasks"),
        ("test", _test, ["tasks"], "for teachers: test tasks of your own"),
        ("grade", grading.grade_submissions, [], "for teachers: grade submissions"),
        ("release", release.write_release, [],
         "for teachers: write what students get, without solutions"),
        ("ci", ci.write_ci_files, [], "for teachers: let GitHub, GitLab or Gradescope grade"),
        ("questions", questions.print_questions, [],
         "for teachers: print questions about a student's own functions, for an oral exam"),
        ("jplag", jplag.write_jplag_folders, [],
         "for teachers: arrange submissions for JPlag, which finds copies"),
    ):  # fmt: skip
        command = commands.add_parser(name, help=text, description=text)
        for argument in taken if "tasks" in taken else [*taken, "--tasks"]:
            command.add_argument(argument, **arguments[argument])
        if name in with_own_arguments:
            with_own_arguments[name].add_arguments(command)
        command.set_defaults(run=functools.partial(_reporting_errors, function), command=command)


def _explain(parser: argparse.ArgumentParser, _: Any) -> int:
    parser.print_help()
    return 2


def _reporting_errors(function: Callable[[Any], int], options: Any) -> int:
    """Run the function of a subcommand and return its exit status. If the options name a file with
    the teacher's own tasks, load it first. An OSError, ValueError or RuntimeError is printed as one
    message, and the status is then 2."""
    try:
        if options.tasks:
            own = load_tasks(options.tasks)
            if function in _REFUSING:
                refuse(options.tasks, own)
        return function(options)
    except BrokenPipeError:
        raise
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        print(f"minimha: {file}{error.strerror or error}", file=sys.stderr)
    except (ValueError, RuntimeError) as error:
        print(f"minimha: {error}", file=sys.stderr)
    return 2


def _list(options: Any) -> int:
    standing = progress_file.states(options.place, student_files.find(options.place))
    width = max(map(len, standing))
    for chapter, tasks in by_chapter():
        print(chapter)
        for task in tasks:
            stands = standing[task.name].replace(NOT_STARTED, "–")
            facts = f"{student_files.stars(task)}  {task.minutes:>2} min"
            print(f"  {task.name:<{width}}  {facts}  {stands}")
    return 0


def _progress(options: Any) -> int:
    print_progress(options.place, options.tasks)
    return 0


def _start(options: Any) -> int:
    begun = student_files.find(Path())
    standing = progress_file.states(Path(), begun)
    name = options.name or next((name for name in standing if standing[name] == NOT_STARTED), None)
    if name is None:
        print("you have started every task; see minimha homework progress")
        return 0
    task = task_named(name)
    folder = options.into or next((path.parent for path in begun.values()), Path("homework"))
    path = folder / f"{name}.py" if options.into else begun.get(name, folder / f"{name}.py")
    check = command_line("check", name, options.tasks, options.into)
    if path.exists():
        print(f"{path} already exists and was left unchanged", file=sys.stderr)
        print(f"  check it    {check}", file=sys.stderr)
        print(
            f"  start over  {command_line('start', name, options.tasks)} --into DIR",
            file=sys.stderr,
        )
        return 1
    student_files.start(task, folder, options.into or Path())
    if options.agents:
        student_files.write_agents(folder)
    print(f"{path} is ready for you to fill in")
    about = f"about {task.minutes} minutes, chapter {student_files.chapter(task.chapter)}"
    print(f"  {student_files.stars(task)}, {about}")
    print(f"  check it  {check}")
    print(f"  a hint    {command_line('hint', name, options.tasks, options.into)}")
    return 0


def _check(options: Any) -> int:
    if options.name and Path(options.name).is_file():
        options.place, options.name = _file(Path(options.name))
    files = student_files.find(options.place)
    name = task_named(options.name).name if options.name else None
    if not files or (name and name not in files):
        standing = progress_file.states(options.place, files)
        missing = f"{name} has not been started here" if name else "no task has been started here"
        if name and standing[name] != NOT_STARTED:
            missing = f"{name} was checked in a notebook ({standing[name]}), but has no file"
        new = (name for name in standing if standing[name] == NOT_STARTED)
        begin = command_line("start", name or next(new, next(iter(standing))), options.tasks)
        raise ValueError(f"{missing}; start with\n  {begin}")

    def report(verdict: Verdict, printed: str) -> None:
        _report(verdict, printed, files[verdict.task], options)

    outcomes = checking.check_files({name: files[name]} if name else files, report)
    for task, outcome in outcomes.items():
        progress_file.add(options.place, task, file=files[task], outcome=outcome)
    for path in dict.fromkeys(files[x] for x, outcome in outcomes.items() if outcome == PASSED):
        if why := refused(path):
            print(f"\nnote: {path} passes here, but {why}")
    failed = FAILED in outcomes.values()
    standing = progress_file.states(options.place, files)
    standing |= {task: outcome for task, outcome in outcomes.items() if standing[task] != PASSED}
    print_bar(standing)
    if not failed:
        print(next_step(files, standing, options.place, options.tasks, name))
    return 1 if failed else 0


def _file(path: Path) -> tuple[Path, str]:
    """Return what `minimha homework check FILE` has to check: the folder or file in which to search
    for tasks, and the name of the task that FILE answers. The first is the current folder if a
    search there finds FILE as the answer to this task, otherwise FILE itself."""
    name = next(iter(student_files.find(path)), None)
    if name is None:
        raise ValueError(f"{path} is not a homework file: minimha homework list shows the tasks")
    with contextlib.suppress(ValueError):
        if student_files.find(Path()).get(name, Path()).absolute() == path.absolute():
            return Path(), name
    return path, name


def _report(verdict: Verdict, printed: str, path: Path, options: Any) -> None:
    """Print a verdict and, if the check does not pass, what the student's code printed. When all
    tasks are checked, a task that passes or is still to do gets only one line, without what was
    printed. `path` is the student's file."""
    last = verdict.check is course()[verdict.task].checks[-1]
    if options.name or verdict.outcome == FAILED:
        for line in lines([verdict]):
            print(line)
    elif last or verdict.outcome == TO_DO:
        print(f"{verdict.outcome:<6} {verdict.task}")
    if printed and verdict.outcome != PASSED and (options.name or verdict.outcome == FAILED):
        printed_lines = printed.splitlines()
        print(f"\nyour code printed{', at the end' if len(printed_lines) > SHOWN else ''}")
        for line in printed_lines[-SHOWN:]:
            print(f"  {line[: WIDTH - 2]}")
    if verdict.outcome == FAILED:
        print(f"\nin {path}; for a hint:")
        print(f"  {command_line('hint', verdict.task, options.tasks, options.place)}")


def _hint(options: Any) -> int:
    standing = progress_file.states(options.place, student_files.find(options.place))
    begun = (name for name, stands in standing.items() if stands not in (NOT_STARTED, PASSED))
    name = options.name or next(begun, None)
    if name is None:
        raise ValueError("a hint for which task? minimha homework list shows them all")
    task = task_named(name)
    if options.all:
        for number in range(1, len(task.hints) + 1):
            print(student_files.hint(task, number))
    else:
        again = command_line("hint", name, options.tasks, options.place)
        print(student_files.next_hint(task, options.place, again))
    return 0


def _test(options: Any) -> int:
    """Print that a teacher's tasks are ready. The test itself takes place before:
    `_reporting_errors` calls this function only if `refuse` has found no contradiction in the
    tasks, such as a solution that fails its own checks."""
    print(f"{options.tasks} is ready: solutions pass, stubs are to do, each mistake is named")
    return 0


def _key(options: Any) -> int:
    if replay.results():
        raise ValueError("the answer key needs the teacher's copy of minimha")
    tasks = [task_named(options.name)] if options.name else list(course().values())
    print("\n\n".join(student_files.stub(task, solved=True) for task in tasks), end="")
    return 0


_REFUSING = _test, grading.grade_submissions, release.write_release, ci.write_ci_files
"""The commands that refuse a teacher's file if one of its tasks contradicts itself."""
