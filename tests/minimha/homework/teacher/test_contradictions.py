"""A teacher's file that contradicts itself is refused, in a line for each contradiction."""

import pytest
from graded import ROOT

OWN = (ROOT / "docs" / "own_tasks.py").read_text(encoding="utf-8")
BEGIN = "    # BEGIN SOLUTION: return y, and a function pullback(dy)\n"
END = "    # END SOLUTION\n"
DRAWN = '    x = rng.standard_normal((3, 4))\n    same(value_of(yours(x), "sigmoid")'
VALUES = f"def values(yours, rng):\n{DRAWN}"
MISTAKE = '    "dy * y * (1 - y)",\n    "dy * y",\n'
TEXT = "the mistake “dx = dy · y: the factor 1 − y is missing.”"
HINTS = OWN[OWN.index("hints=(") : OWN.index("    ),") + 6]
PULLBACK = "            return (dy * y * (1 - y),)"

CONTRADICTORY = {
    "no marks": (
        [(BEGIN, ""), (END, "")],
        "sigmoid: the stub passes every check: mark the solution with # BEGIN and # END SOLUTION",
    ),
    "one mark": (
        [(END, "")],
        "sigmoid: a BEGIN SOLUTION without an END SOLUTION, or the reverse, below def sigmoid(x):",
    ),
    "a wrong solution": (
        [("return (dy * y * (1 - y),)\n\n", "return (dy * y * (1 + y),)\n\n")],
        "sigmoid, gradients: the solution does not pass: sigmoid: the gradient of x is wrong",
    ),
    "a solution that needs more of the file": (
        [("    y = 1 / (1", "    y = ONE / (1"), ("@task(", "ONE = 1\n\n\n@task(")],
        "sigmoid, values: the solution does not pass: NameError: name 'ONE' is not defined",
    ),
    "a check with an error": (
        [("value_of(yours(x)", "value_of(yuors(x)")],
        "sigmoid, values: the solution does not pass: NameError: name 'yuors' is not defined",
    ),
    "a check without a message": (
        [(VALUES, f"def values(yours, rng):\n    assert False\n{DRAWN}")],
        "sigmoid, values: the solution does not pass",
    ),
    "a check that passes what cannot be sent": (
        [(DRAWN, f"    yours({{1}})\n{DRAWN}"), ("    y = 1 /", "    if type(x) is set:\n        return x\n    y = 1 /")],
        "sigmoid, values: as a submission the solution fails: TypeError: a set cannot be sent, only arrays, numbers, text, None, functions, and tuples, lists and dictionaries of these",
    ),
    "a check that turns every error into one of its own": (
        [(DRAWN, "    try:\n        yours(np.ones(3))\n    except Exception:\n        raise AssertionError('it raises') from None\n" + DRAWN)],
        "sigmoid, values: the stub is wrong and not to do: it raises",
    ),
    "a check with other numbers each time": (
        [("x, large = rng.", "x, large = np.random.")],
        "sigmoid, gradients: the solution fails in a release, which records its results: y is wrong",
    ),
    "a check whose results a release cannot record": (
        [(DRAWN, f"    sigmoid(1j)\n{DRAWN}"), ("    y = 1 /", "    if type(x) is complex:\n        return x\n    y = 1 /")],
        "sigmoid, values: the solution fails in a release, which records its results: Object of type complex is not JSON serializable",
    ),
    "only hidden checks": (
        [("@sigmoid.check\n", "@sigmoid.check(hidden=True)\n"), ("weight=2", "hidden=True")],
        "sigmoid: write a check that is not hidden, or students have none to run",
    ),
    "one hint": (
        [(HINTS, 'hints=("Derive dy/dx.")')],
        "sigmoid: write three hints: where to look, what to do, almost the code",
    ),
    "hints in a variable": (
        [(HINTS, "hints=HINTS"), ("@task(", "HINTS = ('1', '2', '3')\n\n\n@task(")],
        "sigmoid: write the hints into the decorator",
    ),
    "no text": (
        [(OWN[OWN.index('    """The') : OWN.index(BEGIN)], "")],
        "sigmoid: write a docstring, which is the text that students read",
    ),
    "a mistake that is not in the solution": (
        [(MISTAKE, MISTAKE.replace("(1 - y)", "(1-y)"))],
        f"sigmoid: {TEXT} cannot be made: 'dy * y * (1-y)' is in the solution 0 times, not once",
    ),
    "a mistake that is not Python": (
        [(MISTAKE, MISTAKE.replace('"dy * y"', '"dy *"'))],
        f"sigmoid: {TEXT} cannot be made: invalid syntax (<",
    ),
    "a mistake that changes nothing": (
        [(MISTAKE, MISTAKE.replace('"dy * y"', '"y * dy * (1 - y)"'))],
        f"sigmoid: no check finds {TEXT}",
    ),
    "two mistakes with the same results": (
        [("sigmoid.mistake(", f'sigmoid.mistake(\n{MISTAKE}    "(1 − y) is missing"\n)\nsigmoid.mistake(')],
        f"sigmoid, gradients: {TEXT} is taken for “(1 − y) is missing”",
    ),
    "a mistake whose results are right": (
        [("sigmoid.mistake(", 'sigmoid.mistake("y = 1 / (1 + np.exp(-x))", "x *= -1; y = 1 / (1 + np.exp(x))", "x is changed")\nsigmoid.mistake(')],
        "sigmoid, values: the mistake “x is changed” is found but not named",
    ),
}  # fmt: skip


def edited(path, edits):
    text = OWN
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("edits", "says"), CONTRADICTORY.values(), ids=CONTRADICTORY)
def test_a_contradiction_is_one_line(edits, says, student, folder):
    edited(folder / "own.py", edits)
    code, shown = student("test own.py")
    assert code == 2
    assert shown.startswith(f"minimha: own.py contradicts itself\n  {says}")
    assert all(line.startswith("  sigmoid") for line in shown.splitlines()[1:])


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ([("import numpy as np\n", "import nonesuch\n")], "ModuleNotFoundError: No module named 'nonesuch', in line 3: import nonesuch\n"),
        ([("@task(", "@tsk(")], "NameError: name 'tsk' is not defined, in line 8: @tsk("),
        ([("    minutes=5,\n", "")], "TypeError: task() missing 1 required keyword-only argument: 'minutes', in line 8: @task("),
    ],
)  # fmt: skip
def test_a_file_that_does_not_run_is_one_line(edits, says, student, folder):
    edited(folder / "own.py", edits)
    code, shown = student("test own.py")
    assert code == 2
    assert shown.startswith(f"minimha: own.py cannot be used: {says}")
    assert shown.count("\n") == 1


def test_a_file_without_contradictions_is_ready(student, folder):
    edited(folder / "own.py", [])
    assert student("test own.py")[0] == 0


@pytest.mark.parametrize("command", ["release week5", "grade monday", "ci github"])
def test_nothing_is_written_with_a_task_that_contradicts_itself(command, student, folder):
    edited(folder / "own.py", CONTRADICTORY["a mistake that changes nothing"][0])
    (folder / "monday" / "ann").mkdir(parents=True)
    code, shown = student(f"{command} --tasks own.py")
    assert code == 2
    assert shown.startswith("minimha: own.py contradicts itself\n")
    assert sorted(path.name for path in folder.rglob("*")) == ["ann", "monday", "own.py"]
