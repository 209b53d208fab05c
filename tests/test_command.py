"""The command `minimha` while it is loading, and its errors."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import minimha
import minimha_command
from minimha import __main__ as command
from minimha.kernels import threads

ENGINE = Path(minimha_command.__file__).parent
SLOW = """
import time
print("loading", flush=True)
try:
    time.sleep(60)
except BaseException:
    print("an exception was swallowed")
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows sends Ctrl-C to consoles only")
def test_ctrl_c_while_loading_gives_one_line(tmp_path):
    (tmp_path / "minimha").mkdir()
    (tmp_path / "minimha" / "__init__.py").write_text(SLOW)
    call = [sys.executable, "-c", "import minimha_command; minimha_command.main()"]
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ENGINE}"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(call, env=env, cwd=tmp_path, **pipes) as process:
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "minimha: interrupted\n")
    assert process.returncode == 130


def test_ctrl_c_after_loading_is_left_to_the_command(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(command, "main", lambda: signal.getsignal(signal.SIGINT))
    assert minimha_command.main() is before


def test_ctrl_c_in_a_command_gives_one_line(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.tour, "take", interrupted)
    assert command.main([]) == 130
    assert capsys.readouterr().err == "minimha: interrupted\n"


@pytest.mark.parametrize(("variable", "value", "problem"), [
    ("MINIMHA_NUM_THREADS", "0", "is '0'; it must be a positive integer, or unset"),
    ("MINIMHA_IMPLEMENTATION", "tild", "'tild' (MINIMHA_IMPLEMENTATION): there are 'auto', "),
])  # fmt: skip
def test_a_variable_with_a_wrong_value_is_named_in_one_line(
    variable, value, problem, monkeypatch, capsys
):
    monkeypatch.setenv(variable, value)
    threads._default.cache_clear()
    with pytest.raises(SystemExit) as stopped:
        command.main(["homework", "list"])
    monkeypatch.undo()
    threads._default.cache_clear()
    (line,) = capsys.readouterr().err.splitlines()
    assert (stopped.value.code, line[:9]) == (2, "minimha: ")
    assert problem in line


def run(words):
    try:
        return command.main(words.split())
    except SystemExit as stopped:
        return stopped.code


WRITING = pytest.mark.parametrize("words", ["--help", "--version", "homework list"])


@WRITING
def test_a_command_whose_reader_has_left_ends_quietly(words, monkeypatch, capsys):
    """As in `minimha homework list | head -1`."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert run(words) == 1
    assert capsys.readouterr().err == ""


@WRITING
def test_a_command_without_a_standard_output_does_its_work(words, monkeypatch, capsys):
    """As in `minimha homework list >&-`."""
    monkeypatch.setattr(sys, "stdout", None)
    assert run(words) == 0
    sys.stdout.close()
    assert capsys.readouterr().err == ""


def test_the_version_is_that_of_the_package(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out == f"minimha {minimha.__version__}\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("trian", "train"),
        ("gpu-reprot", "gpu-report"),
        ("homework chekc", "check"),
        ("--backend numyp", "numpy"),
        ("x", None),
    ],
)
def test_a_misspelt_word_is_recognised(words, meant, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(words.split())
    assert stopped.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "invalid choice" in last
    assert last.endswith(f"; did you mean {meant}?" if meant else ")")
