"""Submissions downloaded from Canvas and Moodle belong to the students who handed them in."""

import pytest

from minimha.homework.teacher.grading import submissions


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("smithjane_1234_5678_softmax.py", "smithjane_1234"),
        ("smithjane_LATE_1234_5678_softmax-1.py", "smithjane_1234"),
        ("de_la_cruz_12_345_05_attention.ipynb", "de_la_cruz_12"),
        ("Jane Smith_1234_assignsubmission_file_", "Jane Smith (1234)"),
        ("Jane Smith_1234_assignsubmission_onlinetext_", "Jane Smith (1234)"),
        ("Jane Smith_1234_assignsubmission_file_softmax.py", "Jane Smith (1234)"),
        ("Ana_Lu_7_assignsubmission_file", "Ana_Lu (7)"),
        ("Jane Smith_1_assignsubmission_file_x_2_assignsubmission_file_y.py", "Jane Smith (1)"),
        ("Jane Smith_1_assignsubmission_file_x_2_3_y.py", "Jane Smith (1)"),
        ("smithjane_1_2_x_3_assignsubmission_file_y.py", "smithjane_1"),
    ],
)
def test_a_downloaded_name_says_who_handed_it_in(name, student):
    assert submissions.student_of(name) == student


@pytest.mark.parametrize("name", ["anna_softmax.py", "ben_12_softmax-1.py", "anna", "team_3"])
def test_other_names_are_not_taken_for_downloads(name):
    assert submissions.student_of(name) is None


def test_all_downloaded_files_of_a_user_are_one_students(tmp_path):
    for name in (
        "smithjane_1234_55_scores.py",
        "smithjane_LATE_1234_56_attention.py",
        "smithjane_77_57_scores.py",
        "Ana Lu_7_assignsubmission_file_/scores.py",
        "Ana Lu_7_assignsubmission_onlinetext_/onlinetext.html",
        "Bo Li_8_assignsubmission_file_scores.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found, _ = submissions.find(tmp_path, {"scores": 5, "attention": 5})
    assert {student: set(answers) for student, answers in found.items()} == {
        "Ana Lu (7)": {"scores"},
        "Bo Li (8)": {"scores"},
        "smithjane_1234": {"scores", "attention"},
        "smithjane_77": {"scores"},
    }
