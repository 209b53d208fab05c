"""The chapters, and the command `minimha notebooks`, which copies them."""

import subprocess
import sys

import pytest

from minimha.__main__ import main
from minimha.course import chapters as course


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_chapters_are_copied_unchanged_and_never_overwritten(here, capsys):
    mine = here / "a" / "b" / "05_attention.ipynb"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert main(["notebooks", "a/b", "--no-open"]) == 0
    assert capsys.readouterr().out == "15 chapters in a/b: 14 new, 1 left unchanged\n"
    for path in course.notebooks():
        copy = here / "a" / "b" / path.name
        assert copy.read_bytes() == (b"mine" if copy == mine else path.read_bytes())


def test_an_unwritable_folder_is_reported(here, capsys):
    (here / "file").write_text("")
    assert main(["notebooks", "file"]) == 2
    assert "minimha: cannot write to file: " in capsys.readouterr().err


@pytest.mark.parametrize("installed", [True, False])
def test_jupyter_opens_the_first_chapter_and_serves_the_folder_around_it(
    installed, here, monkeypatch, capsys
):
    calls = []
    monkeypatch.setattr(subprocess, "call", lambda command: calls.append(command) or 0)
    monkeypatch.setattr(course.importlib.util, "find_spec", lambda name: installed or None)
    assert main(["notebooks", "x"]) == (0 if installed else 1)
    assert ("pip install jupyterlab" in capsys.readouterr().out) == (not installed)
    if installed:
        (command,) = calls
        assert command[:3] == [sys.executable, "-m", "jupyterlab"]
        page = "/lab/tree/x/01_arrays.ipynb"
        assert {f"--ServerApp.root_dir={here}", f"--LabApp.default_url={page}"} < {*command}
