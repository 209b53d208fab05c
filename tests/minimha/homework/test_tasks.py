"""Every task has a solution, its stub counts as to do, and every check finds a wrong answer."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from answers import function, misfit, mistakes_of
from solution_lines import EVERYWHERE, SHOWN, solution_lines, squeezed

from minimha import course, homework
from minimha.homework.checks.calls import calls_recorded
from minimha.homework.checks.mistakes import Patch, patches, text_of_mistake
from minimha.homework.checks.verdicts import FAILED, TO_DO
from minimha.homework.teacher import contradictions

TASKS = homework.course()


def file_of(task):
    """The file with the solution and the checks of a task, wherever the package is installed."""
    return Path("minimha", "homework", "tasks", Path(inspect.getsourcefile(task.solution)).name)


@pytest.fixture(params=TASKS.values(), ids=TASKS)
def task(request):
    return request.param


def test_a_task_has_what_students_need_and_its_solution_passes(task):
    """All contradictions that are found without starting a process."""
    for find in (contradictions._described, contradictions._solved, contradictions._stubbed):
        found = list(find(task))
        assert not found, f"{task.name} in {file_of(task)}{found[0]}"


def first_of_each_chapter():
    """A parameter for each task. The first of each chapter runs without --thorough too."""
    first = {task.chapter: task for task in reversed(TASKS.values())}
    return [
        pytest.param(x, id=name, marks=[pytest.mark.thorough][x is first[x.chapter] :])
        for name, x in TASKS.items()
    ]


@pytest.mark.parametrize("task", first_of_each_chapter())
def test_a_task_does_not_contradict_itself(task):
    found = list(contradictions.in_task(task))
    assert not found, f"{task.name}: {found}"


def test_the_stub_of_a_task_does_not_contain_its_solution(task):
    advice = "enclose the solution with # BEGIN SOLUTION and # END SOLUTION"
    if task.code() == task.code(solved=True):
        pytest.fail(f"{task.name} in {file_of(task)}: students would get the solution: {advice}")
    own = task.code().rpartition(f"def {task.name}(")[2]  # without the functions it gives
    stub = squeezed(own).replace(squeezed(task.__doc__), "")
    told = {line.strip() for line in task.hints[2].splitlines()}
    told = {line for line in told if len(squeezed(line)) > 12}
    edited = {mistake.old.strip() for mistake in task.mistakes}
    left = [
        line
        for line in solution_lines(task) | told | edited
        if squeezed(line) in stub and line not in SHOWN and not EVERYWHERE.fullmatch(line)
    ]
    assert not left, (
        f"{task.name} in {file_of(task)}: the stub contains {left}, which the solution, the third "
        f"hint or a mistake has: {advice}"
    )
    yours = function(task.name, task.code())
    with np.errstate(all="ignore"):
        outcomes = [verdict.outcome for verdict in task.verdicts(yours)]
    assert TO_DO in outcomes, (
        f"{task.name} in {file_of(task)}: the stub passes every check: {advice}"
    )


def test_every_check_of_a_gradient_uses_an_input_too_large_for_a_numeric_one(task):
    pulled = returned = False
    for check in task.checks:
        calls = []
        try:
            check.holds(calls_recorded(task.solution, calls), task.rng(check))
        except AssertionError as error:
            error.add_note(f"the solution of {task.name} in {file_of(task)} fails {check.name!r}")
            raise
        entries = [sum(np.size(x) for x in call.arguments) for call in calls if call.pulled.get(1)]
        pulled |= bool(entries)
        values = [x for call in calls if isinstance(call.result, tuple) for x in call.result]
        returned |= any(map(callable, values))
        if task.name == "squares_over_ranks":
            continue  # an entry depends on one entry: a single complex step is the gradient of all
        assert not entries or max(entries) >= 30_000, (
            f"{task.name} in {file_of(task)}: the inputs of the check {check.name!r} have at most "
            f"{max(entries)} entries, too few against a numeric derivative: use same_operation or "
            "same_pullback with larger inputs"
        )
    assert pulled or not returned, (
        f"{task.name} in {file_of(task)}: the solution returns a pullback, which no check calls"
    )


def test_every_task_has_a_check_with_random_inputs(task):
    def draws(check):
        rng = task.rng(check)
        before = rng.bit_generator.state
        check.holds(task.solution, rng)
        return rng.bit_generator.state != before

    assert any(map(draws, task.checks)), (
        f"{task.name} in {file_of(task)}: no check draws its inputs from rng"
    )


def test_every_task_describes_the_required_function(task):
    where = f"{task.name} in {file_of(task)}"
    assert task.chapter in course.CHAPTERS, f"{where}: there is no chapter {task.chapter}"
    assert file_of(task).name.startswith(f"ch{task.chapter:02}_"), (
        f"{where}: the task is of chapter {task.chapter}, but not in its file"
    )
    assert task.difficulty in (1, 2, 3), f"{where}: the difficulty is 1, 2 or 3"
    assert "Returns" in task.__doc__, f"{where}: the docstring does not say what it returns"
    long = [line for line in task.code(solved=True).splitlines() if len(line) > 100]
    assert not long, f"{where}: lines of more than 100 characters: {long}"


def test_a_mistake_says_what_is_wrong_and_then_what_to_do(task):
    for mistake in task.mistakes:
        wrong, _, right = re.sub("[:;] ", ": ", mistake.text).partition(": ")
        complete = bool(wrong and right)
        assert complete, (
            f"{mistakes_of(task)}: “{mistake.text}” must say what is wrong and, after a colon or a "
            "semicolon, what to do"
        )


def test_a_mistake_is_an_edit_of_one_place_of_the_solution(task):
    if misfit(task):
        pytest.fail(misfit(task))


def with_mistake(task, old, new):
    """The solution of a task with an edit."""
    return function(task.name, Patch(old, new, "").made_in(task.code(solved=True)))


@pytest.mark.parametrize(
    ("task", "mistake"),
    [  # one of each task, or all with --thorough
        pytest.param(task, mistake, id=f"{task.name}: {mistake.text}", marks=[pytest.mark.thorough] * (k > 0))
        for task in TASKS.values()
        for k, mistake in enumerate(task.mistakes)
    ],
)  # fmt: skip
def test_a_usual_mistake_is_found_and_named(task, mistake):
    if misfit(task):  # then no mistake of the task can be named
        pytest.fail(misfit(task))
    found = list(contradictions.in_mistake(task, mistake))
    assert not found, f"{mistakes_of(task)}: {found}"


def test_the_name_of_a_mistake_replaces_other_guesses():
    task = TASKS["softmax"]
    yours = with_mistake(task, *task.mistakes[0][:2])
    message = next(v for v in task.verdicts(yours) if v.outcome == FAILED).message
    assert message.count("  looks like ") == 1, message
    assert not {"  try ", "  read "} & set(re.findall(r"^  \w+ ", message, re.M))


def test_a_failure_unlike_every_usual_mistake_is_not_given_a_name():
    task = TASKS["broadcast_shape"]
    a_list = with_mistake(task, "return tuple(shape)", "return shape")
    first = next(v for v in task.verdicts(a_list) if v.outcome == FAILED)
    assert "looks like" not in first.message


def test_an_error_that_the_student_raises_is_not_taken_for_a_mistake():
    task = TASKS["softmax"]
    by_hand = with_mistake(task, "return (y *", "raise ValueError('not yet')\n        return (y *")
    for found in task.verdicts(by_hand):
        assert "looks like" not in found.message
    by_numpy = with_mistake(task, "(dy * y).sum(axis=-1, keepdims=True)", "(dy * y).sum(axis=-1)")
    first = next(v for v in task.verdicts(by_numpy) if v.outcome == FAILED)
    assert "the sum has lost its last axis" in first.message


def test_errors_that_student_and_solution_raise_may_have_other_words():
    solution = "def f(x):\n    if x < 0:\n        raise ValueError('negative')\n    return 2 * x\n"
    once = Patch("return 2 * x", "return x", "the factor 2 is missing")
    calls = []
    yours = calls_recorded(function("f", once.made_in(solution).replace("negative", "< 0")), calls)
    with pytest.raises(ValueError, match="< 0"):
        yours(-1.0)
    yours(3.0)
    assert text_of_mistake([once], solution, "f", calls) == "the factor 2 is missing"


def test_two_mistakes_at_once_are_not_named_as_one_of_them():
    task = TASKS["matmul"]
    right = task.code(solved=True)
    both = right.replace("a @ b\n", "np.sin(a @ b)\n").replace("dy @ b.mT", "-dy @ b.mT")
    first = next(v for v in task.verdicts(function(task.name, both)) if v.outcome == FAILED)
    assert "looks like" not in first.message


def test_a_wrong_value_is_named_whatever_the_pullback_returns():
    solution = "def f(x):\n    return 2 * x, lambda dy: (2 * dy,)\n"
    once = Patch("return 2 * x", "return x", "the factor 2 is missing")
    calls = []
    _, pullback = calls_recorded(lambda x: (x, lambda dy: (5 * dy,)), calls)(3.0)
    pullback(1.0)
    assert text_of_mistake([once], solution, "f", calls) == "the factor 2 is missing"


def test_what_is_said_after_a_change_in_place_is_what_would_be_said_without_it():
    task = TASKS["adamw_step"]
    line = "m = beta1 * m"
    first = [
        next(v for v in task.verdicts(with_mistake(task, line, f"{changed}; {line}")) if v.message)
        for changed in ("g = g + p", "g += p")
    ]
    apart, in_place = (verdict.message for verdict in first)
    assert in_place == f"yours changes g in place; it should work on a copy\n{apart}"


@pytest.mark.parametrize("name", ["dy", "x"])
def test_a_pullback_that_changes_an_array_in_place_is_refused(name):
    task = TASKS["softmax"]
    line = "return (y * (dy"
    yours = with_mistake(task, line, f"d = dy.copy(); {name}[...] = 0; dy = d\n        {line}")
    failed = [v for v in task.verdicts(yours) if v.outcome == FAILED]
    assert failed[0].message == f"yours changes {name} in place; it should work on a copy"


def test_a_mistake_that_does_not_fit_the_solution_is_an_error():
    with pytest.raises(ValueError, match="2 times, not once"):
        Patch("a", "b", "").made_in("a = a")


def test_several_patches_share_the_text_below_them():
    found = patches("""
- a
+ b
- c
+ d
+     e
they are
named
+ f
by themselves
""")
    assert found == [
        Patch("a", "b", "they are named"),
        Patch("c", "d\n    e", "they are named"),
        Patch("c", "f", "by themselves"),
    ]


def test_replayed_calls_use_the_recorded_results_of_tap():
    solution = 'def f(x, tap):\n    y = tap("y", 2 * x)\n    return y + 1\n'
    ignored = Patch('y = tap("y", 2 * x)', 'tap("y", 2 * x); y = 2 * x', "tap is ignored")
    names, calls = {}, []
    exec(ignored.made_in(solution), names)
    calls_recorded(names["f"], calls)(3.0, tap=lambda name, x: 10 * x)
    assert text_of_mistake([ignored], solution, "f", calls) == "tap is ignored"
