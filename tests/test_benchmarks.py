"""The benchmarks run, with whatever peers are installed."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_the_engine_is_measured_and_saved(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            BENCHMARKS / "engine.py",
            *("--quick", "--save", tmp_path / "table.md", "add", "softmax"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line[:1] == "|"]
    assert rows == ["step", "---", "add", "softmax"]
    assert (tmp_path / "table.md").read_text(encoding="utf-8").strip() == done.stdout.strip()


def test_the_forms_are_compared_and_saved(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "forms.py", "--quick", "--save", tmp_path / "table.md"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line[:1] == "|"]
    assert rows[:2] == ["projections", "---"]
    assert rows[4:6] == ["attention", "---"]
    assert len(rows) == 8
    assert "Told right:" in done.stdout  # how often is for a quiet machine and all cells to say
    assert (tmp_path / "table.md").read_text(encoding="utf-8").strip() == done.stdout.strip()


def test_gradient_checks_are_compared_and_saved(tmp_path):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "gradcheck.py", "--quick", "--save", tmp_path / "table.md"],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = next(line for line in done.stdout.splitlines() if line.startswith("| mh.gradcheck"))
    caught = [float(cell) for cell in ours.split("|")[2:4]]
    assert max(caught) <= 1e-9
    assert (tmp_path / "table.md").read_text(encoding="utf-8").strip() == done.stdout.strip()
