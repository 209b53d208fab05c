"""One HTML page for each student, to hand back: every task, check, message and comment."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from ...checks.verdicts import PASSED
from .reports import check_points

LONGEST = 200
"""The greatest length of a page's name, in bytes: most systems allow 255, with the ending."""
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.5 sans-serif }}
h1, h2 {{ line-height: 1.2 }}
h2 {{ margin: 2rem 0 .5rem; border-bottom: 1px solid; break-after: avoid }}
h2 span {{ float: right; font-weight: normal }}
table {{ width: 100%; border-collapse: collapse }}
td {{ padding: .2rem .8rem .2rem 0; vertical-align: top }}
tr {{ break-inside: avoid }}
td:first-child {{ width: 4rem; font-weight: bold }}
td:last-child {{ padding-right: 0; text-align: right; white-space: nowrap }}
pre {{ margin: .3rem 0; padding: .5rem; border-left: 3px solid; font-size: 13px }}
pre, blockquote {{ white-space: pre-wrap; overflow-wrap: anywhere }}
blockquote {{ margin: .5rem 0; padding-left: 1rem; border-left: 3px double }}
footer {{ margin-top: 3rem; font-size: 13px }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
<footer>minimha {minimha}, seed {seed}</footer>
</body>
</html>
"""


def write(report: dict[str, Any], folder: Path, replies: Mapping[str, str]) -> None:
    """Write an HTML page for each student into a folder. The name of a page, without .html, is the
    one that `replies` has for the student or, if it has none, the student's own. Characters that
    file systems forbid become _, long names lose their beginning, and a name that occurs again gets
    a number. Raises OSError if a page cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = set[str]()
    for student in report["students"]:
        name = re.sub(r'[\\/:*?"<>|]', "_", replies.get(student["student"], student["student"]))
        name = name.encode()[-LONGEST:].decode(errors="ignore")  # the end has the ids of a reply
        names = itertools.chain([name], (f"{name}-{k}" for k in itertools.count(2)))
        free = next(x for x in names if x.casefold() not in taken)
        taken.add(free.casefold())
        (folder / f"{free}.html").write_text(page(report, student), encoding="utf-8")


def page(report: dict[str, Any], student: dict[str, Any]) -> str:
    """Return the page of one student as HTML. `student` is one of the students in the report."""
    parts = [f"<p><strong>{_points(student)} points</strong></p>"]
    parts += [_comment(text) for text in student.get("comments", [])]
    if notes := [f"<li>{escape(note)}</li>" for note in student.get("notes", [])]:
        parts += ["<p>Notes on your files</p>", "<ul>", *notes, "</ul>"]
    parts += [_task(task) for task in student["tasks"]]
    return filled(f"{report['homework']}: {student['student']}", parts, report)


def filled(title: str, parts: list[str], report: dict[str, Any]) -> str:
    """Return an HTML page with this title and these parts, which are HTML. Its last line has the
    version of minimha and the seed from the report."""
    return _PAGE.format(
        title=escape(title), body="\n".join(parts), minimha=escape(report["minimha"]),
        seed=report["seed"],
    )  # fmt: skip


def _task(task: dict[str, Any]) -> str:
    parts = [f"<h2>{escape(task['task'])} <span>{_points(task)}</span></h2>"]
    if adjustment := task.get("adjustment"):
        parts.append(f"<p>Your teacher's adjustment: {adjustment:+g} points</p>")
    if comment := task.get("comment"):
        parts.append(_comment(comment))
    if task["file"] is None:
        return "\n".join([*parts, "<p>No answer to this task was found.</p>"])
    rows = []
    for check, (points, out_of) in zip(task["checks"], check_points(task), strict=True):
        message = check["message"] if check["outcome"] != PASSED else ""
        text = escape(check["check"]) + (f"<pre>{escape(message)}</pre>" if message else "")
        earned = f"{round(points, 2):g} of {round(out_of, 2):g}" if out_of else ""
        rows.append(f"<tr><td>{escape(check['outcome'])}</td><td>{text}</td><td>{earned}</td></tr>")
    file = f"<p><code>{escape(task['file'])}</code></p>"
    return "\n".join([*parts, file, "<table>", *rows, "</table>"])


def _points(result: dict[str, Any]) -> str:
    return f"{round(result['points'], 2):g} of {result['out_of']:g}"


def _comment(text: str) -> str:
    return f"<blockquote>{escape(text)}</blockquote>"
