"""The command `minimha homework`: its subcommands and what they print."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from . import course, grading, load_tasks, workbook
from .task import Task
from .verdicts import FAILED, PASSED, TO_DO, Verdict, lines
from .workbook import CHANGED, NOT_STARTED

WIDTH = 78
SHOWN = 30
"""How many of the last lines that a student's code printed are shown."""
_ASCII = str.maketrans({"★": "*", "☆": ".", "█": "#", "░": ".", "·": "-", "–": "-", "…": "..."})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands; each stores the function to call with the options in `run`."""
    tasks = argparse.ArgumentParser(add_help=False)
    tasks.add_argument("--tasks", type=Path, metavar="FILE", help="a teacher's own tasks as well")
    commands = parser.add_subparsers(metavar="COMMAND")
    parser.set_defaults(run=functools.partial(_explain, parser), command=parser)
    for name, run, arguments, text in (
        ("list", _list, [_place], "all tasks, their difficulty and your progress"),
        ("start", _start, [_name, _into], "write a task's file for you to fill in"),
        (
            "check",
            _check,
            [_name, _place],
            "check a task or a file, or all that you started",
        ),
        ("hint", _hint, [_name, _place, _all], "a hint for a task, one more each time"),
        (
            "progress",
            _progress,
            [_place],
            "what is done in each chapter; runs nothing",
        ),
        ("key", _key, [_name], "the solution of a task, or of all"),
        ("grade", grading.run, [grading.add_arguments], "for teachers: the scores of submissions"),
    ):
        command = commands.add_parser(name, parents=[tasks], help=text, description=text)
        for add in arguments:
            add(command)
        command.set_defaults(run=functools.partial(_run, run), command=command)


def _explain(parser: argparse.ArgumentParser, _: Any) -> int:
    parser.print_help()
    return 2


def _name(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", nargs="?", metavar="NAME", help="the task")


def _place(command: argparse.ArgumentParser) -> None:
    text = "where your files are (default: this folder and those inside it)"
    command.add_argument(
        "--from", dest="place", type=Path, default=Path(), metavar="DIR", help=text
    )


def _into(command: argparse.ArgumentParser) -> None:
    text = "where the file goes (default: beside your other files, or ./homework)"
    command.add_argument("--into", type=Path, metavar="DIR", help=text)


def _all(command: argparse.ArgumentParser) -> None:
    command.add_argument("--all", action="store_true", help="all hints at once")


def _run(run: Callable[[Any], int], options: Any) -> int:
    """Run a subcommand; print an error as one message."""
    try:
        if options.tasks:
            load_tasks(options.tasks)
        return run(options)
    except BrokenPipeError:
        raise
    except OSError as error:
        file = f"{error.filename}: " if error.filename else ""
        _say(f"minimha: {file}{error.strerror or error}", stream=sys.stderr)
    except (ValueError, RuntimeError) as error:
        _say(f"minimha: {error}", stream=sys.stderr)
    return 2


def _say(text: str = "", *, end: str = "\n", stream: Any = None) -> None:
    """Print the text, in ASCII on a console that cannot show the stars."""
    stream = stream or sys.stdout
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(_ASCII)
    print(text, end=end, file=stream)


def _task(name: str) -> Task:
    tasks = course()
    if name in tasks:
        return tasks[name]
    stem = name.replace("\\", "/").split("/")[-1]  # of a path, perhaps
    near = difflib.get_close_matches(stem.lower().replace("-", "_"), tasks, 1)
    advice = f"did you mean {near[0]}?" if near else "minimha homework list shows them all"
    raise ValueError(f"no task is called {name!r}: {advice}")


def _command(what: str, name: str, options: Any, place: Path | None = None) -> str:
    """The command to type next, with the options of this call."""
    text = f"minimha homework {what} {name}"
    for option, path in (("--from", place), ("--tasks", options.tasks)):
        if path not in (None, Path()):
            text += f' {option} "{path}"' if " " in str(path) else f" {option} {path}"
    return text


def _next(files: dict[str, Path], standing: dict[str, str], options: Any, asked: str | None) -> str:
    """The next step: the task asked about, another one started, the next in the course, or ""."""
    names = list(standing)
    here = names.index(asked) if asked else 0
    begun = [name for name in names if standing[name] != NOT_STARTED]
    for name in [*([asked] if asked else []), *begun, *names[here:], *names[:here]]:
        stands = standing[name]
        if stands == NOT_STARTED:
            return _command("start", name, options)
        if stands == TO_DO:
            return f"fill in {files[name]}"
        if stands != PASSED:
            return _command("check", name, options, options.place)
    return ""


def _bar(names: list[str], standing: dict[str, str], width: int) -> str:
    done, total = sum(standing[name] == PASSED for name in names), len(names)
    filled = max(done * width // total, min(done, 1))
    return f"{'█' * filled}{'░' * (width - filled)}  {done} of {total} task{'s' * (total > 1)}"


def _chapters() -> Iterator[tuple[str, list[Task]]]:
    tasks = sorted(course().values(), key=lambda task: task.chapter)
    for number, found in itertools.groupby(tasks, key=lambda task: task.chapter):
        yield workbook.chapter(number), list(found)


def _list(options: Any) -> int:
    standing = workbook.states(workbook.find(options.place))
    width = max(map(len, standing))
    for chapter, tasks in _chapters():
        _say(chapter)
        for task in tasks:
            stands = standing[task.name].replace(NOT_STARTED, "–")
            facts = f"{workbook.stars(task)}  {task.minutes:>2} min"
            _say(f"  {task.name:<{width}}  {facts}  {stands}")
    return 0


def _progress(options: Any) -> int:
    files = workbook.find(options.place)
    standing = workbook.states(files)
    for chapter, tasks in _chapters():
        names = [task.name for task in tasks]
        _say(f"{chapter:<18}  {_bar(names, standing, 12)}")
        for state in (PASSED, CHANGED, FAILED, TO_DO, NOT_STARTED):
            if these := ", ".join(name for name in names if standing[name] == state):
                first = f"  {state:<16}  "
                _say(textwrap.fill(these, WIDTH, initial_indent=first, subsequent_indent=" " * 20))
    _end(files, standing, options)
    return 0


def _end(
    files: dict[str, Path], standing: dict[str, str], options: Any, asked: str | None = None
) -> None:
    """Print the progress bar of the whole course and the next step."""
    _say(f"\nhomework  {_bar(list(standing), standing, 24)}")
    following = _next(files, standing, options, asked)
    _say(f"next      {following}" if following else "You have finished the course.")


def _start(options: Any) -> int:
    begun = workbook.find(Path())
    name = options.name or next((name for name in course() if name not in begun), None)
    if name is None:
        _say("every task has been started: minimha homework progress")
        return 0
    task = _task(name)
    folder = options.into or next((path.parent for path in begun.values()), Path("homework"))
    there = begun if options.into is None else workbook.find(folder) if folder.is_dir() else {}
    path = there.get(name, folder / f"{name}.py")
    if path.exists():
        _say(f"{path} exists already and was left unchanged", stream=sys.stderr)
        if name in there:
            _say(f"  check it    {_for_file('check', path, name, options)}", stream=sys.stderr)
        _say(f"  start over  {_command('start', name, options)} --into DIR", stream=sys.stderr)
        return 1
    workbook.start(task, folder)
    _say(f"{path} is ready for you to fill in")
    about = f"about {task.minutes} minutes, chapter {workbook.chapter(task.chapter)}"
    _say(f"  {workbook.stars(task)}, {about}")
    _say(f"  check it  {_for_file('check', path, name, options)}")
    _say(f"  a hint    {_for_file('hint', path, name, options)}")
    return 0


def _for_file(what: str, path: Path, name: str, options: Any) -> str:
    """The command for a file, with its folder if it would not be found from here."""
    with contextlib.suppress(ValueError):
        found = workbook.find(Path()).get(name)
        if found is not None and found.absolute() == path.absolute():
            return _command(what, name, options)
    return _command(what, name, options, path.parent)


def _check(options: Any) -> int:
    from . import pytest_run  # imports pytest, which the other subcommands do not need

    if options.name and Path(options.name).is_file():
        options.place, options.name = _file(Path(options.name))
    files = workbook.find(options.place)
    name = _task(options.name).name if options.name else None
    if not files or (name and name not in files):
        begin = _command("start", name or next(iter(course())), options)
        found = f"{name} has not been started" if name else "no task has been started"
        raise ValueError(f"{found} here; start with\n  {begin}")

    def report(verdict: Verdict, printed: str) -> None:
        _report(verdict, printed, files[verdict.task], options)

    outcomes = pytest_run.run(files[name] if name else options.place, report)
    kept = [workbook.record(files[name], name, outcome=o) for name, o in outcomes.items()]
    failed = FAILED in outcomes.values()
    standing = workbook.states(files) | outcomes
    if failed:
        _say(f"\nhomework  {_bar(list(standing), standing, 24)}")
    else:
        _end(files, standing, options, name)
    if not all(kept):
        _say(f"(your progress was not saved: {workbook.RECORD} cannot be written)")
    return 1 if failed else 0


def _file(path: Path) -> tuple[Path, str]:
    """The place to search and the task, when a file is named instead of a task."""
    name = next(iter(workbook.find(path)), None)
    if name is None:
        raise ValueError(f"{path} is not a homework file: minimha homework list shows the tasks")
    with contextlib.suppress(ValueError):
        if workbook.find(Path()).get(name, Path()).absolute() == path.absolute():
            return Path(), name
    return path, name


def _report(verdict: Verdict, printed: str, path: Path, options: Any) -> None:
    """Print a verdict; when all tasks are checked, a task that passes gets one line."""
    last = verdict.check is course()[verdict.task].checks[-1]
    if options.name or verdict.outcome == FAILED:
        for line in lines([verdict]):
            _say(line)
    elif last or verdict.outcome == TO_DO:
        _say(f"{verdict.outcome:<6} {verdict.task}")
    if printed and verdict.outcome != PASSED and (options.name or verdict.outcome == FAILED):
        printed_lines = printed.splitlines()
        _say(f"\nyour code printed{', at the end' if len(printed_lines) > SHOWN else ''}")
        for line in printed_lines[-SHOWN:]:
            _say(f"  {line[: WIDTH - 2]}")
    if verdict.outcome == FAILED:
        _say(f"\nin {path}; for a hint:")
        _say(f"  {_command('hint', verdict.task, options, options.place)}")


def _hint(options: Any) -> int:
    files = workbook.find(options.place)
    standing = workbook.states(files)
    begun = (name for name in files if standing[name] != PASSED)
    name = options.name or next(begun, None)
    if name is None:
        raise ValueError("a hint for which task? minimha homework list shows them all")
    hints = _task(name).hints
    known = workbook.recorded(files[name].parent).get(name, {}) if name in files else {}
    before = known.get("hints")
    last = min(before + 1, len(hints)) if isinstance(before, int) and before >= 0 else 1
    for number in range(1, len(hints) + 1) if options.all else [last]:
        _say(f"{name}, hint {number} of {len(hints)}")
        text = textwrap.fill(hints[number - 1], WIDTH - 2, break_on_hyphens=False)
        _say(textwrap.indent(text, "  "))
    if options.all:
        return 0
    if name in files and not workbook.record(files[name], name, hints=last):
        _say(f"(your progress was not saved: {workbook.RECORD} cannot be written)")
    if last < len(hints):
        more = _command("hint", name, options, options.place)
        _say(f"one more: {more}{'' if name in files else ' --all'}")
    return 0


def _key(options: Any) -> int:
    tasks = [_task(options.name)] if options.name else list(course().values())
    _say("\n\n".join(workbook.stub(task, solved=True) for task in tasks), end="")
    return 0
