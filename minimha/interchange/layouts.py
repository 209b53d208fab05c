"""How Hugging Face's files describe each kind of model: config.json, and the names of weights."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..multihead import QKNorm
from .json_file import BOOLEAN, Reader, integer, number

SIZE = integer(1)
POSITIVE = number("a finite number above 0", lambda x: x > 0)
KINDS = {
    "vocabulary": SIZE,
    "context": SIZE,
    "d_model": SIZE,
    "num_heads": SIZE,
    "num_layers": integer(0),
    "hidden": SIZE.or_none(),
    "num_kv_heads": SIZE.or_none(),
    "head_dim": SIZE.or_none(),
    "norm_eps": number("a finite number of at least 0", lambda x: x >= 0),
    "scale": POSITIVE,
    "softcap": POSITIVE.or_none(),
    "logit_softcap": POSITIVE.or_none(),
    "tie": BOOLEAN,
    "bias": BOOLEAN,
    "attention_bias": BOOLEAN,
    "dropout": number("a number from 0 to 1", lambda x: 0 <= x <= 1),
}
"""For each of our settings, what its entry in config.json must be."""


@dataclass(frozen=True)
class Layout:
    """How Hugging Face's files describe one kind of model, such as a Llama.

    model_type    the entry of config.json that names the kind, such as "llama"
    architecture  the name of the model's class in transformers, such as "LlamaForCausalLM"
    fixed         settings of a GPT that are the same for all models of this kind
    settings      for the name of an entry in config.json, a pair: the name of the setting of a GPT
                  that the entry gives, and the value where the entry is absent; the value `...`
                  marks an entry that must be present
    activations   for the name of an activation in config.json, our name for it
    needed        for the name of an entry in config.json, the values that a GPT supports, of which
                  the first is the value where the entry is absent; a model with another value is
                  refused
    prefix        the beginning of the names of all weights, except those of lm_head, the last
                  linear map; files of models without lm_head omit this beginning
    names         for the name of a weight in the files, our name for it, such as "lm_head.weight"
                  and "head.weight.T" for its transpose; `with_biases` and `packed` explain this
                  notation. N stands for the number of a block. A model need not have all these
                  weights
    buffers       a pattern for the names of constants, such as causal masks, that files written by
                  old versions of transformers contain
    rope          the base of rotary positions where config.json gives none; None if this kind of
                  model has learned positions
    blocks        entries about settings that may differ from block to block, such as the sliding
                  window, with their values where they are absent
    windowed      a function that returns, for each block, whether it has a sliding window, where
                  config.json lacks layer_types. Its arguments are a `Reader` of config.json, and a
                  list that says for each block whether it has rotary positions
    """

    model_type: str
    architecture: str
    fixed: dict[str, Any]
    settings: dict[str, tuple[str, Any]]
    activations: dict[str, str]
    prefix: str
    names: dict[str, str]
    buffers: str
    needed: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    rope: float | None = None
    blocks: dict[str, Any] = field(default_factory=dict)
    windowed: Callable[[Reader, list[bool]], list[bool]] = lambda read, roped: [False] * len(roped)


GPT2 = Layout(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    fixed={"norm": "layer", "bias": True},
    settings={
        "vocab_size": ("vocabulary", ...),
        "n_positions": ("context", ...),
        "n_embd": ("d_model", ...),
        "n_head": ("num_heads", ...),
        "n_layer": ("num_layers", ...),
        "n_inner": ("hidden", None),
        "activation_function": ("activation", "gelu_new"),
        "layer_norm_epsilon": ("norm_eps", 1e-5),
        "tie_word_embeddings": ("tie", True),
        "embd_pdrop": ("dropout", 0.1),
        "attn_pdrop": ("dropout", 0.1),
        "resid_pdrop": ("dropout", 0.1),
    },
    activations={"gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu"},
    needed={
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    prefix="transformer.",
    names={  # Conv1D keeps a matrix as (in, out), as we do
        "transformer.wte.weight": "tokens.table",
        "transformer.wpe.weight": "positions.table",
        "transformer.h.N.ln_1.*": "blocks.N.norm_attention.*",
        "transformer.h.N.attn.c_attn.*": "blocks.N.attention.?_{q,k,v}",
        "transformer.h.N.attn.c_proj.*": "blocks.N.attention.?_o",
        "transformer.h.N.ln_2.*": "blocks.N.norm_mlp.*",
        "transformer.h.N.mlp.c_fc.*": "blocks.N.mlp.widen.*",
        "transformer.h.N.mlp.c_proj.*": "blocks.N.mlp.narrow.*",
        "transformer.ln_f.*": "norm.*",
        "lm_head.weight": "head.weight.T",
    },
    buffers=r"h\.\d+\.attn\.(masked_)?bias$",
)

LLAMA = Layout(
    model_type="llama",
    architecture="LlamaForCausalLM",
    fixed={"norm": "rms"},
    settings={
        "vocab_size": ("vocabulary", ...),
        "max_position_embeddings": ("context", ...),
        "hidden_size": ("d_model", ...),
        "num_attention_heads": ("num_heads", ...),
        "num_hidden_layers": ("num_layers", ...),
        "intermediate_size": ("hidden", ...),
        "num_key_value_heads": ("num_kv_heads", None),
        "head_dim": ("head_dim", None),
        "hidden_act": ("activation", "silu"),
        "rms_norm_eps": ("norm_eps", 1e-6),
        "tie_word_embeddings": ("tie", False),
        "attention_bias": ("attention_bias", False),
        "mlp_bias": ("bias", False),
        "attention_dropout": ("dropout", 0.0),
    },
    activations={"silu": "swiglu", "gelu_pytorch_tanh": "geglu"},
    needed={"partial_rotary_factor": (1.0,), "rope_interleaved": (False,)},
    prefix="model.",
    names={
        "model.embed_tokens.weight": "tokens.table",
        "model.layers.N.input_layernorm.weight": "blocks.N.norm_attention.weight",
        "model.layers.N.self_attn.q_proj.*": "blocks.N.attention.?_q.T",
        "model.layers.N.self_attn.k_proj.*": "blocks.N.attention.?_k.T",
        "model.layers.N.self_attn.v_proj.*": "blocks.N.attention.?_v.T",
        "model.layers.N.self_attn.o_proj.*": "blocks.N.attention.?_o.T",
        "model.layers.N.self_attn.q_norm.weight": "blocks.N.attention.norm_q",
        "model.layers.N.self_attn.k_norm.weight": "blocks.N.attention.norm_k",
        "model.layers.N.post_attention_layernorm.weight": "blocks.N.norm_mlp.weight",
        "model.layers.N.mlp.gate_proj.*": "blocks.N.mlp.gate.*.T",
        "model.layers.N.mlp.up_proj.*": "blocks.N.mlp.widen.*.T",
        "model.layers.N.mlp.down_proj.*": "blocks.N.mlp.narrow.*.T",
        "model.norm.weight": "norm.weight",
        "lm_head.weight": "head.weight.T",
    },
    buffers=r"rotary_emb\.inv_freq$",
    rope=10000.0,
)


def _like(
    base: Layout,
    model_type: str,
    name: str,
    *,
    without: tuple[str, ...] = (),
    settings: dict[str, tuple[str, Any]] | None = None,
    **changes: Any,
) -> Layout:
    """A copy of the layout `base` for another kind of model.

    model_type  the entry of config.json, such as "mistral"
    name        the beginning of the name of the model's class: "Mistral" for MistralForCausalLM
    without     entries of config.json that are not settings of the new kind. For those about a
                bias, such as "mlp_bias", it supports the value False alone
    settings    added to those of `base` that remain
    changes     new values of other fields of the layout; those of `needed` are added to its old
                ones
    """
    kept = {key: value for key, value in base.settings.items() if key not in without}
    changes |= {"model_type": model_type, "architecture": f"{name}ForCausalLM"}
    fixed_biases = {key: (False,) for key in without if key.endswith("_bias")}
    changes["needed"] = base.needed | fixed_biases | changes.get("needed", {})
    return dataclasses.replace(base, settings=kept | (settings or {}), **changes)


def _qwen_windows(read: Reader, roped: list[bool]) -> list[bool]:
    first = read("max_window_layers", integer(0), 28)
    return [k >= first for k in range(len(roped))]


def _gemma3_windows(read: Reader, roped: list[bool]) -> list[bool]:
    period = read("sliding_window_pattern", SIZE, 6)
    return [(k + 1) % period != 0 for k in range(len(roped))]


_KEY_HEADS = "num_key_value_heads"
_WINDOWS = {"layer_types": None, "sliding_window": 4096, "use_sliding_window": False}
_MISTRAL = _like(
    LLAMA, "mistral", "Mistral",
    without=("attention_bias", "mlp_bias"),
    fixed={"norm": "rms", "bias": False},
    settings={_KEY_HEADS: ("num_kv_heads", 8)},
    blocks={"sliding_window": 4096},
    windowed=lambda read, roped: [True] * len(roped),
)  # fmt: skip
_QWEN2 = _like(
    LLAMA, "qwen2", "Qwen2",
    without=("attention_bias", "mlp_bias"),
    fixed={"norm": "rms", "bias": False, "attention_bias": "qkv"},
    settings={_KEY_HEADS: ("num_kv_heads", 32)},
    needed={"use_mrope": (False,)},
    blocks=_WINDOWS,
    windowed=_qwen_windows,
)  # fmt: skip
_QWEN3 = _like(
    LLAMA, "qwen3", "Qwen3",
    without=("mlp_bias",),
    fixed={"norm": "rms", "bias": False, "qk_norm": QKNorm()},
    settings={_KEY_HEADS: ("num_kv_heads", 32), "head_dim": ("head_dim", 128)},
    blocks=_WINDOWS,
    windowed=_qwen_windows,
)  # fmt: skip
_SMOLLM3 = _like(
    LLAMA, "smollm3", "SmolLM3",
    settings={_KEY_HEADS: ("num_kv_heads", 4), "tie_word_embeddings": ("tie", True)},
    rope=2000000.0,
    blocks=_WINDOWS | {"sliding_window": None, "no_rope_layers": None},
    windowed=lambda read, roped: [not rotary for rotary in roped],
)  # fmt: skip
_NORMS_AFTER = {  # a Llama has a norm of the first name, before the perceptron
    "model.layers.N.post_attention_layernorm.weight": "blocks.N.norm_attention_output.weight",
    "model.layers.N.pre_feedforward_layernorm.weight": "blocks.N.norm_mlp.weight",
    "model.layers.N.post_feedforward_layernorm.weight": "blocks.N.norm_mlp_output.weight",
}
_OLMO2 = _like(
    LLAMA, "olmo2", "Olmo2",
    without=("mlp_bias",),
    fixed={"norm": "rms", "norm_of": "output", "bias": False, "qk_norm": QKNorm(all_heads=True)},
    settings={"rms_norm_eps": ("norm_eps", 1e-5)},
    names=LLAMA.names | _NORMS_AFTER,
)  # fmt: skip
_GEMMA2 = _like(
    LLAMA, "gemma2", "Gemma2",
    without=("mlp_bias", "hidden_act"),
    fixed={"norm": "rms plus one", "norm_of": "both", "bias": False, "scale_embeddings": True},
    settings={
        _KEY_HEADS: ("num_kv_heads", 4),
        "head_dim": ("head_dim", 256),
        "hidden_activation": ("activation", "gelu_pytorch_tanh"),
        "tie_word_embeddings": ("tie", True),
        "query_pre_attn_scalar": ("scale", 256),
        "attn_logit_softcapping": ("softcap", 50.0),
        "final_logit_softcapping": ("logit_softcap", 30.0),
    },
    needed={
        "hidden_act": ("gelu_pytorch_tanh",),  # old files say it twice
        "use_bidirectional_attention": (False, None),
    },
    names=LLAMA.names | _NORMS_AFTER,
    blocks={"layer_types": None, "sliding_window": 4096},
    windowed=lambda read, roped: [k % 2 == 0 for k in range(len(roped))],
)  # fmt: skip
_GEMMA3 = _like(
    _GEMMA2, "gemma3_text", "Gemma3",
    without=("attn_logit_softcapping",),
    fixed=_GEMMA2.fixed | {"qk_norm": QKNorm(plus_one=True)},
    settings={"final_logit_softcapping": ("logit_softcap", None)},
    rope=1000000.0,
    blocks=_GEMMA2.blocks | {"rope_local_base_freq": 10000.0},
    windowed=_gemma3_windows,
)  # fmt: skip

LAYOUTS = {
    layout.model_type: layout
    for layout in (
        GPT2, LLAMA, _MISTRAL, _QWEN2, _QWEN3, _SMOLLM3, _OLMO2, _GEMMA2, _GEMMA3,
    )
}  # fmt: skip
"""All layouts, by the type of model. `save_pretrained` writes a model of ours in the first layout
that supports all its settings."""

UNSUPPORTED = {
    "num_local_experts": "a mixture of experts",
    "num_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "kv_lora_rank": "latent attention",
    "linear_conv_kernel_dim": "linear attention",
    "use_parallel_residual": "a block whose parts read the same input",
    "vision_config": "a model of images",
    "quantization_config": "a quantised model",
}
"""Entries of config.json that show why a model cannot be a GPT of ours, with what each stands
for."""

_HARMLESS = r"""
    architectures auto_map bad_words_ids cache_implementation dtype gradient_checkpointing id2label
    initializer_range is_llama_config label2id max_window_layers n_ctx n_special
    no_rope_layer_interval num_labels output_attentions output_hidden_states output_router_logits
    output_scores predict_special_tokens pretraining_tp problem_type reorder_and_upcast_attn
    return_dict sliding_window_pattern sliding_window_size summary_activation summary_first_dropout
    summary_last_dropout summary_proj_to_labels summary_type summary_use_proj task_specific_params
    tokenizer_class torch_dtype transformers\.js_config transformers_version unsloth_fixed
    unsloth_version use_cache .*_token_ids? _.*
"""
HARMLESS = re.compile("|".join(_HARMLESS.split()))
"""A pattern for the names of entries that change no logits, or that other entries replace. Such
entries are kept for `save_pretrained`. Entries that are neither read nor matched by this pattern
are refused."""
