"""Small models of every layout: Hugging Face's, by their class and config.json, and ours.

`test_pretrained_with_transformers.py` compares each with the same model in the other library.
"""

import minimha as mh

V, N, M, T = 13, 10, 24, 9
"""The vocabulary, the context, the width, and the length of the sequences that tests compare."""

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
    # The first word is the type of model, as in LAYOUTS.
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
    "gemma3_text": (
        "Gemma3ForCausalLM",
        GEMMA | {"rope_parameters": {"full_attention": LLAMA3, "sliding_attention": LOCAL}}
        | {"sliding_window_pattern": 3, "rms_norm_eps": 0.1},
    ),
}  # fmt: skip
"""Models of theirs: the name of the class, and what config.json says."""

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
    "gemma3_text": SMALL | ROTARY | {
        "num_heads": 3, "norm": "rms plus one", "norm_of": "both", "activation": "geglu",
        "scale_embeddings": True, "qk_norm": mh.QKNorm(plus_one=True), "scale": 0.2,
        "layers": [{"rope": mh.positions.Rope(30.0), "window": WINDOW}, {}],
    },
}  # fmt: skip
"""Settings of our models, which they can read."""
