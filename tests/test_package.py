"""The package as it is published, and the files that services read from the repository."""

import email
import functools
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import public_api
import pytest
import yaml
from packaging.requirements import Requirement

import minimha
from minimha_autograd import backend

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
SOURCE, SITE = PROJECT["urls"]["Source"], PROJECT["urls"]["Documentation"]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
FORMS = sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))
PAGES = [ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "README", "SECURITY")]


def read(path):
    return Path(ROOT, path).read_text(encoding="utf-8")


def tracked():
    """The files of the repository, new ones that are not ignored included."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone, so git does not know which files belong to the repository")
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    return {path for path in done.stdout.splitlines() if (ROOT / path).exists()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist."""
    for needed in ("build", "hatchling", "hatch_fancy_pypi_readme"):
        if not find_spec(needed):
            pytest.skip(f'{needed} is not installed: pip install --editable ".[package]"')
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


@pytest.mark.thorough
def test_the_wheel_contains_the_packages_and_the_chapters_and_nothing_else(built):
    with zipfile.ZipFile(built[0]) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    places = (
        (r"minimha/.*", r"\g<0>"),
        (r"autograd/(.*)", r"\1"),
        (r"notebooks/(\d\d_\w+\.ipynb)", r"minimha/notebooks/\1"),
    )
    assert found == {
        re.sub(pattern, place, path)
        for path in tracked()
        for pattern, place in places
        if re.fullmatch(pattern, path)
    }


@pytest.mark.thorough
def test_the_sdist_contains_the_whole_repository_and_nothing_else(built):
    """Its tests read the workflows and other files, too."""
    with tarfile.open(built[1]) as sdist:
        found = {member.name.partition("/")[2] for member in sdist if member.isfile()}
    assert found == {*tracked(), "PKG-INFO"}


@pytest.mark.thorough
def test_on_an_index_the_readme_links_to_files_of_the_repository(built):
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(name))
    assert metadata["Version"] == version("minimha")
    links = re.findall(r"\]\((.*?)\)", metadata.get_payload())
    relative = [link for link in links if not link.startswith(("https://", "#"))]
    assert not relative, f"relative links in README.md, which an index cannot follow: {relative}"
    files = [x.removeprefix(base) for x in links if x.startswith(base := f"{SOURCE}/blob/main/")]
    assert len(files) >= 10
    broken = [file for file in files if not ROOT.joinpath(file.partition("#")[0]).is_file()]
    assert not broken, f"README.md links to {broken}, which do not exist"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", read(page)):
        assert (ROOT / link).exists(), f"{page.name} links to {link}, which does not exist"


ADDRESS = re.compile(
    r"(?:github|github\.com|codespaces\.new|/gh)/([\w-]+)/minimha|([\w-]+)\.github\.io/minimha"
)
"""The project's address, its owner in a group, as GitHub, Colab, Codespaces, Binder and Pages have it."""


def test_every_address_of_the_project_is_that_in_pyproject():
    owner = ADDRESS.search(SOURCE)[1]
    assert f"https://github.com/{owner}/minimha" == SOURCE
    assert f"https://{owner}.github.io/minimha/" == SITE
    others = [url for url in PROJECT["urls"].values() if not url.startswith((SOURCE, SITE))]
    assert not others, f"[project.urls] in pyproject.toml: {others} are other addresses"
    for path in tracked() - {"tests/test_package.py"}:
        text = ROOT.joinpath(path).read_text(encoding="utf-8", errors="ignore")
        others = {x or y for x, y in ADDRESS.findall(text)} - {owner}
        assert not others, f"{path} has the address of {others}; pyproject.toml has that of {owner}"


def test_the_newest_entry_of_the_changelog_is_the_current_version():
    newest, state = re.search(r"^## (\S+), (.*)$", read("CHANGELOG.md"), re.MULTILINE).groups()
    assert newest == version("minimha")
    assert re.fullmatch(r"not yet released|\d{4}-\d\d-\d\d", state), state


def test_every_name_of_the_reference_needs_only_import_minimha():
    """In an order in which few names are loaded by the ones before."""
    names = sorted(re.findall(r"auto\w+:: minimha\.(\S+)", read("docs/reference.md")))
    program = f"""
import functools, minimha as mh
for name in {names}:
    functools.reduce(getattr, name.split("."), mh)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def where_to_list(line):
    """For a name that its room still imports, the file that should list it."""
    room, _, name = line.partition("(")[0].partition(" ")[0].rpartition(".")
    try:
        module = functools.reduce(getattr, room.split(".")[1:], minimha)
    except AttributeError:
        return ""
    if not isinstance(module, ModuleType) or name in module.__all__ or not hasattr(module, name):
        return ""
    file = "/".join(Path(module.__file__).parts[-3:])
    return f"\n    which {file} does not list in __all__"


def test_the_public_api_changes_only_on_purpose():
    now, before = public_api.lines(), public_api.PAGE.read_text(encoding="utf-8").splitlines()
    changes = [f"- {x}{where_to_list(x)}" for x in before if x not in now] + [
        f"+ {x}" for x in now if x not in before
    ]
    advice = (
        f"if this is intended, run {public_api.COMMAND}, which rewrites tests/public_api.txt, and "
        "describe the change in CHANGELOG.md"
    )
    assert now == before, "\n".join(["the public API has changed:", *changes, advice])


def scripts(node):
    """All shell commands of a workflow."""
    if isinstance(node, dict):
        yield from (text for key, text in node.items() if key == "run" and isinstance(text, str))
        node = list(node.values())
    if isinstance(node, list):
        for inner in node:
            yield from scripts(inner)


def commands_of(path):
    """What a file lets a service type."""
    if path.suffix == ".yml":
        return list(scripts(yaml.safe_load(read(path))))
    if path.suffix == ".json":
        return [json.loads(read(path))["postCreateCommand"]]
    return [f"pip install {line}" for line in read(path).splitlines()]


SERVICES = [*WORKFLOWS, ROOT / ".devcontainer/devcontainer.json", ROOT / ".binder/requirements.txt"]


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_commands_for_services_name_files_and_extras_that_exist(path):
    commands = commands_of(path)
    assert commands
    for command in commands:
        for file in re.findall(r"[\w./-]+\.py\b|\.ci/\w+", command):
            assert (ROOT / file).is_file(), f"{file} in {command}"
        for extras in re.findall(r"\.\[([\w,-]+)\]", command):
            assert {*extras.split(",")} <= PROJECT["optional-dependencies"].keys(), command


def test_classifiers_name_the_pythons_on_which_the_package_is_tried():
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    matrix = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]["package"]["strategy"][
        "matrix"
    ]
    assert named == matrix["python"]
    assert PROJECT["requires-python"] == f">={named[0]}"
    assert read(".binder/runtime.txt").strip().removeprefix("python-") in named
    image = json.loads(read(".devcontainer/devcontainer.json"))["image"]
    assert image.removeprefix("python:") in named


@pytest.mark.parametrize("extra", ["cuda12x", "cuda13x", "gpu-checks"])
def test_what_has_no_wheels_for_a_newer_python_is_not_asked_for_there(extra):
    major, minor = backend.NEWEST_FOR_CUPY
    wanted = [Requirement(x) for x in PROJECT["optional-dependencies"][extra]]
    for python in range(int(PROJECT["requires-python"].partition(".")[2]), minor + 3):
        here = {"sys_platform": "linux", "python_version": f"{major}.{python}"}
        asked = {x.name for x in wanted if x.marker is None or x.marker.evaluate(here)}
        gpu = {x for x in asked if x.startswith(("cupy", "cuda-tile"))}
        assert bool(gpu) == (python <= minor), (python, asked)


@pytest.mark.skipif(os.name == "nt", reason="the workflow runs on Linux")
@pytest.mark.parametrize(("tag", "heading", "stops_with"), [
    ("v0.3.0", "## 0.3.0, 2026-12-31", ""),
    ("v0.3.1", "## 0.3.0, 2026-12-31", "the tag is v0.3.1, but the version is 0.3.0"),
    ("v0.3.0", "## 0.3.0, not yet released", "CHANGELOG.md has no heading"),
])  # fmt: skip
def test_only_a_tag_of_the_version_in_the_changelog_is_released(tag, heading, stops_with, tmp_path):
    (check,) = (x for x in commands_of(ROOT / ".github/workflows/release.yml") if "CHANGELOG" in x)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")
    (tmp_path / "hatchling").write_text("#!/bin/sh\necho 0.3.0\n")
    (tmp_path / "hatchling").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_REF_NAME": tag}
    command = ["bash", "-e", "-o", "pipefail", "-c", check]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == bool(stops_with)
    assert done.stdout.startswith(stops_with)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_the_parts_that_github_requires(path):
    form = yaml.safe_load(read(path))
    assert form["name"]
    assert form["description"]
    kinds = [part["type"] for part in form["body"]]
    assert {*kinds} <= {"markdown", "input", "textarea", "dropdown", "checkboxes"}
    for part in form["body"]:
        assert part["attributes"].keys() & {"label", "value"}, f"no label or value: {part}"


def test_the_citation_agrees_with_pyproject():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["title"] == PROJECT["name"]
    assert citation["abstract"] == PROJECT["description"]
    assert citation["license"] == PROJECT["license"]
    assert citation["authors"] == PROJECT["authors"]
    assert (citation["repository-code"], citation["url"]) == (SOURCE, SITE)
