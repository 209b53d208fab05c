"""An HTML page about the class, without names: points, the share that passes each check, and the
messages that most students got."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from html import escape
from typing import Any

from ...checks.verdicts import FAILED, PASSED
from .feedback import filled

MOST = 5
"""The number of messages that are shown."""
_ADVICE = re.compile(r"^  (?:looks like|relation|try|in NumPy) +(.+(?:\n {10,}.+)*)", re.MULTILINE)


def as_overview(report: dict[str, Any]) -> str:
    """Return a page about the class as HTML: the mean and the quartiles of the points; for each
    check, how many of the answers pass it; and the messages that most often were a student's first
    failure in a task."""
    students = report["students"]
    points = [student["points"] for student in students]
    middle = statistics.quantiles(points, method="inclusive") if points[1:] else points * 3
    facts = zip(
        ("mean", "lower quartile", "median", "upper quartile"),
        (statistics.fmean(points), *middle),
        strict=True,
    )
    parts = [
        f"<p><strong>{' · '.join(f'{name} {value:.2f}' for name, value in facts)}</strong>, "
        f"of {students[0]['out_of']:g} points</p>",
        "<h2>Where students got stuck</h2>",
        *_messages(students),
    ]
    for results in zip(*(student["tasks"] for student in students), strict=True):
        parts += _task([result for result in results if result["file"] is not None], results)
    count = f"{len(students)} student{'s' * (len(students) != 1)}"
    return filled(f"{report['homework']}: {count}", parts, report)


def _task(handed_in: list[dict[str, Any]], results: tuple[dict[str, Any], ...]) -> list[str]:
    """Return the table of one task as lines of HTML: for each check, the share of the answers that
    pass it.

    handed_in  the results in this task of the students who handed in an answer
    results    the results in this task of all students
    """
    rows, count = [], len(handed_in)
    for k, check in enumerate(results[0]["checks"]):
        passed = sum(result["checks"][k]["outcome"] == PASSED for result in handed_in)
        share = f"{passed / count:.0%}" if count else "–"
        cells = share, escape(check["check"]), f"{passed} of {count}"
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    about = f"answers from {count} of {len(results)}"
    return [
        f"<h2>{escape(results[0]['task'])} <span>{about}</span></h2>",
        "<table>",
        *rows,
        "</table>",
    ]


def _messages(students: list[dict[str, Any]]) -> list[str]:
    """Return a table as lines of HTML, with the MOST (5) most frequent among the messages that were
    a student's first failure in a task. Each message has its task, its check and the number of
    students."""
    first = Counter(
        (task["task"], *failed[0])
        for student in students
        for task in student["tasks"]
        if (failed := [(x["check"], gist(x["message"])) for x in task["checks"] if _failed(x)])
    )
    rows = [
        f"<tr><td>{count} ×</td><td>{escape(f'{task}: {check}')}<pre>{escape(said)}</pre></td>"
        "<td></td></tr>"
        for (task, check, said), count in first.most_common(MOST)
    ]
    return ["<table>", *rows, "</table>"] if rows else ["<p>Nowhere.</p>"]


def _failed(check: dict[str, Any]) -> bool:
    return check["outcome"] == FAILED


def gist(message: str) -> str:
    """Return a text by which messages of several students can be counted as the same: the first
    piece of advice in the message, such as what follows "looks like", or else the message's first
    line."""
    found = [x for x in _ADVICE.findall(message) if not x.startswith("none of")]
    return " ".join((found or [message.partition("\n")[0]])[0].split())
