"""Homework in a notebook, which shares its record with the command."""

from pathlib import Path

import numpy as np
import pytest

from minimha import homework
from minimha.homework.student import progress_file
from minimha.homework.student.progress_file import RECORD


def twice(x):
    return x + x


def thrice(x):
    return 3 * x


def wrong(x):
    return x + 1


def stub(x):
    raise NotImplementedError


wrong.__name__ = stub.__name__ = "twice"


@pytest.fixture
def notebook(folder, capsys, monkeypatch):
    """Call a function in a notebook, in a folder next to the homework, and return the output."""
    (folder / "minimha-notebooks").mkdir()

    def runs(function, *arguments):
        with monkeypatch.context() as patch:
            patch.chdir(folder / "minimha-notebooks")
            function(*arguments)
        return capsys.readouterr().out

    return runs


def save(folder, body):
    file = folder / "homework" / "twice.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"def twice(x):\n    {body}\n")


def test_an_answer_accepted_in_a_notebook_counts_as_done(notebook, student):
    assert notebook(homework.check, twice) == "ok     twice: of ones\nok     twice: of any\n"
    assert "ok                twice\n" in student("progress")[1]
    assert "5 min  ok\n" in student("list")[1]
    assert "twice was checked in a notebook (ok), but has no file" in student("check twice")[1]
    assert student("check")[1].endswith("start with\n  minimha homework start thrice\n")
    assert "thrice.py is ready" in student("start")[1]
    assert "twice" not in student("check")[1]
    assert "hint 1 of 3" in student("hint twice")[1]
    notebook(homework.check, thrice)
    assert student("progress")[1].endswith("You have finished all tasks.\n")


def test_an_answer_accepted_in_a_file_counts_as_done_in_a_notebook(notebook, student, folder):
    save(folder, "return x + x")
    student("check")
    done = f"you have already done this task, in {Path('../homework/twice.py')}\n"
    assert notebook(homework.check, stub).endswith(f": raise NotImplementedError\n       {done}")
    assert "1 of 2 tasks" in notebook(homework.progress)
    assert "1 of 2 tasks" in student("progress")[1]
    save(folder, "return 2 * x")
    assert done not in notebook(homework.check, stub)
    assert "changed           twice" in notebook(homework.progress)
    (folder / "homework" / "twice.py").unlink()
    assert "0 of 2 tasks" in notebook(homework.progress)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(k, marks=pytest.mark.thorough) for k in (1, 2))]
)
def test_there_is_one_record_wherever_it_was_created(first, notebook, student, folder, monkeypatch):
    def in_homework(command):
        with monkeypatch.context() as patch:
            patch.chdir(folder / "homework")
            return student(command)

    save(folder, "return x + x")
    steps = [
        lambda: notebook(homework.check, thrice),
        lambda: student("check"),
        lambda: in_homework("check"),
    ]
    for step in [steps[first], *steps]:
        step()
    assert len(list(folder.rglob(RECORD))) == 1
    finished = "You have finished all tasks.\n"
    assert student("progress")[1].endswith(finished)
    assert in_homework("progress")[1].endswith(finished)
    assert notebook(homework.progress).endswith(finished)


def test_an_unfinished_copy_leaves_a_task_done(notebook, student):
    notebook(homework.check, twice)
    assert "you have already done this task, in a notebook" in notebook(homework.check, stub)
    student("start twice")
    assert "you have already done this task, in a notebook" in notebook(homework.check, stub)
    assert "1 of 2 tasks\nnext      minimha homework start thrice\n" in student("check twice")[1]


def test_a_wrong_answer_in_a_notebook_points_to_a_hint(notebook, student):
    shown = notebook(homework.check, wrong)
    assert shown.startswith("ok     twice: of ones\nwrong  twice: of any\n")
    assert shown.endswith('\nfor a hint: mh.homework.hint("twice")\n')
    assert student("progress")[1].endswith("next      correct twice in chapter 99\n")
    more = 'one more: mh.homework.hint("twice")\n'
    assert notebook(homework.hint, "twice") == f"twice, hint 1 of 3\n  first\n{more}"
    assert student("hint")[1].startswith("twice, hint 2 of 3\n  second\none more: minimha")
    assert notebook(homework.hint, twice) == "twice, hint 3 of 3\n  third\n"


@pytest.mark.parametrize("where", ["notebook", "file"])
def test_a_task_that_passed_stays_done_when_a_notebook_is_wrong(where, notebook, student, folder):
    if where == "notebook":
        notebook(homework.check, twice)
    else:
        save(folder, "return x + x")
        student("check")
    notebook(homework.check, wrong)
    assert "1 of 2 tasks" in student("progress")[1]


def test_an_interrupted_check_leaves_the_record_unchanged(notebook, student):
    def interrupted(x):
        raise KeyboardInterrupt

    interrupted.__name__ = "twice"
    notebook(homework.check, twice)
    with pytest.raises(KeyboardInterrupt):
        notebook(homework.check, interrupted)
    assert "1 of 2 tasks" in student("progress")[1]


def test_a_function_with_an_unknown_name_is_refused(notebook):
    for function in (np.exp, lambda x: x):
        with pytest.raises(ValueError, match=r"no task is called '(exp|<lambda>)'"):
            notebook(homework.check, function)
    with pytest.raises(ValueError, match="did you mean twice"):
        notebook(homework.hint, "twic")


CELLS = [
    "import minimha as mh\nfrom minimha.homework.student import interrupts\ninterrupts.SECONDS = 0.3\n"
    "from minimha.homework.checks import time_limit\ntime_limit.PATIENCE = 200  # the machine may be busy",
    "def softmax(x):\n    while True: pass\n\nmh.homework.check(softmax)",
    "class Odd(BaseException): pass\ndef linear(x, w):\n    raise Odd\n\nmh.homework.check(linear)",
    "mh.gradcheck(mh.functional.softmax, mh.Tensor([0.5, 0.25]))",
]


@pytest.mark.thorough
def test_a_kernel_survives_an_endless_loop(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="pip install '.[test]'")
    nbformat = pytest.importorskip("nbformat")
    chapter = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        chapter, timeout=600, startup_timeout=600, resources=resources
    ).execute()
    _, loop, odd, table = [cell.outputs[0] if cell.outputs else None for cell in chapter.cells]
    assert loop["text"] == (
        "wrong  softmax: each row is exp x over its sum\n"
        "TimeoutError: stopped after 0.3 seconds of processor time: an endless loop?\n"
        "  in softmax, line 2: while True: pass\n"
        '\nfor a hint: mh.homework.hint("softmax")\n'
    )
    assert "\nOdd\n  in linear, line 3: raise Odd\n" in odd["text"]
    assert table["data"]["text/plain"].startswith("softmax\ninput  shape  method ")
    known = progress_file.read(tmp_path)
    assert known == {"softmax": {"notebook": "wrong"}, "linear": {"notebook": "wrong"}}


def test_a_check_takes_the_function_itself_and_not_its_name_or_its_result(notebook):
    for argument, advice in (("twice", "twice"), ("twic", "softmax"), (twice(1), "softmax")):
        message = rf"the function itself, without quotes or a call: check\({advice}\)"
        with pytest.raises(TypeError, match=message):
            notebook(homework.check, argument)


def test_a_hint_without_a_name_is_for_the_task_that_failed_last(notebook, monkeypatch):
    monkeypatch.setattr("minimha.homework.student.notebook._failed", [])
    with pytest.raises(TypeError, match=r'write the name of a task: hint\("softmax"\)'):
        notebook(homework.hint)
    notebook(homework.check, wrong)
    notebook(homework.check, thrice)
    assert notebook(homework.hint).startswith("twice, hint 1 of 3\n")
