"""`minimha homework ci`: the files with which GitHub, GitLab or Gradescope grades homework.

An edition is a version of minimha, packed as a wheel. Gradescope gets the edition for grading,
which contains the solutions and which students never see. A repository that students copy contains
the students' edition, without solutions; a secret of the service, MINIMHA, may name another one for
pip to install. Of minimha's dependencies, grading needs only NumPy.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from ..checks import replay
from .chosen import add_only, chosen
from .release import wheel

_GITHUB = """\
name: homework
on: [push]
permissions:
  contents: read
jobs:
  grade:
    runs-on: ubuntu-latest
    timeout-minutes: 60
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - name: Install
        env:
          MINIMHA: ${{{{ secrets.MINIMHA }}}}
        run: |
          pip install --no-deps numpy ${{MINIMHA:-{minimha}}}
      - name: Grade
        run: |
          minimha homework grade . --student "$GITHUB_REPOSITORY" \\
            --json --feedback{only} > scores.txt
          cat scores.txt
          {{ echo '```'; cat scores.txt; echo '```'; }} >> "$GITHUB_STEP_SUMMARY"
      - uses: actions/upload-artifact@v4
        with:
          name: grades
          path: |
            grades.json
            feedback/
"""
_GITLAB = """\
homework:
  image: python:3.12
  timeout: 1 hour
  script:
    - |
      pip install --no-deps numpy ${{MINIMHA:-{minimha}}}
    - |
      minimha homework grade . --student "$CI_PROJECT_PATH" --json --feedback{only}
  artifacts:
    paths:
      - grades.json
      - feedback/
"""
_SETUP = """\
#!/usr/bin/env bash
# Gradescope runs this once, to build the image: it installs minimha with a recent Python.
set -euo pipefail
cd "$(dirname "$0")"
apt-get update
apt-get install -y python3-venv
python3 -m venv ../uv
../uv/bin/pip install uv
../uv/bin/uv venv --python ">=3.11" ../minimha
../uv/bin/uv pip install --python ../minimha/bin/python --no-deps numpy {minimha}
"""
_RUN = """\
#!/usr/bin/env bash
# Gradescope runs this for each submission, and shows what is in results/results.json.
set -euo pipefail
cd "$(dirname "$0")"
student=$(minimha/bin/python -c '
import json
with open("submission_metadata.json") as file:
    print(", ".join(user["email"] for user in json.load(file)["users"]))
')
minimha/bin/minimha homework grade submission --student "$student" \\
  --gradescope results/results.json{only}
"""
FILES = {
    "github": {".github/workflows/homework.yml": _GITHUB},
    "gitlab": {".gitlab-ci.yml": _GITLAB},
    "gradescope": {"setup.sh": _SETUP, "run_autograder": _RUN},
}
_NEXT = {
    "github": "commit it, and the wheel of the release, to the repository that students copy",
    "gitlab": "commit it, and the wheel of the release, to the project that students fork",
    "gradescope": "upload them as one zip file; give nobody the wheel: it has the solutions",
}
_LOOKED_UP = """\
The students' wheel contains the results that its checks expect, so an answer can look them up. For
scores that count, grade again yourself, or set MINIMHA, as docs/scores.md explains.
"""
_WHEELS = "minimha-*+students*.whl"
_NEWEST = f"$(ls -v ./{_WHEELS} | tail -n 1)"  # each week adds one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `ci` to the parser."""
    parser.add_argument(
        "service", choices=FILES, metavar="SERVICE", help=f"one of {', '.join(FILES)}"
    )
    add_only(parser)


def write_ci_files(options: Any) -> int:
    """Write the files for the service `options.service` into the current folder; for Gradescope,
    also a wheel of minimha with the solutions, for grading. Returns 0, the exit status of the
    command.

    Raises ValueError for unusable options, if a server could not install minimha or, for
    Gradescope, in the students' edition, which has no solutions; FileExistsError if one of the
    service's files exists already.
    """
    chosen(options.only)
    files, pushed = FILES[options.service], options.service != "gradescope"
    if pushed and options.tasks:
        raise ValueError("leave out --tasks: the wheel of a release contains your own tasks")
    if taken := [name for name in files if Path(name).exists()]:
        raise FileExistsError(f"{taken[0]} exists already; it was not changed")
    minimha = _source(Path()) if pushed else _for_grading(options.tasks)
    only = f" {shlex.join(['--only', *options.only])}" if options.only else ""
    for name, text in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(minimha=minimha, only=only), encoding="utf-8")
        path.chmod(0o644 if pushed else 0o755)
        sys.stdout.write(f"wrote {path}\n")
    sys.stdout.write(f"{_NEXT[options.service]}\n")
    if minimha == _NEWEST:
        sys.stdout.write(_LOOKED_UP)
    return 0


def _for_grading(own: Path | None) -> str:
    """Write the wheel for grading, minimha with the solutions, into the current folder, and return
    its path as an argument of `pip install`. `own` is the file with the teacher's own tasks, None
    if there is none.

    Raises ValueError in the students' edition, which has no solutions.
    """
    if replay.results():
        raise ValueError("grading needs the teacher's copy of minimha, which has the solutions")
    name = wheel.for_grading(Path(), own).name
    sys.stdout.write(f"wrote {name}\n")
    return f"./{name}"


def _source(folder: Path) -> str:
    """Return what a shell command must write after `pip install` to install minimha. If this folder
    contains wheels that `minimha homework release` wrote for students, it is an expression for the
    newest one, which the shell looks up in its current folder. Otherwise, it names the source from
    which this minimha was installed.

    Raises ValueError if that source is on this computer's disk, where a server cannot find it.
    """
    if any(folder.glob(_WHEELS)):
        return _NEWEST
    distribution = importlib.metadata.distribution("minimha")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")  # PEP 610
    url = origin.get("url", "")
    if url.startswith("file:"):
        raise ValueError(
            "a server cannot install minimha from your disk: copy the wheel of a release, which "
            "minimha homework release writes, into this folder"
        )
    if repository := origin.get("vcs_info"):
        url = f"{repository['vcs']}+{url}@{repository['commit_id']}"
    return shlex.quote(f"minimha @ {url}" if url else f"minimha=={distribution.version}")
