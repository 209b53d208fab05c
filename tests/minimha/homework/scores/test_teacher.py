"""The teacher's file: points, comments and late days."""

import csv
import io
from copy import deepcopy

import pytest
from scored import options, report, student

from minimha.homework.scores import Reports, teacher
from minimha.homework.scores.reports import as_csv, as_table

HEADER = "homework,student,task,points,late_days,comment\n"


@pytest.fixture
def rows(tmp_path):
    def written(text, header=HEADER):
        path = tmp_path / "teacher.csv"
        path.write_text(header + text, encoding="utf-8-sig")
        return teacher.rows(path)

    return written


def adjusted(rows, *students, homework="monday", late_days=0, percent=0.0):
    before = report(*students, homework=homework)
    untouched = deepcopy(before)
    after = teacher.adjusted(before, rows, late_days, percent)
    assert before == untouched
    return {student["student"]: student for student in after["students"]}


def test_points_are_added_and_comments_are_kept(rows):
    found = rows(
        'monday,anna,softmax,0.5,,"right idea, wrong sign"\n'
        "monday,anna,softmax,-0.25,,too long\n"
        "monday,anna,,,,welcome\n"
        "tuesday,anna,softmax,99,,another week\n"
    )
    students = adjusted(found, student("anna", "ok", "wrong"), student("ben", "ok", "ok"))
    softmax, scores = students["anna"]["tasks"]
    assert (softmax["points"], softmax["adjustment"]) == (1.75, 0.25)
    assert softmax["comment"] == "right idea, wrong sign\ntoo long"
    assert (students["anna"]["points"], students["anna"]["comments"]) == (1.75, ["welcome"])
    assert (scores["points"], scores["adjustment"], scores["comment"]) == (0, 0, "")
    assert (students["ben"]["points"], students["ben"]["comments"]) == (3, [])


@pytest.mark.parametrize(
    ("homework", "late_days", "days", "penalty"),
    [
        ("monday", 0, 3, 0.9),
        ("monday", 2, 3, 0.3),
        ("monday", 3, 3, 0),
        ("tuesday", 2, 2, 0.6),
        ("tuesday", 4, 2, 0.3),
        ("friday", 2, 0, 0),
        ("late", 0, 99, 3),
    ],
)
def test_late_days_of_the_whole_course_use_one_budget(rows, homework, late_days, days, penalty):
    found = rows(
        "monday,anna,,,1,\nmonday,ben,,,5,\nmonday,anna,softmax,,2,\n"
        "tuesday,anna,,,2,\nlate,anna,,,99,\n"
    )
    anna = adjusted(
        found, student("anna", "ok"), homework=homework, late_days=late_days, percent=10
    )["anna"]
    assert (anna["late_days"], anna["penalty"]) == (days, penalty)
    assert anna["points"] == 3 - penalty


def test_the_penalty_is_a_share_of_the_points_after_adjustment(rows):
    found = rows("monday,anna,softmax,-1,1,\n")
    anna = adjusted(found, student("anna", "ok"), percent=25)["anna"]
    assert (anna["penalty"], anna["points"]) == (0.5, 1.5)
    anna = adjusted(rows("monday,anna,softmax,-9,1,\n"), student("anna", "ok"), percent=25)["anna"]
    assert (anna["penalty"], anna["points"]) == (0, -6)


def test_an_id_that_changes_with_each_assignment_does_not_matter_if_the_name_is_unique(rows):
    found = rows("monday,Jane Smith (11),,,1,\ntuesday,Jane Smith,,,1,\ntuesday,team_1,,,5,\n")
    for name, days in (("Jane Smith (22)", 1), ("Jane Smith (33)", 1), ("team_2", 0)):
        late = adjusted(found, student(name, "ok"), homework="tuesday", percent=10)[name]
        assert (late["late_days"], late["penalty"]) == (days, 0.3 * days)
    two = adjusted(found, student("Jane Smith (11)", "ok"), student("Jane Smith (12)", "ok"))
    assert [two[name]["late_days"] for name in two] == [1, 0]


def test_semicolons_and_decimal_commas_are_understood(rows):
    found = rows("monday;anna;softmax;0,5;;x\n", header=HEADER.replace(",", ";"))
    assert (found[0].points, found[0].comment) == (0.5, "x")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("monday,ana,softmax,1,,\n", r"row 2: no student in monday is called 'ana': .* anna\?"),
        ("\nmonday,anna,softmx,1,,\n", r"row 3: no task is called 'softmx': did you mean softmax"),
        ("monday,anna,scores,1,,\n", "row 2: scores is not one of the tasks being graded"),
        ("monday,anna,softmax,much,,\n", "row 2: 'much' is not a number"),
        ("monday,anna,softmax,nan,,\n", "row 2: 'nan' is not a number"),
        ("monday,anna,,,1.5,\n", "row 2: late_days must be 0, 1, 2, …, not 1.5"),
        ("monday,anna,,,-1,\n", "row 2: late_days must be 0, 1, 2, …, not -1"),
        ("monday,anna,,2,,\n", "row 2: name the task"),
        (",anna,softmax,2,,\n", "row 2: name the homework"),
        ("monday,anna,softmax,0,5,,good\n", "row 2 has too many cells: quote"),
        ('monday,anna,,,,"good\nmonday,ana,,,,\n', "teacher.csv: unexpected end of data"),
    ],
)
def test_an_error_names_the_row(rows, text, says):
    with pytest.raises(ValueError, match=says):
        teacher.check(rows(text), "monday", ["anna", "ben"], ["softmax"])


def test_a_missing_column_is_named(rows):
    with pytest.raises(ValueError, match="no column late_days"):
        rows("monday,anna\n", header="homework,student,task,points\n")


def test_a_file_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "teacher.csv").write_bytes(f"{HEADER}monday,Zoë,,,1,\n".encode("latin-1"))
    with pytest.raises(ValueError, match="not in UTF-8"):
        teacher.rows(tmp_path / "teacher.csv")


def test_students_of_other_homework_may_be_absent(rows):
    teacher.check(rows("tuesday,zoe,scores,1,,\n"), "monday", ["anna"], ["softmax"])


@pytest.mark.parametrize(
    "arguments", [["--late-days", "1"], ["--late-penalty", "5"], ["--late-days", "-1"]]
)
def test_late_days_need_the_teachers_file(tmp_path, arguments):
    with pytest.raises(ValueError, match=r"--teacher|--late-days"):
        Reports(options(tmp_path, *arguments))


def test_the_table_shows_and_the_csv_sums_what_the_teacher_changed(rows):
    found = rows("monday,anna,softmax,1,2,good\nmonday,anna,,,,see me\n")
    after = teacher.adjusted(report(student("anna", "ok", "wrong")), found, 0, 10)
    assert as_table(after).splitlines() == [
        "anna    2.00 of 4",
        "        2.50 of 3  softmax  wrong: check 1",
        "        0.00 of 1  scores  missing",
        "          softmax: +1 points from the teacher",
        "          softmax: good",
        "          2 late days: 0.5 points subtracted",
        "          see me",
        "note: x.txt: not one of the tasks",
        "seed 7",
    ]
    table = list(csv.DictReader(io.StringIO(as_csv(after))))
    assert [row["points"] for row in table] == ["2.5", "0.0", "-0.5"]
    assert [row["task"] for row in table] == ["softmax", "scores", "late days"]


def test_a_file_without_a_row_for_this_homework_is_noted(tmp_path, capsys):
    (tmp_path / "teacher.csv").write_text(f"{HEADER}mnday,anna,softmax,1,,\n")
    Reports(options(tmp_path, "--teacher", tmp_path / "teacher.csv")).write(
        report(student("anna", "ok"))
    )
    assert f"teacher.csv: no row for {tmp_path.name}\n" in capsys.readouterr().out


def test_grading_with_the_teachers_file_leaves_it_unchanged(tmp_path, capsys):
    file = tmp_path / "teacher.csv"
    file.write_text(f"{HEADER}{tmp_path.name},anna,softmax,0.5,,\n")
    wanted = options(tmp_path, "--teacher", file)
    reports, before = Reports(wanted), file.read_bytes()
    reports.expect(["anna"], ["softmax"])
    for _ in range(2):
        reports.write(report(student("anna", "ok", "wrong"), homework=tmp_path.name))
        assert "anna    2.00 of 4" in capsys.readouterr().out
    assert file.read_bytes() == before
