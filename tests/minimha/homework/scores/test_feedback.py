"""The pages to hand back."""

from html.parser import HTMLParser

from scored import options, report, student

from minimha.homework.scores import Reports, feedback

EVIL = "<script>alert('&')</script>"


class Page(HTMLParser):
    """The tags, the attributes and the visible text of a page; every tag must be closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.open, self.text = set(), [], [], ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("href", "src")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += f"{data}\n" if data.strip() else ""


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


def test_nothing_that_a_student_or_teacher_wrote_becomes_markup():
    evil = student(EVIL, "wrong") | {"comments": [EVIL]}
    for task in evil["tasks"]:
        task |= {"task": EVIL, "file": EVIL, "comment": EVIL}
        for check in task["checks"]:
            check |= {"check": EVIL, "message": EVIL}
    page = Page(feedback.page(report(evil, homework=EVIL), evil))
    assert "script" not in page.tags
    assert page.text.count(EVIL) == 4 + 1 + 6 + 6  # heading and title, comment, tasks, checks


def test_each_student_gets_a_page(tmp_path, capsys):
    folder = tmp_path / "back"
    Reports(options(tmp_path, "--feedback", folder)).write(
        report(student("anna", "ok"), student("a/../b", "ok"))
    )
    assert {path.name for path in folder.iterdir()} == {"anna.html", "a_.._b.html"}
    assert "anna" in capsys.readouterr().out
