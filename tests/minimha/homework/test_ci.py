"""The files with which services grade homework."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from graded import options

from minimha import homework
from minimha.homework import ci, student_files


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the files of a service beside a wheel."""
    (tmp_path / "minimha-1.0-py3-none-any.whl").touch()
    monkeypatch.chdir(tmp_path)

    return lambda *arguments: ci.run(options(ci, *arguments))


def scripts(workflow):
    """The shell scripts in a workflow of GitHub or GitLab, in order."""
    if "jobs" not in workflow:
        return workflow["homework"]["script"]
    return [step["run"] for step in workflow["jobs"]["grade"]["steps"] if "run" in step]


@pytest.mark.parametrize(
    ("service", "file"),
    [("github", ".github/workflows/homework.yml"), ("gitlab", ".gitlab-ci.yml")],
)
def test_a_workflow_installs_the_wheel_and_grades_the_chosen_tasks(service, file, write):
    assert write(service, "--only", "05", "softmax") == 0
    install, grade = scripts(yaml.safe_load(Path(file).read_text(encoding="utf-8")))
    assert install == "pip install ./minimha-*.whl\n"
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
        ({"url": "https://a.org/minimha.whl"}, "'minimha @ https://a.org/minimha.whl'"),
        (
            {"url": "https://a.org/m", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "'minimha @ git+https://a.org/m@abc'",
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

    (tmp_path / "minimha-1.0-py3-none-any.whl").unlink()
    monkeypatch.setattr(ci.importlib.metadata, "distribution", lambda name: Distribution())
    write("gitlab")
    workflow = yaml.safe_load(Path(".gitlab-ci.yml").read_text(encoding="utf-8"))
    assert scripts(workflow)[0] == f"pip install {installs}\n"


def test_a_folder_of_the_teachers_own_is_nothing_to_install(write, tmp_path, monkeypatch):
    (tmp_path / "minimha-1.0-py3-none-any.whl").unlink()
    origin = type("", (), {"read_text": lambda self, name: '{"url": "file:///home/me/minimha"}'})
    monkeypatch.setattr(ci.importlib.metadata, "distribution", lambda name: origin())
    with pytest.raises(ValueError, match="minimha homework release"):
        write("github")


def test_unknown_tasks_are_refused(write):
    with pytest.raises(ValueError, match="no task or chapter is called 99"):
        write("github", "--only", "99")
    with pytest.raises(ValueError, match="the wheel of a release contains your own tasks"):
        ci.run(argparse.Namespace(service="github", only=None, tasks=Path("own.py")))


@pytest.mark.thorough
@pytest.mark.parametrize("service", ci.FILES)
def test_the_scripts_grade_a_push(service, write, tmp_path, monkeypatch):
    bins = tmp_path / "minimha" / "bin"
    bins.mkdir(parents=True)
    (bins / "python").symlink_to(sys.executable)
    (bins / "minimha").write_text(f'#!/bin/sh\nexec {sys.executable} -m minimha "$@"\n')
    (bins / "minimha").chmod(0o755)
    monkeypatch.setenv("PATH", str(bins), prepend=":")
    for name in ("GITHUB_REPOSITORY", "CI_PROJECT_PATH"):
        monkeypatch.setenv(name, "anna@uni.edu")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    work, back = tmp_path / "submission", tmp_path / "results"
    work.mkdir()
    back.mkdir()
    softmax = homework.course()["softmax"]
    (work / "softmax.py").write_text(student_files.stub(softmax, solved=True), encoding="utf-8")
    (tmp_path / "submission_metadata.json").write_text('{"users": [{"email": "anna@uni.edu"}]}')
    write(service, "--only", "softmax")
    if service == "gradescope":
        subprocess.run(["./run_autograder"], check=True)
        assert json.loads((back / "results.json").read_text(encoding="utf-8"))["score"] == 2
        return
    (file,) = ci.FILES[service]
    _, grade = scripts(yaml.safe_load(Path(file).read_text(encoding="utf-8")))
    subprocess.run(["bash", "-ec", grade], check=True)
    (anna,) = json.loads(Path("grades.json").read_text(encoding="utf-8"))["students"]
    assert (anna["student"], anna["points"]) == ("anna@uni.edu", 2)
    assert Path("feedback", "anna@uni.edu.html").exists()
    if service == "github":
        assert "anna@uni.edu    2.00 of 2" in (tmp_path / "summary.md").read_text()
