"""docs/disagreements.md agrees with the installed libraries."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "disagreements.py"
PAGE = (ROOT / "docs" / "disagreements.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in x.split("|")[1:-1]] for x in PAGE.splitlines() if x[:1] == "|"]
VERSIONS = {row[0]: row[1] for row in ROWS if len(row) == 3}
COLUMNS = next(row for row in ROWS if row[0] == "")
ANSWERS = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in ROWS if len(row) == len(COLUMNS)}


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        yield importlib.import_module("disagreements")


def answers(script, library, *words):
    return {k: v for topic in script.verdicts(library, words).values() for k, v in topic.items()}


@pytest.mark.parametrize("column", ["minimha", "torch SDPA", "torch MHA", "jax", "keras", "ONNX"])
def test_the_page_agrees_with_each_library(script, column):
    library = next(kind for kind in script.LIBRARIES if kind.name == column)
    if script.version_of(library) != VERSIONS[column]:
        pytest.skip(f"the page is about version {VERSIONS[column]}")
    found = answers(script, library)
    assert found.keys() == ANSWERS.keys() - {"", "---"}
    exact = [question for question in found if column == "minimha" or "†" not in question]
    assert {k: found[k] for k in exact} == {k: ANSWERS[k][column] for k in exact}


def test_a_library_that_is_not_installed_says_so(script, monkeypatch):
    for name in ("torch", "jax", "keras", "onnx"):
        monkeypatch.setitem(sys.modules, name, None)
    question = "boolean mask: True ="
    found = [answers(script, library, "True =")[question] for library in script.LIBRARIES]
    assert found == ["may attend", *["not installed"] * 5]


def test_the_page_is_saved_only_with_all_libraries_and_questions(tmp_path):
    page = tmp_path / "page.md"
    command = [sys.executable, SCRIPT, "--save", page, "True ="]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
    assert not page.exists()
