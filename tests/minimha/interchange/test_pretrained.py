"""Folders with a model of Hugging Face: what is read is written back, and whatever does not fit is named.

`test_pretrained_with_transformers.py` compares with the models of Hugging Face.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from layers import far, reasons, same_bits, same_up_to_rounding
from mutations import STEPS, mutations, refusal
from their_models import OURS, THEIRS

import minimha as mh
from minimha import interchange
from minimha.interchange import layouts, pretrained

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).relative_to(ROOT).as_posix()
GPT2 = {"context": 8, "d_model": 6, "num_heads": 3, "num_layers": 2}
LLAMA = GPT2 | {
    "num_heads": 4, "num_kv_heads": 2, "head_dim": 10, "hidden": 9, "norm": "rms",
    "activation": "swiglu", "bias": False, "rope": mh.positions.Rope(500.0),
}  # fmt: skip
OLMO = LLAMA | {"norm_of": "output", "qk_norm": mh.QKNorm(all_heads=True)}
GEMMA = LLAMA | {
    "norm": "rms plus one", "norm_of": "both", "activation": "geglu", "scale": 0.25,
    "scale_embeddings": True, "logit_softcap": 3.0,
}  # fmt: skip
SIZES = {
    "gpt2": GPT2,
    "gpt2 tied": GPT2 | {"tie": True, "hidden": 7, "activation": "relu", "norm_eps": 0.1},
    "llama": LLAMA,
    "llama tied": LLAMA | {"tie": True, "bias": True, "num_kv_heads": None, "norm_eps": 0.1},
    "llama 3": LLAMA | {
        "rope": mh.positions.Rope(500.0, scaling=mh.positions.Llama3(8.0, 1.0, 4.0, 16)),
    },
    "mistral": LLAMA | {"window": 3},
    "qwen2": LLAMA | {"attention_bias": "qkv", "layers": [{}, {"window": 3}]},
    "qwen3": LLAMA | {"qk_norm": True},
    "smollm3": LLAMA | {"layers": [{"rope": None, "window": 3}, {}]},
    "olmo2": OLMO,
    "gemma2": GEMMA | {"softcap": 2.0, "layers": [{}, {"window": 3}]},
    "gemma3_text": GEMMA | {
        "qk_norm": mh.QKNorm(plus_one=True),
        "layers": [{"window": 3, "rope": mh.positions.Rope(30.0)}, {}],
    },
}  # fmt: skip
READS_ONLY: dict[str, dict] = {}
"""Models of layouts that have no setting of their own, by the type of model. A model that was not
loaded is written in an earlier layout, so these only read models, and write those back."""
TOKENS = np.arange(14).reshape(2, 7) % 11


def model(kind, dtype="float32"):
    """A GPT in which no parameter is zero."""
    return far(mh.GPT(11, rng=1, dtype=dtype, **SIZES[kind]), np.random.default_rng(2))


def saved(made, folder):
    interchange.save_pretrained(made, folder)
    return folder


def edited(folder, **entries):
    """The folder, with other entries in its config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | entries
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("kind", SIZES)
def test_a_model_survives_a_round_trip_through_a_folder(kind, dtype, tmp_path):
    one = model(kind, dtype)
    try:
        assert_read_and_written_back(one, kind.split()[0], tmp_path)
    except ValueError as error:
        error.add_note(
            f"compare the model {kind!r} of SIZES in {HERE} with its layout in "
            "minimha/interchange/layouts.py: entries, blocks, windowed, rope, fixed and names"
        )
        raise


def assert_read_and_written_back(one, kind, folder):
    other = interchange.from_pretrained(saved(one, folder / "one"))
    assert sorted(contents(folder / "one")) == ["config.json", "model.safetensors"]
    config = json.loads((folder / "one" / "config.json").read_text())
    assert config["model_type"] == kind, (
        f"{kind} of SIZES is written as the earlier layout {config['model_type']}, which has all its "
        "settings: give it one that earlier layouts in minimha/interchange/layouts.py lack or, if "
        f"{kind} has none, move it to READS_ONLY in {HERE}"
    )
    same_bits(interchange.state(other), interchange.state(one))
    same_up_to_rounding(other(TOKENS).data, one(TOKENS).data)
    assert contents(saved(other, folder / "other")) == contents(folder / "one")


READER = layouts._like(
    layouts.LLAMA, "reader", "Reader",
    names={theirs.replace("model.", "net."): ours for theirs, ours in layouts.LLAMA.names.items()},
    prefix="net.",
)  # fmt: skip
"""A layout without a setting of its own, as an example."""


@pytest.mark.parametrize("kind", [*READS_ONLY, "reader"])
def test_a_layout_without_a_setting_of_its_own_reads_models_and_writes_them_back(
    kind, tmp_path, monkeypatch
):
    layout = layouts.LAYOUTS.get(kind, READER)
    one = far(mh.GPT(11, rng=1, **READS_ONLY.get(kind, LLAMA)), np.random.default_rng(2))
    saved(one, tmp_path / "earlier")
    config = json.loads((tmp_path / "earlier" / "config.json").read_text())
    assert config["model_type"] != kind, (
        f"{kind} of READS_ONLY is not written as an earlier layout: move it to SIZES in {HERE}"
    )
    with monkeypatch.context() as patch:
        patch.setattr(pretrained, "LAYOUTS", {kind: layout})
        assert_read_and_written_back(one, kind, tmp_path)
    monkeypatch.setattr(pretrained, "LAYOUTS", layouts.LAYOUTS | {kind: layout})
    other = interchange.from_pretrained(tmp_path / "one")  # although an earlier layout has it all
    assert contents(saved(other, tmp_path / "again")) == contents(tmp_path / "one")


def test_weights_without_a_name_are_blamed_on_the_layout(tmp_path, monkeypatch):
    names = layouts.LLAMA.names | {"model.norm.weight": "norn.weight"}
    incomplete = dataclasses.replace(layouts.LLAMA, names=names)
    monkeypatch.setattr(pretrained, "LAYOUTS", {"llama": incomplete})
    with pytest.raises(ValueError, match=r"^the layout llama .* has no names for norm\.weight$"):
        interchange.save_pretrained(mh.GPT(11, **LLAMA, rng=1), tmp_path)


def test_every_layout_is_listed_has_a_model_and_stands_in_docs():
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    modelled = {name.split()[0] for name in SIZES} | READS_ONLY.keys()
    compared = {"THEIRS": THEIRS, "OURS": OURS}
    forgotten = []
    for layout in vars(layouts).values():
        if not isinstance(layout, layouts.Layout):
            continue
        kind = layout.model_type
        if layouts.LAYOUTS.get(kind) is not layout:
            forgotten.append(
                f"{kind}: add it to LAYOUTS in minimha/interchange/layouts.py, behind the layouts "
                "whose settings it has, too"
            )
        if kind not in modelled:
            forgotten.append(
                f"{kind}: add a model to {HERE}: to SIZES with a setting that earlier layouts lack, or "
                "to READS_ONLY if it has none"
            )
        for where, models in compared.items():
            if kind not in models and not (where == "OURS" and kind in READS_ONLY):
                forgotten.append(
                    f"{kind}: add a model to {where} in tests/their_models.py, which is compared "
                    "with transformers if that is installed"
                )
        stated = {name for name, _ in layout.settings.values()} | layout.fixed.keys()
        for name in sorted({"norm", "norm_eps", "activation", "tie", "bias"} - stated):
            forgotten.append(
                f"{kind}: say in minimha/interchange/layouts.py which entry of config.json is "
                f"{name}, or fix it"
            )
        if f"| `{kind}` |" not in page:
            forgotten.append(f"{kind}: add a row to the table in docs/models.md")
    assert not forgotten, "\n".join(forgotten)


def test_a_gpt_2_without_biases_is_written_with_zeros(tmp_path):
    one = mh.GPT(11, **GPT2, bias=False, rng=1)
    other = interchange.from_pretrained(saved(one, tmp_path))
    assert other.settings["bias"]
    weights, zeros = interchange.state(one), interchange.state(other)
    for name, x in weights.items():
        np.testing.assert_array_equal(zeros.pop(name), x)
    assert len(zeros) == 2 * 8 + 1
    assert not any(x.any() for x in zeros.values())
    same_up_to_rounding(other(TOKENS).data, one(TOKENS).data)


def test_a_file_of_an_old_version_without_prefix_is_read_and_written_back(tmp_path):
    kind = "gpt2 tied"
    path = saved(model(kind), tmp_path) / "model.safetensors"
    arrays = {n.removeprefix("transformer."): x for n, x in interchange.read(path).items()}
    mask = {f"h.{n}.attn.bias": np.tri(8, dtype=bool)[None, None] for n in range(2)}
    constants = mask | {"h.0.attn.masked_bias": np.array(-1e4, "float32")}
    interchange.write(arrays | constants | {"lm_head.weight": arrays["wte.weight"]}, path)
    edited(tmp_path, tie_word_embeddings=None, eos_token_id=5)
    loaded = interchange.from_pretrained(tmp_path)
    same_up_to_rounding(loaded(TOKENS).data, model(kind)(TOKENS).data)
    back = saved(loaded, tmp_path / "back")
    np.testing.assert_equal(interchange.read(back / "model.safetensors"), arrays)
    assert json.loads((back / "config.json").read_text())["eos_token_id"] == 5


def test_a_model_in_several_files_is_read(tmp_path):
    path = saved(model("llama"), tmp_path) / "model.safetensors"
    parts, places = [{}, {}], {}
    for k, (name, x) in enumerate(interchange.read(path).items()):
        parts[k % 2][name], places[name] = x, f"part-{k % 2}.safetensors"
    for k, part in enumerate(parts):
        interchange.write(part, tmp_path / f"part-{k}.safetensors")
    path.unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    loaded = interchange.from_pretrained(tmp_path)
    same_bits(interchange.state(loaded), interchange.state(model("llama")))
    same_up_to_rounding(loaded(TOKENS).data, model("llama")(TOKENS).data)


def test_weights_stay_in_the_file_and_changes_do_not_reach_it(tmp_path, monkeypatch):
    for kind in ("gpt2", "llama"):
        path = saved(model(kind), tmp_path / kind) / "model.safetensors"
        before = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(np.random, "default_rng", None)  # no random weights are drawn
            loaded = interchange.from_pretrained(tmp_path / kind)
        for name, p in loaded.named_parameters():
            base = p.data
            while isinstance(base, np.ndarray):
                base = base.base
            assert isinstance(base, memoryview), name
            p.data *= 2
        assert path.read_bytes() == before
        saved(loaded, tmp_path / kind)  # a model can be saved where it came from
        twice = interchange.from_pretrained(tmp_path / kind)
        same_bits(interchange.state(twice), interchange.state(loaded))


@pytest.mark.parametrize("kind", ["gpt2 tied", "llama", "gemma3_text"])
def test_a_model_of_bfloat16_computes_in_float32_with_its_rounded_weights(kind, tmp_path):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    saved(model(kind), tmp_path / "wide")
    narrow = interchange.from_pretrained(tmp_path / "wide", dtype="bfloat16")
    for p in narrow.parameters():
        assert p.dtype == (np.float32 if p.ndim == 1 else bfloat16)
    path = saved(narrow, tmp_path / "narrow") / "model.safetensors"
    header = path.read_bytes()
    assert header.count(b'"BF16"') == len(interchange.read(path))
    again = interchange.from_pretrained(tmp_path / "narrow", dtype="bfloat16")
    assert contents(saved(again, tmp_path / "again")) == contents(tmp_path / "narrow")
    vectors = [(p.data, q.data) for p, q in zip(narrow.parameters(), again.parameters(), strict=True)
               if p.ndim == 1]  # fmt: skip
    assert not all(np.array_equal(x, written) for x, written in vectors)  # they are rounded
    assert all(np.array_equal(x.astype(bfloat16), written) for x, written in vectors)
    rounded, read = model(kind), interchange.from_pretrained(tmp_path / "narrow")
    for p in rounded.parameters():
        p.data = p.data.astype(bfloat16).astype("float32") if p.ndim == 2 else p.data
    for one, wide in ((narrow, rounded), (again, read)):
        logits, expected = one(TOKENS).data, wide(TOKENS).data
        assert logits.dtype == np.float32
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6 * abs(expected).max())


def test_another_dtype_is_refused_and_bfloat16_needs_ml_dtypes(tmp_path, monkeypatch):
    saved(model("gpt2"), tmp_path)
    assert interchange.from_pretrained(tmp_path, dtype="float64").tokens.table.dtype == np.float64
    with pytest.raises(ValueError, match="dtype = 'int8' must be 'float16' or 'float32' or"):
        interchange.from_pretrained(tmp_path, dtype="int8")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(RuntimeError, match="needs the package ml_dtypes: pip install ml_dtypes"):
        interchange.from_pretrained(tmp_path, dtype="bfloat16")


# Refusals


def test_all_settings_that_a_gpt_lacks_are_named_together(tmp_path):
    edited(
        saved(model("gpt2"), tmp_path / "gpt2"), n_embd=None, activation_function="gelu",
        attn_pdrop=0.5, scale_attn_by_inverse_layer_idx=True, add_cross_attention=True,
    )  # fmt: skip
    assert reasons(interchange.from_pretrained, tmp_path / "gpt2") == [
        "scale_attn_by_inverse_layer_idx is True, but must be False",
        "add_cross_attention is True, but must be False",
        "n_embd is missing",
        "activation_function is 'gelu', but must be 'gelu_new' or 'gelu_pytorch_tanh' or 'relu'",
        "attn_pdrop is 0.5, but a GPT has one dropout, already 0.0",
    ]
    edited(
        saved(model("llama"), tmp_path / "llama"), mlp_bias=True, hidden_act="relu",
        rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0},
    )  # fmt: skip
    assert reasons(interchange.from_pretrained, tmp_path / "llama") == [
        "hidden_act is 'relu', but must be 'silu' or 'gelu_pytorch_tanh'",
        "rope_parameters.low_freq_factor is missing",
        "rope_parameters.high_freq_factor is missing",
    ]
    edited(tmp_path / "llama", model_type="mamba")
    with pytest.raises(ValueError, match="model_type is 'mamba', but must be 'gpt2' or 'llama' or"):
        interchange.from_pretrained(tmp_path / "llama")


@pytest.mark.parametrize(("entry", "value", "reason"), [
    ("partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5, but must be 1.0"),
    ("rope_parameters", {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
     "rope_parameters.rope_type is 'linear', but must be 'default' or 'llama3'"),
    ("rope_parameters", {"rope_theta": 1e4, "mrope_section": [2, 3]},
     "rope_parameters.mrope_section is [2, 3]: this entry is not supported"),
    ("rope_scaling", {"type": "linear", "factor": 2.0},
     "rope_scaling.type is 'linear', but must be 'default' or 'llama3'"),
    ("sliding_window", 3, "sliding_window is 3: this entry is not supported"),
    ("residual_multiplier", 0.2, "residual_multiplier is 0.2: this entry is not supported"),
    ("output_multiplier", 0.2, "output_multiplier is 0.2: this entry is not supported"),
    ("num_experts", 4, "num_experts is 4: a mixture of experts is not supported"),
])  # fmt: skip
def test_an_entry_that_is_not_understood_is_refused(entry, value, reason, tmp_path):
    folder = edited(saved(model("llama"), tmp_path), **{entry: value})
    assert reasons(interchange.from_pretrained, folder) == [reason]


def test_a_large_gemma_3_is_refused_because_it_divides_positions(tmp_path):
    scaling = {"rope_type": "linear", "factor": 8.0}
    folder = edited(saved(model("gemma3_text"), tmp_path), rope_scaling=scaling)
    assert reasons(interchange.from_pretrained, folder) == [
        "rope_scaling.rope_type is 'linear', but must be 'default' or 'llama3'"
    ]


@pytest.mark.parametrize(("config", "named"), [
    ({"model_type": "gpt_oss", "num_local_experts": 32}, "num_local_experts is 32: a mixture"),
    ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "kv_lora_rank is 512: latent attention"),
    ({"model_type": "qwen3_5", "text_config": {"linear_conv_kernel_dim": 4}},
     "linear_conv_kernel_dim is 4: linear attention"),
    ({"model_type": "gpt_neox", "use_parallel_residual": True}, "use_parallel_residual is True: "),
    ({"model_type": "gemma3", "vision_config": {"a": 1}}, "vision_config is {'a': 1}: a model of"),
])  # fmt: skip
def test_other_architectures_are_refused_by_the_entry_that_shows_them(config, named, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = refusal(interchange.from_pretrained, tmp_path)
    assert f"{tmp_path / 'config.json'} does not describe a GPT: model_type is " in message
    assert named in message


def test_entries_of_both_versions_of_transformers_mean_the_same(tmp_path):
    for kind in ("llama 3", "gemma3_text"):
        folder = saved(model(kind), tmp_path / kind)
        expected = interchange.from_pretrained(folder).settings
        new = json.loads((folder / "config.json").read_text())["rope_parameters"]
        edited(folder, rope_parameters=None)
        assert interchange.from_pretrained(folder).settings == expected
        edited(
            folder, rope_theta=None, rope_scaling=None, rope_local_base_freq=None,
            rope_parameters=new,
        )  # fmt: skip
        assert interchange.from_pretrained(folder).settings == expected
    # version 4 did not write layer_types either
    edited(folder, layer_types=None, sliding_window_pattern=2)
    assert interchange.from_pretrained(folder).settings == expected


NEAR, FULL, LOCAL = {"window": 3}, {}, {"window": 3, "rope": mh.positions.Rope(30.0)}


@pytest.mark.parametrize(("kind", "layers", "entries"), [
    ("qwen2", [FULL, FULL, NEAR], {"max_window_layers": 2}),
    ("smollm3", [FULL, FULL, FULL, {"rope": None}, FULL], {}),
    ("smollm3", [FULL, {"rope": None, "window": 3}, FULL], {"no_rope_layer_interval": 2}),
    ("gemma2", [NEAR, FULL, NEAR], {}),
    ("gemma3_text", [LOCAL, LOCAL, LOCAL, LOCAL, LOCAL, FULL, LOCAL], {}),
    ("gemma3_text", [LOCAL, FULL, LOCAL], {"sliding_window_pattern": 2}),
])  # fmt: skip
def test_blocks_without_a_list_of_their_kinds_follow_the_pattern_of_the_model(
    kind, layers, entries, tmp_path
):
    settings = SIZES[kind] | {"num_layers": len(layers), "layers": layers}
    folder = saved(mh.GPT(11, **settings), tmp_path)
    expected = interchange.from_pretrained(folder).settings
    edited(folder, layer_types=None, no_rope_layers=None, **entries)
    assert interchange.from_pretrained(folder).settings == expected


def test_a_bias_of_attention_needs_none_of_the_perceptron(tmp_path):
    for attention, perceptron in ((True, False), (False, True)):
        one = far(
            mh.GPT(11, **LLAMA | {"bias": perceptron}, attention_bias=attention),
            np.random.default_rng(2),
        )
        other = interchange.from_pretrained(saved(one, tmp_path))
        same_bits(interchange.state(other), interchange.state(one))
        assert (other.blocks[0].attention.b_o is None) is not attention
        assert (other.blocks[0].mlp.widen.bias is None) is not perceptron


@STEPS
@pytest.mark.parametrize(
    "kind",
    ["gpt2", "llama", *(pytest.param(x, marks=pytest.mark.thorough)
                        for x in ("llama 3", "qwen2", "smollm3", "gemma3_text"))],
)  # fmt: skip
def test_a_damaged_config_is_read_or_refused_by_the_name_of_its_entry(kind, step, tmp_path):
    path, refused = saved(model(kind), tmp_path) / "config.json", 0
    for name, value in mutations(path, step):
        if message := refusal(interchange.from_pretrained, tmp_path):
            refused += 1
            # a valid value may contradict the weights, or another entry
            contradicts = "do not fit its config.json: " in message or ", already " in message
            assert contradicts or (str(path) in message and name in message), (name, value)
        else:
            assert name not in ("config.json", "model_type", "vocab_size"), value
    assert refused > 100 / step


@pytest.mark.parametrize("part", [
    "../part", ".", "..", "", "folder", "pipe", "absent", "/dev/zero", ["part"], 1, None,
])  # fmt: skip
def test_the_index_of_a_model_names_files_in_its_folder_only(part, tmp_path):
    folder = saved(model("llama"), tmp_path / "model")
    (folder / "folder").mkdir()
    (folder / "model.safetensors").rename(tmp_path / "part")
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe")
    index = folder / "model.safetensors.index.json"
    for wrong in (part, str(tmp_path / "part")):
        index.write_text(json.dumps({"weight_map": {"lm_head.weight": wrong}}))
        message = refusal(interchange.from_pretrained, folder)
        assert message.startswith(f"{index}: weight_map of lm_head.weight is ")
        assert message.endswith(", but must be the name of a file in the same folder")


def test_a_damaged_index_is_refused(tmp_path):
    (saved(model("llama"), tmp_path) / "model.safetensors").unlink()
    path = tmp_path / "model.safetensors.index.json"
    path.write_text('{"weight_map": {}}')
    for name, value in mutations(path):
        message = refusal(interchange.from_pretrained, tmp_path)
        assert str(path) in message, value
        assert name in message, value


def test_rope_settings_of_older_versions_are_read(tmp_path):
    folder = edited(saved(model("llama"), tmp_path), rope_parameters=None)
    assert interchange.from_pretrained(folder).settings["rope"].base == 500
    edited(folder, rope_scaling={"rope_type": "default"})
    assert interchange.from_pretrained(folder).settings["rope"].base == 500


@pytest.mark.parametrize(("kind", "shape"), [("gpt2", (6, 18)), ("llama", (20, 6))])
def test_all_weights_that_do_not_fit_are_named_together(kind, shape, tmp_path):
    path = saved(model(kind), tmp_path) / "model.safetensors"
    arrays = interchange.read(path)
    names = [name for name in arrays if arrays[name].shape == shape]
    turned, gone, *_ = names
    arrays[turned] = arrays[turned].T
    del arrays[gone]
    halved = next(name for name in arrays if name.startswith("lm_head"))
    arrays |= {"nonsense": np.zeros(3), halved: arrays[halved].astype("float16")}
    interchange.write(arrays, path)
    assert set(reasons(interchange.from_pretrained, tmp_path)) == {
        f"{turned} is float32 {shape[::-1]}, but must be float32 {shape}",
        f"{gone} is missing",
        f"{halved} is float16 (11, 6), but must be float32 (11, 6)",
        "nonsense is extra",
    }


def test_a_tied_model_with_another_head_in_its_file_is_refused(tmp_path):
    path = saved(model("llama tied"), tmp_path) / "model.safetensors"
    interchange.write(interchange.read(path) | {"lm_head.weight": np.ones((11, 6), "f4")}, path)
    assert reasons(interchange.from_pretrained, tmp_path) == ["lm_head.weight is extra"]


def test_a_model_that_fits_neither_layout_is_refused_and_nothing_is_written(tmp_path):
    folder = tmp_path / "new"
    strange = mh.GPT(11, **GPT2 | {"num_heads": 2}, num_kv_heads=1, rope=mh.positions.Rope())
    wrong = reasons(interchange.save_pretrained, strange, folder)
    assert wrong == [
        "rope of block 0 is Rope(base=10000.0, width=None, interleaved=False, scaling=None), but must "
        "be None",
        "num_kv_heads is 1, but must be 2",
    ]
    strange = mh.GPT(11, **GPT2 | {"num_heads": 1}, norm="rms", bias=False)
    wrong = reasons(interchange.save_pretrained, strange, folder)
    assert wrong[0] == "hidden_act is 'gelu', but must be 'silu' or 'gelu_pytorch_tanh'"
    assert wrong[1].startswith("rope of block 0 is None, but must be Rope(base=10000.0")
    windows = mh.GPT(11, **LLAMA | {"layers": [{"window": 3}, {"window": 4}]})
    wrong = reasons(interchange.save_pretrained, windows, folder)
    assert wrong == ["window of block 0 is 3, but must be None"]
    scaled = mh.GPT(11, **SIZES["gemma2"] | {"scale": 0.3})
    wrong = reasons(interchange.save_pretrained, scaled, folder)
    assert any(text.startswith("scale is 0.3, but must be 0.3015") for text in wrong)
    fused = model("gpt2")
    fused.blocks[1].attention = fused.blocks[1].attention.convert("fused")
    with pytest.raises(ValueError, match=r"see `convert`; other names are .*1\.attention\.w_qkv"):
        interchange.save_pretrained(fused, folder)
    with pytest.raises(TypeError, match="model must be a GPT, not a Linear"):
        interchange.save_pretrained(mh.Linear(2, 3), folder)
    assert not folder.exists()


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        interchange.from_pretrained(tmp_path)
    (saved(model("gpt2"), tmp_path) / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        interchange.from_pretrained(tmp_path)
