"""The models of Hugging Face's transformers and the models here have the same logits, with weights
that go through files in both directions: to 1e-5 in float32 and 1e-12 in float64 of the largest,
because sums round in a different order. All but GPT-2 have 1e-5 in float64 too: transformers
computes their norms and angles in float32. Skipped if transformers is not installed."""

import json
import os
from importlib.util import find_spec

import numpy as np
import pytest
from with_transformers import MARKS

import minimha as mh
from minimha import interchange

pytestmark = MARKS

V, N, M, B, T = 13, 10, 24, 2, 9
DTYPES = ["float32", "float64"]
GPT2 = {"n_positions": N, "n_embd": M, "n_head": 3, "n_layer": 2}
LLAMA = {
    "max_position_embeddings": N, "hidden_size": M, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "intermediate_size": 17,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
}  # fmt: skip
FOUR = LLAMA | {"num_hidden_layers": 4}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
WINDOW = 4  # shorter than T
GEMMA = FOUR | {"head_dim": 10, "query_pre_attn_scalar": 19, "sliding_window": WINDOW}
LOCAL = {"rope_type": "default", "rope_theta": 30.0}
THEIRS = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2 untied": ("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False, "n_inner": 17}),
    "gpt2 relu": (
        "GPT2LMHeadModel",
        GPT2 | {"activation_function": "relu", "layer_norm_epsilon": 0.1},
    ),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama tied": ("LlamaForCausalLM", LLAMA | {"tie_word_embeddings": True, "rms_norm_eps": 0.1}),
    "llama wide": ("LlamaForCausalLM", LLAMA | {"head_dim": 10}),
    "llama biases": ("LlamaForCausalLM", LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama 3": ("LlamaForCausalLM", LLAMA | {"rope_parameters": LLAMA3}),
    "llama biases of attention": ("LlamaForCausalLM", LLAMA | {"attention_bias": True}),
    "mistral": ("MistralForCausalLM", LLAMA | {"head_dim": 10, "sliding_window": WINDOW}),
    "mistral without window": ("MistralForCausalLM", LLAMA | {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
    "qwen2 windows": (
        "Qwen2ForCausalLM",
        FOUR | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "qwen3": ("Qwen3ForCausalLM", LLAMA | {"head_dim": 10, "rms_norm_eps": 0.1}),
    "qwen3 biases": ("Qwen3ForCausalLM", LLAMA | {"head_dim": 10, "attention_bias": True}),
    "smollm3": ("SmolLM3ForCausalLM", FOUR | {"pad_token_id": 0}),
    "smollm3 windows": (
        "SmolLM3ForCausalLM",
        FOUR | {"pad_token_id": 0, "use_sliding_window": True, "sliding_window": WINDOW}
        | {"no_rope_layers": [1, 0, 0, 1], "mlp_bias": True},
    ),
    "olmo2": ("Olmo2ForCausalLM", LLAMA | {"rms_norm_eps": 0.1}),
    "gemma2": (
        "Gemma2ForCausalLM",
        GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        GEMMA | {"rope_parameters": {"full_attention": LLAMA3, "sliding_attention": LOCAL}}
        | {"sliding_window_pattern": 3, "rms_norm_eps": 0.1},
    ),
}  # fmt: skip
SMALL = {"context": N, "d_model": M, "num_layers": 2}
ROTARY = {"rope": mh.positions.Rope(50.0), "bias": False}
OURS = {
    "gpt2": SMALL | {"num_heads": 3},
    "gpt2 without biases": SMALL | {"num_heads": 4, "bias": False, "tie": True},
    "gpt2 relu": SMALL | {"num_heads": 2, "activation": "relu", "hidden": 17, "norm_eps": 0.1},
    "llama": SMALL | ROTARY | {"num_heads": 4, "num_kv_heads": 2, "head_dim": 10, "hidden": 17},
    "llama tied": SMALL | ROTARY | {"num_heads": 6, "tie": True, "norm_eps": 0.1},
    "llama biases": SMALL | ROTARY | {"num_heads": 3, "bias": True},
    "mistral": SMALL | ROTARY | {"num_heads": 4, "window": WINDOW},
    "qwen2": SMALL | ROTARY | {"num_heads": 3, "attention_bias": "qkv"},
    "qwen3": SMALL | ROTARY | {"num_heads": 3, "qk_norm": True},
    "smollm3": SMALL | ROTARY | {"num_heads": 3, "layers": [{"rope": None}, {}]},
    "olmo2": SMALL | ROTARY | {
        "num_heads": 3, "norm_of": "output", "qk_norm": mh.QKNorm(all_heads=True),
    },
    "gemma2": SMALL | ROTARY | {
        "num_heads": 3, "norm": "rms plus one", "norm_of": "both", "activation": "geglu",
        "scale_embeddings": True, "softcap": 2.0, "logit_softcap": 3.0,
        "layers": [{}, {"window": WINDOW}],
    },
    "gemma3": SMALL | ROTARY | {
        "num_heads": 3, "norm": "rms plus one", "norm_of": "both", "activation": "geglu",
        "scale_embeddings": True, "qk_norm": mh.QKNorm(plus_one=True), "scale": 0.2,
        "layers": [{"rope": mh.positions.Rope(30.0), "window": WINDOW}, {}],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def hugging_face():
    os.environ["TRANSFORMERS_VERBOSITY"], os.environ["HF_HUB_OFFLINE"] = "error", "1"
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers


def their_model(transformers, kind, dtype="float32"):
    """A model of theirs in which no weight is zero."""
    import torch

    name, entries = THEIRS[kind]
    config = (
        name.replace("Gemma3", "Gemma3Text").replace("ForCausalLM", "").replace("LMHeadModel", "")
    )
    entries = {"vocab_size": V, "bos_token_id": 1, "eos_token_id": 2} | entries
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


@pytest.mark.parametrize("kind", ["gpt2", "llama tied"])
def test_a_model_without_its_head_and_in_several_files_is_read(kind, hugging_face, tmp_path):
    theirs = their_model(hugging_face, kind)
    theirs.base_model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    same_logits(interchange.from_pretrained(tmp_path), theirs)


@pytest.mark.parametrize("kind", [
    "gpt2", "llama wide", "llama 3", "mistral", "qwen2 windows", "qwen3", "smollm3 windows", "olmo2",
    "gemma2", "gemma3",
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
