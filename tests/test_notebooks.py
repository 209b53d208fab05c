"""Chapters agree with their sources, have no outputs, and share one structure.

That they run, with solutions and without, is tested in notebooks/test_chapters.py.
"""

import importlib.util
from pathlib import Path

import pytest

from minimha import course, homework

pytest.importorskip("jupytext", reason="jupytext is not installed: pip install '.[test]'")
nbformat = pytest.importorskip("nbformat")

FOLDER = Path(__file__).parents[1] / "notebooks"
spec = importlib.util.spec_from_file_location("make", FOLDER / "make.py")
make = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make)


@pytest.fixture(params=make.SOURCES, ids=lambda path: path.stem)
def source(request):
    return request.param


@pytest.fixture
def chapter(source):
    return FOLDER / f"{source.stem}.ipynb"


def test_every_chapter_is_there():
    stems = [chapter.stem for chapter in course.CHAPTERS.values()]
    assert stems == [path.stem for path in make.SOURCES]
    assert all(path.is_file() for path in course.notebooks())


def test_the_notebook_is_made_from_its_source(source, chapter):
    assert chapter.read_text(encoding="utf-8") == make.written(source), (
        "run python notebooks/make.py"
    )


def test_a_chapter_has_no_outputs_and_no_solutions(chapter):
    assert chapter.stat().st_size < 60_000
    for cell in nbformat.read(chapter, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert "SOLUTION" not in cell.source


def test_every_chapter_has_the_same_parts(source, chapter):
    first, setup, *rest = nbformat.read(chapter, as_version=4).cells
    names = {c.stem: c for c in course.CHAPTERS.values()}
    expected = names[source.stem]
    assert first.source.startswith(f"# {expected.number:02} · {expected.title}\n")
    assert "you can" in first.source
    assert f"{expected.minutes} minutes" in first.source
    assert setup.source.startswith("try:\n    import minimha as mh")
    text = "\n".join(cell.source for cell in rest)
    for part in ("by hand", "Wrong on purpose", "What to read next"):
        assert part in text, part
    assert 2 <= text.count("mh.homework.check(") <= 4


def test_the_first_cell_imports_the_packages_that_it_installs():
    before, after = make._code("# setup: array-api-strict", solved=False).split("except")
    assert "%pip install --quiet minimha array-api-strict\n" in after
    for part in (before, after):
        assert "import minimha as mh\n    import array_api_strict\n" in part + "\n"


def test_a_chapter_contains_only_its_own_tasks(source):
    for name in make.re.findall(r"# exercise: (\w+)", source.read_text(encoding="utf-8")):
        assert f"{homework.course()[name].chapter:02}" == source.stem[:2]
