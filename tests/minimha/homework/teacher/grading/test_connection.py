"""Two processes call each other's functions; malformed messages are refused."""

import io
import struct

import numpy as np
import pytest
from answers import WRONG
from graded import LIMITS, called, judged, outcomes

from minimha import homework
from minimha.homework.checks.task import FAILED, PASSED
from minimha.homework.teacher.grading.connection import MOST, Connection, ConnectionLost
from minimha.homework.teacher.grading.process import Limits, Submission

TASKS = homework.course()
ONE_A_TASK = {answer.task: answer for answer in WRONG}
FIRST_OF_CHAPTER = {TASKS[name].chapter: name for name in reversed(ONE_A_TASK)}.values()
ANSWERS = [
    pytest.param(answer, id=name, marks=[pytest.mark.thorough] * (name not in FIRST_OF_CHAPTER))
    for name, answer in ONE_A_TASK.items()
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_wrong_answer_gets_the_same_message_as_without_grading(answer):
    there = judged(f"import numpy as np\n{answer.code()}", Limits(), TASKS[answer.task])
    here = answer.verdicts()
    assert outcomes(there) == outcomes(here)
    assert FAILED in outcomes(there)
    for a, b in zip(there, here, strict=True):
        assert a.message.splitlines()[:1] == b.message.splitlines()[:1]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tiled_forward", "tiled_backward"])
def test_an_array_of_all_query_key_pairs_exceeds_the_memory_limit(name):
    kind = name, "all scores, cut into tiles"
    (answer,) = (x for x in WRONG if (x.task, x.mistake) == kind)
    *others, last = judged(f"import numpy as np\n{answer.code()}", Limits(60), TASKS[name])
    assert set(outcomes(others)) == {PASSED}
    assert (last.outcome, last.check.name) == (FAILED, answer.verdicts()[-1].check.name)
    assert "MemoryError" in last.message


def test_values_keep_their_type_and_content():
    values = [
        None, True, 3, -1.5, float("nan"), 1 + 2j, "ä\n", (), [1, (2, [])], {"a": {"b": ()}},
        np.float32(2.5), np.int8(-3), np.True_, np.zeros((0, 3)), np.zeros(()), np.arange(6).reshape(2, 3).T,
        np.array([True, False]), np.array([1 + 1j]), np.arange(3, dtype=">i4"), np.ones(2, np.longdouble),
    ]  # fmt: skip
    source = "def echo(*arguments, **settings): return arguments, settings"
    (*back,), settings = called(source, "echo", *values, tuple=(1,), list="array")
    assert settings == {"tuple": (1,), "list": "array"}
    for x, y in zip(values, back, strict=True):
        assert type(x) is type(y)
        if isinstance(x, np.ndarray | np.generic):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            np.testing.assert_array_equal(x, y)
        else:
            assert repr(x) == repr(y)


def test_functions_can_be_called_across_processes_and_keep_their_errors():
    source = b"""
def outer(f, x, *, tap):
    try:
        f(-1)
    except ValueError as error:
        refused = str(error)
    return tap("y", f(x)), refused, f, lambda g: g(outer)
"""

    def root(x):
        if x < 0:
            raise ValueError(f"no root of {x}")
        return x**0.5

    with Submission(source, "outer", LIMITS) as submission:
        outer = submission.function()
        y, refused, same_f, apply = outer(root, 16.0, tap=lambda name, x: (name, x))
        assert (y, refused, same_f) == (("y", 4.0), "no root of -1", root)
        assert apply(lambda g: g.__name__) == "outer"
        with pytest.raises(ValueError, match=r"no root of -4\.0\n  in outer, line 7: return tap"):
            outer(root, -4.0, tap=None)


def message(text, body=bytes(8)):
    return struct.pack(">II", len(text), len(body)) + text + body


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", 1 << 31, 0),
        struct.pack(">II", 2, MOST + 1),
        *map(message, (
            b"{}", b"[" * 10**5, b"\xff", b"9" * 9999, b'["array"]', b'["list", "return", 1, ["list"]]',
            b'["list", ["array", "|O", [1], false]]', b'["list", ["array", "<f7", [1], false]]',
            b'["list", ["array", "<f8", [-1], false]]', b'["list", ["array", "<f8", [2], false]]',
            b'["list", ["array", "<f8", [4611686018427387904, 4], false]]',
            b'["list", ["yours", 5], ["array", "<f8", [1], false]]', b'["pickle", ["array", "<f8", [1], false]]',
            b'["list", "return", ["lent", 0], ["list"], ["array", "<f8", [1], false]]',
            b'["list", "jump", ["array", "<f8", [1], false]]', b'["list", "raise", [], 3]',
        )),
        message(b'["list", "return", ["array", "<f8", [100000000000, 0], false], ["list"]]', b""),  # a sum of 800 GB
    ],
)  # fmt: skip
def test_malformed_messages_are_refused(data):
    received, asked = io.BytesIO(data), []
    with pytest.raises(ConnectionLost):
        Connection(lambda n: asked.append(n) or received.read(n), lambda data: None).call(0, (), {})
    assert max(asked) <= MOST


def test_booleans_are_normalised_to_0_and_1():
    received = io.BytesIO(
        message(b'["list", "return", ["array", "|b1", [2], false], ["list"]]', b"\2\0")
    )
    answer = Connection(received.read, lambda data: None).call(0, (), {})
    assert answer.tobytes() == b"\1\0"
