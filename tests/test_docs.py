"""The cells and the transcripts in docs/ run, and the reference lists every public name."""

import ast
import contextlib
import functools
import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from answers.page import PAGE as WRONG_ANSWERS
from answers.page import page
from cells import OPTIONS, CellError, cells, run_cell

import minimha as mh
from minimha import homework
from minimha.__main__ import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def transcripts(text):
    """Pairs of a Python block and the text below it."""
    return re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)


def happens(code, names, capsys, folder):
    """The output of running a block; as a test file, if its first line names one."""
    file = re.match(r"# (test_\w+\.py)\n", code)
    if file:
        folder.joinpath(file[1]).write_text(code, encoding="utf-8")
        options = ["-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", "--color=no"]
        env = {k: v for k, v in os.environ.items() if k != "CI"} | {"COLUMNS": "80"}
        command = [sys.executable, "-m", "pytest", *options]
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True).stdout  # noqa: PLW1510
    try:
        exec(code, names)
    except mh.GradcheckError as error:
        return f"GradcheckError: {error}"
    return capsys.readouterr().out


def steady(text):
    """The text without parts that depend on the machine: last digits, rounding, times."""
    text = re.sub(r"(\.\d{5})\d+", r"\1", re.sub(r"\d\.\de[-+]\d\d", "1.0e+00", text))
    return re.sub(r"\d+\.\d+ ?s", "0.1s", re.sub(r"={2,}", "==", text)).split()


@pytest.mark.parametrize(
    ("page", "count"),
    [pytest.param("gradient-checks", 5, marks=pytest.mark.thorough), ("diagnose", 1)],
)
def test_transcripts_are_real(page, count, capsys, tmp_path):
    names, found = {}, transcripts((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert len(found) == count
    for code, text in found:
        assert steady(happens(code, names, capsys, tmp_path)) == steady(text)


PAGES = [page for page in sorted(DOCS.glob("*.md")) if any(cells(page))]
MEASURES = "perf_counter"
COMMAND = re.compile(r"^shell\(", re.MULTILINE)
STEPS = re.compile(r"\bsteps=\d+")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_cells_of_a_page_run(page, request, tmp_path, monkeypatch):
    """Without --thorough not those that measure times, nor from the first one that starts a command
    on; and models are trained for two steps."""
    pytest.importorskip("matplotlib").use("agg")
    pytest.importorskip("IPython")
    thorough = request.config.getoption("--thorough")
    folder = shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("measured"))
    monkeypatch.chdir(folder)  # where Sphinx runs them
    tasks = homework.course()  # to which teaching.md adds one
    before = dict(tasks)
    request.addfinalizer(lambda: (tasks.clear(), tasks.update(before)))
    here = str(Path.home()), str(Path.cwd()), str(tmp_path)
    names = {"__name__": "__main__"}
    for code, line in cells(page):
        if not thorough and COMMAND.search(code):
            break
        if not thorough and MEASURES in code:
            continue
        printed = run_cell(code if thorough else STEPS.sub("steps=2", code), line, page, names)
        paths = [path for path in here if f"{path}{os.sep}" in printed]
        assert not paths, f"docs/{page.name}:{line + 1} prints a path of this machine: {printed}"


def test_a_cell_that_fails_is_shown_with_its_file_and_line(tmp_path):
    page = tmp_path / "page.md"
    text = "# Title\n\n```{code-cell} python\n:tags: [remove-input]\n\nx = 1\n1 / (x - 1)\n```\n"
    page.write_text(text, encoding="utf-8")
    ((code, line),) = cells(page)
    with pytest.raises(CellError) as error:
        run_cell(code, line, page, {})
    assert f"{tmp_path.name}/page.md:7: ZeroDivisionError" in str(error.value)
    assert str(error.value).endswith("The cell:\n\nx = 1\n1 / (x - 1)")


def test_pages_leave_out_what_is_said_while_kernels_are_compiled():
    """It goes to stderr, and names a folder of the machine."""
    code = "import logging; logging.getLogger('minimha').warning('compiling')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "compiling\n")
    settings = (DOCS / "conf.py").read_text(encoding="utf-8")
    assert '\nnb_output_stderr = "remove"' in settings, (
        "docs/conf.py has to remove stderr from pages: it contains a path of the machine"
    )


DIRECTIVE = re.compile(r"^\.\. auto(\w+):: (\S+)\n((?: {3}.*\n)*)", re.MULTILINE)
MEMBERS = re.compile(r":members:(.*(?:\n {10,}.*)*)")


def found(path):
    """The object of this name, such as minimha.masks.causal. A function is found before the module
    of the same name."""
    first, *names = path.split(".")
    x = importlib.import_module(first)
    for name in names:
        if not hasattr(x, name):
            importlib.import_module(f"{x.__name__}.{name}")
        x = getattr(x, name)
    return x


def documented():
    """The objects that docs/reference.md lists."""
    for kind, path, options in DIRECTIVE.findall((DOCS / "reference.md").read_text("utf-8")):
        x = importlib.import_module(path) if kind == "module" else found(path)
        if kind != "module":
            yield x
        elif listed := re.findall(r"\w+", MEMBERS.search(options)[1]):
            yield from (getattr(x, name) for name in listed)
        else:
            defined = [k for k, v in vars(x).items() if getattr(v, "__module__", "") == path]
            yield from (getattr(x, name) for name in getattr(x, "__all__", defined))


def public(name, module):
    """All public names of a module and of the modules among them."""
    for inner in module.__all__:
        x = getattr(module, inner)
        if not isinstance(x, ModuleType):
            yield f"{name}.{inner}", x
        elif hasattr(x, "__all__"):
            yield from public(f"{name}.{inner}", x)


def not_in(objects, names):
    known = {*map(id, objects)}
    return [name for name, x in names if id(x) not in known]


def test_the_reference_lists_every_public_name():
    missing = not_in(documented(), public("minimha", mh))
    assert not missing, f"docs/reference.md does not list {', '.join(missing)}: add each of them"


def test_a_public_name_that_the_reference_lacks_is_named():
    listed = [x for x in documented() if x is not mh.masks.prefix]
    assert "minimha.masks.prefix" in not_in(listed, public("minimha", mh))


CODE = re.compile(r"^```(?:\{code-cell\}.*|python)\n((?:.*\n)*?)```$", re.MULTILINE)
WRITTEN = [
    *sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("notebooks/source/*.md")), ROOT / "README.md",
    *sorted(ROOT.glob("benchmarks/*.py")),
]  # fmt: skip


def programs(path):
    """Pairs of a program and the line above its first one: a file, or the blocks of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return [(text, 0)]
    return [(x[1], text[: x.start(1)].count("\n")) for x in CODE.finditer(text)]


def unknown_arguments(program):
    """Pairs of a line and what is wrong there: a call of a public name, written as mh.…, with an
    argument that it does not have."""
    try:
        tree = ast.parse(OPTIONS.sub(lambda x: "\n" * x[0].count("\n"), program))
    except SyntaxError:  # an excerpt
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("mh."):
            continue
        try:
            called = functools.reduce(getattr, ast.unparse(node.func).split(".")[1:], mh)
            known = inspect.signature(called).parameters.values()
        except (AttributeError, ValueError, TypeError):  # of an object that the program makes
            continue
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known):
            continue
        for keyword in node.keywords:
            if keyword.arg and keyword.arg not in {parameter.name for parameter in known}:
                yield keyword.value.lineno, f"{ast.unparse(node.func)} has no {keyword.arg}"


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_calls_pass_arguments_that_exist(path):
    """Also in chapters, whose cells run in the full build only."""
    found = [
        f"{path.relative_to(ROOT)}:{above + line}: {what}"
        for program, above in programs(path)
        for line, what in unknown_arguments(program)
    ]
    assert not found, "\n".join(found)


def test_an_argument_that_does_not_exist_is_found():
    text = "x = 1\nmh.GPT(9,\n  layers=None,\n  lairs=2)\nmh.masks.causal(offset=x)\nmh.what(a=1)"
    assert list(unknown_arguments(text)) == [(4, "mh.GPT has no lairs")]


SETTINGS = {"attention.md": mh.scaled_dot_product_attention, "transformers.md": mh.GPT}
"""Pages that name all arguments of a function or a class."""


@pytest.mark.parametrize("page", SETTINGS)
def test_a_page_names_every_argument_and_its_tables_name_no_other(page):
    """A row about arguments begins with their names: `scale`, `softcap`, or with `sinks=4`."""
    text = (DOCS / page).read_text(encoding="utf-8")
    arguments = inspect.signature(SETTINGS[page]).parameters.keys()

    code = " ".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
    missing = [name for name in arguments if not re.search(rf"\b{name}\b", code)]
    assert not missing, f"docs/{page} does not name {missing}: add each where it belongs"

    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)(?:=[^`]*)?`", row)}
    unknown = sorted(named - arguments)
    assert not unknown, f"rows of docs/{page} name arguments that do not exist: {unknown}"


def without_counts(text):
    """The text without parts that change as the course grows."""
    return re.sub(r"^(homework  |next  |That was ).*\n", "", text, flags=re.MULTILINE)


EXERCISE = re.compile(
    r"```console\n\$ (?P<command>.*)\n(?P<shown>(?s:.*?))```"
    r"|```python\n(?P<edit>(?s:.*?))```"
    r"|```ipython\n(?P<cell>(?s:.*?))```\n\n```text\n(?P<output>(?s:.*?))```"
)
"""A command, an edit of the student's file, or a cell of a notebook."""


def in_a_notebook(cell, folder):
    """Run a cell in a folder next to the homework, as Jupyter does: with its own file."""
    file = folder / "cell.py"
    file.write_text(cell, encoding="utf-8")
    with contextlib.chdir(folder):
        exec(compile(cell, file, "exec"), {"mh": mh})


def test_the_first_exercise_on_the_page_works_as_described(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chapters, commands, cells = tmp_path / "minimha-notebooks", [], []
    chapters.mkdir()
    file = tmp_path / "homework" / "softmax.py"
    for step in EXERCISE.finditer((DOCS / "homework.md").read_text(encoding="utf-8")):
        if code := step["edit"]:
            before, _, after = file.read_text(encoding="utf-8").rpartition("        r")
            file.write_text(f"{before}{code}\n{after.partition(chr(10))[2]}", encoding="utf-8")
            continue
        if cell := step["cell"]:
            cells.append(cell)
            in_a_notebook(cell, chapters)
        else:
            commands.append(step["command"])
            main(step["command"].split()[1:])
        expected = step["output"] or step["shown"]
        assert without_counts(capsys.readouterr().out) == without_counts(expected)
    assert [command.split()[2] for command in commands] == ["start", "check", "hint", "check"]
    assert len(cells) == 2


def test_the_page_shows_what_an_error_in_a_function_prints(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["homework", "start", "split_heads"])
    file = tmp_path / "homework" / "split_heads.py"
    before, _, _ = file.read_text(encoding="utf-8").rpartition("    raise NotImplementedError")
    line = "    return x.reshape(x.shape[0], num_heads, x.shape[1], -1)\n"
    file.write_text(before + line, encoding="utf-8")
    capsys.readouterr()
    main(["homework", "check", "split_heads"])
    shown = capsys.readouterr().out.partition("\n\n")[0]
    assert f"```text\n{shown}\n```" in (DOCS / "homework.md").read_text(encoding="utf-8")


def test_where_the_page_on_homework_says_that_files_are_found_and_started(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def run(*command):
        status = main(["homework", *command])
        return status, capsys.readouterr().out

    run("start", "softmax")
    run("start", "linear", "--into", "two")
    assert run("start", "attention_forward")[1].startswith(str(Path("two", "attention_forward.py")))
    beside = tmp_path / "layer_norm.py"
    text = (tmp_path / "homework" / "softmax.py").read_text(encoding="utf-8")
    beside.write_text(text.replace("softmax", "layer_norm"), encoding="utf-8")
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    assert run("check", "softmax")[0] == 0  # to do: the record lists its file
    assert run("check", "layer_norm")[0] == 2  # beside the record, but not in it


@pytest.mark.thorough
def test_the_page_shows_the_current_messages_for_wrong_answers():
    written = WRONG_ANSWERS.read_text(encoding="utf-8")
    assert steady(page()) == steady(written), "run PYTHONPATH=tests python -m answers.page"


@pytest.mark.thorough  # trains two small models
def test_the_code_and_the_commands_of_the_page_about_training_run(tmp_path, monkeypatch, capsys):
    page = (DOCS / "training.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = {}
    for cell in re.findall(r"```{code-cell} python\n(.*?)```", page, re.DOTALL):
        exec(cell, names)
    assert names["run"].step == 300
    assert "\nThe " in capsys.readouterr().out
    for command in re.findall(r"^\$ minimha (.*)", page, re.MULTILINE):
        assert main(shlex.split(command)) == 0
    files = re.findall(r"`([\w-]+\.\w+)`", page.partition("| --- |")[2].partition("\n\n")[0])
    assert sorted(files) == sorted(path.name for path in (tmp_path / "reference").iterdir())
