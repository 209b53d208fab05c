"""Write docs/wrong-answers.md: the messages for five usual mistakes in each of three tasks.

python -m wrong_answers.page      with tests/ on the path
"""

import difflib
import sys
import textwrap
from pathlib import Path

from minimha.homework.verdicts import lines
from wrong_answers import all_wrong, answered

PAGE = Path(__file__).parents[2] / "docs" / "wrong-answers.md"
SHOWN = ("split_heads", "softmax", "attention")
HEAD = """\
# What a wrong answer shows

Five common mistakes in each of three tasks, and what a student reads after making one. Lines with −
are the student's, lines with + are the solution's. A test checks that the messages are up to date.
"""


def page():
    """The text of the page."""
    parts = [HEAD]
    for name in SHOWN:
        parts.append(f"## {name}\n")
        named = {wrong.what: (task, wrong) for task, wrong in all_wrong() if task.name == name}
        for task, wrong in [*named.values()][:5]:
            parts.append(f"```diff\n{difference(task, wrong)}\n```\n")
            shown = "\n".join(lines(task.verdicts(answered(task, wrong))))
            parts.append(f"```text\n{shown}\n```\n")
    return "\n".join(parts)


def difference(task, wrong):
    """The wrong lines of an answer, and the right ones."""
    right = textwrap.dedent(task.code(solved=True)).splitlines()
    answer = "\n".join(right).replace(wrong.old, wrong.new).splitlines()
    changed = difflib.unified_diff(answer, right, n=0, lineterm="")
    return "\n".join(line for line in changed if line[:2] in ("- ", "+ "))


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")
    PAGE.write_text(page(), encoding="utf-8")
