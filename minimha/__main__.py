"""The command `minimha`, also `python -m minimha`: the tour, notebooks, homework, training."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import minimha
from minimha_autograd.backend import LIBRARIES, explain_memory

from .attention import implementation
from .course import chapters as course
from .gpu_report.report import add_arguments as add_gpu_report_arguments
from .homework import commands as homework
from .kernels import threads
from .training import commands as training
from .training import tour


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with these arguments, by default those of the process. Returns the exit
    code, which is 2 for unusable input."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed when this process started
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="replace")  # a console may not support a character
    parser = _parser()
    try:
        try:
            options, unknown = parser.parse_known_args(arguments)
            if unknown:  # with the usage of this command, not of the tour
                command = vars(options).get("command", parser)
                command.error(f"unrecognized arguments: {' '.join(unknown)}")
            _check_environment()
            code: int = options.run(options)
        finally:
            sys.stdout.flush()  # errors at exit could not be handled
    except KeyboardInterrupt:
        print("minimha: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader left, as head does: print nothing more, even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        print(f"minimha: {error}: install minimha with its dependencies", file=sys.stderr)
        return 1
    except (MemoryError, OSError) as error:
        explain_memory(error)
        print(
            "minimha:", "; ".join([str(error), *getattr(error, "__notes__", [])]), file=sys.stderr
        )
        return 1
    return code


def _check_environment() -> None:
    """Exit with code 2 if an environment variable, such as MINIMHA_IMPLEMENTATION, has a value for
    which attention would raise an error later."""
    try:
        threads.number()
        with implementation(os.environ.get("MINIMHA_IMPLEMENTATION") or "auto"):
            pass
    except ValueError as error:
        print(f"minimha: {error}", file=sys.stderr)
        sys.exit(2)


def _tour(options: argparse.Namespace) -> int:
    settings = {name: getattr(options, name) for name in ("seed", "steps", "picture")}
    return tour.take(options.text, library=options.backend, **settings)


class _Parser(argparse.ArgumentParser):
    """A parser of arguments whose error messages suggest the choice that was probably meant."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.suggest_on_error = False  # Python 3.15 would put its own before the list of choices

    def error(self, message: str) -> NoReturn:
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message):
            choices = re.findall(r"[\w-]+", found[2])
            near = difflib.get_close_matches(found[1], choices, 1)
            message += "".join(f"; did you mean {choice}?" for choice in near)
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="minimha",
        description="A tour of multi-head attention from scratch: check every gradient against "
        "finite differences, train a small character-level transformer, and draw what each of its "
        "heads attends to. Takes less than a minute on two cores.",
    )
    parser.add_argument("--version", action="version", version=f"minimha {minimha.__version__}")
    parser.set_defaults(run=_tour)
    others = parser.add_subparsers(title="instead of the tour", metavar="COMMAND")
    for name, add_arguments, text in (
        ("notebooks", course.add_arguments,
         "copy the chapters of the course, open them in Jupyter"),
        ("homework", homework.add_arguments, "exercises: begin one, check it, get a hint"),
        ("train", training.add_train_arguments, "train a GPT on a text"),
        ("generate", training.add_generate_arguments, "let a trained model write text"),
        ("gpu-report", add_gpu_report_arguments, "measure and test minimha on this machine's GPU"),
    ):  # fmt: skip
        add_arguments(others.add_parser(name, help=text, description=text))
    settings: dict[str, Any]
    for option, settings, text in (
        ("--text", {"type": Path, "metavar": "FILE"},
         "UTF-8 text to learn (default: Python's own documentation)"),
        ("--steps", {"type": _at_least(1), "default": tour.STEPS, "metavar": "N"},
         f"training steps (default: {tour.STEPS})"),
        ("--seed", {"type": _at_least(0), "default": 0, "metavar": "N"},
         "seed of all random numbers (default: 0)"),
        ("--backend", {"choices": LIBRARIES, "default": "numpy"},
         "array library to compute with (default: numpy)"),
        ("--picture", {"type": Path, "default": Path("minimha-attention.png"), "metavar": "FILE"},
         "where the picture goes: .png, .svg or .pdf (default: minimha-attention.png)"),
    ):  # fmt: skip
        parser.add_argument(option, help=text, **settings)
    return parser


def _at_least(least: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return integer


if __name__ == "__main__":
    sys.exit(main())
