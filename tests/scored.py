"""A report such as grading writes, on a homework with two tasks, the options of `grade`, and HTML pages
as their readers see them."""

from functools import partial
from html.parser import HTMLParser

import graded

from minimha.homework.teacher.grading import grade

options = partial(graded.options, grade)


def checks(*outcomes, hidden=False):
    """A check of weight 0, which the stub passes, and one for each outcome."""
    named = [("ok", 0, "on the stub"), *((x, 1, f"check {k}") for k, x in enumerate(outcomes))]
    return [
        {
            "check": name, "weight": weight, "outcome": outcome,
            "message": "the gradient of x is wrong\n  worst <entry> & 'more'" if outcome == "wrong" else "",
            "hidden": hidden and k == len(outcomes),
        }
        for k, (outcome, weight, name) in enumerate(named)
    ]  # fmt: skip


def student(name, *outcomes):
    """The results of a student for softmax, out of 3, who has not handed in scores, out of 1."""
    share = outcomes.count("ok") / len(outcomes)
    points = round(3 * share, 4)
    softmax = {"task": "softmax", "chapter": 5, "file": f"{name}/softmax.py", "points": points}
    missing = {"task": "scores", "chapter": 5, "file": None, "points": 0.0, "out_of": 1}
    tasks = [
        softmax | {"out_of": 3, "checks": checks(*outcomes, hidden=True)},
        missing | {"checks": checks("missing")},
    ]
    return {"student": name, "points": points, "out_of": 4, "tasks": tasks}


def report(*students, homework="monday"):
    """The report on these students."""
    about = {"homework": homework, "minimha": "1.0", "seed": 7}
    return about | {"students": list(students), "notes": ["x.txt: not one of the tasks"]}


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
