"""The verdict on an answer is the same in each run, at home and in grading.

Python gives objects other addresses, and strings other hashes, in each run.
"""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import answers
import numpy as np
import pytest
from graded import LIMITS, TASK, judged

from minimha import homework
from minimha.homework.checks.shown import shown
from minimha.homework.student import student_files

TESTS = Path(__file__).parents[2]
RETURNED = [
    "lambda: 0", "x.sum", "print", "iter([1])", "object()", "{'one', 'two', 'three', 'four'}",
    "[object(), x.sum]", "np.array([object()])", "(x, lambda *_: object())",
    "(x, lambda *_: (object(),))", "(_ for _ in ()).throw(ValueError(object()))",
]  # fmt: skip
FUNCTION = """
import numpy as np
def {}(*arguments, **settings):
    x = np.ones((3, 5))
    return {}
"""


def sample():
    """The checks that some wrong answers fail, with their messages."""
    tasks = homework.course()
    for k, answer in enumerate(answers.WRONG):
        if re.search(r"\b(set|tiles?)\b", answer.mistake) or k % 40 == 0:
            for verdict in answer.verdicts():
                yield f"{answer.task}: {answer.mistake}", verdict.check.name, verdict.message
    for name, task in list(tasks.items())[::5]:
        for returned in RETURNED:
            yours = answers.function(name, FUNCTION.format(name, returned))
            verdict = student_files.verdict(task, task.checks[0], yours, None)
            yield f"{name}: returns {returned}", verdict.check.name, verdict.message


@pytest.mark.thorough
def test_no_verdict_depends_on_hashes_or_addresses():
    def run(seed):
        one_thread = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
        path = os.pathsep.join([str(TESTS), *sys.path])
        own = one_thread | {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        return subprocess.Popen(
            [sys.executable, __file__], env=os.environ | own, text=True, stdout=subprocess.PIPE
        )

    runs = [run("1"), run("2")]
    one, two = (json.loads(process.communicate()[0]) for process in runs)
    assert len(one) > 250
    different = [pair for pair in zip(one, two, strict=True) if pair[0] != pair[1]]
    assert not different
    assert not [line for line in one if "0x" in line[-1]]


@pytest.mark.parametrize("returned", [
    "lambda: 0", "x.sum", "np.exp", "np.sum", "functools.partial(print)", "[x.sum, np.exp]",
    "(lambda: 0, np.exp, 1)", "{'y': x.sum}",
])  # fmt: skip
def test_a_function_is_shown_in_the_same_way_at_home_and_in_grading(returned):
    source = FUNCTION.format("scaled", returned).replace("import", "import functools\nimport", 1)
    yours = answers.function("scaled", source)
    graded, *_ = judged(source, LIMITS)
    assert graded.message == student_files.verdict(TASK, TASK.checks[0], yours, None).message


def test_the_first_block_at_fault_is_named_at_home_and_in_grading():
    mine = "tiled_product", "tiles twice as wide"
    answer = next(x for x in answers.WRONG if (x.task, x.mistake) == mine)
    task, code = homework.course()[answer.task], f"import numpy as np\n{answer.code()}"
    home = [verdict.message for verdict in answer.verdicts()]
    assert [verdict.message for verdict in judged(code, LIMITS, task)] == home
    assert all(message.startswith("block (0, 0) ") for message in home)


@pytest.mark.parametrize(("value", "text"), [
    (np.ones(3).sum, "<function sum>"),
    ([print, {"f": len}], "[<function print>, {'f': <function len>}]"),
    ({"c", "a", "b"}, "{'a', 'b', 'c'}"),
    (np.array([1.5, 2]), "array([1.5, 2. ])"),
    ((1, "a", None), "(1, 'a', None)"),
    (object(), "<object object>"),
])  # fmt: skip
def test_values_are_shown_without_addresses(value, text):
    assert shown(value) == text


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        json.dump([*sample()], sys.stdout)
