"""Write docs/wrong-answers.md: what students are shown for three tasks done wrongly, five ways each.

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
# What wrong answers are shown

Three tasks done wrongly in five ways each, and what a student reads. The answers are among those
that the tests hold every task to, and a test holds this page to what happens. Lines with − are the
student's, those with + what was meant.
"""


def page():
    """The text of the page."""
    parts = [HEAD]
    for name in SHOWN:
        parts.append(f"## {name}\n")
        for task, wrong in [found for found in all_wrong() if found[0].name == name][:5]:
            parts.append(f"**{wrong.what}**\n\n```diff\n{difference(task, wrong)}\n```\n")
            shown = "\n".join(lines(task.verdicts(answered(task, wrong))))
            parts.append(f"```text\n{shown}\n```\n")
    return "\n".join(parts)


def difference(task, wrong):
    """The lines of the solution that are wrong, and what is right."""
    right = textwrap.dedent(task.code(solved=True)).splitlines()
    answer = "\n".join(right).replace(wrong.old, wrong.new).splitlines()
    changed = difflib.unified_diff(answer, right, n=0, lineterm="")
    return "\n".join(line for line in changed if line[:2] in ("- ", "+ "))


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")
    PAGE.write_text(page(), encoding="utf-8")
