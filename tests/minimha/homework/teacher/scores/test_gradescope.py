"""The report for Gradescope."""

import json

import pytest
from scored import options, report, student

from minimha.homework.teacher.scores import Reports
from minimha.homework.teacher.scores.reports import as_gradescope


def test_each_check_is_a_test_and_hidden_ones_are_shown_when_grades_are_published():
    results = json.loads(as_gradescope(report(student("anna", "ok", "wrong", "ok"))))
    assert (results["score"], results["output_format"]) == (2, "text")
    assert "not one of the tasks" in results["output"]
    tests = results["tests"]
    assert [(x["name"], x["score"], x["max_score"], x["status"]) for x in tests] == [
        ("softmax: on the stub", 0, 0, "passed"),
        ("softmax: check 0", 1, 1, "passed"),
        ("softmax: check 1", 0, 1, "failed"),
        ("softmax: check 2", 1, 1, "passed"),
        ("scores: on the stub", 0, 0, "passed"),
        ("scores: check 0", 0, 1, "failed"),
    ]
    assert [x["visibility"] == "after_published" for x in tests] == [0, 0, 0, 1, 0, 0]
    assert tests[2]["output"].startswith("the gradient of x is wrong\n")
    assert tests[-1]["output"] == "missing"


def test_a_task_of_which_the_stub_passes_every_check_has_no_points_to_earn():
    (anna,) = (wholly_on_the_stub := report(student("anna", "ok")))["students"]
    for check in anna["tasks"][0]["checks"]:
        check["weight"] = 0
    tests = json.loads(as_gradescope(wholly_on_the_stub))["tests"]
    assert [test["max_score"] for test in tests] == [0, 0, 0, 1]


def test_a_folder_of_several_students_is_refused_before_grading(tmp_path):
    reports = Reports(options(tmp_path, "--gradescope"))
    reports.expect(["anna"], ["softmax"])
    with pytest.raises(ValueError, match="--student NAME"):
        reports.expect(["anna", "ben"], ["softmax"])


def test_results_can_be_written_to_standard_output(tmp_path, capsys):
    Reports(options(tmp_path, "--gradescope", "-")).write(report(student("anna", "ok")))
    assert json.loads(capsys.readouterr().out)["score"] == 3
