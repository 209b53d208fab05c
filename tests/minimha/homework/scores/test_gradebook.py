"""Gradebooks of Canvas and Moodle."""

import csv
import io

import pytest
from scored import options, report, student

from minimha.homework.scores import Reports
from minimha.homework.scores.gradebook import Gradebook

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


@pytest.fixture
def filled(tmp_path):
    """The cells of the column once these students are graded, and the lines that are printed."""

    def fill(text, column, *students):
        path = tmp_path / "grades.csv"
        path.write_text(text, encoding="utf-8-sig")
        lines = Gradebook(path, "monday").filled(report(*students))
        assert path.read_text(encoding="utf-8-sig") == text
        after = (tmp_path / "grades_graded.csv").read_text(encoding="utf-8")
        delimiter = ";" if ";" in text else ","
        old, new = (list(csv.reader(io.StringIO(x), delimiter=delimiter)) for x in (text, after))
        k = new[0].index(column)
        assert [row[:k] + row[k + 1 :] for row in new] == [row[:k] + row[k + 1 :] for row in old]
        return [row[k] for row in new[1:]], lines.splitlines()

    return fill


def test_canvas_students_are_found_by_id_name_or_login_and_points_are_scaled(filled):
    students = [
        student("smithjane_1234", "ok", "ok"),
        student("adlc", "ok", "wrong"),
        student("Bo Li", "wrong"),
        student("zoe", "ok"),
    ]
    cells, lines = filled(CANVAS, "monday (81)", *students)
    assert cells == ["Manual Posting", "8.00", "6.00", "3.00", "0.00", ""]
    assert lines[0].endswith("grades_graded.csv: 3 students, column monday (81)")
    assert lines[1:] == [
        "  scaled from 4 points to 8",
        "  not in the gradebook: zoe",
        "  not graded: Student, Test 1237",
    ]


def test_the_id_of_a_download_decides_between_people_of_one_name(filled):
    cells, lines = filled(
        WORKSHEET, "Grade", student("Jane Smith (12)", "ok"), student("Ana Lu", "ok", "wrong")
    )
    assert cells == ["", "75.00", "37.50"]
    assert lines[1:] == ["  scaled from 4 points to 100", "  not graded: Participant 11 Jane Smith"]


def test_the_worksheet_of_another_assignment_gives_nobody_the_points_of_another(filled):
    students = [student("Ana Lu (11)", "ok"), student("Jane Smith (13)", "ok")]
    cells, lines = filled(WORKSHEET, "Grade", *students)
    assert cells == ["", "", ""]
    assert {f"  not in the gradebook: {x['student']}" for x in students} < set(lines)


def test_students_whose_names_moodle_hides_are_found_by_id(filled):
    hidden = WORKSHEET.replace("Full name,", "").replace("Jane Smith,", "").replace("Ana Lu,", "")
    cells, lines = filled(hidden, "Grade", student("Participant (12)", "ok"))
    assert cells == ["", "75.00", ""]
    assert [line.split()[:4] for line in lines[2:]] == [
        ["not", "graded:", "Participant", number] for number in ("11", "13")
    ]


def test_another_id_of_canvas_is_another_person(filled):
    cells, lines = filled(CANVAS, "monday (81)", student("libo_99", "ok"))
    assert cells == ["Manual Posting", "8.00", "", "", "", ""]
    assert "  not in the gradebook: libo_99" in lines


def test_people_of_one_name_without_an_id_are_listed_and_get_no_points(filled):
    students = [student(name, "ok") for name in ("Jane Smith", "Ana Lu")]
    cells, lines = filled(WORKSHEET, "Grade", *students)
    assert cells == ["", "", "75.00"]
    assert lines[2:] == [
        "  not in the gradebook: Jane Smith",
        "  not graded: Participant 11 Jane Smith",
        "  not graded: Participant 12 Jane Smith",
    ]


def test_addresses_and_numbers_name_people_too(filled):
    students = [student(name, "ok") for name in ("s77", "adlc", "bo")]
    cells, _ = filled(CANVAS, "monday (81)", *students)
    assert cells[2:5] == ["6.00"] * 3


def test_two_students_who_match_one_row_get_no_points(filled):
    students = [student(name, "ok") for name in ("js", "js@uni.edu", "other")]
    cells, lines = filled(WORKSHEET, "Grade", *students)
    assert cells == ["", "75.00", ""]
    assert "  not in the gradebook: js@uni.edu" in lines


def test_semicolons_stay(filled):
    text = WORKSHEET.replace('"100,00"', "100.00").replace(",", ";")
    assert filled(text, "Grade", student("js", "ok"))[0][0] == "75.00"


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
