"""Guesses are kept before the result is known, and shown beside it."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from minimha import homework
from minimha.homework.student import guesses, progress_file
from minimha.homework.student.guesses import guess, guessed


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(guesses, "_session", {})
    path = tmp_path / "minimha-notebooks"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def axes():
    axes = Figure().subplots()
    axes.plot([1, 2, 3], [0.2, 0.5, 0.4], label="measured")
    return axes


def drawn(axes):
    """The lines and stars of the guess."""
    return [line for line in axes.lines if line.get_color() == "#AA4499"]


def another_session(monkeypatch):
    monkeypatch.setattr(guesses, "_session", {})


def test_a_guess_is_shown_beside_the_result_in_a_later_session_too(monkeypatch, capsys):
    guess("largest weight", 0.8)
    guess("largest weight", 0.9)
    another_session(monkeypatch)
    guessed("largest weight", np.float32(0.97123))
    assert capsys.readouterr().out == "largest weight: your guess 0.9, the result 0.9712\n"


def test_guesses_share_the_record_of_the_homework(folder, monkeypatch, capsys):
    (name, *_) = homework.course()
    progress_file.add(folder, name, notebook="passed")
    guess("largest weight", 0.9)
    homework.progress()
    (folder.parent / "homework").mkdir()
    monkeypatch.chdir(folder.parent / "homework")
    another_session(monkeypatch)
    guessed("largest weight", 1)
    assert capsys.readouterr().out.endswith("largest weight: your guess 0.9, the result 1\n")
    assert progress_file.read(folder)[name] == {"notebook": "passed"}


def test_dots_ask_for_a_guess_and_keep_none(folder, axes, capsys):
    guess("largest weight", ...)
    guessed("largest weight", 0.97, axes)
    asked, told = capsys.readouterr().out.splitlines()
    assert asked == "largest weight: replace ... with your guess, and run the cell again"
    assert told == "largest weight: no guess, the result 0.97"
    assert not drawn(axes)
    assert not list(folder.iterdir())


def test_where_nothing_can_be_written_the_guess_is_shown_all_the_same(folder, capsys):
    (folder / progress_file.RECORD).mkdir()  # neither readable nor writable as a file
    guess("largest weight", 0.9)
    guessed("largest weight", 0.97)
    warned, told = capsys.readouterr().out.splitlines()
    assert "was not saved" in warned
    assert told == "largest weight: your guess 0.9, the result 0.97"


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (np.float64(0.123456), "0.1235"),
        (np.int64(7), "7"),
        (np.asarray(2.0), "2"),
        ([1, 2.5], "1, 2.5"),
        (np.array([3, 4]), "3, 4"),
        ("the left one", "the left one"),
        (["left", "right"], "left, right"),
        (True, "True"),
    ],
)
def test_a_guess_and_a_result_may_be_numbers_texts_or_lists(answer, shown, monkeypatch, capsys):
    guess("it", answer)
    another_session(monkeypatch)
    guessed("it", answer)
    assert capsys.readouterr().out == f"it: your guess {shown}, the result {shown}\n"


@pytest.mark.parametrize("answer", [None, {}, abs, [None], 1j, [[1], [2, 3]]])
def test_any_other_guess_is_refused(answer):
    with pytest.raises(TypeError, match="a guess is a number, text, or a list of these, not "):
        guess("it", answer)


@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_number_is_a_line_across_the_picture_with_an_entry_in_its_legend(axis, axes):
    guess("it", 0.3)
    guessed("it", 0.4, axes, axis=axis)
    (line,) = drawn(axes)
    assert set(line.get_xdata() if axis == "x" else line.get_ydata()) == {0.3}
    assert [x.get_text() for x in axes.get_legend().get_texts()] == ["measured", "your guess"]


def test_several_numbers_are_lines_with_one_entry_in_the_legend(axes):
    guess("it", [0.3, 0.5])
    guessed("it", [0.2, 0.5], axes)
    assert [line.get_ydata()[0] for line in drawn(axes)] == [0.3, 0.5]
    assert [x.get_text() for x in axes.get_legend().get_texts()] == ["measured", "your guess"]


def test_numbers_at_known_places_are_stars(axes):
    guess("it", [0.3, 0.5, 0.6])
    guessed("it", [0.2, 0.5, 0.4], axes, at=[1, 2, 3])
    (stars,) = drawn(axes)
    assert stars.get_xydata().tolist() == [[1, 0.3], [2, 0.5], [3, 0.6]]
    assert (stars.get_marker(), stars.get_linestyle()) == ("*", "None")
    guess("one", 2.5)
    guessed("one", 3, axes, axis="x", at=0.4)
    assert drawn(axes)[-1].get_xydata().tolist() == [[2.5, 0.4]]


def test_a_guess_that_does_not_fit_the_picture_is_only_printed(axes, capsys):
    for answer in ([0.3, 0.5], 0.3, "rising", True):
        guess("it", answer)
        guessed("it", [0.2, 0.5, 0.4], axes, at=[1, 2, 3])
    assert not drawn(axes)
    shown = capsys.readouterr().out
    assert shown.count("the result 0.2, 0.5, 0.4\n") == 4
    assert shown.count("(your guess is not in the picture: 3 numbers fit into it)\n") == 2
