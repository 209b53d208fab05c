"""The models of Hugging Face's transformers and the models here have the same logits, with weights
that go through files in both directions: to 1e-5 in float32 and 1e-12 in float64 of the largest,
because sums round in a different order. All but GPT-2 have 1e-5 in float64 too: transformers
computes their norms and angles in float32. Skipped if transformers is not installed."""

import json
import os
from importlib.util import find_spec

import numpy as np
import pytest
from their_models import OURS, THEIRS, M, N, T, V
from with_transformers import MARKS

import minimha as mh
from minimha import interchange
from minimha.interchange.configuration import common_settings, with_blocks
from minimha.interchange.layouts import LAYOUTS

pytestmark = MARKS

B = 2
DTYPES = ["float32", "float64"]


@pytest.fixture(scope="module")
def hugging_face():
    os.environ["TRANSFORMERS_VERBOSITY"], os.environ["HF_HUB_OFFLINE"] = "error", "1"
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers


def their_model(transformers, kind, dtype="float32", **more):
    """A model of theirs in which no weight is zero. `more` are other entries of its config.json."""
    import torch

    name, entries = THEIRS[kind]
    config = (
        name.replace("Gemma3", "Gemma3Text").replace("ForCausalLM", "").replace("LMHeadModel", "")
    )
    entries = {"vocab_size": V, "bos_token_id": 1, "eos_token_id": 2} | entries | more
    made = getattr(transformers, f"{config}Config")(**entries, attn_implementation="eager")
    model = getattr(transformers, name)(made).eval()
    drawn = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=drawn) / 3)
    return model.to(getattr(torch, dtype))


def same_logits(ours, theirs):
    import torch

    tokens = np.random.default_rng(3).integers(V, size=(B, T))
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens)).logits.numpy()
    got = ours(tokens).data
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    exact = got.dtype == "float64" and ours.settings["norm"] == "layer"
    assert abs(got - expected).max() <= (1e-12 if exact else 1e-5) * abs(expected).max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", THEIRS)
def test_a_model_of_theirs_has_the_same_logits_and_is_written_back_bit_for_bit(
    kind, dtype, hugging_face, tmp_path
):
    theirs = their_model(hugging_face, kind, dtype)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = interchange.from_pretrained(tmp_path / "theirs")
    same_logits(ours, theirs)
    interchange.save_pretrained(ours, tmp_path / "ours")
    one, other = (tmp_path / name / "model.safetensors" for name in ("theirs", "ours"))
    assert one.read_bytes() == other.read_bytes()
    back = hugging_face.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", attn_implementation="eager"
    )
    same_logits(ours, back)
    different = {"n_inner", "head_dim", "_name_or_path"}  # None there, the number here
    one, other = (m.config.to_dict().items() for m in (theirs, back))
    assert {k: v for k, v in one if k not in different} == {
        k: v for k, v in other if k not in different
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", OURS)
def test_a_model_of_ours_has_the_same_logits_there(kind, dtype, hugging_face, tmp_path):
    llama = {} if kind.startswith("gpt2") else {"norm": "rms", "activation": "swiglu"}
    ours, rng = mh.GPT(V, **llama | OURS[kind], dtype=dtype), np.random.default_rng(5)
    for p in ours.parameters():
        p.data = (p.data + rng.standard_normal(p.shape) / 3).astype(dtype)
    interchange.save_pretrained(ours, tmp_path)
    theirs, report = hugging_face.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True, attn_implementation="eager"
    )
    assert theirs.config.model_type.startswith(kind.split()[0])
    assert not any(report.values()), report
    same_logits(ours, theirs)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, layout in LAYOUTS.items() for name in layout.activations],
)
def test_every_activation_of_a_layout_is_the_one_of_this_name_there(
    kind, name, hugging_face, tmp_path
):
    settings = LAYOUTS[kind].settings
    entry = next(entry for entry, (ours, _) in settings.items() if ours == "activation")
    theirs = their_model(hugging_face, kind, **{entry: name})
    theirs.save_pretrained(tmp_path)
    same_logits(interchange.from_pretrained(tmp_path), theirs)


REQUIRED = {
    "vocab_size": V, "n_positions": N, "n_embd": M, "n_head": 4, "n_layer": 2,
    "max_position_embeddings": N, "hidden_size": M, "num_attention_heads": 4,
    "num_hidden_layers": 2, "intermediate_size": 17,
}  # fmt: skip


def described(layout, config):
    """The settings of the GPT that config.json describes, without None for a usual size."""
    settings, wrong = common_settings(layout, config)
    assert not wrong, wrong
    settings, wrong = with_blocks(layout, config, settings)
    assert not wrong, wrong
    settings["num_kv_heads"] = settings.get("num_kv_heads") or settings["num_heads"]
    settings["head_dim"] = settings.get("head_dim") or settings["d_model"] // settings["num_heads"]
    return settings


@pytest.mark.parametrize("kind", LAYOUTS)
def test_an_absent_entry_means_what_it_means_there(kind, hugging_face):
    """Their library writes all entries, but files by others leave many out."""
    layout = LAYOUTS[kind]
    required = {key: REQUIRED[key] for key, (_, x) in layout.settings.items() if x is ...}
    theirs = hugging_face.AutoConfig.for_model(kind, **required)
    read = {*layout.settings, *layout.blocks, *layout.needed, "model_type", "rope_parameters"}
    every = {key: x for key, x in theirs.to_dict().items() if key in read}
    found = described(layout, required | {"model_type": kind})
    for name, value in described(layout, every).items():
        assert found[name] == value, (
            f"config.json of {kind} without an entry for {name} means {value} to transformers, and "
            f"{found[name]} to the layout in minimha/interchange/layouts.py"
        )


@pytest.mark.parametrize("kind", ["gpt2", "llama tied"])
def test_a_model_without_its_head_and_in_several_files_is_read(kind, hugging_face, tmp_path):
    theirs = their_model(hugging_face, kind)
    theirs.base_model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    same_logits(interchange.from_pretrained(tmp_path), theirs)


@pytest.mark.parametrize("kind", [
    "gpt2", "llama wide", "llama 3", "mistral", "qwen2 windows", "qwen3", "smollm3 windows", "olmo2",
    "gemma2", "gemma3_text",
])  # fmt: skip
def test_both_libraries_continue_a_text_in_the_same_way(kind, hugging_face, tmp_path):
    import torch

    theirs = their_model(hugging_face, kind)
    theirs.save_pretrained(tmp_path)
    prompt = np.array([[3, 1, 4]])
    ours = mh.generate(interchange.from_pretrained(tmp_path), prompt, N - 3, temperature=0)
    expected = theirs.generate(
        torch.tensor(prompt), do_sample=False, max_length=N, eos_token_id=None, pad_token_id=0
    )
    np.testing.assert_array_equal(ours, expected)


def test_the_two_libraries_differ_as_the_page_about_models_says(hugging_face, tmp_path):
    import torch

    their_model(hugging_face, "llama").save_pretrained(tmp_path)

    def edited(**entries):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | entries))
        return hugging_face.AutoModelForCausalLM.from_pretrained(tmp_path)

    theirs, ours = edited(), interchange.from_pretrained(tmp_path)
    long = np.ones((1, N + 1), dtype=np.int64)
    assert theirs(torch.tensor(long)).logits.shape == (1, N + 1, V)
    with pytest.raises(ValueError, match="the context"):
        ours(long)

    drawn = [theirs.generate(torch.tensor(long[:, :3]), do_sample=True, max_length=N).tolist()
             for _ in range(3)]  # fmt: skip
    assert drawn[0] != drawn[1] or drawn[1] != drawn[2]
    same = [mh.generate(ours, long[:, :3], 5).tolist() for _ in range(3)]
    assert same[0] == same[1] == same[2]

    theirs = hugging_face.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="bfloat16")
    assert theirs(torch.tensor(long)).logits.dtype == torch.bfloat16
    if find_spec("ml_dtypes"):
        ours = interchange.from_pretrained(tmp_path, dtype="bfloat16")
        assert ours(long[:, :N]).data.dtype == np.float32

    edited(layer_scale=0.5)
    with pytest.raises(ValueError, match=r"layer_scale is 0\.5: this entry is not supported"):
        interchange.from_pretrained(tmp_path)


def test_at_position_400_their_angles_are_rounded_and_ours_are_not(hugging_face):
    import torch
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    config = hugging_face.LlamaConfig(
        hidden_size=256, num_attention_heads=4, max_position_embeddings=512, rope_parameters=rope
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, 1, 64), torch.tensor([[400]]))
    theirs = torch.cat([cos[0, 0, :32], sin[0, 0, :32]]).double().numpy()
    first_of_each_pair = (np.arange(64) < 32).astype("float32")[None]
    ours = mh.positions.Rope()(first_of_each_pair, offset=400)[0]

    angles = 400 * 10_000.0 ** (-np.arange(0, 64, 2) / 64)
    exact = np.concatenate([np.cos(angles), np.sin(angles)])
    assert 1.1e-5 < abs(theirs - exact).max() < 1.2e-5
    assert abs(ours - exact).max() < 3.1e-8
