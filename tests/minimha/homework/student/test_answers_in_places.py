"""Answers are found in files, in cells of notebooks, and behind an adapters file."""

import os

import graded
import pytest

from minimha import homework
from minimha.homework.checks import replay
from minimha.homework.student import answers as module
from minimha.homework.student.answers import answers, modules

TWICE = "def twice(x):\n    return 2 * x\n"
STUB = "def twice(x):\n    raise NotImplementedError\n"
MARK = "# minimha homework: twice\n"


def notebook(path, *cells):
    """Write a notebook with these code cells."""
    path.write_text(graded.notebook(*cells), encoding="utf-8")
    return path


def defined(source):
    names = {}
    exec(source, names)
    return names


def test_an_exercise_gets_what_it_uses_from_other_cells_and_nothing_else(tmp_path):
    path = notebook(
        tmp_path / "a.ipynb",
        "try:\n    import math\nexcept ImportError:\n    %pip install math\n    import math",
        "factor = 3\nx = missing()\nunused = 1",
        "factor = 2\n%matplotlib inline\n!ls\nmath.floor?",
        "other = factor\ndef doubled(f):\n    return lambda x: 2 * f(x)",
        "@doubled\ndef helper(x):\n    return factor * math.floor(x)",
        [
            MARK,
            "# page\x0cbreaks\u2028and\x85others\n",
            "def twice(x):\n",
            "    y = helper(x)\n    return y\n",
            "\nprint(twice(1))\nwrong()",
        ],
    )
    source = answers(path, ["twice", "thrice"])["twice"]
    names = defined(source)
    assert names["twice"](4) == 16
    assert not {"x", "unused"} & set(names)


@pytest.mark.parametrize(
    ("cells", "counts", "note"),
    [
        ([MARK + TWICE], TWICE, []),
        ([TWICE + "\nmh.homework.check(twice)"], TWICE, []),
        ([TWICE], None, []),  # neither the mark nor the check
        ([MARK + TWICE, MARK + STUB], TWICE, ["2 cells answer twice; the last one that is filled in counts"]),
        ([MARK + STUB, MARK + STUB + "#"], STUB, ["2 cells answer twice; the last one counts"]),
        ([MARK + TWICE, MARK + TWICE.replace("2", "7")], TWICE.replace("2", "7"), ["2 cells answer twice; the last one that is filled in counts"]),
        ([MARK + TWICE, MARK + TWICE], TWICE, []),
        ([MARK + STUB, TWICE + "mh.homework.check(twice)"], TWICE, ["2 cells answer twice; the last one that is filled in counts"]),
        ([MARK + TWICE, "\n" * 100_000 + "(", "mh.homework.check(twice)"], TWICE, []),
        ([MARK + TWICE, "y = " + "-" * 100_000 + "1", "(" * 1000, "x = (yield)"], TWICE, []),
        ([MARK + "def twice(x:\n"], MARK + "def twice(x:\n", []),
        ([MARK + "def other(x): pass"], MARK + "def other(x): pass\n", []),
    ],
    ids=["marked", "checked", "neither", "stub", "two stubs", "two", "copied", "unmarked", "blank lines", "deep cells", "syntax", "another name"],
)  # fmt: skip
def test_the_cell_that_counts(tmp_path, cells, counts, note):
    notes = []
    found = answers(notebook(tmp_path / "a.ipynb", *cells), ["twice"], notes)
    assert found == ({} if counts is None else {"twice": counts.encode()})
    assert notes == note


def test_of_several_definitions_the_last_one_above_the_answer_counts(tmp_path):
    cells = ["n = 1", "n = 2", MARK + "def twice(x):\n    return n * x + m\n", "n = 3", "m = 4"]
    source = answers(notebook(tmp_path / "a.ipynb", *cells), ["twice"])["twice"]
    assert defined(source)["twice"](5) == 2 * 5 + 4


def test_each_cell_is_read_once_for_all_tasks(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(module, "_pieces", lambda cell: read.append(cell) or [])
    cells = [MARK + TWICE, MARK.replace("tw", "thr") + TWICE, "x = 1"]
    found = answers(notebook(tmp_path / "a.ipynb", *cells), ["twice", "thrice"])
    assert set(found) == {"twice", "thrice"}
    assert read == cells


def test_a_file_that_is_no_notebook_is_refused(tmp_path):
    for text in ("", "[]", '{"cells": 1}', '{"cells": [{"cell_type": "code", "source": 3}]}'):
        (tmp_path / "a.ipynb").write_text(text)
        with pytest.raises(ValueError, match="not a Jupyter notebook"):
            answers(tmp_path / "a.ipynb", ["twice"])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_the_mark_is_found_in_the_encodings_of_windows(tmp_path, encoding):
    (tmp_path / "a.py").write_text(MARK + TWICE, encoding=encoding)
    assert set(answers(tmp_path / "a.py", ["twice"])) == {"twice"}


def test_a_release_has_no_function_in_place_of_a_missing_one(folder, monkeypatch):
    monkeypatch.setattr(replay, "results", lambda: {"thrice": {}})
    with pytest.raises(ValueError, match="you have not written it yet; this cell needs it"):
        homework.mine("twice")


@pytest.fixture
def adapters(tmp_path):
    """A package of a student's own, with an adapters file beside it."""
    texts = {
        "adapters.py": "# minimha homework: adapters\nimport os, numpy\nfrom mine.maths import double\n"
        "def twice(x):\n    return double(x)\ndef _thrice(x):\n    pass\n",
        "src/mine/__init__.py": "",
        "src/mine/maths.py": "from . import constants\nfrom .deep.down import *\ndef double(x):\n    return constants.TWO * x\n",
        "src/mine/constants.py": "TWO = 2\n",
        "src/mine/deep/__init__.py": "",
        "src/mine/deep/down.py": "from ..constants import TWO\n",
        "src/mine/unused.py": "",
        "os.py": "not the standard library's\n",
    }  # fmt: skip
    graded.write(tmp_path, texts)
    return tmp_path / "adapters.py"


def test_an_adapters_file_answers_what_it_defines_and_brings_its_modules(adapters):
    text = adapters.read_bytes()
    assert answers(adapters, ["twice", "thrice"]) == {"twice": text}
    found = modules(text, adapters.parent)
    inner = ["__init__", "constants", "deep/__init__", "deep/down", "maths"]
    assert sorted(found) == [f"mine/{name}.py" for name in inner]


def test_modules_behind_links_or_too_large_are_not_taken(adapters, tmp_path):
    secret = tmp_path / "secret"
    (tmp_path / "src" / "mine").rename(secret)
    os.symlink(secret, tmp_path / "src" / "mine")
    assert modules(adapters.read_bytes(), tmp_path) == {}
    (tmp_path / "src" / "mine").unlink()
    secret.rename(tmp_path / "src" / "mine")
    for name in ("maths", "constants"):
        with (tmp_path / "src" / "mine" / f"{name}.py").open("a") as file:
            file.write("#" * 600_000)
    with pytest.raises(ValueError, match="longer than 1 MB"):
        modules(adapters.read_bytes(), tmp_path)


def test_a_students_own_layout_is_checked_through_the_adapters_file(student, adapters, folder):
    code, shown = student(f"check twice --from {adapters.parent}")
    assert code == 0, shown
    assert "ok     twice: of any" in shown
    adapters.write_text(adapters.read_text().replace("double(x)", "double(x) + 1"))
    assert student(f"check twice --from {adapters.parent}")[0] == 1


def test_mine_is_the_function_in_a_file_or_a_notebook_that_passes(folder, capsys):
    own = homework.mine
    assert own("twice")(4) == 8
    shown = capsys.readouterr().out
    assert shown == "twice (99): you have not written it yet, so this is the course's function\n"
    path = notebook(folder / "a.ipynb", MARK + TWICE.replace("2 * x", "x + x"))
    notebook(folder / "b.ipynb", MARK + STUB)
    notebook(folder / "a.ipynb", MARK + STUB)
    assert own("twice")(4) == 8
    assert "you have not finished it in a.ipynb, so" in capsys.readouterr().out
    notebook(folder / "a.ipynb", MARK + TWICE.replace("2 * x", "x + x"))
    function = own("twice")
    (folder / "b.ipynb").unlink()
    assert (function(4), function.__code__.co_filename) == (8, f"{path.resolve()}: twice")
    (folder / "twice.py").write_text(MARK + TWICE.replace("2 *", "3 *"))
    assert own("twice")(4) == 8
    assert "does not pass the check “of ones”" in capsys.readouterr().out
    (folder / "twice.py").write_text(MARK + TWICE)
    assert own("twice").__code__.co_filename == "twice.py"
    (folder / "twice.py").write_text(MARK + STUB)
    path.unlink()
    assert own("twice")(4) == 8
    assert "you have not finished it in twice.py" in capsys.readouterr().out
    notebook(folder / "a.ipynb", MARK + TWICE)
    (folder / "twice.py").write_text("raise SystemExit")
    assert own("twice").__code__.co_filename.endswith("a.ipynb: twice")
    with pytest.raises(ValueError, match="did you mean twice"):
        own("twise")
