"""A file with the results of the last grading run, so that the run can be continued after an
interruption or when answers change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .submissions import Answer

NAME = ".minimha-grading.jsonl"


class Journal:
    """A file in the folder of the submissions: first the settings of the run, then one line for
    each student. A student whose files have changed is graded again.

    settings  the tasks, the seed, the limits, and the version of minimha
    resume    whether to continue the last run in this folder and keep its results

    Raises ValueError if `resume` is true, but the last run in this folder had other settings, or
    there was none.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], *, resume: bool) -> None:
        self.path, self.done = folder / NAME, dict[str, tuple[str, dict[str, Any]]]()
        lines = [json.dumps(settings)]
        if resume:
            found = self._lines()
            if found[:1] != lines:
                raise ValueError(
                    f"no run to continue: {folder} was last graded with other options, or never"
                )
            for line in found[1:]:
                with suppress(ValueError):  # the last line may be incomplete
                    name, digest, result = json.loads(line)
                    self.done[name] = digest, result
                    lines.append(line)
        with suppress(OSError):  # where nothing can be written, nothing can be continued
            self.path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def _lines(self) -> list[str]:
        try:
            return self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            return []

    def result(self, name: str, answers: Mapping[str, Answer]) -> dict[str, Any] | None:
        """Return the result of a student if the journal has one for exactly these answers,
        otherwise None."""
        digest, result = self.done.get(name, ("", None))
        return result if digest == _digest(answers) else None

    def add(self, name: str, answers: Mapping[str, Answer], result: dict[str, Any]) -> None:
        """Append a line to the file: the name of a student, a hash of the answers, and the
        result."""
        line = json.dumps([name, _digest(answers), result])
        with suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def seed(folder: Path) -> int | None:
    """Return the random seed of the last run in this folder, from the first line of its journal;
    None if there is no such line."""
    try:
        with (folder / NAME).open(encoding="utf-8") as file:
            return int(json.loads(file.readline())["seed"])
    except (OSError, ValueError, KeyError):
        return None


def _digest(answers: Mapping[str, Answer]) -> str:
    return hashlib.sha256(repr(sorted(answers.items())).encode("utf-8", "replace")).hexdigest()
