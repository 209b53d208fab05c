"""Grading a folder: which file belongs to whom, and the reports."""

import argparse
import csv
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from graded import RIGHT, TASK

import minimha
from minimha import homework
from minimha.homework.grading import grade as grading
from minimha.homework.grading import submissions


def options(*arguments):
    parser = argparse.ArgumentParser()
    grading.add_arguments(parser)
    return parser.parse_args([str(argument) for argument in arguments])


@pytest.fixture
def tasks(monkeypatch):
    """The course has only this task."""
    monkeypatch.setattr(grading, "course", lambda: {TASK.name: TASK})


def snapshot(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


HOSTILE = """
import os
{}
for path in {!r}:
    try: os.remove(path)
    except OSError: pass
    open(path, "w")
"""


@pytest.mark.usefixtures("tasks")
@pytest.mark.thorough
def test_honest_students_get_full_marks_among_attackers(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "in"
    names = ("anna", "zoë", "=HYPERLINK(1)", "loop", "attack", "stub", "none", "a\nb")
    for name in names:
        (folder / name / "week 1").mkdir(parents=True)
        (folder / name / "week 1" / "scaled.py").write_text(RIGHT)
    theirs = [str(folder / name / "week 1" / "scaled.py") for name in names]
    (folder / "loop" / "week 1" / "scaled.py").write_text("import time; time.sleep(99)")
    (folder / "attack" / "week 1" / "scaled.py").write_text(HOSTILE.format(RIGHT, theirs))
    (folder / "stub" / "week 1" / "scaled.py").write_text(f"import numpy as np\n{TASK.code()}")
    (folder / "none" / "week 1" / "scaled.py").unlink()
    before = snapshot(folder)
    assert grading.run(options(folder, "--json", "--csv", "--time", 3, "--seed", 7)) == 0
    assert snapshot(folder) == before
    report = json.loads(Path("grades.json").read_text(encoding="utf-8"))
    assert (report["seed"], report["minimha"]) == (7, minimha.__version__)
    points = {student["student"]: student["points"] for student in report["students"]}
    full = {"anna", "zoë", "=HYPERLINK(1)", "a�b"}
    assert points == dict.fromkeys(full, 3.0) | {"stub": 0, "loop": 0, "attack": 0, "none": 0}
    rows = list(csv.reader(Path("grades.csv").read_text(encoding="utf-8").splitlines()))
    assert [row[0] for row in rows] == ["student", "'=HYPERLINK(1)", *list(points)[1:]]
    (stub,) = (row for row in rows if row[0] == "stub")
    assert stub[3:6] == ["0.0", "3", "to do: gradients"]
    table = capsys.readouterr().out
    assert "\nanna             3.00 of 3\na" in table
    assert "0.00 of 3  scaled  missing" in table
    assert "seed 7" in table


@pytest.mark.usefixtures("tasks")
def test_a_seed_repeats_a_run_and_other_runs_differ(tmp_path, capsys):
    (tmp_path / "anna_scaled.py").write_text(RIGHT.replace("factor * x", "2 * x"))

    def printed(*more):
        grading.run(options(tmp_path, "--json", "-", *more))
        return capsys.readouterr().out

    first = printed()
    assert printed("--seed", json.loads(first)["seed"]) == first
    assert printed() != first


def test_files_are_assigned_to_students_and_tasks(tmp_path):
    marked = "# minimha homework: scores · chapter 05\n"
    for name, text in {
        "anna/scores.py": "", "anna/more/attention.py": "", "ben_12_scores-1.py": "", "carl_x.py": marked,
        "dora/old/scores.py": "", "dora/scores.py": "", "dora/scores (1).py": "", "eve/masked_scores.py": "",
        "eve/underscores.py": "", "eve/attention.py": marked, "eve/.ipynb_checkpoints/scores.py": "",
        "eve/b.txt": "", "scores.py": "", "scores_hal (1).py": marked, "group_1.py": marked, "fred/notes.py": "", "__MACOSX/scores.py": "", "gil/.x": "",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    os.symlink("/etc", tmp_path / "anna" / "etc")
    os.symlink(tmp_path / "ben_12_scores-1.py", tmp_path / "ida_scores.py")
    os.mkfifo(tmp_path / "joe_scores.py")
    found, notes = submissions.find(tmp_path, ["scores", "attention", "masked_scores"])
    inside = {s: {t: str(p.relative_to(tmp_path)) for t, p in f.items()} for s, f in found.items()}
    assert inside == {
        "anna": {"scores": "anna/scores.py", "attention": "anna/more/attention.py"},
        "ben_12": {"scores": "ben_12_scores-1.py"},
        "carl_x": {"scores": "carl_x.py"},
        "dora": {"scores": "dora/scores (1).py"},
        "eve": {"masked_scores": "eve/masked_scores.py", "scores": "eve/attention.py"},
        "fred": {},
        "gil": {},
        "group_1": {"scores": "group_1.py"},
        "hal": {"scores": "scores_hal (1).py"},
        tmp_path.name: {"scores": "scores.py"},
    }
    assert [note.split(":")[0] for note in notes] == [
        "anna/etc", "dora/old/scores.py", "dora/scores.py", "eve/underscores.py", "fred/notes.py", "ida_scores.py", "joe_scores.py",
    ]  # fmt: skip


@pytest.mark.usefixtures("tasks")
def test_unusual_files_do_not_stop_grading(tmp_path, capsys):
    with (tmp_path / "big_scaled.py").open("wb") as file:
        file.truncate(100 << 20)
    (tmp_path / "binary_scaled.py").write_bytes(bytes(range(256)))
    (tmp_path / "secret_scaled.py").write_text(RIGHT)
    (tmp_path / "secret_scaled.py").chmod(0)
    os.makedirs(os.fsencode(tmp_path) + b"/\xff\xfe")
    assert grading.run(options(tmp_path, "--csv", "-")) == 0
    rows = [row[::3] for row in csv.reader(capsys.readouterr().out.splitlines()[1:])]
    assert rows[0] == ["big", "0.0", "big_scaled.py"]
    assert rows[1] == ["binary", "0.0", "binary_scaled.py"]
    assert rows[-1] == ["��", "0.0", ""]
    (tmp_path / "secret_scaled.py").chmod(stat.S_IRWXU)
    with pytest.raises(ValueError, match="longer than 1 MB"):
        submissions.source(tmp_path / "big_scaled.py")


def test_folders_may_be_deeply_nested_with_long_names(tmp_path):
    (tmp_path / "anna_scores.py").touch()
    for student, name, depth in (("ben", "b", 1020), ("carl", "c" * 250, 18)):
        inside = os.open(tmp_path, os.O_RDONLY)
        for part in (student, *[name] * depth):
            os.mkdir(part, dir_fd=inside)
            outside, inside = inside, os.open(part, os.O_RDONLY, dir_fd=inside)
            os.close(outside)
        os.close(os.open("scores.py", os.O_CREAT, dir_fd=inside))
        os.close(inside)
    try:
        found, notes = submissions.find(tmp_path, ["scores"])
    finally:
        subprocess.run(["rm", "-r", "ben", "carl"], cwd=tmp_path, check=True)
    assert {s: len(files) for s, files in found.items()} == {"anna": 1, "ben": 0, "carl": 0}
    assert ["below this one" in note or "too long" in note for note in notes] == [True, True]


@pytest.mark.usefixtures("tasks")
def test_the_table_stays_readable_for_any_submission(tmp_path, capsys):
    for k in range(50):
        (tmp_path / f"{k}.py").touch()
    (tmp_path / "zoë_scaled.py").write_text(f"import minimha\n{RIGHT}")
    (tmp_path / "a;=1+1_scaled.py").write_text(RIGHT)
    assert grading.run(options(tmp_path, "--csv", "-")) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith('"a;=1+1",1,"scaled",3.0')
    assert grading.run(options(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    why = "ImportError: minimha cannot be imported here, where homework is graded"
    assert lines[1:3] == [
        f"{'zoë':6}    0.00 of 3",
        f"{'':6}    0.00 of 3  scaled  wrong: all, {why}",
    ]
    assert len(lines) == 3 + 20 + 2
    assert lines[-2] == "… and 30 more, listed in the JSON"


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "contains no submissions"),
        (["--only", "nothing"], "no task or chapter is called nothing"),
        (["--seed", "-1"], "--seed -1 is negative"),
        (["--time", "nan"], "must be positive"),
        (["--memory", "0"], "must be positive"),
    ],
)
def test_invalid_grading_arguments_raise_an_error_with_the_reason(tmp_path, arguments, says):
    with pytest.raises(ValueError, match=says):
        grading.run(options(tmp_path, *arguments))


def test_a_single_task_or_chapter_can_be_graded():
    assert "softmax" in [task.name for task in grading.chosen(["05"])]
    assert [task.name for task in grading.chosen(["softmax"])] == ["softmax"]
    assert len(grading.chosen(None)) == len(homework.course())
