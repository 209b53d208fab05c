"""Right answers in every style pass; wrong ones are refused, and the message names the mistake."""

import functools
import re
import sys

import pytest
from answers import RIGHT, WRONG, Answer

from minimha import homework
from minimha.homework.verdicts import FAILED, PASSED, Verdict, lines

NAMED = 0.94
"""At least this share of the wrong answers gets a message that names the mistake."""

NO_WORDS = re.compile(
    r" *((called )?in .*line \d|where .* (has shape|is )"
    r"|(worst entry|ratio) |(yours|expected|numeric) +([-\dn]|True|False))"
)
"""Lines of a message that name no mistake: the student's own code, and figures."""

LOOKS_LIKE = re.compile(r"looks like\s+(?!\s|none of)")


@functools.cache
def failure(answer: Answer) -> Verdict | None:
    """The verdict of the first check that fails, if one does."""
    return next((v for v in answer.verdicts() if v.outcome == FAILED), None)


def is_named(answer: Answer, said: str) -> bool:
    """Whether the message has the words that name the mistake."""
    words = " ".join(line for line in said.splitlines() if not NO_WORDS.match(line))
    return bool(re.search(answer.words, " ".join(words.split()), re.IGNORECASE))


def outcome(answer: Answer) -> str:
    """named, unnamed, MISNAMED (as another mistake) or ACCEPTED."""
    failed = failure(answer)
    if not failed:
        return "ACCEPTED"
    if is_named(answer, failed.message):
        return "named"
    return "MISNAMED" if LOOKS_LIKE.search(failed.message) else "unnamed"


def table(answers: list[Answer]) -> list[str]:
    """A line for each wrong answer."""
    return [f"{outcome(a):<8} {a.task:<20} {a.mistake}" for a in answers]


def spread(answers: list[Answer]) -> list:
    """A parameter for each answer. The first to each task runs without --thorough too."""
    first = {a.task: a for a in reversed(answers)}
    return [
        pytest.param(a, id=f"{a.task}-{i}", marks=[pytest.mark.thorough][a is first[a.task] :])
        for i, a in enumerate(answers)
    ]


def test_every_task_has_answers():
    tasks = list(homework.course())
    assert len(RIGHT) >= 150
    assert len(WRONG) >= 600
    for answers in (RIGHT, WRONG):
        assert all(sum(a.task == name for a in answers) >= 2 for name in tasks)


@pytest.mark.parametrize("answer", spread(RIGHT))
def test_a_right_answer_passes_every_check(answer):
    refused = {v.check.name: v.message for v in answer.verdicts() if v.outcome != PASSED}
    assert not refused, answer.text


@pytest.mark.parametrize("answer", spread(WRONG))
def test_a_wrong_answer_is_refused(answer):
    failed = failure(answer)
    assert failed, answer.text
    assert all(len(line) <= 80 for line in lines([failed]))


@pytest.mark.thorough
@pytest.mark.parametrize("task", homework.course().values(), ids=homework.course())
def test_every_check_finds_a_wrong_answer_that_passes_the_checks_before_it(task):
    found = {failed.check.name for x in WRONG if x.task == task.name and (failed := failure(x))}
    assert found == {check.name for check in task.checks}


@pytest.mark.thorough
def test_messages_name_the_mistakes(capsys):
    rows = table(WRONG)
    share = sum(row.startswith("named") for row in rows) / len(rows)
    lines = ["", *rows, f"{share:.1%} of {len(rows)} wrong answers are named", ""]
    with capsys.disabled():
        sys.stdout.write("\n".join(lines))
    assert share >= NAMED
    assert not [row for row in rows if row.startswith("MISNAMED")]
