"""Submissions as JPlag compares them."""

import pytest
from graded import notebook, options, write

from minimha import homework
from minimha.homework.student import student_files
from minimha.homework.teacher import jplag


def run(*arguments):
    return jplag.write_jplag_folders(options(jplag, *arguments))


def test_every_answer_is_a_file_and_stubs_are_the_base_code(tmp_path, capsys):
    folder, into = tmp_path / "monday", tmp_path / "out"
    marked = "# minimha homework: softmax\ndef softmax(x):\n    return x\n"
    texts = {
        "anna/softmax.py": marked,
        "ben/05.ipynb": notebook(marked),
        "carl/adapters.py": "# minimha homework: adapters\nimport mine.parts\n\ndef softmax(x):\n    return x\n\ndef scores(q, k):\n    return q\n",
        "carl/mine/parts.py": "x = 1\n",
        "dora/softmax.py": "#" * (1 << 21),
    }
    write(folder, texts)
    (folder / "eric").mkdir()
    assert run(folder, "--into", into, "--only", "softmax", "scores") == 0
    written = {path.relative_to(into).as_posix() for path in into.rglob("*") if path.is_file()}
    assert written == {
        "submissions/anna/softmax.py", "submissions/ben/softmax.py",
        "submissions/carl/scores.py", "submissions/carl/mine/parts.py",
        "base/softmax.py", "base/scores.py",
    }  # fmt: skip
    stub = student_files.stub(homework.course()["softmax"])
    assert (into / "base" / "softmax.py").read_text(encoding="utf-8") == stub
    assert "def softmax" in (into / "submissions" / "ben" / "softmax.py").read_text()
    printed = capsys.readouterr().out
    assert f"-bc {into / 'base'} {into / 'submissions'}" in printed
    assert "contains the work of 3 students." in printed


def test_files_of_an_earlier_run_are_not_mixed_in(tmp_path):
    (tmp_path / "old").touch()
    with pytest.raises(ValueError, match="is not empty"):
        run(tmp_path, "--into", tmp_path)
