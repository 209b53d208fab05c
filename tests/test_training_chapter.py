"""What the text of chapter 09 says about runs that its cells do not show. The cells themselves, here
the functions that they define, are run by notebooks/test_chapters.py."""

import re
from pathlib import Path

import numpy as np
import pytest

import minimha as mh

jupytext = pytest.importorskip("jupytext", reason="jupytext is not installed")
SOURCE = Path(__file__).parents[1] / "notebooks" / "source" / "09_training.md"
PIECES = (
    "from minimha.training import Training", "text = data.python_reference()", "def gpt(",
    "def trained(", "class Small(",
)  # fmt: skip
pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def chapter():
    """The names that the cells define, without their training."""
    names = {"np": np, "mh": mh}
    cells = jupytext.read(SOURCE, fmt="md:myst").cells
    for piece in PIECES:
        (code,) = (c.source for c in cells if c.cell_type == "code" and piece in c.source)
        exec(re.split(r'\n(?:start =|curves = \{"pre-norm)', code)[0], names)
    return names


def test_more_steps_improve_the_gpt_but_more_blocks_alone_do_not(chapter):
    def validation(steps, layers):
        model = mh.GPT(chapter["V"], **{**chapter["sizes"], "num_layers": layers}, rng=0)
        chapter["trained"](model, steps=steps)
        return chapter["evaluate"](model, chapter["parts"].validation)

    as_in_the_chapter = validation(500, 2)
    assert validation(1000, 2) < as_in_the_chapter - 0.15
    assert validation(500, 4) > as_in_the_chapter - 0.05


def last_losses(chapter, norm_first, warmup, lr):
    """The mean loss of the last 20 steps, for each seed."""
    runs = [chapter["losses_of"](norm_first, warmup, seed, lr=lr) for seed in range(3)]
    return np.mean([losses[-20:] for losses in runs], axis=1)


def unigram(chapter):
    share = np.bincount(chapter["parts"].train, minlength=chapter["V"])
    share = share[share > 0] / share.sum()
    return -(share * np.log(share)).sum()


def test_post_norm_learns_without_warm_up_at_a_smaller_learning_rate(chapter):
    assert max(last_losses(chapter, False, warmup=1, lr=3e-3)) < unigram(chapter) - 0.1
    assert min(last_losses(chapter, False, warmup=1, lr=5e-3)) > unigram(chapter) - 0.1


def test_a_warm_up_costs_pre_norm_0_04_nats(chapter):
    without, with_one = (last_losses(chapter, True, warmup=w, lr=5e-3).mean() for w in (1, 120))
    assert with_one - without == pytest.approx(0.04, abs=0.02)


def dependence(logits):
    """How many nats, on average, a prediction differs from the mean prediction."""
    p = mh.functional.softmax(logits.astype("float64")).reshape(-1, logits.shape[-1])
    return (p * np.log(p / p.mean(axis=0))).sum(axis=-1).mean()


def test_without_warm_up_the_predictions_of_post_norm_hardly_depend_on_the_input(
    chapter, monkeypatch
):
    made, Small = [], chapter["Small"]
    monkeypatch.setitem(chapter, "Small", lambda *args: made.append(Small(*args)) or made[-1])
    draw = chapter["data"].random_batches
    rng = np.random.default_rng(9)
    inputs, _ = next(draw(chapter["parts"].train, batch=64, context=chapter["T"], rng=rng))
    for seed in range(3):
        for warmup in (1, 120):
            chapter["losses_of"](False, warmup, seed)
        stuck, warmed = (dependence(model(inputs).data) for model in made[-2:])
        assert stuck < 0.01
        assert warmed > 0.02


def test_targets_shifted_by_two_are_learned_but_not_as_well(chapter):
    tokens, T = np.asarray(chapter["parts"].train), chapter["T"]
    ends = {}
    for shift in (1, 2):
        model = mh.GPT(chapter["V"], context=T, d_model=64, num_heads=4, num_layers=2, rng=0)
        optimiser, rng = mh.AdamW(model.parameters(), lr=3e-3), np.random.default_rng(1)
        losses = []
        for _ in range(200):
            at = rng.integers(len(tokens) - T - 2, size=(16, 1)) + np.arange(T)
            loss = mh.functional.cross_entropy(model(tokens[at]), tokens[at + shift])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        ends[shift] = np.mean(losses[-20:])
    assert ends[1] + 0.3 < ends[2] < losses[0] - 1
