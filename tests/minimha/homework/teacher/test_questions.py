"""Oral questions about a student's functions."""

import re
from pathlib import Path

import pytest
from graded import write

from minimha import homework
from minimha.__main__ import main
from minimha.homework.checks import replay
from minimha.homework.student import student_files
from minimha.homework.teacher import questions
from minimha.homework.teacher.grading.submissions import Answer

SOFTMAX = """\
import numpy as np

def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    columns = np.swapaxes(e, -2, -1)
    y = e/e.sum(axis=-1,keepdims=True)
    def pullback(dy):
        inner = dy * y
        return (y*(dy - (dy*y).sum(axis=-1, keepdims=True)),)
    return y, pullback
"""


def asked(name, source, student="anna", **modules):
    task = homework.course()[name]
    return questions.questions(
        student, {task: Answer(Path(f"{name}.py"), source.encode(), modules)}
    )


def drawn(source):
    """The questions that many students would get for this softmax."""
    return {question for k in range(40) for question in asked("softmax", source, str(k))}


@pytest.mark.parametrize("name", ["softmax", "multiply", "double", "attention", "ring_of_ranks"])
def test_there_are_three_questions_about_any_function(name):
    solved = student_files.stub(homework.course()[name], solved=True)
    found = asked(name, solved)
    assert len(set(found)) == 3
    for question in found:
        assert question.code == solved.splitlines()[question.line - 1]


def test_a_usual_mistake_is_asked_for_in_the_students_own_line():
    found = {q.text: q for q in drawn(SOFTMAX) if q.text.startswith("What would happen with")}
    lost = next(q for q in found.values() if q.answer.startswith("the sum has lost its last axis"))
    assert lost.code == "        return (y*(dy - (dy*y).sum(axis=-1, keepdims=True)),)"
    assert (
        "    (dy * y).sum(axis=-1)\nin place of\n    (dy * y).sum(axis=-1, keepdims=True)"
        in lost.text
    )


def test_a_mistake_of_several_lines_keeps_its_indentation():
    (jacobian,) = {q.text for q in drawn(SOFTMAX) if "np.eye" in q.text}
    assert "with\n    jacobian = " in jacobian
    assert "\n    return ((jacobian @" in jacobian


def test_shapes_are_those_of_the_students_own_arrays_in_the_pullback_too():
    found = [q for q in drawn(SOFTMAX) if "What is the shape of" in q.text]
    shapes = {q.text.split()[-1]: (q.code, q.answer) for q in found}
    (given,) = {re.search(r"x has shape (\(.*?\))", q.text)[1] for q in found}
    *batch, t, m = map(int, re.findall(r"\d+", given))
    assert t != m
    assert shapes["columns?"][1] == str((*batch, m, t))
    assert shapes["inner?"] == ("        inner = dy * y", given)


def test_lines_that_were_given_are_asked_about_last():
    task = homework.course()["softmax"]
    given = {line.strip() for line in task.code().splitlines()}
    assert not {question.code.strip() for question in asked("softmax", SOFTMAX)} & given
    solved = student_files.stub(task, solved=True)  # has only one line of its own
    own, *others = [question.code.strip() for question in asked("softmax", solved)]
    assert own not in given
    assert len(set(others) & given) == 2


def test_a_student_gets_the_same_questions_again_and_another_student_others():
    assert asked("softmax", SOFTMAX) == asked("softmax", SOFTMAX)
    assert asked("softmax", SOFTMAX) != asked("softmax", SOFTMAX, "ben")


def test_the_students_own_modules_are_asked_about():
    adapters = "# minimha homework: adapters\nfrom mine import softmax\n"
    found = asked("softmax", adapters, **{"mine.py": SOFTMAX.encode()})
    assert {question.file for question in found} == {"mine.py"}


@pytest.fixture
def types(tmp_path, monkeypatch, capsys):
    """Run `minimha homework questions …` beside the folder monday: the exit code and the output."""
    attack = f"open({str(tmp_path / 'attacked')!r}, 'w')\n{SOFTMAX}"
    stub = student_files.stub(homework.course()["softmax"])
    write(tmp_path / "monday", {"anna/softmax.py": attack, "ben/softmax.py": stub})
    monkeypatch.chdir(tmp_path)

    def run(line):
        code = main(["homework", "questions", *line.split()])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def test_the_command_prints_questions_and_answers_and_runs_no_code_unconfined(types):
    code, shown = types("anna --from monday --only softmax")
    assert code == 0
    assert re.findall(r"^\d\. (\S+), line \d+$", shown, re.M) == ["softmax.py"] * 3
    assert "   answer  " in shown
    assert not Path("attacked").exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ana --from monday", "no student in monday is called 'ana': did you mean anna?"),
        ("ben --from monday", "ben has written nothing to ask about"),
        ("anna --from absent", "absent: No such file"),
    ],
)
def test_the_command_says_why_it_has_no_questions(line, says, types):
    code, shown = types(line)
    assert (code, says in shown) == (2, True)


def test_the_students_edition_asks_nothing(types, monkeypatch):
    monkeypatch.setattr(replay, "results", lambda: {"softmax": {}})
    assert "need the teacher's copy" in types("anna --from monday")[1]
