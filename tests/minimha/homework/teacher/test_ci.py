"""The files with which services grade homework."""

import argparse
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from graded import PACKAGE, ROOT, options

from minimha import homework
from minimha.__main__ import main
from minimha.course import CHAPTERS
from minimha.homework.checks import replay
from minimha.homework.student import student_files
from minimha.homework.teacher import ci

SOLVED = student_files.stub(homework.course()["softmax"], solved=True)
EARLIER, RELEASED = (f"minimha-1.0+students.{n}-py3-none-any.whl" for n in (9, 10))


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the files of a service beside the wheel of a release."""
    (tmp_path / RELEASED).touch()
    monkeypatch.chdir(tmp_path)

    return lambda *arguments: ci.write_ci_files(options(ci, *arguments))


def scripts(workflow):
    """The shell scripts in a workflow of GitHub or GitLab, in order."""
    if "jobs" not in workflow:
        return workflow["homework"]["script"]
    return [step["run"] for step in workflow["jobs"]["grade"]["steps"] if "run" in step]


def installed(script, **secrets):
    """What a script tells pip to install beside NumPy."""
    done = subprocess.run(
        ["bash", "-c", f'pip() {{ printf "%s\\n" "${{@:2}}"; }}\n{script}'], env=secrets,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    alone, numpy, *others = done.stdout.splitlines()
    assert (alone, numpy) == ("--no-deps", "numpy")
    return others


@pytest.mark.parametrize(
    ("service", "file"),
    [("github", ".github/workflows/homework.yml"), ("gitlab", ".gitlab-ci.yml")],
)
def test_a_workflow_installs_the_last_release_and_grades_the_chosen_tasks(
    service, file, write, capsys
):
    Path(EARLIER).touch()
    assert write(service, "--only", "05", "softmax") == 0
    assert "For\nscores that count, grade again yourself" in capsys.readouterr().out
    install, grade = scripts(yaml.safe_load(Path(file).read_text(encoding="utf-8")))
    assert installed(install) == [f"./{RELEASED}"]
    assert installed(install, MINIMHA="git+https://me@a.org/mine") == ["git+https://me@a.org/mine"]
    assert grade.startswith("minimha homework grade . --student ")
    assert "--only 05 softmax" in grade


@pytest.mark.parametrize("service", ci.FILES)
def test_no_file_is_overwritten(service, write, tmp_path):
    *_, last = ci.FILES[service]
    Path(last).parent.mkdir(parents=True, exist_ok=True)
    Path(last).write_text("mine")
    before = set(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError, match="was not changed"):
        write(service)
    assert Path(last).read_text() == "mine"
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("origin", "installs"),
    [
        (None, "minimha==9"),
        ({"url": "https://a.org/minimha.whl"}, "minimha @ https://a.org/minimha.whl"),
        (
            {"url": "https://a.org/m", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "minimha @ git+https://a.org/m@abc",
        ),
    ],
)
def test_without_a_wheel_minimha_comes_from_where_this_one_came_from(
    origin, installs, write, tmp_path, monkeypatch
):
    class Distribution:
        version = "9"

        def read_text(self, name):
            assert name == "direct_url.json"
            return json.dumps(origin) if origin else None

    (tmp_path / RELEASED).unlink()
    monkeypatch.setattr(ci.importlib.metadata, "distribution", lambda name: Distribution())
    write("gitlab")
    workflow = yaml.safe_load(Path(".gitlab-ci.yml").read_text(encoding="utf-8"))
    assert installed(scripts(workflow)[0]) == [installs]


def test_a_folder_of_the_teachers_own_is_nothing_to_install(write, tmp_path, monkeypatch):
    (tmp_path / RELEASED).unlink()
    origin = type("", (), {"read_text": lambda self, name: '{"url": "file:///home/me/minimha"}'})
    monkeypatch.setattr(ci.importlib.metadata, "distribution", lambda name: origin())
    with pytest.raises(ValueError, match="minimha homework release"):
        write("github")


def test_unknown_tasks_are_refused(write):
    with pytest.raises(ValueError, match="no task or chapter is called 99"):
        write("github", "--only", "99")
    with pytest.raises(ValueError, match="the wheel of a release contains your own tasks"):
        ci.write_ci_files(argparse.Namespace(service="github", only=None, tasks=Path("own.py")))


def test_gradescope_gets_a_wheel_with_solutions_and_tasks_of_the_teachers_own(write, tmp_path):
    options_ = options(ci, "gradescope", "--only", "05")
    options_.tasks = ROOT / "docs" / "own_tasks.py"
    assert ci.write_ci_files(options_) == 0
    (path,) = tmp_path.glob("minimha-*+grading-py3-none-any.whl")
    assert Path("setup.sh").read_text().endswith(f" ./{path.name}\n")
    assert "--only 05" in Path("run_autograder").read_text()
    with zipfile.ZipFile(path) as packed:
        tasks = {Path(x).name for x in packed.namelist() if x.startswith("minimha/homework/tasks/")}
        assert {"ch13_many_machines.py", "ch13_mistakes.py", "own.py"} <= tasks
        assert replay.FILE.name not in tasks
        assert "# BEGIN SOLUTION" in packed.read("minimha/homework/tasks/own.py").decode()
        assert f"minimha/notebooks/{CHAPTERS[13].stem}.ipynb" in packed.namelist()


def test_the_students_edition_cannot_write_the_wheel_for_grading(write, tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "results", lambda: {"softmax": {}})
    with pytest.raises(ValueError, match="needs the teacher's copy"):
        write("gradescope")
    assert [path.name for path in tmp_path.iterdir()] == [RELEASED]


def unpacked(wheel):
    """The folder into which a wheel is unpacked."""
    folder = wheel.with_suffix("")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture
def installed_in(tmp_path, monkeypatch):
    """Make `minimha` a command that runs the package in a folder, as the scripts find it."""

    def install(folder):
        bins = tmp_path / "minimha" / "bin"
        bins.mkdir(parents=True, exist_ok=True)
        for name, command in (("python", ""), ("minimha", "-m minimha")):
            script = f'#!/bin/sh\nexec env PYTHONPATH={folder} {sys.executable} {command} "$@"\n'
            (bins / name).write_text(script)
            (bins / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(bins), prepend=":")

    return install


@pytest.mark.thorough
@pytest.mark.parametrize("service", ["github", "gitlab"])
def test_the_scripts_grade_a_push(service, write, tmp_path, monkeypatch, installed_in):
    installed_in(PACKAGE.parent)
    for name in ("GITHUB_REPOSITORY", "CI_PROJECT_PATH"):
        monkeypatch.setenv(name, "anna@uni.edu")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "softmax.py").write_text(SOLVED, encoding="utf-8")
    write(service, "--only", "softmax")
    (file,) = ci.FILES[service]
    _, grade = scripts(yaml.safe_load(Path(file).read_text(encoding="utf-8")))
    subprocess.run(["bash", "-ec", grade], check=True)
    (anna,) = json.loads(Path("grades.json").read_text(encoding="utf-8"))["students"]
    assert (anna["student"], anna["points"]) == ("anna@uni.edu", 2)
    assert Path("feedback", "anna@uni.edu.html").exists()
    if service == "github":
        assert "anna@uni.edu    2.00 of 2" in (tmp_path / "summary.md").read_text()


def looked_up(name, edition):
    """An answer to a task that returns what the results in the students' edition say."""
    results = replay.unpacked((edition / "minimha/homework/tasks" / replay.FILE.name).read_bytes())
    calls = [call for check in results[name].values() for call in check[name]]
    values = [call["parts"][0].tolist() for call in calls]
    return (
        f"# minimha homework: {name}\nimport numpy as np\n\nvalues = iter({values})\n\n\n"
        f"def {name}(*_, **__):\n    return np.array(next(values))\n"
    )


@pytest.mark.thorough
def test_answers_looked_up_in_the_students_wheel_earn_nothing_on_gradescope(
    write, tmp_path, installed_in
):
    assert main(["homework", "release", "week", "--only", "to_halves"]) == 0
    edition = unpacked(*Path("week").glob("*.whl"))
    Path("submission").mkdir()
    Path("results").mkdir()
    Path("submission", "softmax.py").write_text(SOLVED, encoding="utf-8")
    text = looked_up("to_halves", edition)
    Path("submission", "to_halves.py").write_text(text, encoding="utf-8")
    Path("submission_metadata.json").write_text('{"users": [{"email": "anna@uni.edu"}]}')

    installed_in(edition.resolve())
    grade = "minimha homework grade submission --student anna --only to_halves"
    done = subprocess.run(grade.split(), capture_output=True, text=True, check=True)
    assert "anna    2.00 of 2\nnote: graded with the students' edition" in done.stdout

    write("gradescope", "--only", "to_halves", "softmax")
    installed_in(unpacked(*tmp_path.glob("*+grading*.whl")).resolve())
    seeds = set()
    for _ in range(2):
        subprocess.run(["./run_autograder"], check=True)
        results = json.loads(Path("results", "results.json").read_text(encoding="utf-8"))
        assert results["score"] == 2  # of softmax, with the hidden check
        assert any(test["visibility"] == "after_published" for test in results["tests"])
        seeds.add(results["output"])
    assert len(seeds) == 2
