"""Submissions that crash or cheat get no points for it, and affect nothing else.

What is worth a file of its own is in attacks/.
"""

import numpy as np
import pytest
from answers import function
from graded import (
    HINTS,
    LIMITS,
    RIGHT,
    ROOT,
    SHORT,
    STUB,
    TASK,
    called,
    judged,
    outcomes,
    scaled,
    write,
)

import minimha as mh
from minimha import homework
from minimha.homework.checks.comparisons import same_pullback
from minimha.homework.checks.forward_calls import limited
from minimha.homework.checks.task import FAILED, PASSED, TO_DO, Task
from minimha.homework.teacher.grading import grade as grading
from minimha.homework.teacher.grading import judge, process
from minimha.homework.teacher.grading.process import Limits, Submission

GREEDY = """a, n = [], 1 << 24
        while n:
            try: a.append(bytearray(n))
            except MemoryError: n //= 2
        raise MemoryError"""
FATAL = {  # only when the pullback is called: the earlier check still counts
    "ends itself": ("import os; os._exit(0)", "exit code 0"),
    "exits": ("import sys; sys.exit(0)", "SystemExit"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "sleeps": ("import time; time.sleep(99)", "not done after 18 seconds, although"),
    "loops": ("while True: pass", "not done after 3 seconds of processor time"),
    "calls back for ever": ("while True: tap('y', dy)", "not done after "),  # either: both processes compute
    "crashes": ("np.lib.stride_tricks.as_strided(np.ones(1), (1 << 30,), (4096,)).sum()", "Segmentation"),
    "aborts": ("import os; os.abort()", "Abort"),
    "recurses": ("pullback(dy)", "RecursionError"),
    "uses too much memory": ("a = []\n        while True: a.append(np.ones(1 << 20))", "MemoryError"),
    "uses all memory": (GREEDY, "MemoryError"),
    "returns too much": ("return (np.broadcast_to(1.0, (10**6, 10**6)),)", "MB are too large"),
    "returns objects": ("return (np.array([object()]),)", "dtype object"),
    "returns a set": ("return ({1, 2},)", "a set cannot be sent"),
    "returns cycles": ("a = []; a.append(a); return a", "RecursionError"),
    "changes the cotangent to fit": ("dy[...] = 0", "dx is wrong"),
    "returns NaN": ("return (factor * dy * np.nan,)", "dx is wrong"),
    "raises an error without text": ("raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})", "E"),
    "raises terminal escape codes": ("raise type('\\x1b[2J', (Exception,), {})('\\x1b]0;')", "]0;"),
}  # fmt: skip


SLOW = {"loops", "calls back for ever", "sleeps"}
FATAL_CASES = [
    pytest.param(*case, id=name, marks=[pytest.mark.thorough] * (name in SLOW))
    for name, case in FATAL.items()
]


@pytest.mark.parametrize(("end", "says"), FATAL_CASES)
def test_a_crash_in_one_check_does_not_affect_the_others(end, says):
    source = RIGHT.replace("        return (factor", f"        {end}\n        return (factor")
    first, second = judged(source, SHORT if "not done" in says else LIMITS)
    assert outcomes([first, second]) == [PASSED, FAILED]
    assert says in second.message
    assert judge.score([first, second]) == pytest.approx(1 / 3)


NO_ANSWER = {
    "names no task": "def scale(x): return x",
    "is not Python": "def scaled(:",
    "is no text": "\0\1\2",
}


@pytest.mark.parametrize("source", NO_ANSWER.values(), ids=NO_ANSWER)
def test_a_file_without_the_function_gets_no_points_and_a_message(source):
    verdicts = judged(source)
    assert outcomes(verdicts) == [FAILED, FAILED]
    assert all(verdict.message for verdict in verdicts)


HARMLESS = {
    "prints a lot": "[print('x' * 10**6) for _ in range(100)]",
    "prints errors": "import sys; sys.stderr.write('x' * 10**7); sys.stdout.close()",
    "leaves threads": """
import _thread
try: _thread.start_new_thread(lambda: [0 for _ in iter(int, 1)], ())
except RuntimeError: pass  # only root may, as none of the limits on processes holds for it
""",
    "is not UTF-8": "# coding: latin-1\n# \xe4",
    "imports what is there": "import os, sys, math, random, typing, numpy.linalg",
    "is not run as a program": "if __name__ == '__main__': import minimha",
}


@pytest.mark.parametrize("line", HARMLESS.values(), ids=HARMLESS)
def test_harmless_extra_lines_cost_no_points(line):
    source = f"{line}\n{RIGHT}".encode("latin-1" if "latin" in line else "utf-8")
    verdicts = judge.judged(TASK, source, 0, Limits(10, 250))
    assert outcomes(verdicts) == [PASSED, PASSED], verdicts


def lazy(*, copies=0, steps=False):
    """An answer that returns zeros or its first argument, with the right gradient of that."""

    def answer(*arguments, **_):
        value = 1 * arguments[0] if copies else np.zeros(3)

        def pullback(dy):
            others = [
                x for x in arguments[copies:] if isinstance(x, np.ndarray) and x.dtype != bool
            ]
            gradients = [dy] * copies + [np.zeros(x.shape) for x in others]
            return (*gradients, {}) if steps else tuple(gradients)

        return value, pullback

    return answer


def refuse(*_, **__):
    raise ValueError


LAZY = {
    "zeros": lazy(),
    "zeros and steps": lazy(steps=True),
    "the first": lazy(copies=1),
    "the first and steps": lazy(copies=1, steps=True),
    "float32": lambda *_, **__: (np.zeros(3, "f4"), lambda dy: (*[np.zeros(3, "f4")] * 3, {})),
    "an error": refuse,
    "NaN": lambda *_, **__: np.nan,
}


@pytest.fixture
def own_task():
    """The task in the guide for teachers."""
    homework.load_tasks(ROOT / "docs" / "own_tasks.py")
    yield homework.TASKS["sigmoid"]
    del homework.TASKS["sigmoid"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.thorough
@pytest.mark.parametrize("answer", LAZY.values(), ids=LAZY)
@pytest.mark.usefixtures("own_task")
def test_a_right_gradient_of_the_wrong_function_earns_nothing(answer):
    for task in homework.course().values():
        assert judge.score(task.verdicts(answer), judge.passed_by_stub(task)) == 0, task.name


def test_the_task_in_the_guide_accepts_right_answers_and_refuses_wrong_ones(own_task):
    solved = f"import numpy as np\n{own_task.code(solved=True)}"
    for text, expected in (
        (solved, [PASSED, PASSED]),
        (solved.replace("dy * y * (1 - y)", "dy * y"), [PASSED, FAILED]),
        (solved.replace("np.exp(-x)", "np.exp(x)"), [FAILED, FAILED]),
        (f"import numpy as np\n{own_task.code()}", [TO_DO, TO_DO]),
    ):
        assert outcomes(judged(text, task=own_task)) == expected


def test_a_numeric_gradient_is_refused_only_if_it_takes_many_calls(own_task):
    solved = f"import numpy as np\n{own_task.code(solved=True)}"
    both = "(sigmoid(x + h)[0] - sigmoid(x - h)[0]) / (2 * h)"
    at_once = f"h = 1e-30j; return (dy * ({both}).real,)"  # an imaginary step, for all entries
    one_by_one = "for h in 1e-5 * np.eye(3000): sigmoid(np.ones(3000) + h)"
    of_a_helper = f"def helper(x): return 1 / (1 + np.exp(-x))\n        {one_by_one}".replace(
        "sigmoid", "helper"
    )
    for lines, expected in (
        (at_once, PASSED),
        (f"{one_by_one}\n        {at_once}", FAILED),
        (f"{of_a_helper}\n        {at_once}", PASSED),  # its calls are not counted
    ):
        text = solved.replace("return (dy * y * (1 - y),)", lines)
        assert outcomes(judged(text, task=own_task)) == [PASSED, expected]


ROWS = """
import numpy as np

def softmax(x):
    def pullback(dy):
        dx = np.empty(x.shape)
        for column in range(x.shape[1]):  # an imaginary step, for all rows at once
            step = np.zeros(x.shape, complex)
            step[:, column] = 1e-30j
            dx[:, column] = (dy * softmax(x + step)[0].imag).sum(axis=1) / 1e-30
        return (dx,)

    e = np.exp(x - x.real.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True), pullback
"""


def test_a_numeric_gradient_of_rows_takes_as_many_calls_as_a_row_has_entries(rng):
    def right(x):
        y = mh.functional.softmax(x)
        return y, lambda dy: (y * (dy - (dy * y).sum(axis=1, keepdims=True)),)

    numeric = limited(function("softmax", ROWS))
    same_pullback(numeric, right, rng.standard_normal((1000, 40)))
    with pytest.raises(AssertionError, match="called softmax 2,000 times"):
        same_pullback(numeric, right, rng.standard_normal((2, 2001)))


class Large(np.ndarray):
    def __ne__(self, other):
        pytest.fail("compared with each name")


def test_a_large_array_in_place_of_a_list_is_not_compared_with_each_name():
    task = homework.course()["topological_order"]
    verdict = task.verdict(task.checks[-1], lambda parents: np.ones(1).view(Large))
    assert verdict.outcome == FAILED


def test_infinity_and_float32_are_not_equal_to_other_values():
    expected = np.array([1.0, -np.inf, np.nan, 2.0])
    homework.same(expected + 1e-13, expected)
    for k in range(4):
        wrong = expected.copy()
        wrong[k] = np.inf
        with pytest.raises(AssertionError):
            homework.same(wrong, expected)
    with pytest.raises(AssertionError, match="float32, where float64 is expected"):
        homework.same(np.float32([0.1]), np.array([0.1]))


@pytest.mark.parametrize(
    ("source", "expected", "says"),
    [
        (STUB, [PASSED, TO_DO], ""),
        ("raise NotImplementedError", [TO_DO, TO_DO], ""),
        ("def scale(x): pass", [FAILED, FAILED], "scaled.py defines no function scaled"),
        (RIGHT.replace("return y, pullback", "return [y, pullback]"), [FAILED, PASSED], "returns a list of array, function; it should return two things"),
        (
            f"import minimha\n{RIGHT}", [FAILED, FAILED],
            "ImportError: minimha cannot be imported here, where homework is graded in <module>, line 1: import minimha",
        ),
    ],
    ids=["stub", "file to do", "another name", "list", "import"],
)  # fmt: skip
def test_an_unfinished_submission_gets_a_message_with_the_reason(source, expected, says):
    verdicts = judged(source)
    assert outcomes(verdicts) == expected
    assert says in " ".join(verdicts[0].message.split())


def test_checks_that_the_stub_passes_earn_no_points():
    free = judge.passed_by_stub(TASK)
    assert free == {"values"}
    assert judge.score(judged(STUB), free) == 0
    assert judge.score(judged(RIGHT), free) == 1


def test_functions_passed_by_one_check_are_gone_in_the_next():
    source = b"kept = []\ndef f(g):\n    kept.append(g)\n    return kept[0]()\n"
    with Submission(source, "f", LIMITS) as submission:
        assert submission.function()(lambda: 1) == 1
        with pytest.raises(KeyError):
            submission.function()(lambda: 2)


ALONE = """
import os, runpy, sys, types
sys.modules["system_calls"] = types.SimpleNamespace(confine=lambda: None)
os.setuid = lambda number: None
runpy.run_path({!r}, run_name="__main__")
"""
KILLS = """
import os, sys
import numpy as np
allowed = sys.modules["__main__"]._ALLOWED
class Memory:
    __array_interface__ = dict(data=(id(allowed) + tuple.__basicsize__, False), shape=(1,), typestr="<u8", version=3)
np.asarray(Memory())[0] = id("os.kill")
os.kill(os.getppid(), {})
"""


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize(
    "signal",
    [pytest.param(9, id="killed"), pytest.param(19, id="stopped", marks=pytest.mark.thorough)],
)
def test_a_submission_that_ends_the_process_of_all_costs_its_own_points(
    signal, tmp_path, monkeypatch
):
    worker, folder = tmp_path / "worker.py", tmp_path / "in"
    worker.write_text(ALONE.format(str(process._WORKER)))  # without the kernel's help
    write(folder, {f"{name}_scaled.py": RIGHT for name in ("anna", "mallory", "zoe")})
    (folder / "mallory_scaled.py").write_text(KILLS.format(signal) + RIGHT)
    monkeypatch.setattr(process, "_WORKER", worker)
    monkeypatch.setattr(process, "_SECONDS", 3)
    process._server.cache_clear()
    try:
        report = grading.grade(folder, grading.Run(("scaled",), None, 0, LIMITS))
    finally:
        process._server.cache_clear()
    students = {student["student"]: student for student in report["students"]}
    points = {name: student["points"] for name, student in students.items()}
    assert points == {"anna": 3, "mallory": 0, "zoe": 3}
    for check in students["mallory"]["tasks"][0]["checks"]:
        assert "the process that runs submissions was killed" in check["message"]


def test_random_numbers_and_hashes_of_a_submission_are_the_same_in_each_run():
    source = (
        "import random\nimport numpy as np\n"
        "def f(): return random.random(), np.random.rand(), hash('a')"
    )
    drawn = called(source, "f")
    process._server.cache_clear()
    assert called(source, "f") == drawn


def test_an_argument_changed_in_place_gets_the_same_message_as_without_grading():
    softmax = homework.course()["softmax"]
    source = "import numpy as np\n" + softmax.code(solved=True).replace(
        "    e = np.exp(x - x", "    x -= x"
    ).replace("True))  #", "True)\n    e = np.exp(x)  #")
    values, gradients, *_ = judged(source, task=softmax)
    for verdict in (values, gradients):
        assert verdict.message == "yours changes x in place; it should work on a copy"


def test_an_array_that_another_function_returned_and_is_changed_in_place_is_detected():
    kept = np.ones(3)
    source = b"def f(g, x):\n    y = g()\n    y += x\n    x *= 2\n    return y\n"
    for restores, seen in ((True, 2), (False, 1)):
        x = np.ones(3)
        with Submission(source, "f", LIMITS) as submission:
            f = submission.function()
            submission.connection.restores = restores
            np.testing.assert_array_equal(f(lambda: kept, x), kept if restores else kept + 1)
        assert submission.connection.changed
        assert (x.tolist(), kept.tolist()) == ([seen] * 3, [2, 2, 2])


def test_an_array_that_comes_back_is_the_same_object():
    source = """
        def f(g, x):
            y = x + 1
            same, z = g(y) is y, x
            x[0] = 7
            return y, same, z, g(x)
    """
    x, w = np.ones(3), np.ones(2)
    _, same, z, gx = called(source, "f", lambda x: x, x)
    assert same
    assert x.tolist() == [1, 1, 1]  # because changes are not restored
    assert z.tolist() == gx.tolist() == [7, 1, 1]
    back = called("def f(x, w): return w, x, w", "f", x, w)
    assert [id(array) for array in back] == [id(w), id(x), id(w)]


def test_the_data_limit_counts_all_calls_together(monkeypatch):
    monkeypatch.setattr(process, "_MOST", 1 << 22)
    source = "import numpy as np\ndef scaled(x, factor, *, tap):\n    while True: tap('y', np.ones(1 << 17))\n"
    assert judged(source)[1].message == "it sent back too much"


@pytest.mark.thorough
def test_a_file_that_never_loads_costs_one_time_limit(monkeypatch):
    starts, start = [], Submission._start
    monkeypatch.setattr(Submission, "_start", lambda self: starts.append(start(self)))
    first, second = judged("while True: pass", Limits(1, 250))
    assert first.message == second.message
    assert first.message.startswith("not done after 1 seconds of processor time")
    assert len(starts) == 1


@pytest.mark.thorough
def test_a_task_takes_at_most_twice_the_time_limit_of_a_check():
    task = Task(scaled, 1, 3, 5, HINTS, ())
    task.checks = [*TASK.checks, *TASK.checks]
    source = """
        import time
        def scaled(*_, **__):
            end = time.process_time() + SECONDS
            while time.process_time() < end: pass
    """
    verdicts = judged(source.replace("SECONDS", "99"), Limits(1, 250), task)
    assert all(verdict.message.startswith("not done") for verdict in verdicts[:2])
    assert [verdict.message for verdict in verdicts[2:]] == ["no time was left for this check"] * 2
    _, _, third, fourth = judged(source.replace("SECONDS", "1.7"), Limits(2, 250), task)
    assert third.message.startswith("not done, and all checks together took 4 seconds of processor")
    assert fourth.message == "no time was left for this check"
