"""A student who has solved the course gets a package that tests itself and trains."""

import os
import subprocess
import sys

import pytest

from minimha import homework
from minimha.__main__ import main
from minimha.homework.student import student_files
from minimha.homework.student.package.export import NEEDED


def solve(folder, names):
    for name in names:
        text = student_files.stub(homework.course()[name], solved=True)
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


@pytest.fixture
def export(tmp_path, monkeypatch, capsys):
    """Export from an empty folder: the exit code and the output."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def exported(folder):
        code = main(["homework", "export", str(folder)])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return exported


def python(folder, *command):
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.thorough
def test_the_package_passes_its_tests_and_trains_as_minimha_does(export, tmp_path):
    solve(tmp_path / "work", homework.course())
    folder = tmp_path / "mine"
    assert export(folder)[0] == 0
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"][1:]
    done = python(folder, *tests)
    assert f"{len(homework.course()) + 2} passed" in done.stdout, done.stdout
    done = python(folder, "train.py", "10")
    losses = [line.split()[1:] for line in done.stdout.splitlines()[1:]]
    assert len(losses) == 10, done.stderr
    assert all(yours == theirs for yours, theirs in losses)
    assert float(losses[-1][0]) < float(losses[0][0]) - 0.5
    norm = folder / "mine" / "ch09_training" / "layer_norm.py"
    norm.write_text(norm.read_text().replace("x_hat * weight + bias", "x_hat + bias"))
    done = python(folder, *tests, "-k", "layer_norm or model")
    assert "3 failed" in done.stdout, done.stdout


def test_what_is_missing_is_named(export, tmp_path):
    code, shown = export(tmp_path / "mine")
    assert (code, "none of your functions is finished" in shown) == (2, True)
    solve(tmp_path / "work", NEEDED[1:])
    stub = student_files.stub(homework.course()["matmul"])
    (tmp_path / "work" / "matmul.py").write_text(stub, encoding="utf-8")
    with (tmp_path / "work" / "scores.py").open("a") as finished:
        finished.write("# raise NotImplementedError\n")
    code, shown = export(tmp_path / "mine")
    assert (code, "need matmul\n" in shown) == (0, True), shown
    assert not (tmp_path / "mine" / "mine" / "ch02_autograd").exists()
    assert "is not empty" in export(tmp_path / "mine")[1]
    assert "cannot be the name of a package" in export(tmp_path / "my-mha")[1]
