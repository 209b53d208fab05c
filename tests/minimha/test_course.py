"""The chapters, and the command `minimha notebooks`, which hands them out."""

import subprocess
import sys

import pytest

from minimha.__main__ import main
from minimha.course import chapters as course


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_chapters_are_handed_out_as_they_are(here, capsys):
    assert main(["notebooks", "--no-open"]) == 0
    copies = sorted((here / "minimha-notebooks").iterdir())
    assert [path.name for path in copies] == [path.name for path in course.notebooks()]
    assert "05_attention.ipynb" in capsys.readouterr().out
    for copy, path in zip(copies, course.notebooks(), strict=True):
        assert copy.read_bytes() == path.read_bytes()


def test_work_in_a_chapter_is_never_overwritten(here, capsys):
    mine = here / "a" / "b" / "05_attention.ipynb"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert main(["notebooks", "a/b", "--no-open"]) == 0
    assert mine.read_text() == "mine"
    assert "05_attention.ipynb  is there already" in capsys.readouterr().out


def test_a_place_that_cannot_be_written_to_is_told(here, capsys):
    (here / "file").write_text("")
    assert main(["notebooks", "file"]) == 2
    assert "minimha: cannot write to file: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("installed", "opened"),
    [(["jupyterlab", "notebook"], "jupyterlab"), (["notebook"], "notebook"), ([], None)],
)
def test_jupyter_opens_on_them(installed, opened, here, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(subprocess, "call", lambda command: calls.append(command) or 0)
    monkeypatch.setattr(course.importlib.util, "find_spec", lambda name: name in installed)
    assert main(["notebooks", "x"]) == (0 if opened else 1)
    assert calls == ([[sys.executable, "-m", opened, "x"]] if opened else [])
    assert ("pip install jupyterlab" in capsys.readouterr().out) == (not opened)
