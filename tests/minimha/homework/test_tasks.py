"""Every task can be solved, is to do before it is, and every check finds a wrong answer."""

import pytest
from wrong_answers import all_wrong, answered, function

from minimha import homework
from minimha.course import chapters as course
from minimha.homework.task import FAILED, PASSED, TO_DO
from minimha.homework.verdicts import lines

TASKS = homework.course()
ANSWERS = list(all_wrong())


@pytest.fixture(params=TASKS.values(), ids=TASKS)
def task(request):
    return request.param


def test_the_solution_passes(task):
    for seed in range(2):
        for verdict in task.verdicts(function(task), seed):
            assert verdict.outcome == PASSED, f"{verdict.check.name}\n{verdict.message}"


def test_a_stub_is_to_do_and_not_wrong(task):
    outcomes = {v.outcome for v in task.verdicts(function(task, task.code()))}
    assert TO_DO in outcomes
    assert FAILED not in outcomes


def test_a_task_says_what_is_wanted(task):
    assert task.chapter in course.CHAPTERS
    assert task.difficulty in (1, 2, 3)
    assert len(set(task.hints)) == 3
    assert "Returns" in task.__doc__
    assert all(len(line) <= 100 for line in task.code(solved=True).splitlines())


def test_every_check_finds_a_wrong_answer(task):
    found = {wrong.check for t, wrong in ANSWERS if t is task}
    assert found == {check.name for check in task.checks}


@pytest.mark.parametrize(
    ("task", "wrong"), ANSWERS, ids=[f"{task.name}: {wrong.what}" for task, wrong in ANSWERS]
)
def test_a_wrong_answer_is_told(task, wrong):
    first = next(v for v in task.verdicts(answered(task, wrong)) if v.outcome != PASSED)
    assert (first.outcome, first.check.name) == (FAILED, wrong.check), first.message
    assert wrong.says in " ".join(first.message.split())
    assert all(len(line) <= 80 for line in lines([first]))
