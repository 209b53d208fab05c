"""Homework needs NumPy and minimha alone: graders and students may leave out everything else."""

import re
import subprocess
import sys

import pytest
from graded import ROOT

ALONE = """
import importlib.metadata, sys
for name in importlib.metadata.packages_distributions():
    if name not in ("numpy", "minimha", "minimha_autograd"):
        sys.modules[name] = None  # cannot be imported
from minimha.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def alone(tmp_path):
    """Run `minimha …` where only NumPy is installed: the exit code and the output."""

    def types(*line):
        done = subprocess.run(
            [sys.executable, "-c", ALONE, *line],
            cwd=tmp_path, capture_output=True, encoding="utf-8", check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return types


@pytest.mark.thorough
def test_homework_is_given_done_and_graded_with_numpy_alone(alone, tmp_path):
    own = str(ROOT / "docs" / "own_tasks.py")
    assert alone("homework", "test", own)[0] == 0
    code, shown = alone("homework", "release", "week5", "--only", "softmax", "--tasks", own)
    assert code == 0, shown
    file = tmp_path / "week5" / "homework" / "softmax.py"
    wrong = file.read_text("utf-8").replace("raise NotImplementedError", "return (y * dy,)")
    file.write_text(wrong, encoding="utf-8")
    code, shown = alone("homework", "check", "softmax", "--from", "week5")
    assert code == 1
    assert "looks like   dx = y · dy: the sum over each row is missing." in shown
    assert alone("homework", "hint", "softmax", "--from", "week5")[0] == 0
    options = ("--only", "softmax", "--student", "ann", "--feedback")
    code, shown = alone("homework", "grade", "week5/homework", *options)
    assert code == 0, shown
    assert "softmax  wrong: dx matches the numeric gradient" in shown


def test_other_commands_name_the_missing_package(alone):
    code, shown = alone("--steps", "1")
    assert code == 1
    assert re.fullmatch(
        r"minimha: .*\bmodule.*: install minimha with .*\n", shown.splitlines(True)[-1]
    )
