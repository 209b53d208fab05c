"""docs/disagreements.md agrees with the installed libraries."""

import importlib
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "disagreements.py"
PAGE = (ROOT / "docs" / "disagreements.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in x.split("|")[1:-1]] for x in PAGE.splitlines() if x[:1] == "|"]
VERSIONS = {row[0]: row[1] for row in ROWS if len(row) == 3}
COLUMNS = next(row for row in ROWS if row[0] == "")
ANSWERS = {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in ROWS if len(row) == len(COLUMNS)}
FOUR = [row for row in ROWS if len(row) == 4 and row[0] in VERSIONS.keys() - {"column", "---"}]
OTHERS = {tuple(row[:3]): row[3] for row in FOUR}  # answers of other versions


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPT.parent))
        yield importlib.import_module("disagreements")


def answers(script, library, *words):
    return {k: v for topic in script.verdicts(library, words).values() for k, v in topic.items()}


@pytest.mark.parametrize("column", ["minimha", "torch SDPA", "torch MHA", "jax", "keras", "ONNX"])
def test_the_page_agrees_with_each_library(script, column):
    library = next(kind for kind in script.LIBRARIES if kind.name == column)
    version = script.version_of(library)
    if version == script.MISSING:
        pytest.skip(f"{library.package} is not installed")
    found = answers(script, library)
    assert found.keys() == ANSWERS.keys() - {"", "---"}
    page = {asked: OTHERS.get((column, version, asked), ANSWERS[asked][column]) for asked in found}
    exact = [asked for asked in found if column == "minimha" or "†" not in asked]
    differ = {asked: (found[asked], page[asked]) for asked in exact if found[asked] != page[asked]}
    advice = f"which is about {VERSIONS[column]}: add these to its table of other versions"
    if column == "minimha":
        advice = "or the class Minimha in benchmarks/libraries.py no longer calls it as it is"
    assert not differ, (
        f"{column} {version} answers otherwise than docs/disagreements.md, {advice} (found, on the "
        "page)"
    )


def test_other_versions_are_listed_only_where_their_answers_differ():
    for (column, version, asked), answer in OTHERS.items():
        assert version != VERSIONS[column]
        assert answer != ANSWERS[asked][column]


FAST = {"batch_first": True, "heads": 2, "crossed": False, "floats": False, "gradients": False}
NO_FAST_PATH = [("batch_first", False), ("heads", 3), ("crossed", True), ("floats", True)]
NO_FAST_PATH += [("copied", True), ("one_sequence", True), ("bias", False)]


@pytest.mark.parametrize(
    ("settings", "nan"),
    [
        ({}, True),
        *[({name: value}, False) for name, value in [*NO_FAST_PATH, ("gradients", True)]],
        *[({name: value, "weights": True}, True) for name, value in NO_FAST_PATH],
    ],
)
def test_torch_after_eval_gives_nan_on_its_fast_path_or_with_weights(settings, nan):
    torch = pytest.importorskip("torch")
    weights = settings.get("weights", False)
    chosen = FAST | settings
    width = 4 * chosen["heads"]
    options = {name: chosen[name] for name in ("batch_first", "bias") if name in chosen}
    layer = torch.nn.MultiheadAttention(width, chosen["heads"], **options).eval()
    x, other = torch.ones(5, 5, width), torch.ones(5, 5, width)
    hidden = torch.zeros(5, 5, dtype=torch.bool)
    hidden[1] = True  # query 1 sees nothing
    if chosen["floats"]:
        hidden = torch.zeros(5, 5).masked_fill(hidden, -math.inf)
    x = x[0] if chosen.get("one_sequence") else x
    key = x.clone() if chosen.get("copied") else other if chosen["crossed"] else x
    with torch.set_grad_enabled(chosen["gradients"]):
        out, _ = layer(x, key, key, attn_mask=hidden, need_weights=weights)
    assert out.isnan().any().item() == nan


@pytest.mark.parametrize(("fast", "weights", "padding", "lost"), [
    (True, False, False, "causal"), (False, True, False, "causal"), (False, False, True, "causal"),
    (False, False, False, "other"),
])  # fmt: skip
def test_of_two_masks_torch_loses_one(fast, weights, padding, lost):
    torch = pytest.importorskip("torch")
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).train(not fast)
    x = torch.randn(1, 4, 8, requires_grad=True)
    other = torch.zeros(4, 4, dtype=torch.bool)
    other[:, 1] = True  # hides key 1

    def attended(y):
        with torch.set_grad_enabled(not fast):
            options = {"attn_mask": other, "is_causal": True, "need_weights": weights}
            if padding:
                options["key_padding_mask"] = torch.zeros(1, 4, dtype=torch.bool)
            return layer(y, y, y, **options)[0].detach()

    def moved(key):
        return (attended(x) - attended(x + torch.eye(4)[key][None, :, None])).abs().amax(-1)[0]

    future_is_seen, key_1_is_seen = moved(3)[0] > 1e-4, moved(1)[2] > 1e-4
    assert (future_is_seen, key_1_is_seen) == (lost == "causal", lost == "other")


def test_without_a_mask_the_hint_of_torch_is_an_error_or_on_the_fast_path_ignored():
    torch = pytest.importorskip("torch")
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 4, 8)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        layer(x, x, x, is_causal=True)
    layer.eval()
    with torch.no_grad():
        hinted, plain = (layer(x, x, x, is_causal=c, need_weights=False)[0] for c in (True, False))
    assert torch.equal(hinted, plain)


def test_a_causal_mask_that_torch_aligns_bottom_right():
    torch = pytest.importorskip("torch")
    bias = pytest.importorskip("torch.nn.attention.bias")
    x = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4)
    attend = torch.nn.functional.scaled_dot_product_attention
    visible = torch.tensor([[True, True, False], [True, True, True]])
    right = attend(*x, attn_mask=visible)
    assert torch.allclose(attend(*x, attn_mask=bias.causal_lower_right(2, 3)), right, atol=1e-6)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("settings", [{"weights": True}, {"dropout": 1e-9}])
def test_keras_computes_in_another_way_with_weights_or_dropout(script, settings, inference):
    pytest.importorskip("keras")
    keras = next(kind for kind in script.LIBRARIES if kind.name == "keras")()
    settings = settings | {"inference": inference}
    x, visible = script.qkv(), np.ones((script.T, script.S), bool)
    visible[1] = False  # query 1 sees nothing
    dout = np.zeros_like(x[0])
    dout[:, :, 1] = 1
    for others, empty in ({"inference": inference}, False), (settings, True):
        found = keras.attend(*x, visible=visible, dout=dout, **others)
        assert empty == (not found.out[:, :, 1].any())
        assert all(empty == (not g.any()) for g in found.gradients)
    visible[1], visible[:, 2] = True, False
    x[1][:, :, 2] = np.nan  # a hidden key
    assert np.isnan(keras.attend(*x, visible=visible, inference=inference).out).all()
    assert np.isfinite(keras.attend(*x, visible=visible, **settings).out).all()


def test_onnx_aligns_bottom_right_with_the_number_of_keys():
    onnx = pytest.importorskip("onnx")
    reference = pytest.importorskip("onnx.reference")
    x = {"Q": np.zeros((1, 1, 2, 4)), "K": np.ones((1, 1, 3, 4)), "V": np.arange(12.0)}
    x["V"] = x["V"].reshape(1, 1, 3, 4)

    def first_row(**lengths):
        inputs = x | lengths
        names = ["Q", "K", "V", "", "", "", *lengths]
        node = onnx.helper.make_node("Attention", names, ["Y"], is_causal=1)
        declared = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(y.dtype), y.shape
            )
            for name, y in inputs.items()
        ]
        y = onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.DOUBLE, [None] * 4)
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "attention", declared, [y]))
        return reference.ReferenceEvaluator(model).run(None, inputs)[0][0, 0, 0].tolist()

    assert first_row() == [0, 1, 2, 3]  # the first value
    assert first_row(nonpad_kv_seqlen=np.array([3])) == [2, 3, 4, 5]  # the mean of two


def test_a_library_that_is_not_installed_says_so(script, monkeypatch):
    for name in ("torch", "jax", "keras", "onnx"):
        monkeypatch.setitem(sys.modules, name, None)
    question = "boolean mask: True ="
    found = [answers(script, library, "True =")[question] for library in script.LIBRARIES]
    assert found == ["may attend", *["not installed"] * 5]


def test_the_page_is_saved_only_with_all_libraries_and_questions(tmp_path):
    page = tmp_path / "page.md"
    command = [sys.executable, SCRIPT, "--save", page, "True ="]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
    assert not page.exists()
