"""A release gives students everything except the solutions."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from answers import WRONG
from graded import ROOT

import minimha
from minimha import homework
from minimha.__main__ import main
from minimha.homework import replay, student_files
from minimha.homework.calls import calls_recorded
from minimha.homework.release.public import public
from minimha.homework.solutions import stubbed
from minimha.homework.task import source_of
from minimha.homework.verdicts import PASSED

OWN = ROOT / "docs" / "own_tasks.py"


def written(folder, *options):
    """A release, and the folder into which its wheel is unpacked."""
    assert main(["homework", "release", str(folder), *options]) == 0
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "unpacked")
    return folder


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A release with a teacher's own task, without the hidden checks."""
    try:
        own = tmp_path_factory.mktemp("own") / "week-2.py"
        text = OWN.read_text(encoding="utf-8").replace("hints=(", "hints=[")
        own.write_text(text.replace("    ),", "    ],"), encoding="utf-8")
        yield written(tmp_path_factory.mktemp("r") / "r", "--hidden", "--tasks", str(own))
    finally:
        homework.TASKS.pop("sigmoid", None)


def texts(folder):
    """The text of each file, of notebooks only the cells."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix not in (".whl", ".json"):
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".ipynb":
                text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
            yield path.relative_to(folder), text


def lines(text):
    """The lines long enough to be recognised as somebody's."""
    return {line for x in text.splitlines() if len(line := x.strip()) > 12 and line[0] != ")"}


def solution_lines(task):
    marked = re.findall(
        r"# BEGIN SOLUTION[^\n]*\n(.*?)# END SOLUTION", source_of(task.solution), re.DOTALL
    )
    return set().union(*map(lines, marked))


def shown_anyway():
    """The text that the library, the chapters and the given functions show in any case."""
    library = (path for path in Path(minimha.__file__).parent.rglob("*.py"))
    library = [path for path in library if "homework" not in path.parts]
    sources = [*library, *(ROOT / "autograd").rglob("*.py")]
    sources += (ROOT / "notebooks" / "source").glob("*.md")
    given = {f for task in homework.course().values() for f in (*task.given, task.solution)}
    found = [path.read_text(encoding="utf-8") for path in sources]
    return "\n".join(stubbed(text) for text in [*found, *map(source_of, given)])


def test_no_solution_line_appears_anywhere_in_a_release(release):
    secret = set().union(*(solution_lines(task) for task in homework.course().values()))
    shown = shown_anyway()
    secret = {line for line in secret if line not in shown}
    assert len(secret) > 200
    assert solution_lines(homework.course()["sigmoid"]) & secret
    for path, text in texts(release):
        own = lines(text)
        assert not [x for x in secret if x in own or (len(x) > 25 and x in text)], path


def test_a_solution_left_in_a_source_would_be_noticed(release):
    task = homework.course()["sigmoid"]
    assert solution_lines(task) & lines(source_of(task.solution))
    assert not solution_lines(task) & lines(public(OWN.read_text(encoding="utf-8")))


def test_mistakes_third_hints_and_hidden_checks_are_left_out():
    text = '''
@task(hints=(
    "one — é",
    "two",
    "three",
))
def f(x):
    # BEGIN SOLUTION: return x
    return x
    # END SOLUTION


@f.check
def shown(yours, rng):
    pass


@f.check(weight=2, hidden=True)
def kept(yours, rng):
    """Never shown."""


f.case("kept too", shown, (3,), (4,), hidden=True)
for old in "ab":
    f.mistake(old, "c", "no")
f.mistake("a", "b", "no")
f.mistakes += patches("- a")
'''
    expected = '''
@task(hints=(
    "one — é",
    "two",
))
def f(x):
    raise NotImplementedError  # return x


@f.check
def shown(yours, rng):
    pass


@f.check(weight=2, hidden=True)
def kept(yours, rng):
    """Never shown."""


f.case("kept too", shown, (3,), (4,), hidden=True)
'''
    assert public(text) == expected
    assert public(text, hidden=True) == expected[: expected.index("\n\n\n@f.check(weight")] + "\n"


def test_hints_that_cannot_be_left_out_are_refused():
    with pytest.raises(ValueError, match="f: write the hints into the decorator"):
        public("@task(hints=HINTS)\ndef f(x):\n    pass\n")


STUDENT = """
import json, sys, warnings
import numpy as np
from minimha import homework
warnings.simplefilter("ignore")
found = []
for name, code in json.load(sys.stdin):
    names = {"np": np}
    exec(compile(code, "answer.py", "exec"), names)
    task = homework.course()[name]
    found.append([[v.check.name, v.outcome] for v in task.verdicts(names[name])])
json.dump(found, sys.stdout)
"""


def as_student(release, *command, **settings):
    """Run Python as a student who has installed the wheel."""
    home = release / "homework"
    environment = os.environ | {"PYTHONPATH": str(release / "unpacked"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=home, env=environment, capture_output=True, text=True,
        check=False, **settings,
    )  # fmt: skip


def verdicts_of_students(release, answers):
    done = as_student(release, "-c", STUDENT, input=json.dumps(answers))
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_right_answers_pass_every_public_check(release):
    tasks = list(homework.course().values())
    answers = [(task.name, task.code(solved=True)) for task in tasks]
    for task, verdicts in zip(tasks, verdicts_of_students(release, answers), strict=True):
        public_checks = [check.name for check in task.checks if not check.hidden]
        assert verdicts == [[name, PASSED] for name in public_checks], task.name


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_wrong_answers_fail_the_same_public_checks_as_with_the_teachers_copy(release):
    answers = WRONG[::4]
    found = verdicts_of_students(release, [(x.task, x.code()) for x in answers])
    assert len(found) > 100
    for answer, verdicts in zip(answers, found, strict=True):
        mine = [[v.check.name, v.outcome] for v in answer.verdicts() if not v.check.hidden]
        assert verdicts == mine, (answer.task, answer.mistake)


@pytest.mark.thorough
def test_a_student_starts_checks_and_is_refused_the_key(release):
    file = release / "homework" / "softmax.py"
    stub = file.read_text(encoding="utf-8")
    solved = student_files.stub(homework.course()["softmax"], solved=True)
    wrong = solved.replace("y * (dy - ", "y * (dy + ")
    try:
        for text, code, says in (
            (stub, 0, "to do  softmax: dx matches"),
            (wrong, 1, "wrong  softmax: dx matches"),
            (solved, 0, "ok     softmax: dx matches"),
        ):
            file.write_text(text, encoding="utf-8")
            done = as_student(release, "-m", "minimha", "homework", "check", "softmax")
            assert says in done.stdout
            assert "overflow" not in done.stdout  # a hidden check
            assert done.returncode == code
    finally:
        file.write_text(stub, encoding="utf-8")
    for command, says in (
        (["key", "softmax"], "the answer key needs the teacher's copy of minimha"),
        (["release", "new"], "a release needs the teacher's copy of minimha"),
        (["grade", ".", "--student", "me", "--seed", "1"], "only with --seed 0"),
    ):
        done = as_student(release, "-m", "minimha", "homework", *command)
        assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def replayed(calls):
    """The function with these calls, as a release has it."""
    return replay.replaying(list(map(replay.stored, calls)))


def test_a_call_that_one_solution_makes_of_another_is_not_recorded():
    inside, inner_calls, outer_calls = [], [], []
    inner = calls_recorded(lambda x: x + 1, inner_calls, inside=inside)
    outer = calls_recorded(lambda x: 2 * inner(x), outer_calls, inside=inside)
    assert (outer(1), inner(5)) == (4, 6)
    assert (replayed(outer_calls)(1), replayed(inner_calls)(5)) == (4, 6)


def test_a_result_that_is_changed_in_place_is_replayed_unchanged():
    calls = []
    first = calls_recorded(lambda: np.ones(2), calls)()
    first += 1
    for _ in range(2):
        again = replayed(calls)()
        assert again.tolist() == [1, 1]
        again += 1


def test_of_a_large_array_a_release_keeps_what_tells_it_from_others():
    large, calls = np.random.default_rng(0).standard_normal((60, 50)), []
    calls_recorded(lambda: (large, {"x": large}), calls)()
    data = replay.packed({"task": {"check": {"f": list(map(replay.stored, calls))}}})
    assert len(data) < 1000
    y, named = replay.replaying(replay.unpacked(data)["task"]["check"]["f"])()
    wrong = large.copy()
    wrong[7, 3] += 1e-6
    for kept in (y, named["x"]):
        homework.same(large, kept)
        for other in (wrong, large.reshape(50, 60), large[:, :7], large.tolist()):
            with pytest.raises(AssertionError):
                homework.same(other, kept)


def test_a_release_has_no_results_of_hidden_checks(release):
    (path,) = release.rglob(replay.FILE.name)
    for name, results in replay.unpacked(path.read_bytes()).items():
        shown = [check.name for check in homework.course()[name].checks if not check.hidden]
        assert list(results) == shown


def test_the_folder_has_what_students_need(release):
    names = {path.name for path in release.iterdir()} - {"unpacked"}
    wheel = f"minimha-{minimha.__version__}+students-py3-none-any.whl"
    assert names == {"AGENTS.md", "README.md", "homework", "notebooks", wheel}
    assert len(list((release / "homework").glob("*.py"))) == len(homework.course())
    text = (release / "README.md").read_text(encoding="utf-8")
    assert wheel in text
    alone = "`per_head`, `stacked`, `fused`, `double`, `scores`, `head_contributions`, `sigmoid`"
    assert f"These tasks are in no notebook: {alone}.\n" in text
    (metadata,) = (release / "unpacked").glob("*/METADATA")
    assert f"\nVersion: {minimha.__version__}+students\n" in metadata.read_text(encoding="utf-8")


def test_the_folder_must_be_new(release, capsys):
    assert main(["homework", "release", str(release)]) == 2
    assert "is not empty" in capsys.readouterr().err
