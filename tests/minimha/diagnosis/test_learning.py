"""`mh.diagnose`: each finding comes first on its own breakage, and there is none on healthy models."""

import re
from pathlib import Path

import numpy as np
import pytest
from broken_models import BROKEN
from healthy_models import HEALTHY
from student_models import M, T, V, batch, gpt, padded

import minimha as mh
from minimha.diagnosis.learning import Finding, sizes
from minimha.diagnosis.learning.probe import Probe

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")


def diagnosed(make, seed=0):
    model, inputs, targets, *settings = make(seed)
    return mh.diagnose(model, inputs, targets, **dict(*settings))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BROKEN)
def test_the_first_finding_is_the_cause(name, seed):
    finding, make = BROKEN[name]
    assert [f.name for f in diagnosed(make, seed).findings][:1] == [finding]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_model_has_no_findings(name, seed):
    assert diagnosed(HEALTHY[name], seed).findings == []


@pytest.mark.parametrize("name", ["no_mask", "returns_probabilities"])
def test_a_leak_and_a_softmax_are_found(name):
    finding, make = BROKEN[name]
    assert [f.name for f in diagnosed(make).findings][:1] == [finding]


PAGE = (Path(__file__).parents[3] / "docs" / "diagnose.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_prints_what_the_page_shows(capsys):
    code, shown = re.findall(r"```(?:python|text)\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out == shown


def test_the_page_lists_each_finding_of_the_catalogue_once():
    table = PAGE.partition("## What it finds")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE)[2:]
    assert sorted(listed) == sorted({finding for finding, _ in BROKEN.values()})


def test_the_model_and_its_gradients_and_graph_stay_as_they_are():
    model, (x, y) = gpt(0, num_layers=1, context=6), (z[:2, :6] for z in batch(0))
    mh.functional.cross_entropy(model(x), y).backward()
    loss = mh.functional.cross_entropy(model(x), y)
    before = [(p, p.data, p.data.copy(), p.grad, p.grad.copy()) for p in model.parameters()]
    state = np.random.get_state()[1].copy()
    assert not mh.diagnose(model, x, y).findings
    for p, data, values, grad, numbers in before:
        assert p.data is data
        assert p.grad is grad
        np.testing.assert_array_equal(data, values)
        np.testing.assert_array_equal(grad, numbers)
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    loss.backward()


@pytest.mark.parametrize(("length", "found"), [(4, []), (5, ["leak from the future"])])
def test_targets_are_compared_with_the_inputs_from_four_pairs_on(length, found):
    model, inputs, targets = BROKEN["no_mask"][1](0)
    report = mh.diagnose(model, inputs[:1, :length], targets[:1, :length])
    assert [f.name for f in report.findings] == found


def test_small_differences_between_calls_and_under_padding_are_taken_for_rounding():
    def found(added, size, *batch, **settings):
        class Changed(mh.GPT):
            def __call__(self, tokens, **_):
                return super().__call__(tokens) + mh.Tensor(size * added(np.asarray(tokens)))

        model = Changed(V, context=T, d_model=M, num_heads=2, num_layers=1)
        return [f.name for f in mh.diagnose(model, *batch, **settings).findings]

    rng = np.random.default_rng(0)

    def noise(tokens):
        return rng.standard_normal((*tokens.shape, 1)).astype("float32")

    def padding(tokens):
        return (tokens == 0).mean(axis=1, dtype="float32")[:, None, None]

    assert found(noise, 1e-2, *batch(0)) == ["not deterministic"]
    assert "not deterministic" not in found(noise, 1e-6, *batch(0))
    x, _ = padded(0)
    short = x[:, :-1], x[:, 1:]
    assert found(padding, 1e-2, *short, padding=0) == ["padding is visible"]
    assert found(padding, 1e-5, *short, padding=0) == []


def test_calls_that_differ_in_rounding_only_are_no_finding():
    """On a GPU, and in some libraries on a CPU, the order of a sum varies from call to call."""
    model, draws = gpt(0, num_layers=1), np.random.default_rng(3)

    class Varying(mh.Module):
        def __init__(self):
            self.model = model

        def __call__(self, tokens):
            logits = self.model(tokens)
            last_bits = draws.integers(-4, 5, logits.shape) * np.finfo("float32").eps
            return logits * (1 + last_bits).astype("float32")

    assert not mh.diagnose(Varying(), *batch(0)).findings


def test_the_report_says_what_is_wrong_where_and_what_to_read():
    report = diagnosed(BROKEN["targets_are_the_inputs"][1])
    (finding,) = report.findings
    assert isinstance(finding, Finding)
    lines = str(report).splitlines()
    assert lines[0] == "GPT: 1 finding"
    assert lines[1] == "targets not shifted"
    labels = [line[2:13].strip() for line in lines[2:]]
    assert [*filter(None, labels)] == ["where", "measured", "looks like", "read"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [((3,), (3,), "inputs has shape"), ((2, 5), (2, 4), r"targets \(2, 4\)")],
)
def test_shapes_that_do_not_match_are_refused(inputs, targets, message):
    with pytest.raises(ValueError, match=message):
        mh.diagnose(gpt(0), np.zeros(inputs, int), np.zeros(targets, int))


def test_a_model_of_another_task_is_refused():
    x, _ = batch(0)
    with pytest.raises(ValueError, match=r"must return a Tensor of logits \(B, C\)"):
        mh.diagnose(gpt(0), x, x[:, 0])


def test_padding_does_not_count_in_the_loss_that_one_batch_should_reach():
    """All sequences begin alike, so one target in two is unknown; the rest of each is padding."""
    tokens = np.zeros((8, 9), int)
    tokens[:, 0], tokens[:, 1:3] = 1, np.arange(2, 10)[:, None]
    model = mh.GPT(11, context=8, d_model=16, num_heads=2, num_layers=1)
    assert not mh.diagnose(model, tokens[:, :-1], tokens[:, 1:], padding=0).findings


def test_the_weights_inside_multi_head_attention_are_seen():
    class Model(mh.Module):
        def __init__(self, rng):
            self.table = mh.Embedding(11, 16, rng=rng)
            self.places = mh.Embedding(8, 16, rng=rng)
            shapes = 4 * [(16, 16)]
            self.w = [mh.Tensor(20 * rng.standard_normal(s), requires_grad=True) for s in shapes]
            for x in (self.table.table, self.places.table):
                x.data = x.data.astype("float64")

        def __call__(self, tokens):
            x = self.table(tokens) + self.places(np.arange(tokens.shape[1]))
            mask = mh.masks.causal()
            out, _ = mh.multi_head_attention(x, x, x, *self.w, num_heads=2, mask=mask)
            return (x + out / 1e4) @ self.table.table.mT

    tokens = np.random.default_rng(0).integers(0, 11, (4, 9))
    report = mh.diagnose(Model(np.random.default_rng(0)), tokens[:, :-1], tokens[:, 1:])
    assert [f.name for f in report.findings] == ["attention collapsed"]


def test_a_softcap_far_above_the_scores_is_taken_for_a_structural_zero():
    def zeros(**settings):
        model = gpt(0, **settings)
        return "structural" in mh.diagnose(model, *batch(0)).figures["gradients"]

    assert zeros()
    assert zeros(softcap=50.0)
    assert not zeros(rope=mh.positions.Rope())
    assert not zeros(qk_norm=True)


@pytest.mark.parametrize(("own", "other"), [("float64", "float32"), ("float32", "float64")])
def test_values_or_parameters_of_another_precision_are_found(own, other):
    class Values(mh.GPT):
        def __call__(self, tokens):
            return super().__call__(tokens).astype(other).astype(own)

    class Parameters(mh.GPT):
        def __call__(self, tokens):
            return super().__call__(tokens) + self.extra.astype(own)

    x, y = batch(0)
    for kind in (Values, Parameters):
        model = kind(int(x.max()) + 1, context=16, d_model=8, num_heads=2, num_layers=1, dtype=own)
        if kind is Parameters:
            model.extra = mh.Tensor(np.zeros(1, other), requires_grad=True)
        found = mh.diagnose(model, x, y).findings
        assert [f.name for f in found] == ["dtype drift"]


def test_values_in_float16_are_found_and_those_in_bfloat16_are_not():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x, y = batch(0)
    for other, expected in ("float16", ["dtype drift"]), (ml_dtypes.bfloat16, []):

        class Rounded(mh.GPT):
            def __call__(self, tokens, other=other):
                return super().__call__(tokens).astype(other).astype("float32")

        model = Rounded(int(x.max()) + 1, context=16, d_model=24, num_heads=2, num_layers=2)
        assert [f.name for f in mh.diagnose(model, x, y).findings] == expected


def test_layers_with_numbered_names_are_compared_like_those_in_a_list():
    x, y = batch(0)
    model = mh.GPT(int(x.max()) + 1, context=16, d_model=24, num_heads=2, num_layers=2)

    class Numbered(mh.Module):
        def __init__(self):
            self.block1, self.block2 = model.blocks
            self.tokens, self.head = model.tokens, mh.Linear(24, int(x.max()) + 1, rng=0)

        def __call__(self, tokens):
            h = self.tokens(tokens)
            for block in self.block1, self.block2:
                h = block(h, mh.masks.causal())
            return self.head(h)

    probe = Probe(Numbered(), x, y, None, 1e-3, 0)
    with probe.copies():
        assert not list(sizes.depth(probe))
    assert "in 2 layers" in probe.figures["block: gradient over weight"]


def test_a_number_that_overflows_in_float16_alone_is_found():
    x, y = batch(0)
    model = mh.GPT(
        int(x.max()) + 1, context=16, d_model=24, num_heads=2, num_layers=2, dtype="float16"
    )
    for layer in (model.blocks[1].mlp.widen, model.blocks[1].mlp.narrow):
        layer.weight.data = layer.weight.data * np.float16(3000)
    (found,) = mh.diagnose(model, x, y).findings
    assert found.name == "not finite"
    assert "float16" in found.text


def test_the_error_of_a_model_with_float16_among_float32_passes_through():
    x, y = batch(0)
    model = mh.GPT(int(x.max()) + 1, context=16, d_model=24, num_heads=2, num_layers=2)
    norm = model.blocks[0].norm_attention
    norm.weight.data = norm.weight.data.astype("float16")
    with pytest.raises(TypeError, match="float16"):
        mh.diagnose(model, x, y)
