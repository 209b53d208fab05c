"""The command `minimha`: a tour, and errors of one line."""

import importlib.util
import subprocess
import sys

import pytest

from minimha import __main__ as command
from minimha.training import tour

TEXT = "The cat sat on the mat, and the dog sat on the log by the cat.\n" * 30


LIBRARIES = [
    "numpy",
    pytest.param("array-api-strict", marks=pytest.mark.thorough),
    pytest.param("torch", marks=pytest.mark.thorough),
]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def toured(*options):
    return command.main([str(option) for option in options])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.thorough  # CI also runs the tour of the README
def test_a_short_tour_shows_every_part(library, text, tmp_path, capsys):
    pytest.importorskip(library.replace("-", "_"), reason=f"{library} is not installed")
    picture = tmp_path / "heads.png"
    options = ["--text", text, "--steps", 4, "--seed", 3, "--picture", picture]
    assert toured(*options, "--backend", library) == 0
    shown = capsys.readouterr().out
    for part in (
        "softmax", "attention, masked", "multi-head attention", "layer norm", "step  structural zero",
        "step      4   training", "bigram table", f"The picture is in {picture}",
    ):  # fmt: skip
        assert part in shown
    assert picture.stat().st_size > 5000


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_tour(text, tmp_path, capsys):
    shown = []
    for seed in (5, 5, 6):
        toured("--text", text, "--steps", 3, "--seed", seed, "--picture", tmp_path / "p.png")
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2]


@pytest.mark.thorough
def test_the_default_tour_fails_unless_it_beats_the_bigram_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tour, "STEPS", 2)
    assert toured("--steps", 2, "--picture", tmp_path / "p.png") == 1
    shown = capsys.readouterr().out
    assert "not clearly below" in shown
    assert "Failed" in shown


@pytest.mark.parametrize(
    ("options", "content", "message"),
    [
        (["--text", "absent.txt"], None, "cannot read absent.txt: No such file or directory"),
        (["--text", "."], None, "cannot read ."),
        (["--text", "t"], b"", "t is empty"),
        (["--text", "t"], b"short", "the text has 5 characters"),
        (["--picture", "heads.txt"], None, "heads.txt: a picture's name ends in"),
        (["--picture", "absent/heads.png"], None, "cannot write to"),
        (["--picture", "t/heads.png"], b"a file, no folder", "cannot write to"),
        (["--backend", "cupy"], None, ""),
    ],
)
def test_errors_are_one_line_with_exit_code_2(
    options, content, message, tmp_path, monkeypatch, capsys
):
    if options[1] == "cupy" and importlib.util.find_spec("cupy"):
        pytest.skip("cupy is installed")
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "t").write_bytes(content)
    before = sorted(tmp_path.iterdir())
    assert command.main(options) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"minimha: {message}")
    assert shown.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "options", ["--steps 0", "--steps x", "--seed -1", "--backend jax", "--picture"]
)
def test_bad_options_are_refused(options, capsys):
    with pytest.raises(SystemExit) as stopped:
        toured(*options.split())
    assert stopped.value.code == 2
    assert options.split()[0] in capsys.readouterr().err


@pytest.mark.thorough
def test_a_closed_pipe_ends_the_tour_quietly(text, tmp_path):
    call = [sys.executable, "-u", "-m", "minimha", "--text", text, "--steps", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(call, cwd=tmp_path, **pipes) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.thorough
def test_a_full_disk_is_reported_in_one_line(text, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(tour.pictures, "save", full)
    assert toured("--text", text, "--steps", 2, "--picture", tmp_path / "p.png") == 1
    assert capsys.readouterr().err == "minimha: no space left on device\n"
