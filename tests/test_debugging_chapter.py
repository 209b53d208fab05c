"""What the text of chapter 10 says about runs and checks that its cells do not show."""

from pathlib import Path

import numpy as np
import pytest

import minimha as mh

jupytext = pytest.importorskip("jupytext", reason="jupytext is not installed")
SOURCE = Path(__file__).parents[1] / "notebooks" / "source" / "10_debugging.md"


@pytest.fixture(scope="module")
def chapter():
    """The names that the first cells define, without the training of the healthy model."""
    names = {"np": np, "mh": mh, "plt": None}
    cells = jupytext.read(SOURCE, fmt="md:myst").cells
    for piece, end in (("V, T = 11, 10", "\nhealthy ="), ("class Unmasked(", "\nmodels =")):
        (code,) = (c.source for c in cells if c.cell_type == "code" and piece in c.source)
        exec(code.partition(end)[0], names)
    return names


def ratios(chapter, make, factor):
    """The update ratio of each matrix after one step, if the loss is multiplied by a factor."""
    model = mh.GPT(chapter["V"], **chapter["SIZES"])
    optimiser = make(model.parameters())
    matrices = [p for p in model.parameters() if p.ndim > 1]
    before = [p.data for p in matrices]
    inputs, targets = chapter["batch"]()
    (factor * mh.functional.cross_entropy(model(inputs), targets)).backward()
    optimiser.step()
    norm = np.linalg.norm
    return np.median([norm(p.data - x) / norm(x) for p, x in zip(matrices, before, strict=True)])


def test_the_update_ratio_shows_the_size_of_the_gradient_in_sgd_and_hardly_in_adam(chapter):
    def sgd(parameters):
        return mh.SGD(parameters, lr=0.1)

    def adam(parameters):
        return mh.AdamW(parameters, lr=1e-3)

    assert ratios(chapter, sgd, 1e-3) < 2e-3 * ratios(chapter, sgd, 1.0)
    assert ratios(chapter, adam, 1e-3) > 0.9 * ratios(chapter, adam, 1.0)
    assert ratios(chapter, adam, 1e-6) < 0.5 * ratios(chapter, adam, 1.0)  # near ε


def test_the_first_step_of_adam_moves_most_matrices_by_lr_over_their_standard_deviation(chapter):
    assert ratios(chapter, mh.AdamW, 1.0) == pytest.approx(0.001 / 0.02, rel=0.1)


def test_an_unmasked_model_learns_more_slowly_at_first(chapter):
    V, SIZES = chapter["V"], chapter["SIZES"]
    masked, unmasked = (
        np.mean(chapter["learn"](make(V, **SIZES), steps=100)[-20:])
        for make in (mh.GPT, chapter["Unmasked"])
    )
    assert unmasked > masked + 0.3


def test_the_loss_of_a_second_softmax_is_lowest_for_a_certain_and_right_model(rng):
    V = 11
    lowest = np.log(1 + (V - 1) / np.e)
    assert lowest == pytest.approx(mh.functional.cross_entropy(np.eye(V)[:1], np.array([0])))
    for sharpness in (0.1, 1.0, 10.0):
        outputs = mh.functional.softmax(sharpness * rng.standard_normal((1000, V)))
        for row in outputs:
            assert mh.functional.cross_entropy(row[None], np.array([0])) >= lowest


def test_the_weights_of_a_new_layer_of_this_width_are_about_ten_times_those_of_a_gpt(chapter):
    M = chapter["SIZES"]["d_model"]
    own = mh.MultiHeadAttention(M, 2).w_q.data.std()
    assert own == pytest.approx(1 / np.sqrt(M), rel=0.1)
    gpt = mh.GPT(chapter["V"], **chapter["SIZES"]).blocks[0].attention.w_q.data.std()
    assert own / gpt == pytest.approx(10, rel=0.15)


@pytest.mark.parametrize("blind", [False, True])
def test_the_patient_of_the_chapter_falls_below_log_3_if_its_attention_sees_earlier_tokens(blind):
    patient = mh.homework.patient(4, student="chapter 10")
    if blind:  # nothing that the attention computes reaches the output
        for name, parameter in patient.named_parameters():
            if name.endswith("w_o"):
                parameter.data = np.zeros_like(parameter.data)
    assert np.mean(patient.learn(300)[-10:]) > np.log(3) - 0.02
    later = np.mean(patient.learn(600)[-50:])
    assert later > np.log(3) - 0.02 if blind else later < 0.9


def test_an_untrained_model_is_far_below_log_v_only_if_it_sees_the_target(chapter):
    """Here its table of embeddings is tied to the output, and the targets are not shifted."""
    V, SIZES = chapter["V"], chapter["SIZES"]
    inputs, targets = chapter["batch"](64)
    for seed in range(5):
        model = mh.GPT(V, **SIZES, tie=True, rng=seed)
        for factor in (1, 10, 40):
            table = model.tokens.table
            table.data, before = factor * table.data, table.data
            logits = model(inputs)
            assert mh.functional.cross_entropy(logits, targets).item() > np.log(V) - 0.05
            unshifted = mh.functional.cross_entropy(logits, inputs).item()
            assert factor == 1 or unshifted < np.log(V) - 0.5
            table.data = before


def entropy(P):
    return -(P * np.log(np.where(P > 0, P, 1))).sum(axis=-1)


def test_the_entropy_of_n_keys_is_largest_for_equal_weights_and_0_for_one_key(rng):
    for n in range(1, 9):
        P = mh.functional.softmax(5 * rng.standard_normal((1000, n)))
        assert entropy(P).min() >= 0
        assert entropy(P).max() <= np.log(n) + 1e-12
        assert entropy(np.full(n, 1 / n)) == pytest.approx(np.log(n))
        assert entropy(np.eye(n)[0]) == 0


def test_rounding_may_lift_the_quotient_of_a_uniform_head_above_1():
    quotients = [entropy(np.full(n, 1 / n, np.float32)) / np.log(n) for n in range(2, 40)]
    assert 1 < max(quotients) < 1 + 1e-6


def test_only_a_table_that_computes_no_logits_has_rows_without_a_gradient(chapter):
    tokens = np.array([[1, 2, 3, 4]])
    for tie in (False, True):
        model = mh.GPT(chapter["V"], **chapter["SIZES"], tie=tie)
        mh.functional.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        assert model.tokens.table.grad[4:].any() == tie


def test_rounding_makes_tiny_numbers_of_a_gradient_of_zero(chapter):
    model = mh.GPT(chapter["V"], **chapter["SIZES"])
    inputs, targets = chapter["batch"]()
    mh.functional.cross_entropy(model(inputs), targets).backward()
    for block in model.blocks:
        assert 0 < abs(block.attention.b_k.grad).max() < 1e-6 * abs(block.attention.b_v.grad).max()


@pytest.mark.parametrize("operation", ["log", "sqrt"])
def test_the_gradients_of_log_and_root_at_0_are_infinite_and_give_nan_behind_a_product_with_0(
    operation,
):
    x = mh.Tensor([0.0], requires_grad=True)
    with np.errstate(all="ignore"):
        getattr(mh.ops, operation)(x).backward()
        assert np.isinf(x.grad).all()
        x.grad = None
        (getattr(mh.ops, operation)(x) * 0).backward()
    assert np.isnan(x.grad).all()


def test_a_saturated_softmax_passes_no_gradient_to_the_scores(rng):
    scores = mh.Tensor(np.array([[0.0, 2000.0, 0.0], [0.0, 1.0, 0.0]]), requires_grad=True)
    mh.functional.softmax(scores).backward(rng.standard_normal((2, 3)))
    assert not scores.grad[0].any()
    assert scores.grad[1].all()


def bias_of_keys(chapter, factor=1, **settings):
    """The largest gradient of b_k in the first block, relative to the largest of all parameters, in
    a GPT whose matrices are larger by a factor."""
    model = mh.GPT(chapter["V"], **chapter["SIZES"], attention_bias=True, **settings)
    for p in model.parameters():
        p.data = p.data * np.float32(factor if p.ndim == 2 else 1)
    inputs, targets = chapter["batch"]()
    mh.functional.cross_entropy(model(inputs), targets).backward()
    sizes = {name: abs(p.grad).max() for name, p in model.named_parameters()}
    return sizes["blocks.0.attention.b_k"] / max(sizes.values())


def test_with_rope_or_a_norm_of_the_keys_their_bias_gets_a_gradient(chapter):
    assert bias_of_keys(chapter, rope=mh.positions.Rope(12)) > 1e-5
    assert bias_of_keys(chapter, qk_norm=True) > 1e-5


def test_a_softcap_gives_the_bias_of_the_keys_a_gradient_that_counts_as_zero_in_a_new_gpt(chapter):
    for softcap in (5.0, 30.0, 50.0):
        assert bias_of_keys(chapter, softcap=softcap) < 1e-6  # the limit of `without_gradient`
        assert bias_of_keys(chapter, 20, softcap=softcap) > 1e-5
    assert bias_of_keys(chapter, 20) < 1e-6


def test_a_repair_elsewhere_changes_only_which_batches_are_drawn():
    def patient():
        return mh.homework.patient(4, student="chapter 10")

    treated, fresh = patient(), patient().mend("no causal mask")
    for p, q in zip(treated.parameters(), fresh.parameters(), strict=True):
        assert np.array_equal(p.data, q.data)
    assert patient().learn(5) == fresh.learn(5)
    treated.batch()
    assert treated.learn(5) != patient().learn(5)
