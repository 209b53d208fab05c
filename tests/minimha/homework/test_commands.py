"""The command `minimha homework`, used and misused as by a student."""

import bdb
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from graded import PACKAGE, ROOT

from minimha import homework
from minimha.homework.checks import time_limit
from minimha.homework.checks.calls import calls_recorded, changed_in_place
from minimha.homework.student import interrupts, progress_file, student_files


def write(path, body, name="twice"):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"# minimha homework: {name}\nimport numpy as np\n{body}\n", encoding="utf-8")


RIGHT = "def twice(x):\n    return x + x"
WRONG = "def twice(x):\n    return x ** 2 + 1"
THRICE = "def thrice(x):\n    return 3 * x"


def test_a_course_from_the_first_task_to_the_last(student, folder):
    code, shown = student("start twice")
    file = folder / "homework" / "twice.py"
    assert code == 0
    assert f"{Path('homework/twice.py')} is ready for you to fill in" in shown
    stub = file.read_text("utf-8")
    assert stub.startswith("# minimha homework: twice · chapter 99 · ★☆☆ · about 5 minutes\n")
    for command in re.findall(r"minimha homework (.*)", shown):
        assert student(command)[0] == 0
    code, shown = student("check twice")
    assert code == 0
    assert "to do  twice: of ones\n       line 10: raise NotImplementedError\n" in shown
    assert f"0 of 2 tasks\nnext      fill in {Path('homework/twice.py')}\n" in shown
    file.write_text(stub.replace("raise NotImplementedError", "return x + x"), "utf-8")
    assert "next      minimha homework check twice\n" in student("progress")[1]
    code, shown = student("check twice")
    assert code == 0
    assert shown.splitlines()[:2] == ["ok     twice: of ones", "ok     twice: of any"]
    assert f"{'█' * 12}{'░' * 12}  1 of 2 tasks" in shown
    assert shown.endswith("next      minimha homework start thrice\n")
    assert student("start")[0] == 0
    assert "you have started every task" in student("start")[1]
    write(folder / "homework" / "thrice.py", THRICE, "thrice")
    assert student("check")[1].endswith("You have finished all tasks.\n")


def test_a_task_that_was_checked_is_the_next_one(student):
    student("start twice")
    student("start thrice")
    assert f"next      fill in {Path('homework/thrice.py')}" in student("check thrice")[1]


def test_check_stops_at_the_first_wrong_task_and_points_to_a_hint(student, folder):
    write(folder / "twice.py", "def twice(x):\n    print('x is', x[0])\n    return x ** 2 + 1")
    write(folder / "thrice.py", WRONG.replace("twice", "thrice"), "thrice")
    code, shown = student("check")
    assert code == 1
    assert shown.startswith("wrong  twice: of any\nthe result is wrong\n")
    assert "your code printed\n  x is " in shown
    assert "minimha homework hint twice" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "pytest" not in shown
    assert "thrice" not in shown
    body = "def twice(x):\n    print('x is', x[0])\n    raise NotImplementedError"
    write(folder / "twice.py", body)
    code, shown = student("check")
    assert code == 1
    assert shown.startswith("to do  twice\nwrong  thrice: of ones\n")
    to_do = "line 5: raise NotImplementedError\n\nyour code printed\n  x is 1.0\n"
    assert to_do in student("check twice")[1]


def test_the_exit_code_of_check_is_1_for_a_wrong_task_and_0_for_one_to_do(student, folder):
    for body, expected in ((WRONG, 1), ("def twice(x):\n    raise NotImplementedError", 0)):
        write(folder / "twice.py", body)
        write(folder / "thrice.py", THRICE, "thrice")
        assert student("check")[0] == student("check twice")[0] == expected
        assert student("check thrice")[0] == 0


def test_a_file_name_may_replace_the_task_name(student, folder):
    write(folder / "twice.py", WRONG)
    (folder / "a").mkdir()
    write(folder / "a" / "b" / "mine.py", RIGHT)
    assert "minimha homework hint twice\n" in student("check twice.py")[1]
    code, shown = student("check a/b/mine.py")
    assert (code, shown.splitlines()[1]) == (0, "ok     twice: of any")


def test_start_overwrites_nothing(student, folder):
    student("start twice")
    file = folder / "homework" / "twice.py"
    file.write_text("mine")
    for elsewhere, says in ((False, "left unchanged"), (True, "elsewhere.py already exists")):
        if elsewhere:
            write(folder / "elsewhere.py", RIGHT)
        code, shown = student("start twice")
        assert (code, file.read_text()) == (1, "mine")
        assert says in shown


def test_start_shows_a_command_that_finds_the_file(student):
    _, shown = student("start twice --into a/b")
    assert "check twice --from " in shown
    assert student(re.search("homework (check .*)", shown)[1])[0] == 0


@pytest.mark.parametrize("command", ["start", "check", "hint", "key"])
def test_an_unknown_name_suggests_the_closest_one(command, student, folder):
    for name in ("../twice", "homework/twice.py", "TWICE", "twic", "twice.py", "thwice"):
        code, shown = student(f"{command} {name}")
        assert code == 2
        assert "did you mean" in shown
    assert not list(folder.rglob("*.py"))


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("", "a hint for a task"),
        ("nonsense", "invalid choice: 'nonsense'"),
        ("check twice thrice", "usage: minimha homework check "),
        ("check twice thrice", "unrecognized arguments: thrice"),
        ("start twice --into file", "file: "),
        ("start twice --into file/x", "file"),
        ("check --from absent", "absent does not exist"),
        ("check", "no task has been started here; start with\n  minimha homework start twice"),
        ("check thrice", "thrice has not been started here"),
        ("check file", "file is not a homework file: minimha homework list shows the tasks"),
        ("check --from twofold", "two files are homework for twice:\n  twofold"),
        ("hint", "for which task?"),
        ("list --tasks absent.py", "absent.py: No such file"),
        ("list --tasks file", "file defines no task"),
        ("list --tasks again.py", "again.py cannot be used: ValueError: there is a task twice already, of chapter 99, in line 6: @mh.homework.task("),
        ("list --tasks copied.py", "copied.py cannot be used: ValueError: twice has two checks called of any, in line 2: "),
        ("list --tasks broken.py", "broken.py cannot be used: SyntaxError: invalid syntax (broken.py, line 1)\n"),
        ("list --tasks opens.py", "opens.py cannot be used: FileNotFoundError: "),
        ("list --tasks exits.py", "exits.py cannot be used: SystemExit: 3, in line 1: raise SystemExit(3)\n"),
    ],
)  # fmt: skip
def test_a_command_that_cannot_run_says_why(command, says, student, folder):
    (folder / "file").write_text("")
    shutil.copy(folder.parent / "teacher" / "mine" / "teacher.py", folder / "again.py")
    (folder / "broken.py").write_text("1 +")
    (folder / "opens.py").write_text("open('absent')")
    (folder / "exits.py").write_text("raise SystemExit(3)")
    (folder / "copied.py").write_text(
        "from minimha import homework\n@homework.TASKS['twice'].check\ndef of_any(*_): pass\n"
    )
    if "twofold" in command:
        write(folder / "twofold" / "twice.py", RIGHT)
        write(folder / "twofold" / "twice (copy).py", RIGHT)
    code, shown = student(command)
    assert code == 2
    assert says in shown
    assert "Traceback" not in shown


def test_only_homework_files_are_found(folder):
    text = f"# minimha homework: twice\n{RIGHT}\n"
    for place in (".hidden", "venv", "lib/site-packages", "a/b"):
        (folder / place).mkdir(parents=True)
        (folder / place / "twice.py").write_text(text)
    (folder / "venv" / "pyvenv.cfg").write_text("")
    (folder / "lib" / "twice.py").write_text(text)
    (folder / "twice.py").write_text("raise SystemExit('another program')")
    (folder / "notes.py").write_text(f"text = '''\n  {text}'''")
    assert student_files.find(Path()) == {}
    (folder / "twice.py").write_text(RIGHT)
    assert student_files.find(Path()) == {"twice": Path("twice.py")}
    write(folder / "marked.py", RIGHT)
    assert student_files.find(Path()) == {"twice": Path("marked.py")}


def test_a_clone_of_the_repository_contains_no_homework(monkeypatch):
    others = (ROOT / below for below in ("autograd", "tests", "notebooks"))
    for folder in (ROOT, PACKAGE, PACKAGE / "homework", *others):
        monkeypatch.chdir(folder)
        assert student_files.find(Path()) == {}


DEEP = "def twice(x):\n    return twice(x)"
BAD = {
    "exits when loaded": ("import sys; sys.exit(0)", "SystemExit: 0\n  in <module>, line 3: import sys; sys.exit(0)"),
    "exits when called": ("def twice(x):\n    raise SystemExit", "SystemExit\n  in twice, line 4: raise SystemExit"),
    "does not parse": ("def twice(x:\n    return x", "SyntaxError: "),
    "is indented badly": ("def twice(x):\n  y = x\n   return y", "IndentationError: unexpected indent\n  in twice.py, line 5: return y"),
    "fails when loaded": ("1 / 0", "ZeroDivisionError: division by zero\n  in <module>, line 3: 1 / 0"),
    "imports a missing module": ("import nonesuch", "ModuleNotFoundError: No module named 'nonesuch'"),
    "recurses for ever": (DEEP, "RecursionError: maximum recursion depth exceeded"),
    "calls input": ("def twice(x):\n    return input('x?')", "line 4: return input('x?')"),
    "redefines np": ("np = None\ndef twice(x):\n    return np.add(x, x)", "'NoneType' object has no attribute 'add'"),
    "has another name": ("def twcie(x):\n    return x", "twice.py defines no function twice: is it twcie?"),
    "defines no function": ("twice = 3", "twice.py defines no function twice"),
    "returns nothing": ("def twice(x):\n    x + x", "twice one is None; it should be an array of shape (3,): is a return missing?"),
    "takes nothing": ("def twice():\n    return 2", "takes 0 positional arguments but 1 was given\n  it should begin  def twice(x):\n"),
    "takes too much": ("def twice(x, y):\n    return 2", "it should begin  def twice(x):\n"),
    "raises a TypeError": ("def twice(x):\n    return 'a' + 1", "in twice, line 4: return 'a' + 1\n\nin twice.py"),
    "shows the values": ("def twice(x):\n    y, n = None, (1, 2)\n    return x.dot(y, n)", "  where x has shape (3,), y is None, n is (1, 2)\n\n"),
    "has values of many kinds": ("def twice(x):\n    a, b, c, d, e = 10 ** 9999, 's' * 99, 's', [], x > 0\n    return a.f(b, c, d, e)", "  where a is an int, b is a str, c is 's', d is [], e has shape (3,), bool\n"),
    "fails in a helper": ("def half(y):\n    return y.nonesuch\ndef twice(x):\n    return half(x)", "in half, line 4: return y.nonesuch\n  where y has shape (3,)\n  called in twice, line 6: return half(x)\n"),
    "changes its argument": ("def twice(x):\n    x *= 3\n    return x", "of ones\nyours changes x in place; it should work on a copy\ntwice one is wrong\n"),
    "asks for a debugger": ("def twice(x):\n    breakpoint()", "run: pytest --pyargs minimha.homework -k NAME\n  in twice, line 4: breakpoint()"),
    "asserts": ("def twice(x):\n    assert x.ndim == 2", "AssertionError\n  in twice, line 4: assert x.ndim == 2"),
    "raises a BaseException": ("def twice(x):\n    raise GeneratorExit", "GeneratorExit\n  in twice, line 4: raise GeneratorExit"),
    "has a long message": ("def twice(x):\n    raise Exception('a' * 9999 + '\\n' * 9999)", "Exception: aaaa"),
    "prints a lot": ("def twice(x):\n    print('y\\n' * 100_000 + 'x' * 500)", "your code printed, at the end\n  y\n"),
    "loops when loaded": ("while True: pass", "TimeoutError: stopped after 0.3 seconds of processor time: an endless loop?\n  in <module>, line 3: while True: pass"),
    "loops when called": ("def twice(x):\n    while True: pass", "in twice, line 4: while True: pass"),
    "ends Python when loaded": ("import os\nos._exit(0)", "SystemExit: 0\n  in <module>, line 4: os._exit(0)"),
    "ends Python when called": ("import os\ndef twice(x):\n    os._exit(0)", "SystemExit: 0\n  in twice, line 5: os._exit(0)"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "says"), BAD.values(), ids=BAD)
def test_a_file_that_cannot_run_is_wrong_and_the_message_says_why(
    body, says, student, folder, monkeypatch
):
    monkeypatch.setattr(interrupts, "SECONDS", 0.3)
    monkeypatch.setattr(time_limit, "PATIENCE", 200)  # the machine may be busy
    monkeypatch.setattr(os, "_exit", lambda _: pytest.fail("the command ends"))
    write(folder / "twice.py", body)
    code, shown = student("check")
    assert code == 1
    assert shown.startswith("wrong  twice: of ones\n")
    assert says in shown
    assert "Traceback" not in shown
    assert len(shown) < 2000
    assert max(map(len, shown.splitlines())) <= 87
    assert student("progress")[1].splitlines()[1].split() == ["wrong", "twice"]


@pytest.fixture(params=["alarm", "trace hook"])
def limit(request, monkeypatch):
    """Limits of 0.1 s of processor time, and of 0.3 s on the clock, by an alarm or, as on Windows
    and in a browser, by a trace hook."""
    monkeypatch.setattr(interrupts, "SECONDS", 0.1)
    monkeypatch.setattr(time_limit, "PATIENCE", 3)
    if request.param == "trace hook":
        monkeypatch.delattr(signal, "setitimer", raising=False)
    elif not hasattr(signal, "setitimer"):
        pytest.skip("needs an alarm")


def handlers():
    alarm = [signal.getsignal(signal.SIGALRM)] if hasattr(signal, "SIGALRM") else []
    return [*alarm, signal.getsignal(signal.SIGINT), sys.gettrace()]


def sleeping():
    time.sleep(0.5)
    return "awake"


def looping():
    while True:
        pass


@pytest.mark.usefixtures("limit")
def test_what_takes_too_long_is_stopped_and_what_is_in_time_is_not():
    before = handlers()
    for call, seconds in ((looping, "0.[13]"), (sleeping, "0.3")):  # the machine may be busy
        with pytest.raises(TimeoutError, match=f"stopped after {seconds} seconds"):
            interrupts.in_time(call)
    assert interrupts.in_time(abs, -2) == 2
    assert sleeping() == "awake"
    assert handlers() == before


def catching():
    with contextlib.suppress(BaseException):
        looping()
    time.sleep(60)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs an alarm")
def test_an_alarm_ends_a_sleep_even_after_its_error_was_caught(monkeypatch):
    monkeypatch.setattr(interrupts, "SECONDS", 0.1)
    monkeypatch.setattr(time_limit, "PATIENCE", 3)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        interrupts.in_time(catching)
    assert time.monotonic() - start < 30


@pytest.mark.usefixtures("limit")
def test_a_call_within_a_call_leaves_the_outer_limit_in_force():
    def outer():
        with pytest.raises(TimeoutError):
            interrupts.in_time(looping)
        sleeping()

    with pytest.raises(TimeoutError):
        interrupts.in_time(outer)


@pytest.mark.usefixtures("limit")
def test_an_open_debugger_is_not_interrupted():
    class Debugger(bdb.Bdb):
        def user_line(self, frame):
            sleeping()
            self.set_continue()

    def debugged():
        Debugger().set_trace()
        return "continued"

    assert interrupts.in_time(debugged) == "continued"


def test_changes_in_nested_arguments_are_detected():
    def changing(parents, x, xs):
        parents["b"].remove("a")
        x += 0
        xs[0] = None

    calls, parents, x = [], {"a": [], "b": ["a"]}, np.ones(3)
    calls_recorded(changing, calls)(parents, x, [x])
    assert changed_in_place(changing, calls) == {"parents", "xs"}
    assert parents["b"] == ["a"]


FILE = f"# minimha homework: twice\n# coding: utf-8\nx = 'é'\n{RIGHT}\n"


OK = "ok     twice: of any"
ENCODED = {
    "Windows line endings": (FILE.replace("\n", "\r\n").encode(), 0, OK),
    "byte order mark": (b"\xef\xbb\xbf" + FILE.encode(), 0, OK),
    "latin-1": (FILE.replace("utf-8", "latin-1").encode("latin-1"), 0, OK),
    "latin-1, undeclared": (FILE.encode("latin-1"), 1, "SyntaxError: "),
    "utf-16": (FILE.encode("utf-16"), 1, "null bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "code", "says"), ENCODED.values(), ids=ENCODED)
def test_files_of_any_common_encoding_are_read(data, code, says, student, folder):
    (folder / "twice.py").write_bytes(data)
    found, shown = student("check twice")
    assert says in shown
    assert found == code


def test_a_file_may_import_its_neighbours(student, folder):
    write(
        folder / "mine" / "twice.py",
        "from dataclasses import dataclass\nfrom factors_of_mine import factor\n@dataclass\nclass C:\n    x: 'int' = 3\ndef twice(x):\n    return factor * x",
    )
    (folder / "mine" / "factors_of_mine.py").write_text("factor = 2")
    assert student("check twice")[0] == 0


def test_progress_shows_what_changed_since_the_last_check(student, folder):
    for body, code, state in ((RIGHT, 0, "ok"), (RIGHT.replace("+", "-"), 1, "wrong")):
        write(folder / "twice.py", body)  # same length, within the same second
        assert "  changed           twice" in student("progress")[1]
        assert student("check")[0] == code
        lines = student("progress")[1].splitlines()
        assert lines[1].split() == [state, "twice"]
        assert lines[2].split() == ["not", "started", "thrice"]
        assert re.search(rf"twice +★☆☆   5 min  {state}\n", student("list")[1])
    assert "next      minimha homework check twice" in student("progress")[1]


@pytest.mark.parametrize("text", ["[", "[1]", "\0", '{"twice": {}}'])
def test_a_damaged_record_is_ignored(text, student, folder):
    write(folder / "twice.py", RIGHT)
    (folder / progress_file.RECORD).write_text(text)
    assert "changed" in student("progress")[1]
    assert "hint 1 of 3" in student("hint twice")[1]
    assert student("check")[0] == 0
    assert "ok                twice" in student("progress")[1]
    json.loads((folder / progress_file.RECORD).read_text())


def test_a_record_that_cannot_be_written_does_no_harm(student, folder):
    write(folder / "twice.py", RIGHT)
    (folder / progress_file.RECORD).mkdir()
    code, shown = student("check")
    assert code == 0
    assert "progress was not saved" in shown
    assert "1 of 2 tasks" in shown
    assert student("progress")[0] == student("hint twice")[0] == 0


def test_hints_come_one_by_one(student):
    student("start twice")
    for number, hint in enumerate(["first", "second", "third", "third"], start=1):
        assert student("hint")[1].startswith(f"twice, hint {min(number, 3)} of 3\n  {hint}\n")
    shown = re.findall("first|second|third", student("hint --all")[1])
    assert shown == ["first", "second", "third"]


def test_hints_are_counted_before_there_is_a_file(student):
    assert student("hint twice")[1].endswith("one more: minimha homework hint twice\n")
    student("start twice")
    assert "hint 2 of 3" in student("hint twice")[1]


def test_the_answer_key_passes(student, folder):
    for name in ("twice", "thrice"):
        (folder / f"{name}.py").write_text(student(f"key {name}")[1], encoding="utf-8")
    assert student("check")[0] == 0
    assert "SOLUTION" not in student("key")[1]
    assert student("key")[1].count("# minimha homework: ") == 2


def test_pytest_settings_of_the_project_are_ignored(student, folder, monkeypatch):
    settings = "[pytest]\naddopts = --nonsense --strict-markers\npython_files = no.py\n"
    (folder / "pytest.ini").write_text(settings)
    (folder / "conftest.py").write_text("raise RuntimeError")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--more-nonsense")
    monkeypatch.setenv("PYTEST_PLUGINS", "nonesuch")
    write(folder / "twice.py", RIGHT)
    assert student("check")[0] == 0
    assert os.environ["PYTEST_ADDOPTS"] == "--more-nonsense"


@pytest.fixture
def in_pytest(tmp_path, capsys):
    """Run `pytest --pyargs minimha.homework …` in this process: the exit code and the output."""

    def runs(*options):
        command = ["--pyargs", "minimha.homework", "--rootdir", str(tmp_path), "-c", os.devnull]
        code = pytest.main([*command, "-p", "no:cacheprovider", "-p", "no:xdist", *options])
        return code, capsys.readouterr().out

    return runs


def test_plain_pytest_runs_the_homework(tmp_path):
    student_files.start(homework.course()["softmax"], tmp_path / "homework", tmp_path)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "--pyargs", "minimha.homework", "-rs"]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert run.returncode == 0, run.stdout
    assert "1 passed, 2 skipped" in run.stdout
    assert "to do: softmax" in run.stdout


def test_plain_pytest_says_what_is_wrong(tmp_path, in_pytest):
    file = tmp_path / "softmax.py"
    solved = student_files.stub(homework.course()["softmax"], solved=True)
    file.write_text(solved.replace("(dy - ", "(dy + "), encoding="utf-8")
    code, shown = in_pytest("--homework", str(file), "--import-mode=importlib")
    assert code == pytest.ExitCode.TESTS_FAILED
    assert re.search(
        r"_ test_homework\[softmax: dx matches the numeric gradient\] _+\nsoftmax: the gradient of x is wrong\n",
        shown,
    )
    assert "def test_homework" not in shown


@pytest.mark.thorough
def test_plain_pytest_says_what_it_cannot_check(tmp_path, in_pytest):
    for options, code, says in (
        (
            ["--homework", str(tmp_path / "absent")],
            pytest.ExitCode.INTERRUPTED,
            "absent does not exist",
        ),
        (["--homework", str(tmp_path), "-rs"], pytest.ExitCode.OK, "no task has been started here"),
    ):
        found, shown = in_pytest(*options)
        assert says in shown
        assert found == code
    for name in ("one", "two"):
        write(tmp_path / f"{name}.py", "", "softmax")
    code, shown = in_pytest("--homework", str(tmp_path))
    assert code == pytest.ExitCode.INTERRUPTED
    assert "two files are homework for softmax" in shown
    assert "student_files.py" not in shown
    assert "interrupts.py" not in shown


def test_start_can_ask_agents_to_tutor(student, folder):
    student("start twice")
    assert {path.name for path in folder.rglob("*.md")} == set()
    (folder / "homework" / "CLAUDE.md").write_text("mine")
    student("start thrice --agents")
    agents, claude = (folder / "homework" / f"{name}.md" for name in ("AGENTS", "CLAUDE"))
    text = " ".join(agents.read_text(encoding="utf-8").split())
    assert "tutor, not a solver" in text
    assert "Do not edit the body of a function that is homework" in text
    assert "Do not point to other implementations" in text
    assert claude.read_text() == "mine"
