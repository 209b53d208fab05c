"""Chapters agree with their sources, have no outputs, and share one structure.

That they run is tested in notebooks: as students get them in test_first_block.py, with solutions in
test_chapters.py.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import minimha as mh
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
    assert chapter.stat().st_size < 100_000  # no pictures inside
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
    assert f"{expected.minutes} minutes" in first.source, (
        f"the first paragraph of notebooks/source/{source.name} must say {expected.minutes} minutes, "
        "as minimha/course/chapters.py does"
    )
    assert setup.source.startswith("try:\n    import minimha as mh")
    text = "\n".join(cell.source for cell in rest)
    for part in ("by hand", "Wrong on purpose", "What to read next"):
        assert part in text, part
    assert 2 <= text.count("mh.homework.check(") <= 5


def test_the_first_cell_imports_the_packages_that_it_installs():
    before, after = make._code("# setup: array-api-strict", solved=False).split("except")
    assert "%pip install --quiet minimha array-api-strict\n" in after
    for part in (before, after):
        assert "import minimha as mh\n    import array_api_strict\n" in part + "\n"


def test_a_chapter_contains_only_its_own_tasks(source):
    for name in make.exercises(source):
        assert f"{homework.course()[name].chapter:02}" == source.stem[:2]


def test_the_code_of_a_tagged_cell_is_folded(tmp_path):
    text = (
        "```{code-cell}\n---\ntags: [hide-input]\n---\ndraw()\n```\n\n```{code-cell}\nx = 1\n```\n"
    )
    (tmp_path / "source.md").write_text(text, encoding="utf-8")
    folded, shown = make.notebook(tmp_path / "source.md").cells
    assert folded.source == "draw()"
    assert folded.metadata == {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}
    assert shown.metadata == {}


def test_the_work_of_a_chapter_is_its_words_its_cells_and_its_tasks(tmp_path):
    text = """\
# Two *words*: $a + b$ is one

$$
c = \\sum_k a_k
$$

```text
a picture in letters
```

```{code-cell}
# setup: array-api-strict
```

```{code-cell}
mh.homework.guess("largest weight", ...)  # between 0 and 1
```

```{code-cell}
---
tags: [hide-input]
---
draw()
```

```{code-cell}
mh.homework.guess("sum", ...)
print(1)
```

```{code-cell}
# exercise: standardise
```
"""
    (tmp_path / "source.md").write_text(text, encoding="utf-8")
    assert make.work(tmp_path / "source.md") == (6, 1, 5)


def test_the_minutes_of_a_chapter_are_honest(source):
    names = {c.stem: c for c in course.CHAPTERS.values()}
    listed, counted = names[source.stem].minutes, make.minutes(source)
    assert abs(listed - counted) <= 5, (
        f"{source.name} takes {counted} minutes with its tasks, but {listed} are listed: correct "
        "minimha/course/chapters.py, the first paragraph of the chapter and the README, or the "
        "minutes of a task. python notebooks/make.py --minutes shows all"
    )


def test_a_long_chapter_is_two_lessons(source):
    if make.minutes(source) > 90:
        text = source.read_text(encoding="utf-8")
        words = " ".join(text.split())
        found = make.re.search(r"It is two lessons: the second starts at \*(.+?)\*\.", words)
        assert found, "the introduction does not say where the second lesson starts"
        assert f"\n## {found[1]}\n" in text


def guesses(source):
    """The questions that a chapter asks, and those that it answers below, in its code."""
    text = source.read_text(encoding="utf-8")
    asked = make.re.findall(r'mh\.homework\.guess\(\s*"(.+?)", (.+?)\)', text)
    assert all(answer == "..." for _, answer in asked)
    return [question for question, _ in asked]


def test_every_guess_is_unanswered_and_shown_beside_its_result_below(source):
    text = source.read_text(encoding="utf-8")
    for question in guesses(source):
        asked, shown = f'guess("{question}"', f'guessed("{question}"'
        shown = shown if shown in text else f'question = "{question}"'
        assert text.index(asked) < text.index(shown)


def test_no_two_questions_of_the_course_are_the_same():
    questions = [question for source in make.SOURCES for question in guesses(source)]
    assert len(questions) == len(set(questions)) > 20


@pytest.mark.thorough
def test_an_induction_head_forms_with_almost_every_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for the record of the checks
    chapter = make.notebook(FOLDER / "source" / "14_real_models.md")
    _, *cells = (cell.source for cell in chapter.cells if cell.cell_type == "code")
    names = {"mh": mh, "np": np}
    for code in cells[: 1 + next(k for k, code in enumerate(cells) if "def train(" in code)]:
        exec(code, names)
    scores = [names["train"](layers=2, steps=600, seed=seed)[2][-1, 3:].max() for seed in range(10)]
    assert sum(score > 0.8 for score in scores) >= 9, scores
