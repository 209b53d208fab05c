"""From the submissions to the reports."""

from pathlib import Path

import pytest
from scored import options, report, student

from minimha import homework
from minimha.homework.student import student_files
from minimha.homework.teacher.grading import grade as grading
from minimha.homework.teacher.grading import judge
from minimha.homework.teacher.scores import Reports

TEACHER = "student,task,points,comment\n{},softmax,0.5,good\n"
GRADEBOOK = 'Student,ID,monday (7)\n"Lu, Anna",1,\n"Lu, Ben",2,\n'


@pytest.fixture
def grade(tmp_path, monkeypatch):
    """Grade two students, and return the files that this writes."""
    for name in ("annalu", "benlu"):
        (tmp_path / "monday" / name).mkdir(parents=True)
    solved = student_files.stub(homework.course()["softmax"], solved=True)
    (tmp_path / "monday" / "annalu" / "softmax.py").write_text(solved, encoding="utf-8")
    (tmp_path / "gradebook.csv").write_text(GRADEBOOK)
    monkeypatch.chdir(tmp_path)

    def graded(teacher, *arguments):
        (tmp_path / "teacher.csv").write_text(TEACHER.format(teacher))
        written = [
            "--json", "--csv", "--feedback", "--gradebook", "gradebook.csv",
            "--teacher", "teacher.csv",
        ]  # fmt: skip
        grading.grade_submissions(options("monday", "--only", "softmax", *written, *arguments))
        files = (path for path in tmp_path.rglob("[!.]*") if path.is_file())
        return {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in files}

    return graded


@pytest.mark.thorough
def test_one_seed_gives_the_same_files_however_many_students_are_graded_at_once(grade, capsys):
    first = grade("annalu", "--seed", "7", "--jobs", "1"), capsys.readouterr().out
    assert first == (grade("annalu", "--seed", "7", "--jobs", "2"), capsys.readouterr().out)
    assert set(first[0]) == {
        "grades.json", "grades.csv", "feedback/annalu.html", "feedback/benlu.html", "teacher.csv",
        "gradebook.csv", "gradebook_graded.csv", "monday/annalu/softmax.py",
    }  # fmt: skip
    assert b'"Lu, Anna",1,2.50\n' in first[0]["gradebook_graded.csv"]
    assert first != (grade("annalu", "--seed", "8"), capsys.readouterr().out)


def test_results_that_could_not_be_written_are_written_later(grade, monkeypatch):
    Path("grades.csv").mkdir()
    with pytest.raises(IsADirectoryError):
        grade("annalu", "--jobs", "1")
    Path("grades.csv").rmdir()
    monkeypatch.setattr(judge, "student", lambda *_: pytest.fail("graded again"))
    assert b"annalu" in grade("annalu", "--jobs", "1", "--continue")["grades.csv"]


@pytest.mark.parametrize(
    ("teacher", "arguments", "says"),
    [
        ("anna", [], r"did you mean annalu\?"),
        ("annalu", ["--json", "reports/a.json"], "reports does not exist"),
        ("annalu", ["--gradescope"], "add --student NAME"),
        ("annalu", ["--gradebook", "teacher.csv"], "neither Canvas"),
    ],
)
def test_an_error_is_found_before_any_submission_is_graded(
    grade, teacher, arguments, says, monkeypatch
):
    monkeypatch.setattr(judge, "student", lambda *_: pytest.fail("a submission was graded"))
    with pytest.raises((ValueError, OSError), match=says):
        grade(teacher, "--jobs", "1", *arguments)


def test_a_spreadsheet_reads_the_accents_in_the_csv(tmp_path):
    Reports(options(tmp_path, "--csv", tmp_path / "grades.csv")).write(report(student("Zoë", "ok")))
    assert (tmp_path / "grades.csv").read_bytes().startswith(b'\xef\xbb\xbf"student"')
