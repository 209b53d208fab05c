"""Gradebooks of Canvas and Moodle."""

import csv
import io
import unicodedata

import pytest
from scored import options, report, student

from minimha.homework.teacher.scores import Reports
from minimha.homework.teacher.scores.gradebook import Gradebook

CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,monday (81),tuesday (82),Current Score
,,,,,Manual Posting,,
    Points Possible,,,,,8.00,4.00,(read only)
"Smith, Jane",1234,s77,jsmith,A,,,0
"de la Cruz, Ana",1235,s78,adlc@uni.edu,A,,1.00,0
"Li, Bo",1236,s79,bo,A,,,0
"Student, Test",1237,,x,A,,,0
"""
WORKSHEET = """\
Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed
Participant 11,Jane Smith,js@uni.edu,Submitted,,100.00,Yes
Participant 12,Jane Smith,other@uni.edu,Submitted,,"100,00",Yes
Participant 13,Ana Lu,ana@uni.edu,No submission,,100.00,Yes
"""
HIDDEN = WORKSHEET.replace("Full name,", "").replace("Jane Smith,", "").replace("Ana Lu,", "")
SEMICOLONS = WORKSHEET.replace('"100,00"', "100.00").replace(",", ";")
POINTS = {
    "canvas students are found by id, name or login, and points are scaled": (
        CANVAS, {"smithjane_1234": "ok ok", "adlc": "ok wrong", "Bo Li": "wrong", "zoe": "ok"},
        ["Manual Posting", "8.00", "6.00", "3.00", "0.00", ""],
        ["3 students, column monday (81)", "scaled from 4 points to 8"], ["zoe"], ["Student, Test 1237"],
    ),
    "addresses and numbers name people too": (
        CANVAS, {"s77": "ok", "adlc": "ok", "bo": "ok"},
        ["Manual Posting", "8.00", "6.00", "6.00", "6.00", ""],
        ["3 students, column monday (81)", "scaled from 4 points to 8"], [], ["Student, Test 1237"],
    ),
    "another id of Canvas is another person": (
        CANVAS, {"libo_99": "ok"}, ["Manual Posting", "8.00", "", "", "", ""],
        ["0 students, column monday (81)"], ["libo_99"],
        ["Smith, Jane 1234", "de la Cruz, Ana 1235", "Li, Bo 1236", "Student, Test 1237"],
    ),
    "the id of a download decides between people of one name": (
        WORKSHEET, {"Jane Smith (12)": "ok", "Ana Lu": "ok wrong"}, ["", "75.00", "37.50"],
        ["2 students, column Grade", "scaled from 4 points to 100"], [], ["Participant 11 Jane Smith"],
    ),
    "with the worksheet of another assignment no student gets another's points": (
        WORKSHEET, {"Ana Lu (11)": "ok", "Jane Smith (13)": "ok"}, ["", "", ""],
        ["0 students, column Grade"], ["Ana Lu (11)", "Jane Smith (13)"],
        ["Participant 11 Jane Smith", "Participant 12 Jane Smith", "Participant 13 Ana Lu"],
    ),
    "students whose names Moodle hides are found by id": (
        HIDDEN, {"Participant (12)": "ok"}, ["", "75.00", ""],
        ["1 student, column Grade", "scaled from 4 points to 100"], [],
        ["Participant 11 js@uni.edu", "Participant 13 ana@uni.edu"],
    ),
    "people of one name without an id are listed and get no points": (
        WORKSHEET, {"Jane Smith": "ok", "Ana Lu": "ok"}, ["", "", "75.00"],
        ["1 student, column Grade", "scaled from 4 points to 100"], ["Jane Smith"],
        ["Participant 11 Jane Smith", "Participant 12 Jane Smith"],
    ),
    "accents may be letters of their own, as macOS writes them": (
        WORKSHEET.replace("Ana Lu", "Zoë Lü"), {unicodedata.normalize("NFD", "Zoë Lü"): "ok"},
        ["", "", "75.00"],
        ["1 student, column Grade", "scaled from 4 points to 100"], [],
        ["Participant 11 Jane Smith", "Participant 12 Jane Smith"],
    ),
    "two students who match one row get no points, and semicolons stay": (
        SEMICOLONS, {"js": "ok", "js@uni.edu": "ok", "other": "ok"}, ["", "75.00", ""],
        ["1 student, column Grade", "scaled from 4 points to 100"], ["js", "js@uni.edu"],
        ["Participant 11 Jane Smith", "Participant 13 Ana Lu"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "students", "cells", "first", "unknown", "ungraded"), POINTS.values(), ids=POINTS
)
def test_points_go_into_the_rows_of_their_students(
    text, students, cells, first, unknown, ungraded, tmp_path
):
    path, filled = tmp_path / "grades.csv", tmp_path / "grades_graded.csv"
    path.write_text(text, encoding="utf-8-sig")
    graded = report(*(student(name, *outcomes.split()) for name, outcomes in students.items()))
    lines = Gradebook(path, "monday").filled(graded).splitlines()
    shown = [line.strip().removeprefix(f"{filled}: ") for line in lines]
    unknown = [f"not in the gradebook: {x}" for x in unknown]
    assert shown == [*first, *unknown, *(f"not graded: {x}" for x in ungraded)]
    assert path.read_text(encoding="utf-8-sig") == text
    delimiter, texts = ";" if ";" in text else ",", (text, filled.read_text(encoding="utf-8"))
    old, new = (list(csv.reader(io.StringIO(x), delimiter=delimiter)) for x in texts)
    k = new[0].index("monday (81)" if text == CANVAS else "Grade")
    assert [row[:k] + row[k + 1 :] for row in new] == [row[:k] + row[k + 1 :] for row in old]
    assert [row[k] for row in new[1:]] == cells


def test_an_empty_line_at_the_end_of_the_file_does_not_matter(tmp_path):
    (tmp_path / "grades.csv").write_text(f"{WORKSHEET}\n")
    lines = Gradebook(tmp_path / "grades.csv", "monday").filled(report(student("js", "ok")))
    assert "1 student" in lines


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name,points\nanna,\n", "neither Canvas's gradebook nor Moodle's grading worksheet"),
        ("", "is empty"),
        (CANVAS.replace("monday", "friday"), "no column monday, only friday, tuesday: rename"),
        ("Student,ID,Section\n", "no column monday, only none"),
        (WORKSHEET.replace("100.00", "-"), "the points possible are '-'"),
    ],
)
def test_an_unusable_gradebook_is_refused_before_grading(tmp_path, text, says):
    (tmp_path / "monday").mkdir()
    path = tmp_path / "grades.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=says):
        Reports(options(tmp_path / "monday", "--gradebook", path))


def test_the_only_assignment_needs_no_matching_name(tmp_path, capsys):
    path = tmp_path / "grades.csv"
    path.write_text('Student,ID,HW 1 (81)\n"Lu, Ana",7,\n')
    Reports(options(tmp_path, "--gradebook", path)).write(report(student("luana_7", "ok")))
    assert (tmp_path / "grades_graded.csv").read_text().endswith('"Lu, Ana",7,3.00\n')
    assert "1 student, column HW 1 (81)" in capsys.readouterr().out
