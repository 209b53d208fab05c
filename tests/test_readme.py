"""What the README shows is what happens."""

import re
from pathlib import Path

import pytest

import minimha as mh
from minimha.course import chapters as course

README = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
FIRST, SECOND = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(TRANSCRIPT,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)


def test_its_code_runs(capsys):
    names = {}
    exec(FIRST, names)
    assert names["query"].grad.shape == (2, 3, 5, 4)
    assert "complex step" in capsys.readouterr().out
    exec(SECOND, names)


def test_its_error_is_the_one_that_a_forgotten_sum_gives():
    row_sum = "dy - (dy * y).sum(-1, keepdims=True)"
    assert row_sum in SECOND
    names = {}
    exec(FIRST, names)
    with pytest.raises(mh.GradcheckError) as failure:
        exec(SECOND.replace(row_sum, "dy"), names)
    assert TRANSCRIPT.strip() == f"GradcheckError: {failure.value}"


def test_its_chapters_are_those_of_the_course():
    rows = re.findall(r"^\| (\d\d) ([\w-]+) \|.*\| (\d+) \|$", README, re.MULTILINE)
    chapters = [(f"{c.number:02}", c.name, str(c.minutes)) for c in course.CHAPTERS.values()]
    assert rows == chapters
