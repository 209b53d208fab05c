"""Grading a folder: which file belongs to whom, and the reports."""

import csv
import html
import json
import os
import stat
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from graded import RIGHT, ROOT, TASK, notebook, options, write

import minimha
from minimha import homework
from minimha.homework.student import answers, student_files
from minimha.homework.teacher import chosen as choice
from minimha.homework.teacher.grading import grade as grading
from minimha.homework.teacher.grading import judge, process, submissions


def run(*arguments):
    return grading.grade_submissions(options(grading, "--jobs", 1, *arguments))


def snapshot(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("[!.]*")}


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
    write(folder, {f"{name}/week 1/scaled.py": RIGHT for name in names})
    theirs = [str(folder / name / "week 1" / "scaled.py") for name in names]
    (folder / "loop" / "week 1" / "scaled.py").write_text("import time; time.sleep(99)")
    (folder / "attack" / "week 1" / "scaled.py").write_text(HOSTILE.format(RIGHT, theirs))
    (folder / "stub" / "week 1" / "scaled.py").write_text(f"import numpy as np\n{TASK.code()}")
    (folder / "none" / "week 1" / "scaled.py").unlink()
    before = snapshot(folder)
    assert run(folder, "--json", "--csv", "--time", 3, "--seed", 7) == 0
    assert snapshot(folder) == before
    report = json.loads(Path("grades.json").read_text(encoding="utf-8"))
    assert (report["seed"], report["minimha"]) == (7, minimha.__version__)
    points = {student["student"]: student["points"] for student in report["students"]}
    full = {"anna", "zoë", "=HYPERLINK(1)", "a\\nb"}
    assert points == dict.fromkeys(full, 3.0) | {"stub": 0, "loop": 0, "attack": 0, "none": 0}
    rows = list(csv.reader(Path("grades.csv").read_text(encoding="utf-8-sig").splitlines()))
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
        run(tmp_path, "--json", "-", *more)
        return capsys.readouterr().out

    first = printed()
    assert printed("--seed", json.loads(first)["seed"]) == first
    assert json.loads(printed())["students"] != json.loads(first)["students"]


def test_files_are_assigned_to_students_and_tasks(tmp_path):
    marked = "# minimha homework: scores · chapter 05\n"
    texts = {
        "anna/scores.py": "", "anna/more/attention.py": "", "ben_12_scores-1.py": "", "carl_x.py": marked,
        "dora/old/scores.py": "", "dora/scores.py": "", "dora/scores (1).py": "", "eve/masked_scores.py": "",
        "eve/underscores.py": "", "eve/attention.py": marked, "eve/.ipynb_checkpoints/scores.py": "",
        "eve/b.txt": "", "eve/all.zip": "", "scores.py": "", "scores_hal (1).py": marked, "group_1.py": marked, "fred/notes.py": "", "__MACOSX/scores.py": "", "gil/.x": "",
        "kim/scores.py": "# minimha homework: linear", "ian/scores.py": "    raise NotImplementedError", "ian/deep/scores.py": "    # raise NotImplementedError",
    }  # fmt: skip
    write(tmp_path, texts)
    os.symlink("/etc", tmp_path / "anna" / "etc")
    os.symlink(tmp_path / "ben_12_scores-1.py", tmp_path / "ida_scores.py")
    os.mkfifo(tmp_path / "joe_scores.py")
    found, notes = submissions.find(tmp_path, {"scores": 5, "attention": 5, "masked_scores": 6})
    inside = {
        s: {t: str(a.path.relative_to(tmp_path)) for t, a in f.items()} for s, f in found.items()
    }
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
        "ian": {"scores": "ian/deep/scores.py"},
        "kim": {},
        tmp_path.name: {"scores": "scores.py"},
    }
    assert [note.text.split(":")[0] for note in notes] == [
        "anna/etc", "dora/old/scores.py", "dora/scores.py", "eve/all.zip", "eve/underscores.py", "fred/notes.py", "ida_scores.py", "joe_scores.py",
    ]  # fmt: skip


@pytest.mark.usefixtures("tasks")
def test_unusual_files_do_not_stop_grading(tmp_path, capsys):
    with (tmp_path / "big_scaled.py").open("wb") as file:
        file.truncate(100 << 20)
    (tmp_path / "big.py").symlink_to("big_scaled.py")
    with (tmp_path / "large.py").open("wb") as file:
        file.truncate(2 << 20)
    (tmp_path / "binary_scaled.py").write_bytes(bytes(range(256)))
    (tmp_path / "secret_scaled.py").write_text(RIGHT)
    (tmp_path / "secret_scaled.py").chmod(0)
    os.makedirs(os.fsencode(tmp_path) + b"/\xff\xfe")
    assert run(tmp_path, "--csv", "-") == 0
    rows = [row[::3] for row in csv.reader(capsys.readouterr().out.splitlines()[1:])]
    assert rows[0] == ["big", "0.0", "big_scaled.py"]
    assert rows[1] == ["binary", "0.0", "binary_scaled.py"]
    assert rows[2] == ["large", "0.0", ""]
    assert rows[-1] == [r"\udcff\udcfe", "0.0", ""]
    (tmp_path / "secret_scaled.py").chmod(stat.S_IRWXU)
    with pytest.raises(ValueError, match="longer than 1 MB"):
        answers.source(tmp_path / "big_scaled.py")


@pytest.mark.usefixtures("tasks")
def test_the_report_is_printable_and_says_what_each_check_is_worth(tmp_path, capsys):
    (tmp_path / "anna_scaled.py").write_text(
        "def scaled(*_, **__):\n    raise ValueError('\\x1b[2J')\n"
    )
    (tmp_path / "big_scaled.py").write_text("#" * (2 << 20))
    assert run(tmp_path, "--json", "-") == 0
    students = json.loads(capsys.readouterr().out)["students"]
    (_, anna), (_, big) = (student["tasks"][0]["checks"] for student in students)
    assert "\x1b" not in anna["message"]
    assert (anna["weight"], students[0]["tasks"][0]["checks"][0]["weight"]) == (2, 0)
    assert big["message"] == "the file is longer than 1 MB"


BROKEN = notebook(RIGHT)[:-9]
PICTURE = notebook(RIGHT, f"x = {'A' * (10 << 20)!r}")
UNUSABLE = {
    "05_attention.ipynb": (BROKEN, "this is not a Jupyter notebook, or it is damaged"),
    "homework.ipynb": (
        PICTURE,
        "the file is longer than 10 MB: clear its outputs, which take space",
    ),
    "unmarked.ipynb": (notebook(RIGHT), "nothing is graded, because no cell contains"),
    "all.zip": ("", "an archive, which is not read: unpack it"),
    "long.py": ("#" * (1 << 20) + RIGHT, "the file is longer than 1 MB"),
}


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize(
    ("name", "text", "why"), [(x, *y) for x, y in UNUSABLE.items()], ids=UNUSABLE
)
def test_a_file_that_cannot_be_graded_is_explained_on_the_students_page(
    name, text, why, tmp_path, capsys
):
    write(tmp_path / "in", {f"anna/{name}": text, "ben/scaled.py": RIGHT})
    run(tmp_path / "in", "--json", "-", "--feedback", tmp_path / "out")
    report = json.loads(capsys.readouterr().out)
    anna, ben = (student["notes"] for student in report["students"])
    assert (report["notes"], ben) == (anna, [])
    assert anna[0].startswith(f"anna/{name}: {why}")
    assert html.escape(anna[0]) in (tmp_path / "out" / "anna.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [x for x in UNUSABLE if x != "all.zip"])
def test_a_student_whose_only_file_cannot_be_graded_has_a_row(name, tmp_path):
    write(tmp_path, {f"anna_{name}": UNUSABLE[name][0]})
    found, (note,) = submissions.find(tmp_path, {"scaled": 1})
    assert list(found) == [note.student]
    assert note.student.startswith("anna")


def test_a_notebook_of_another_week_is_no_mistake(tmp_path):
    write(tmp_path, {"anna/06.ipynb": notebook("# minimha homework: causal\n")})
    assert submissions.find(tmp_path, {"softmax": 5}) == ({"anna": {}}, [])


@pytest.mark.usefixtures("tasks")
def test_students_with_unusual_names_get_rows_and_pages_of_their_own(tmp_path, capsys):
    names = ["a\tb", "a\nb", "a\x1bb", "x" + "ab" * 124 + "y", "ab" * 124 + "y"]
    write(tmp_path / "in", {f"{name}/scaled.py": RIGHT for name in names})
    run(tmp_path / "in", "--json", "-", "--feedback", tmp_path / "out")
    found = [student["student"] for student in json.loads(capsys.readouterr().out)["students"]]
    assert sorted(found) == sorted([r"a\tb", r"a\nb", r"a\x1bb", *names[3:]])
    assert len(list((tmp_path / "out").iterdir())) == len(names)


@pytest.mark.usefixtures("tasks")
def test_an_answer_that_can_be_read_counts_before_one_that_cannot(tmp_path):
    write(tmp_path / "anna", {"scaled.py": "#" * (1 << 20) + "#", "a/scaled.py": RIGHT})
    found, notes = submissions.find(tmp_path, {"scaled": 1})
    assert found["anna"]["scaled"].path == tmp_path / "anna" / "a" / "scaled.py"
    assert [note.text for note in notes] == [
        "anna/scaled.py: scaled is graded in anna/a/scaled.py instead"
    ]


def test_a_name_is_the_same_however_its_accents_are_written(tmp_path):
    names = [unicodedata.normalize(form, "zoë") for form in ("NFC", "NFD")]
    write(tmp_path, {f"{names[0]}/scaled.py": RIGHT, f"{names[1]}_scores.py": RIGHT})
    found, _ = submissions.find(tmp_path, {"scaled": 1, "scores": 5})
    assert {name: set(answers) for name, answers in found.items()} == {"zoë": {"scaled", "scores"}}


def test_folders_of_a_student_are_searched_19_levels_deep(tmp_path):
    write(tmp_path, {f"{name}/{'x/' * n}scores.py": "" for name, n in (("anna", 19), ("ben", 20))})
    found, _ = submissions.find(tmp_path, {"scores": 5})
    assert {name: list(files) for name, files in found.items()} == {"anna": ["scores"], "ben": []}


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
        found, notes = submissions.find(tmp_path, {"scores": 5})
    finally:
        subprocess.run(["rm", "-r", "ben", "carl"], cwd=tmp_path, check=True)
    assert {s: len(files) for s, files in found.items()} == {"anna": 1, "ben": 0, "carl": 0}
    texts = [note.text for note in notes]
    assert ["below this one" in x or "too long" in x for x in texts] == [True, True]


@pytest.mark.usefixtures("tasks")
def test_the_table_stays_readable_for_any_submission(tmp_path, capsys):
    for k in range(50):
        (tmp_path / f"{k}.py").touch()
    (tmp_path / "zoë_scaled.py").write_text(f"import minimha\n{RIGHT}")
    names = ("a;=1+1", " =1", "+1", "-1", "@1")
    write(tmp_path, {f"{name}/scaled.py": RIGHT for name in names})
    assert run(tmp_path, "--csv", "-") == 0
    rows = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert rows[1:-1] == ['"\' =1"', '"\'+1"', '"\'-1"', '"\'@1"', '"a;=1+1"']
    assert run(tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    why = "ImportError: minimha cannot be imported here, where homework is graded"
    assert lines[5:7] == [
        f"{'zoë':6}    0.00 of 3",
        f"{'':6}    0.00 of 3  scaled  wrong: all, {why}",
    ]
    assert len(lines) == 7 + 20 + 2
    assert lines[-2] == "… and 30 more, listed in the JSON"


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "contains no submissions"),
        (["--only", "nothing"], "no task or chapter is called nothing"),
        (["--seed", "-1"], "--seed must not be negative"),
        (["--time", "nan"], "must be positive"),
        (["--memory", "0"], "must be positive"),
    ],
)
def test_invalid_grading_arguments_raise_an_error_with_the_reason(tmp_path, arguments, says):
    with pytest.raises(ValueError, match=says):
        run(tmp_path, *arguments)


def test_a_single_task_or_chapter_can_be_graded():
    names = [task.name for task in choice.chosen(["05"])]
    assert names == ["softmax", "attention_forward", "attention"]  # the notebook's
    assert [task.name for task in choice.chosen(["5", "scores"])] == ["scores", *names]
    assert [task.name for task in choice.chosen(["softmax"])] == ["softmax"]
    assert len(choice.chosen(None)) == len(homework.course())


OWN = {
    "adapters.py": "# minimha homework: adapters\nfrom homework.maths import scaled as own\n"
    "def scaled(x, factor, *, tap=lambda name, x: x):\n    return own(x, factor)\n",
    "src/homework/__init__.py": "import numpy as np\n",
    "src/homework/maths.py": "from .scaled import times\n\n\ndef scaled(x, factor):\n"
    "    return times(x, factor), lambda dy: (times(dy, factor),)\n",
    "src/homework/scaled.py": "def times(x, factor):\n    return x * factor\n",
}  # fmt: skip


def test_a_chapter_includes_the_teachers_own_tasks():
    homework.load_tasks(ROOT / "docs" / "own_tasks.py")
    try:
        own = homework.TASKS["sigmoid"]
        assert own in choice.chosen([str(own.chapter)])
    finally:
        del homework.TASKS["sigmoid"]


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize(
    "line",
    [
        "from mine.maths import scaled",
        "from mine.maths import times as scaled",
        "from mine.maths import (\n    scaled,\n)",
        "import mine.maths\nscaled = mine.maths.scaled",
        "def scaled(*inputs, **settings",  # an error that the page must show
    ],
)
def test_adapters_may_import_what_they_answer(line, tmp_path, capsys):
    maths = RIGHT.replace("def scaled", "def times") + "\n\nscaled = times\n"
    adapters = f"# minimha homework: adapters\n{line}\n"
    write(tmp_path / "anna", {"adapters.py": adapters, "mine/maths.py": maths})
    run(tmp_path, "--json", "-")
    (student,) = json.loads(capsys.readouterr().out)["students"]
    assert student["tasks"][0]["file"] == "anna/adapters.py"
    assert student["points"] == (0 if line.startswith("def") else 3)


@pytest.mark.usefixtures("tasks")
def test_a_package_of_ones_own_is_graded_and_its_errors_quote_its_lines(tmp_path, capsys):
    for student, deep in {
        "anna": OWN["src/homework/scaled.py"],
        "ben": "def times(x, factor):\n    return x.nothing\n",
        "carla": "import subprocess\n",
        "dan": "import minimha\n",
    }.items():
        write(tmp_path / student, OWN | {"src/homework/scaled.py": deep})
    (tmp_path / "anna" / "src" / "homework" / "__init__.py").unlink()
    (tmp_path / "carla" / "src" / "homework" / "unused.py").touch()
    assert run(tmp_path, "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    found = {s["student"]: s["tasks"][0]["checks"][0] for s in report["students"]}
    assert [found[name]["outcome"] for name in found] == ["ok", "wrong", "wrong", "wrong"]
    assert "in times, line 2: return x.nothing" in found["ben"]["message"]
    assert "subprocess cannot be imported here" in found["carla"]["message"]
    assert "minimha cannot be imported here" in found["dan"]["message"]
    assert report["notes"] == ["carla/src/homework/unused.py: not one of the tasks being graded"]


@pytest.mark.usefixtures("tasks")
def test_a_repository_of_one_student_is_graded_as_a_whole(tmp_path, capsys):
    write(tmp_path, {"week 1/scaled.py": RIGHT, ".minimha-grading.jsonl": '{"seed": 1}'})
    assert run(tmp_path, "--student", "anna", "--json", "-") == 0
    report = json.loads(capsys.readouterr().out)
    assert [(s["student"], s["points"]) for s in report["students"]] == [("anna", 3)]
    assert (tmp_path / ".minimha-grading.jsonl").exists()


@pytest.mark.usefixtures("tasks")
def test_an_interrupted_run_is_continued_with_the_same_result(tmp_path, capsys, monkeypatch):
    for name in ("anna", "ben", "carla"):
        (tmp_path / f"{name}_scaled.py").write_text(RIGHT)
    whole = judge.student

    def interrupted(name, *more):
        if name == "carla":
            raise KeyboardInterrupt
        return whole(name, *more)

    monkeypatch.setattr(judge, "student", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "--seed", 5)
    assert "repeat the command with --continue" in capsys.readouterr().err
    graded = []
    monkeypatch.setattr(judge, "student", lambda name, *x: graded.append(name) or whole(name, *x))
    with pytest.raises(ValueError, match="no run to continue"):
        run(tmp_path, "--continue", "--time", 3)
    (tmp_path / "anna_scaled.py").write_text(f"{RIGHT}\n# handed in again")
    journal = tmp_path / ".minimha-grading.jsonl"
    journal.write_text(journal.read_text() + '["carla", "cut')
    assert run(tmp_path, "--continue", "--json", "-") == 0
    assert graded == ["anna", "carla"]
    continued = capsys.readouterr().out
    assert run(tmp_path, "--continue", "--json", "-") == 0
    assert graded == ["anna", "carla"]
    assert capsys.readouterr().out == continued
    assert run(tmp_path, "--seed", 5, "--json", "-") == 0
    assert graded[2:] == ["anna", "ben", "carla"]
    assert capsys.readouterr().out == continued


def test_a_run_with_other_tasks_of_the_teacher_is_another_run(tmp_path):
    run = grading.Run(("scaled",), tmp_path / "own.py", 0, process.Limits())
    settings = [run.own.write_text(text) and run.settings() for text in ("a", "b", "a")]
    assert settings[0] == settings[2] != settings[1]


@pytest.mark.thorough
def test_students_are_graded_in_parallel_with_a_teachers_own_tasks(tmp_path):
    own = ROOT / "docs" / "own_tasks.py"
    homework.load_tasks(own)
    try:
        solved = student_files.stub(homework.course()["sigmoid"], solved=True)
    finally:
        del homework.TASKS["sigmoid"]
    for name in ("anna", "ben", "carla"):
        (tmp_path / f"{name}_sigmoid.py").write_text(solved.replace("y * (1", "(1", name == "ben"))
    found = [
        subprocess.run(
            [sys.executable, "-m", "minimha", "homework", "grade", str(tmp_path), "--json", "-",
             "--only", "sigmoid", "--seed", "3", "--tasks", str(own), "--jobs", jobs],
            capture_output=True, text=True, check=True,
        ).stdout
        for jobs in ("1", "3")
    ]  # fmt: skip
    assert found[0] == found[1]
    students = json.loads(found[0])["students"]
    assert [student["points"] for student in students] == [1, round(1 / 3, 4), 1]
