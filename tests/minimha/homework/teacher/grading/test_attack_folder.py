"""What the submissions in attacks/ earn: no more than they say, on kernels with and without seccomp.

Each attack is a submission for a task of the course:

    TASK__what_it_tries.py             one file
    TASK__what_it_tries/               several files of one student
    classmates__what_they_try/NAME/    several students

Its first line is the mark of the task; the second, `# earns POINTS`, says how many points it may
earn at most. Two kinds take long: `# earns POINTS, slowly` computes so long that it may need all of
the time limit, which does not depend on seccomp, and `# earns POINTS, endlessly` stops only at the
limit, so a short one is enough. VICTIM is replaced by the path of a folder with the files of others.
"""

import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import without_seccomp

from minimha import homework
from minimha.homework.checks.verdicts import FAILED
from minimha.homework.student import student_files
from minimha.homework.teacher.grading import grade as grading
from minimha.homework.teacher.grading import process, system_calls
from minimha.homework.teacher.grading.process import Limits

ATTACKS = sorted(x for x in Path(__file__).with_name("attacks").iterdir() if x.name[0] not in "._")
MARK = re.compile(r"# minimha homework: (\w+)")
EARNS = re.compile(r"# earns ([\d.]+)(?:, (\w+))?")


def files(path):
    """The texts of the files of an attack."""
    inside = sorted(x for x in path.rglob("*") if x.is_file()) if path.is_dir() else [path]
    return [x.read_text(encoding="utf-8") for x in inside if x.suffix in (".py", ".ipynb")]


def bound(path):
    """The most points that the files below this path may earn together."""
    return sum(float(found[1]) for text in files(path) for found in EARNS.finditer(text))


def pace(path):
    """None, "slowly" or "endlessly"."""
    return max((found[2] for text in files(path) for found in EARNS.finditer(text)), key=bool)


@pytest.fixture(
    scope="module",
    params=["this kernel", pytest.param("no seccomp", marks=pytest.mark.thorough)],
)
def system(request):
    """The kernel on which submissions run. Yields whether it is this one."""
    with pytest.MonkeyPatch.context() as patch:
        process._server.cache_clear()
        if request.param == "no seccomp":
            file = Path(without_seccomp.__file__)
            install = "import without_seccomp as x; raise SystemExit(not x.install())"
            if subprocess.run(
                [sys.executable, "-c", install], cwd=file.parent, check=False
            ).returncode:
                pytest.skip("this kernel has no seccomp")
            patch.setattr(process, "_WORKER", file)
            patch.setattr(system_calls, "_has_filters", lambda: False)
        yield request.param == "this kernel"
        process._server.cache_clear()


@pytest.mark.usefixtures("system")
def test_the_solution_earns_all_points(tmp_path):
    softmax = homework.course()["softmax"]
    (tmp_path / "anna_softmax.py").write_text(student_files.stub(softmax, solved=True))
    report = grading.grade(tmp_path, grading.Run(("softmax",), None, 0, Limits()))
    assert [student["points"] for student in report["students"]] == [softmax.difficulty]


def test_there_are_more_than_100_attacks():
    assert len(ATTACKS) > 100


@pytest.mark.thorough
@pytest.mark.parametrize("path", ATTACKS, ids=lambda path: path.stem)
def test_an_attack_earns_no_more_than_it_says_and_changes_no_file(path, system, tmp_path):
    if pace(path) == "slowly" and not system:
        pytest.skip("it computes, as on this kernel")
    folder = tmp_path / "in"
    many = path.name.startswith("classmates__")
    if path.is_file():
        (folder / "mallory").mkdir(parents=True)
        shutil.copy(path, folder / "mallory" / f"answer{path.suffix}")
    else:
        shutil.copytree(path, folder if many else folder / "mallory")
    (tmp_path / "grades.json").write_text("the teacher's")
    for file in folder.rglob("*.*"):
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace("VICTIM", str(tmp_path)), encoding="utf-8")

    def snapshot():
        return {x: x.read_bytes() for x in tmp_path.rglob("[!.]*") if x.is_file()}

    before = snapshot()
    marked = {path.name.split("__")[0], *MARK.findall("\n".join(files(path)))}
    tasks = tuple(sorted(marked & set(homework.course())))
    limits = Limits(2) if pace(path) == "endlessly" else Limits()
    run = grading.Run(tasks, None, secrets.randbits(32), limits)
    report = grading.grade(folder, run)
    if system_calls.protects():
        assert snapshot() == before
    earned = {student["student"]: student["points"] for student in report["students"]}
    bounds = {x.name: bound(x) for x in folder.iterdir() if x.is_dir()}
    assert earned.keys() == bounds.keys()
    assert all(earned[name] <= bounds[name] for name in earned), (earned, bounds, report)
    checks = [x for s in report["students"] for task in s["tasks"] for x in task["checks"]]
    assert all(check["message"] for check in checks if check["outcome"] == FAILED)
