"""The page about the class."""

from scored import Page, options, report, student

from minimha.homework.teacher.scores import Reports, overview

MESSAGES = {
    "softmax: the gradient of x is wrong\n  yours        1.2\n  looks like   the sum over each row is\n"
    "               missing\n  read         chapter 05": "the sum over each row is missing",
    "dx is wrong\n  yours        1.2\n  looks like   none of the known mistakes": "dx is wrong",
    "y is wrong\n  relation     √5 times the right result": "√5 times the right result",
    "TypeError: no dim\n  in f, line 3: x.sum(dim=-1)\n  in NumPy     the keyword is axis": "the keyword is axis",
    "ZeroDivisionError: division by zero\n  in f, line 3: 1 / 0": "ZeroDivisionError: division by zero",
}


def test_the_gist_of_a_message_has_no_figures_of_one_student():
    assert {text: overview.gist(text) for text in MESSAGES} == MESSAGES


def wrong(name, message, *outcomes):
    found = student(name, *outcomes)
    for check in found["tasks"][0]["checks"]:
        check["message"] = message if check["outcome"] == "wrong" else ""
    return found


def text(*students):
    return Page(overview.as_overview(report(*students))).text


def test_the_page_has_the_mean_and_the_quartiles():
    students = [wrong(f"s{k}", "", *outcomes) for k, outcomes in enumerate(
        (["ok"], ["ok", "wrong"], ["wrong"], ["ok", "ok", "wrong"], ["ok", "wrong", "wrong"])
    )]  # fmt: skip
    for found in students:
        found["tasks"][0]["checks"] = found["tasks"][0]["checks"][:2]
    page = text(*students)
    assert "monday: 5 students" in page
    assert "mean 1.50 · lower quartile 1.00 · median 1.50 · upper quartile 2.00" in page
    assert "of 4 points" in page
    assert "mean 3.00 · lower quartile 3.00 · median 3.00" in text(student("anna", "ok"))


def test_each_check_has_its_share_of_those_who_handed_in_the_task():
    absent = student("dan", "missing", "missing")
    absent["tasks"][0]["file"] = None
    page = text(*(student(x, "ok", "wrong") for x in "ab"), student("c", "ok", "ok"), absent)
    assert "softmax \nanswers from 3 of 4\n" in page
    assert "100%\ncheck 0\n3 of 3\n33%\ncheck 1\n1 of 3\n" in page
    assert "scores \nanswers from 0 of 4\n" in page
    assert "–\ncheck 0\n0 of 0\n" in page


def test_the_commonest_first_failures_are_shown_and_no_names():
    often = [
        wrong(f"anna{k}", "  try          divide\n by <it>", "wrong", "wrong") for k in range(3)
    ]
    rare = [wrong(f"ben{k}", f"message {k}", "ok", "wrong") for k in range(6)]
    page = text(*rare, *often)
    assert page.index("3 ×\nsoftmax: check 0\ndivide\n") < page.index(
        "1 ×\nsoftmax: check 1\nmessage 0"
    )
    assert page.count(" ×\n") == overview.MOST
    assert "anna" not in page
    assert "ben" not in page


def test_a_class_without_mistakes_got_stuck_nowhere():
    assert "Where students got stuck\nNowhere.\n" in text(student("anna", "ok"))


def test_the_option_writes_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Reports(options(tmp_path, "--class")).write(report(student("anna", "ok")))
    assert "monday: 1 student" in Page((tmp_path / "class.html").read_text(encoding="utf-8")).text
