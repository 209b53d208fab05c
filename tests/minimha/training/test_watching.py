"""Watching a run: lines in a terminal, pictures that update in a notebook."""

import numpy as np
import pytest

from minimha import GPT, generate, training
from minimha.training import data, watching

TEXT = "The cat sat on the mat, and the dog sat on the log by the cat.\n" * 9


@pytest.fixture
def parts():
    """A run of 7 steps, its validation tokens and its tokenizer."""
    tokenizer = data.CharacterTokenizer(TEXT)
    train, validation = data.split(tokenizer.encode(TEXT), 8)
    model = GPT(len(tokenizer), context=8, d_model=8, num_heads=2, num_layers=1)
    return training.Training(model, train, steps=7, batch=2, lr=1e-3), validation, tokenizer


def test_a_terminal_shows_the_losses_and_a_sample_at_intervals(parts, capsys):
    run, validation, tokenizer = parts
    losses = training.Losses()
    yielded = list(training.watch(run, validation, tokenizer, every=3, losses=losses))
    assert list(losses.training) == [1, 2, 3, 4, 5, 6, 7]
    assert list(losses.training.values()) == yielded
    assert list(losses.validation) == [3, 6, 7]
    assert losses.validation[7] == training.evaluate(run.model, validation)
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert [line[:11] for line in lines[::2]] == ["step      3", "step      6", "step      7"]
    assert lines[2] == (
        f"step      6   training {np.mean(yielded[3:6]):.3f}   validation "
        f"{losses.validation[6]:.3f}"
    )
    continued = generate(run.model, validation[None, :4], 72)[0, 4:]
    assert lines[5] == "  | " + tokenizer.decode(continued).replace("\n", " ")


def test_watching_changes_no_loss(parts):
    run, validation, tokenizer = parts
    model = GPT(**run.model.settings)
    plain = list(training.Training(model, run.tokens, steps=7, batch=2, lr=1e-3))
    assert list(training.watch(run, validation, tokenizer, every=2)) == plain


def test_an_infinite_training_loss_stops_a_step_with_a_report_too(parts):
    run, validation, tokenizer = parts

    class Diverging:
        model, steps, settings, step = run.model, 2, run.settings, 0

        def __iter__(self):
            for self.step in (1, 2):
                yield np.inf if self.step == 2 else 1.0

    with pytest.raises(FloatingPointError, match="inf after step 2"):
        list(training.watch(Diverging(), validation, tokenizer, every=2))


@pytest.mark.thorough  # imports IPython and matplotlib
def test_a_notebook_shows_a_bar_and_a_report_that_update_in_place(parts, monkeypatch):
    shown = []

    class Handle:
        def __init__(self, number):
            self.number = number

        def update(self, content):
            shown[self.number] = content.data

    def display(content, display_id):
        shown.append(content.data)
        return Handle(len(shown) - 1)

    pytest.importorskip("IPython")
    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr(watching, "_in_notebook", lambda: True)
    run, validation, tokenizer = parts
    for loss in training.watch(run, validation, tokenizer, every=3):
        bar, report = shown
        assert bar == (
            f"<progress value={run.step} max=7></progress> step {run.step} of 7, loss {loss:.3f}"
        )
        assert ("After 3 steps" in report) == (run.step in (3, 4, 5))
    for part in ("After 7 steps", "<svg", "<pre ", "minimha-attention"):
        assert part in report


@pytest.mark.thorough
def test_a_real_notebook_is_recognised():
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    code = "from minimha.training import watching\nwatching._in_notebook()"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient.NotebookClient(notebook).execute()
    assert notebook.cells[0].outputs[0].data["text/plain"] == "True"
    assert not watching._in_notebook()


def test_the_attention_is_to_as_many_tokens_as_a_picture_has_room_for():
    tokenizer = data.CharacterTokenizer(TEXT)
    model = GPT(len(tokenizer), context=40, d_model=120, num_heads=60, num_layers=2)
    weights, labels = watching.attention(model, tokenizer.encode(TEXT), tokenizer)
    assert weights.shape == (2, 60, 11, 11)
    assert "".join(labels) == TEXT[63:74]
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_a_sentence_is_found_or_the_beginning_of_the_text_is_used():
    assert watching.real_sentence("x. This sentence is plain, of some length. y") == (
        "This sentence is plain, of some length."
    )
    assert watching.real_sentence("0123456789" * 9) == "0123456789" * 4
