"""A release gives students everything except the solutions."""

import json
import os
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from answers import WRONG
from graded import ROOT
from solution_lines import SHOWN, solution_lines, squeezed

import minimha
from minimha import homework
from minimha.__main__ import main
from minimha.course import CHAPTERS
from minimha.homework.checks import replay
from minimha.homework.checks.calls import calls_recorded
from minimha.homework.checks.verdicts import PASSED
from minimha.homework.student import student_files
from minimha.homework.teacher.release.public import public

OWN = ROOT / "docs" / "own_tasks.py"
SOURCES = sorted((ROOT / "notebooks" / "source").glob("*.md"))
pytestmark = pytest.mark.thorough  # it takes seconds to make a release


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


def shown_in(folder):
    """The lines of solutions, however spaced, in any file of a release or of its wheel."""
    texts = [path.read_text(encoding="utf-8") for path in files(folder)]
    everything = "\n".join(squeezed(text).replace(r"\"", '"') for text in texts)
    solutions = set().union(*map(solution_lines, homework.course().values()))
    assert len(solutions) > 200
    return {line for line in solutions if squeezed(line) in everything}


def files(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path for path in paths if path.suffix != ".whl"]


@pytest.mark.parametrize("last", CHAPTERS)
def test_a_release_shows_no_solution_before_a_chapter_does(last, tmp_path):
    folder = written(tmp_path / "r", "--only", str(last))
    assert shown_in(folder) == {line for line, first in SHOWN.items() if first <= last}


def test_a_release_shows_no_solution_of_a_task_of_the_teachers_own(release):
    assert solution_lines(homework.course()["sigmoid"])
    assert shown_in(release) == set(SHOWN)


def test_chapters_and_tasks_after_the_last_are_left_out(tmp_path, capsys):
    folder = written(tmp_path / "r", "--only", "softmax", "02")
    assert "with the chapters up to 05 attention\n" in capsys.readouterr().out
    numbered = [path.name for path in files(folder) if re.match(r"(ch)?\d\d_", path.name)]
    assert {int(re.search(r"\d\d", name)[0]) for name in numbered} == {1, 2, 3, 4, 5}
    (results,) = folder.rglob(replay.FILE.name)
    chapters = {homework.course()[name].chapter for name in replay.unpacked(results.read_bytes())}
    assert chapters == {1, 2, 3, 4, 5}


def test_the_commands_know_only_the_released_chapters(tmp_path):
    folder = written(tmp_path / "r", "--only", "02")
    for command, code, says in (
        ("homework list", 0, "02 autograd"),
        ("homework progress", 0, "0 of 7 tasks"),
        ("homework start softmax", 2, "no task is called 'softmax'"),
        ("notebooks --no-open chapters", 0, "2 chapters in chapters: 2 new"),
    ):
        done = as_student(folder, "-m", "minimha", *command.split())
        assert (done.returncode, says in done.stdout + done.stderr) == (code, True), done
        assert "03" not in done.stdout


def test_a_solution_left_in_a_source_would_be_noticed(release):
    for line in solution_lines(homework.course()["softmax"]):
        (release / "unpacked" / "left").write_text(line.replace(" ", "\n"), encoding="utf-8")
        assert shown_in(release) == {*SHOWN, line}
    (release / "unpacked" / "left").unlink()


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


def test_right_answers_pass_every_public_check(release):
    tasks = list(homework.course().values())
    answers = [(task.name, task.code(solved=True)) for task in tasks]
    for task, verdicts in zip(tasks, verdicts_of_students(release, answers), strict=True):
        public_checks = [check.name for check in task.checks if not check.hidden]
        assert verdicts == [[name, PASSED] for name in public_checks], task.name


@pytest.mark.filterwarnings("ignore")
def test_wrong_answers_fail_the_same_public_checks_as_with_the_teachers_copy(release):
    answers = WRONG[::8]  # at least one of each task
    found = verdicts_of_students(release, [(x.task, x.code()) for x in answers])
    assert len(found) > 100
    for answer, verdicts in zip(answers, found, strict=True):
        mine = [[v.check.name, v.outcome] for v in answer.verdicts() if not v.check.hidden]
        assert verdicts == mine, (answer.task, answer.mistake)


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
    wheel = f"minimha-{minimha.__version__}+students.15-py3-none-any.whl"
    assert names == {"AGENTS.md", "CLAUDE.md", "README.md", "homework", "notebooks", wheel}
    assert (release / "CLAUDE.md").read_text(encoding="utf-8") == "@AGENTS.md\n"
    assert len(list((release / "homework").glob("*.py"))) == len(homework.course())
    text = (release / "README.md").read_text(encoding="utf-8")
    assert wheel in text
    chapters = "".join(path.read_text(encoding="utf-8") for path in SOURCES)
    in_chapters = re.findall(r"^# exercise: (\w+)", chapters, re.MULTILINE)
    alone = ", ".join(f"`{name}`" for name in homework.course() if name not in in_chapters)
    assert "`per_head`" in alone
    assert f"These tasks are in no notebook: {alone}.\n" in text
    (metadata,) = (release / "unpacked").glob("*/METADATA")
    assert f"\nVersion: {minimha.__version__}+students.15\n" in metadata.read_text(encoding="utf-8")


def test_the_folder_must_be_new(release, capsys):
    assert main(["homework", "release", str(release)]) == 2
    assert "is not empty" in capsys.readouterr().err
