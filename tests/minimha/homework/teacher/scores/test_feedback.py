"""The pages to hand back."""

import html

import pytest
from scored import Page, options, report, student

from minimha.homework.teacher.scores import Reports, feedback

EVIL = "<script>alert('&')</script>"


def test_a_page_contains_every_task_check_message_and_comment():
    anna = student("anna", "ok", "wrong") | {"comments": ["Come and see me."]}
    anna["tasks"][0] |= {"adjustment": 0.5, "comment": "Only the sign.\nTry again."}
    page = Page(feedback.page(report(anna), anna))
    for text in (
        "monday: anna", "1.5 of 4 points", "Come and see me.",
        "Your teacher's adjustment: +0.5 points", "Only the sign.\nTry again.", "check 0", "check 1",
        "the gradient of x is wrong\n  worst <entry> & 'more'", "0 of 1.5", "anna/softmax.py",
        "No answer to this task was found.", "minimha 1.0, seed 7",
    ):  # fmt: skip
        assert text in page.text
    assert page.links == []


def test_a_page_contains_the_message_of_every_check_that_fails():
    ben = student("ben", "wrong", "wrong")
    page = Page(feedback.page(report(ben), ben))
    assert page.text.count("the gradient of x is wrong") == 2


def test_nothing_that_a_student_or_teacher_wrote_becomes_markup():
    evil = student(EVIL, "wrong") | {"comments": [EVIL]}
    for task in evil["tasks"]:
        task |= {"task": EVIL, "file": EVIL, "comment": EVIL}
        for check in task["checks"]:
            check |= {"check": EVIL, "message": EVIL}
    page = Page(feedback.page(report(evil, homework=EVIL), evil))
    assert "script" not in page.tags
    assert page.text.count(EVIL) == 4 + 1 + 6 + 6  # heading and title, comment, tasks, checks


def test_a_page_contains_the_notes_on_the_students_files():
    anna = student("anna", "ok") | {"notes": ["anna/05.ipynb: the file is <longer> than 10 MB"]}
    page = Page(feedback.page(report(anna), anna))
    assert "Notes on your files\nanna/05.ipynb: the file is <longer> than 10 MB\n" in page.text
    assert "Notes" not in Page(feedback.page(report(), student("ben", "ok"))).text


@pytest.fixture
def pages(tmp_path):
    """The names of the pages of these students, without .html."""

    def written(*names):
        folder = tmp_path / "back"
        students = (student(name, "ok") for name in names)
        Reports(options(tmp_path, "--feedback", folder)).write(report(*students))
        texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.iterdir()}
        titles = {
            text.partition("<h1>monday: ")[2].partition("</h1>")[0] for text in texts.values()
        }
        assert titles == {html.escape(name) for name in names}
        return set(texts)

    return written


def test_each_student_gets_a_page(pages, capsys):
    assert pages("anna", "a/../b", "Anna", 'w?"x"') == {"anna", "a_.._b", "Anna-2", "w__x_"}
    assert "anna" in capsys.readouterr().out


@pytest.mark.parametrize("letter", ["a", "ü", "\U00020000"])
def test_students_with_long_names_get_pages_of_their_own(pages, letter):
    long = letter * 250
    found = pages(f"x{long}", f"y{long}", f"{long}z")
    assert len(found) == 3
    assert all(len(f"{name}.html".encode()) <= 255 for name in found)


def test_an_upload_to_moodle_finds_the_student_of_each_page(pages, tmp_path):
    (tmp_path / "Zoë Lu_1234_assignsubmission_file_").mkdir()
    (tmp_path / "Ana_B_7_assignsubmission_file_softmax.py").touch()
    found = pages("Zoë Lu (1234)", "Ana_B (7)", "ben")
    assert "ben" in found
    parts = sorted(name.split("_")[1:4] for name in found - {"ben"})  # where Moodle looks
    assert parts == [["1234", "assignsubmission", "file"], ["7", "assignsubmission", "file"]]


def test_an_upload_to_canvas_finds_the_student_of_each_page(pages, tmp_path):
    for name in ("smithjane_LATE_12_55_x.py", "smithjane_12_56_y_9_8_z.py", "libo_13_57_x.ipynb"):
        (tmp_path / name).touch()
    found = pages("smithjane_12", "libo_13")
    ids = {tuple(x for x in name.split("_") if x.isdigit()) for name in found}
    assert ids in ({("12", "55"), ("13", "57")}, {("12", "56"), ("13", "57")})
