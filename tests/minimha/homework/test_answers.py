"""Right answers in every style pass; wrong ones are refused, and the message names the mistake."""

import re
import sys

import pytest
from answers import RIGHT, WRONG, Answer, misfit

from minimha import homework
from minimha.homework.checks.verdicts import PASSED, Verdict, lines

UNNAMED = {
    "standardise: transposed where it does not fit",
    "broadcast_shape: no ones in front",
    "matmul: the first two axes exchanged",
    "bilinear: entry by entry",
    "documents: queries compared with themselves",
    "merge_heads: axes counted from the front",
    "repeat_heads: a single head is not repeated",
    "sinusoidal: the number of positions in the exponent",
    "sinusoidal: a power without parentheses",
    "layer_norm: the term through sigma has a factor 2 less",
    "cross_entropy: the sum over the targets",
    "top_p: a share of the tokens",
    "tiled_forward: lse 0 for a query that sees nothing",
    "tiled_product: the shape of a tile exchanged",
    "softmax_rows: the columns of a tile",
    "key_gradients_in_blocks: dscores transposed",
    "head_parallel: the last head forgotten",
    "sum_over_ranks: doubled in each step",
    "induction_score: two tokens after it",
    "patch_effects: nothing returned by tap",
    "qk_circuit: reshaped to heads first",
    "absorbed_attention: no softmax",
}
"""The wrong answers whose message does not name the mistake: at most 6 % of all."""

NO_WORDS = re.compile(
    r" *((called )?in .*line \d|where .* (has shape|is )"
    r"|(worst entry|ratio) |(yours|expected|numeric) +([-\dn]|True|False))"
)
"""Lines of a message that name no mistake: the student's own code, and figures."""

LOOKS_LIKE = re.compile(r"looks like\s+(?!\s|none of)")


def is_named(answer: Answer, said: str) -> bool:
    """Whether the message has the words that name the mistake."""
    words = " ".join(line for line in said.splitlines() if not NO_WORDS.match(line))
    return bool(re.search(answer.words, " ".join(words.split()), re.IGNORECASE))


def outcome(answer: Answer, failed: Verdict | None) -> str:
    """named, unnamed, MISNAMED (as another mistake) or ACCEPTED."""
    if not failed:
        return "ACCEPTED"
    if is_named(answer, failed.message):
        return "named"
    return "MISNAMED" if LOOKS_LIKE.search(failed.message) else "unnamed"


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
    for kind, answers in (("right", RIGHT), ("wrong", WRONG)):
        for name in tasks:
            count = sum(a.task == name for a in answers)
            chapter = homework.course()[name].chapter
            assert count >= 2, (
                f"the task {name} has {count} {kind} answers and needs two: "
                f"add them to tests/answers/ch{chapter:02}.py"
            )


def blame_the_task(answer):
    """Fail if a mistake of the task does not fit its solution, or if the solution fails the checks:
    the answer may be innocent."""
    task = homework.course()[answer.task]
    if misfit(task):
        pytest.fail(f"not the answer: {misfit(task)}")
    own = task.code(solved=True).rpartition(f"def {task.name}(")[2]
    verdicts = Answer(task.name, f"def {task.name}({own}").verdicts()
    for failed in [v for v in verdicts if v.outcome != PASSED]:
        pytest.fail(
            f"not the answer: the solution of {task.name} in minimha/homework/tasks/"
            f"ch{task.chapter:02}_….py fails {failed.check.name!r}: {failed.message}"
        )


@pytest.mark.parametrize("answer", spread(RIGHT))
def test_a_right_answer_passes_every_check(answer):
    try:
        refused = {v.check.name: v.message for v in answer.verdicts() if v.outcome != PASSED}
    except ValueError:
        blame_the_task(answer)
        raise
    if refused:
        blame_the_task(answer)
    assert not refused, f"{answer.where()}:\n{answer.text}"


@pytest.mark.parametrize("answer", [x for x in spread(WRONG) if not x.marks])
def test_a_wrong_answer_is_refused(answer):
    try:
        refused = answer.failure()
    except ValueError:
        blame_the_task(answer)
        raise
    assert refused, f"{answer.where()}: {answer.mistake} passes:\n{answer.text}"


@pytest.mark.thorough
@pytest.mark.parametrize("task", homework.course().values(), ids=homework.course())
def test_wrong_answers_are_refused_and_named_and_every_check_finds_one(task, capsys):
    """Every check finds a wrong answer that passes the checks before it."""
    failures = [(x, x.failure()) for x in WRONG if x.task == task.name]
    outcomes = [(outcome(x, failed), f"{x.task}: {x.mistake}") for x, failed in failures]
    with capsys.disabled():
        sys.stdout.write("".join(f"\n{found:<8} {name}" for found, name in outcomes))
    bad = [name for found, name in outcomes if found in ("ACCEPTED", "MISNAMED")]
    assert not bad, f"accepted, or named as another mistake: {bad}"
    unnamed = {name for found, name in outcomes if found == "unnamed"} - UNNAMED
    assert not unnamed, f"no message names {unnamed}: add the mistake, or list it in UNNAMED"
    found = [failed for _, failed in failures if failed]
    without = {check.name for check in task.checks} - {failed.check.name for failed in found}
    assert not without, (
        f"no wrong answer to {task.name} fails {without} first: add one each to "
        f"tests/answers/ch{task.chapter:02}.py"
    )
    assert all(len(line) <= 80 for failed in found for line in lines([failed]))


def test_the_messages_name_nearly_all_mistakes():
    names = [f"{x.task}: {x.mistake}" for x in WRONG]
    assert set(names) >= UNNAMED
    assert sum(name in UNNAMED for name in names) <= 0.06 * len(names)
