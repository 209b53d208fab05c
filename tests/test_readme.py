"""The README agrees with real output."""

import ast
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

import minimha as mh
from minimha import course

ROOT = Path(__file__).parents[1]
README = ROOT.joinpath("README.md").read_text(encoding="utf-8")
SOFTMAX, TENSORS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
(TRANSCRIPT,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)


def test_the_code_of_the_readme_runs(capsys):
    names = {}
    exec(SOFTMAX, names)
    exec(TENSORS, names)
    assert names["query"].grad.shape == (2, 3, 5, 4)
    assert "complex step" in capsys.readouterr().out


def test_the_error_message_in_the_readme_is_that_of_a_forgotten_sum():
    row_sum = "dy - (dy * y).sum(-1, keepdims=True)"
    assert row_sum in SOFTMAX
    with pytest.raises(mh.GradcheckError) as failure:
        exec(SOFTMAX.replace(row_sum, "dy"), {})
    assert TRANSCRIPT.strip() == f"GradcheckError: {failure.value}"


def test_the_homework_page_creates_the_same_environment():
    page = ROOT.joinpath("docs/homework.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(python3 .*?)```", page, re.DOTALL)
    assert f"```sh\n{block.rstrip()} && minimha notebooks\n```" in README


def test_the_readme_lists_every_chapter():
    rows = re.findall(r"^\| (\d\d) ([\w-]+) \|.*\| (\d+) \|$", README, re.MULTILINE)
    chapters = [(f"{c.number:02}", c.name, str(c.minutes)) for c in course.CHAPTERS.values()]
    differ = sorted({*rows} ^ {*chapters})
    assert rows == chapters, (
        f"the table of chapters in README.md differs from minimha/course/chapters.py: {differ}"
    )


@pytest.mark.parametrize("path", course.notebooks(), ids=lambda path: path.stem)
def test_its_first_block_installs_what_a_chapter_imports(path):
    project = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["dependencies"] + project["optional-dependencies"]["notebooks"]
    installed = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in declared}
    own = {"minimha", "minimha_autograd", "torch", "cupy"}  # chapters also run without the last two
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            code = re.sub(r"^(\s*)[%!].*", r"\1pass", "".join(cell["source"]), flags=re.MULTILINE)
            assert _imported(code) <= installed | own | sys.stdlib_module_names


def _imported(code):
    """The top-level modules that some code imports."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    return names
