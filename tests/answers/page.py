"""Write docs/wrong-answers.md: the messages for five usual mistakes in each of three tasks.

python -m answers.page      with tests/ on the path
"""

import difflib
import sys
from pathlib import Path

from answers import WRONG
from minimha.homework.checks.verdicts import lines

PAGE = Path(__file__).parents[2] / "docs" / "wrong-answers.md"
SHOWN = ("split_heads", "softmax", "attention")
HEAD = """\
# What a wrong answer shows

Five common mistakes in each of three tasks, and what the feedback of a grader, or the full package, says to
each. (The students' edition lacks the list of mistakes, and says less to some.) Lines with − are the student's,
lines with + are right. A test checks that the messages are up to date.
"""


def page():
    """The text of the page."""
    parts = [HEAD]
    for name in SHOWN:
        parts.append(f"## {name}\n")
        for answer in [x for x in WRONG if x.task == name and x.edited][:5]:
            parts.append(f"```diff\n{difference(answer)}\n```\n")
            shown = "\n".join(lines(answer.verdicts()))
            parts.append(f"```text\n{shown}\n```\n")
    return "\n".join(parts)


def difference(answer):
    """The wrong lines of an answer, and the right ones."""
    texts = answer.text.splitlines(), answer.edited.splitlines()
    changed = difflib.unified_diff(*texts, n=0, lineterm="")
    return "\n".join(line for line in changed if line[:2] in ("- ", "+ "))


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")
    PAGE.write_text(page(), encoding="utf-8")
