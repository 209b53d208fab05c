"""The teacher's file: points and comments."""

import unicodedata
from copy import deepcopy

import pytest
from scored import options, report, student

from minimha.homework.teacher.scores import Reports, teacher
from minimha.homework.teacher.scores.reports import as_table

HEADER = "student,task,points,comment\n"


@pytest.fixture
def rows(tmp_path):
    def written(text, header=HEADER):
        path = tmp_path / "teacher.csv"
        path.write_text(header + text, encoding="utf-8-sig")
        return teacher.rows(path)

    return written


def test_accents_may_be_letters_of_their_own_as_macOS_writes_them(rows):
    (row,) = rows(unicodedata.normalize("NFD", "zoë,softmax,1,\n"))
    assert row.student == "zoë"


def test_points_are_added_and_comments_are_kept(rows):
    found = rows(
        'anna,softmax,0.5,"right idea, wrong sign"\nanna,softmax,-0.25,too long\n\nanna,,,welcome\n'
    )
    before = report(student("anna", "ok", "wrong"), student("ben", "ok", "ok"))
    untouched = deepcopy(before)
    after = teacher.adjusted(before, found)
    assert before == untouched
    anna, ben = after["students"]
    softmax, scores = anna["tasks"]
    assert (softmax["points"], softmax["adjustment"]) == (1.75, 0.25)
    assert softmax["comment"] == "right idea, wrong sign\ntoo long"
    assert (anna["points"], anna["comments"]) == (1.75, ["welcome"])
    assert (scores["points"], scores["adjustment"], scores["comment"]) == (0, 0, "")
    assert (ben["points"], ben["comments"]) == (3, [])


def test_semicolons_and_decimal_commas_are_understood(rows):
    found = rows("anna;softmax;0,5;x\n", header=HEADER.replace(",", ";"))
    assert (found[0].points, found[0].comment) == (0.5, "x")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ana,softmax,1,\n", r"row 2: no student in this folder is called 'ana': .* anna\?"),
        ("\nanna,softmx,1,\n", r"row 3: no task being graded is called 'softmx': .* softmax\?"),
        ("anna,scores,1,\n", "row 2: no task being graded is called 'scores'"),
        ("anna,softmax,much,\n", "row 2: 'much' is not a number"),
        ("anna,softmax,nan,\n", "row 2: 'nan' is not a number"),
        ("anna,,2,\n", "row 2: name the task"),
        (",softmax,2,\n", "row 2: no student in this folder is called ''"),
        ("anna,softmax,0,5,good\n", "row 2 has too many cells: quote"),
        ('anna,,,"good\nana,,,\n', "teacher.csv: unexpected end of data"),
    ],
)
def test_an_error_names_the_row(rows, text, says):
    with pytest.raises(ValueError, match=says):
        teacher.check(rows(text), ["anna", "ben"], ["softmax"])


def test_other_columns_are_refused(rows):
    with pytest.raises(ValueError, match="must be student, task, points, comment"):
        rows("monday,anna,softmax,1\n", header="homework,student,task,points\n")


def test_a_file_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "teacher.csv").write_bytes(f"{HEADER}Zoë,,,x\n".encode("latin-1"))
    with pytest.raises(ValueError, match="not in UTF-8"):
        teacher.rows(tmp_path / "teacher.csv")


def test_the_table_shows_what_the_teacher_changed(rows):
    found = rows("anna,softmax,1,good\nanna,,,see me\n")
    after = teacher.adjusted(report(student("anna", "ok", "wrong")), found)
    assert as_table(after).splitlines() == [
        "anna    2.50 of 4",
        "        2.50 of 3  softmax  wrong: check 1",
        "        0.00 of 1  scores  missing",
        "          softmax: +1 points from the teacher",
        "          softmax: good",
        "          see me",
        "note: x.txt: not one of the tasks",
        "seed 7",
    ]


def test_grading_with_the_teachers_file_leaves_it_unchanged(tmp_path, capsys):
    file = tmp_path / "teacher.csv"
    file.write_text(f"{HEADER}anna,softmax,0.5,\n")
    reports, before = Reports(options(tmp_path, "--teacher", file)), file.read_bytes()
    reports.expect(["anna"], ["softmax"])
    for _ in range(2):
        reports.write(report(student("anna", "ok", "wrong")))
        assert "anna    2.00 of 4" in capsys.readouterr().out
    assert file.read_bytes() == before
