"""GPT-2 and Llama in the files of Hugging Face: config.json and model.safetensors in a folder."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minimha_autograd import backend

from ..multihead import positions
from ..transformers import GPT
from . import states
from .files import written_whole
from .json_file import (
    BOOLEAN,
    OBJECT,
    Kind,
    integer,
    mistake,
    naming,
    number,
    one_of,
    read_json,
    require,
    shown,
)
from .safetensors_file import read, write
from .states import mismatches, packed, refuse, set_state, state, unpacked, with_biases


@dataclass(frozen=True)
class _Layout:
    """How Hugging Face's files describe one kind of model.

    fixed        our settings that all models of this kind share
    settings     for each entry of config.json, our setting and the value of an absent entry;
                 ... marks entries that must be present
    activations  their names for activations, and ours
    needed       entries of config.json for which a GPT supports one value only
    prefix       of all names but lm_head's; files of models without a head lack it
    names        for each of their weights, ours: see `packed` and `with_biases`; N counts blocks
    buffers      a pattern for the names of constants in files of old versions
    """

    model_type: str
    architecture: str
    fixed: dict[str, Any]
    settings: dict[str, tuple[str, Any]]
    activations: dict[str, str]
    needed: dict[str, Any]
    prefix: str
    names: dict[str, str]
    buffers: str


_GPT2 = _Layout(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    fixed={"norm": "layer", "bias": True, "rope": None},
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
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
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

_LLAMA = _Layout(
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
        "rope_theta": ("rope", 10000.0),
        "tie_word_embeddings": ("tie", False),
        "attention_bias": ("bias", False),
        "mlp_bias": ("bias", False),
        "attention_dropout": ("dropout", 0.0),
    },
    activations={"silu": "swiglu"},
    needed={"rope_type": "default", "rope_scaling": None},
    prefix="model.",
    names={
        "model.embed_tokens.weight": "tokens.table",
        "model.layers.N.input_layernorm.weight": "blocks.N.norm_attention.weight",
        "model.layers.N.self_attn.q_proj.*": "blocks.N.attention.?_q.T",
        "model.layers.N.self_attn.k_proj.*": "blocks.N.attention.?_k.T",
        "model.layers.N.self_attn.v_proj.*": "blocks.N.attention.?_v.T",
        "model.layers.N.self_attn.o_proj.*": "blocks.N.attention.?_o.T",
        "model.layers.N.post_attention_layernorm.weight": "blocks.N.norm_mlp.weight",
        "model.layers.N.mlp.gate_proj.*": "blocks.N.mlp.gate.*.T",
        "model.layers.N.mlp.up_proj.*": "blocks.N.mlp.widen.*.T",
        "model.layers.N.mlp.down_proj.*": "blocks.N.mlp.narrow.*.T",
        "model.norm.weight": "norm.weight",
        "lm_head.weight": "head.weight.T",
    },
    buffers=r"rotary_emb\.inv_freq$",
)

_SIZE = integer(1)
_KINDS = {
    "vocabulary": _SIZE,
    "context": _SIZE,
    "d_model": _SIZE,
    "num_heads": _SIZE,
    "num_layers": integer(0),
    "hidden": _SIZE.or_none(),
    "num_kv_heads": _SIZE.or_none(),
    "head_dim": _SIZE.or_none(),
    "norm_eps": number("a finite number of at least 0", lambda x: x >= 0),
    "rope": number("a finite number above 0", lambda x: x > 0),
    "tie": BOOLEAN,
    "bias": BOOLEAN,
    "dropout": number("a number from 0 to 1", lambda x: 0 <= x <= 1),
}
"""What the entries of config.json for our settings must be."""
_LAYOUTS = {layout.model_type: layout for layout in (_GPT2, _LLAMA)}
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_TOKENS = ("bos_token_id", "eos_token_id")  # for transformers' generation; a GPT does not use them


def from_pretrained(folder: str | Path) -> GPT:
    """The GPT-2 or Llama in a folder that Hugging Face's `save_pretrained` has written.

    Reads config.json and model.safetensors, or the parts listed in model.safetensors.index.json.
    The weights keep their dtype, except that bfloat16, which NumPy lacks, becomes float32. The
    names may lack the prefix ("transformer.", "model."), as in a file of a model without its head.
    Constants that old versions stored among the weights are ignored. Dropout acts only in calls
    with an rng.

    Raises ValueError, with all reasons, for a config.json with entries that are missing, of another
    type or out of range, or with settings that a `GPT` does not have; for an index that names
    anything but files in the folder; and for weights that are missing, extra or of another shape or
    dtype. Raises OSError if a file is missing.
    """
    folder = Path(folder)
    path = folder / _CONFIG
    config = read_json(path, OBJECT)
    kind = config.get("model_type", ...)
    require(path, "model_type", kind, one_of(_LAYOUTS))
    layout = _LAYOUTS[kind]
    settings, wrong = _settings(layout, config)
    refuse(f"{path} does not describe a GPT", wrong)

    files = _files(folder)
    arrays, bare = _entries(files, layout)
    with naming(path, {name: key for key, (name, _) in reversed(layout.settings.items())}):
        check_size(settings, files)
        names = _names(layout, settings)
        table = next(iter(names))
        dtype = getattr(arrays.get(table), "dtype", np.dtype("float32"))
        model = GPT(**settings, dtype=dtype.name if dtype.kind == "f" else "float32")
    if settings["tie"] and np.array_equal(arrays.get("lm_head.weight", 0), arrays.get(table, 1)):
        del arrays["lm_head.weight"]  # the same weights, stored twice
    ours = {name: backend.to_numpy(p.data) for name, p in model.named_parameters()}
    wrong = mismatches(arrays, packed(names, ours))
    refuse(f"the weights in {folder} do not fit its {_CONFIG}", wrong)
    set_state(model, unpacked(names, arrays))
    tokens = {key: config[key] for key in _TOKENS if key in config}
    vars(model)["origin"] = {"bare": bare, "tokens": tokens}  # for save_pretrained
    return model


def save_pretrained(model: GPT, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which Hugging Face's transformers can load.

    A model with norm="rms" becomes a Llama, any other a GPT-2. A model that was loaded is written
    with the same names, shapes, dtype and values. GPT-2 always has biases: for a model without
    them, zeros are written. The folder is made if needed; each file appears completely or not at
    all. The same model always gives the same bytes.

    Raises ValueError, with all reasons, for a model that the layout cannot represent; TypeError for
    another module; OSError if the files cannot be written.
    """
    states.require(GPT, "model", model)
    layout = _LLAMA if model.settings["norm"] == "rms" else _GPT2
    settings = _resolved(model.settings | {"norm_eps": model.norm.eps})
    config = _config(layout, settings)
    back, wrong = _settings(layout, config)
    back = _resolved({"rope": None} | back)
    wrong += [
        f"{name} is {settings[name]!r}, but must be {value!r}"
        for name, value in back.items()
        if settings[name] != value and (layout, name) != (_GPT2, "bias")
    ]
    refuse(f"{layout.architecture} has no such model", wrong)

    names, ours = _names(layout, back), state(model)
    known = {part for name in names.values() for part in states.parts(name)}
    if not settings["bias"]:
        for name in known - ours.keys():
            rows = re.sub(r"\bb_(.)$", r"w_\1", name).replace(".bias", ".weight")
            ours[name] = np.zeros(ours[rows].shape[-1], ours[rows].dtype)
    if known != ours.keys():
        raise ValueError(
            "attention must be in the stacked form, see `convert`; other names are "
            + ", ".join(sorted(known ^ ours.keys()))
        )
    origin = vars(model).get("origin", {"bare": False, "tokens": dict.fromkeys(_TOKENS)})
    config |= origin["tokens"] | {"dtype": ours["tokens.table"].dtype.name}
    theirs = packed(names, ours)
    if origin["bare"]:
        theirs = {name.removeprefix(layout.prefix): x for name, x in theirs.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # config.json comes last: a folder without it is not a model
    write(theirs, folder / _WEIGHTS, metadata={"format": "pt"})
    with written_whole(folder / _CONFIG) as unfinished:
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        unfinished.write_text(text, encoding="utf-8")


def _settings(layout: _Layout, config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments of the GPT that config.json describes, and all reasons why there is none."""
    rope = config.get("rope_parameters")
    config = config | (rope if isinstance(rope, dict) else {})
    found = dict(layout.fixed)
    wrong = [mistake("rope_parameters", rope, OBJECT.or_none())]
    wrong += [
        f"{key} is {shown(config[key])}, but must be {value!r}"
        for key, value in layout.needed.items()
        if config.get(key, value) != value
    ]
    for key, (name, default) in layout.settings.items():
        value: Any = config.get(key, default)
        kind = one_of(layout.activations) if name == "activation" else _KINDS[name]
        if misfit := mistake(key, value, kind):
            wrong.append(misfit)
            continue
        value = layout.activations[value] if name == "activation" else value
        value = positions.Rope(base=value) if name == "rope" else value
        if found.setdefault(name, value) != value:
            wrong.append(f"{key} is {value}, but a GPT has one {name}, already {found[name]}")
    return found, [*filter(None, wrong)]


def _config(layout: _Layout, settings: dict[str, Any]) -> dict[str, Any]:
    """The entries of config.json for the resolved settings of a GPT."""
    config: dict[str, Any] = {
        "architectures": [layout.architecture],
        "model_type": layout.model_type,
        **layout.needed,
    }
    activations = {ours: theirs for theirs, ours in reversed(layout.activations.items())}
    for key, (name, default) in layout.settings.items():
        value = settings[name]
        if name == "activation":
            value = activations.get(value, value)
        elif name == "rope":
            value = getattr(value, "base", default)
        config[key] = value
    if "rope_theta" in config:  # version 4 of transformers reads it there, version 5 below
        config["rope_parameters"] = {
            "rope_theta": config["rope_theta"],
            "rope_type": config.pop("rope_type"),
        }
    return config


def _resolved(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a GPT, with every size that is None replaced by its default."""
    m, h = settings["d_model"], settings["num_heads"]
    sizes = {"num_kv_heads": h, "head_dim": m // h, "hidden": 4 * m}
    return settings | {name: n for name, n in sizes.items() if settings.get(name) is None}


def check_size(settings: dict[str, Any], files: list[Path]) -> None:
    """Raise ValueError for a GPT that has more parameters than these files have bytes: to build a
    model with a mistyped size might take hours, or all memory."""
    s = _resolved({"rope": None} | settings)
    rows = s["vocabulary"] + (0 if s["rope"] else s["context"])
    columns = s["num_heads"] * s["head_dim"] + s["hidden"]  # of W^Q and of the MLP's first map
    size = sum(file.stat().st_size for file in files)
    if s["d_model"] * (rows + 2 * s["num_layers"] * columns) > size:
        names = "vocabulary", "context", "d_model", "num_heads", "head_dim", "hidden", "num_layers"
        sizes = ", ".join(f"{name} = {shown(s[name])}" for name in names)
        weights = ", ".join(file.name for file in files)
        raise ValueError(f"a GPT with {sizes} needs more than the {size:,} bytes of {weights}")


def _files(folder: Path) -> list[Path]:
    """The files with the weights in a folder."""
    weights, index = folder / _WEIGHTS, folder / f"{_WEIGHTS}.index.json"
    if weights.exists() or not index.exists():
        return [weights]
    places = read_json(index, OBJECT).get("weight_map", ...)
    require(index, "weight_map", places, OBJECT)
    part = Kind(
        "the name of a file in the same folder",
        lambda x: isinstance(x, str) and Path(x).name == x and (folder / x).is_file(),
    )
    for name, place in places.items():
        require(index, f"weight_map of {name}", place, part)
    return [folder / place for place in sorted(set(places.values()))]


def _entries(files: list[Path], layout: _Layout) -> tuple[dict[str, np.ndarray], bool]:
    """The arrays in the files by their full names, without the constants, and whether the names in
    the files lack the prefix."""
    arrays = {name: x for file in files for name, x in read(file).items()}
    bare = not any(name.startswith(layout.prefix) for name in arrays)
    return {
        layout.prefix + name if bare and not name.startswith("lm_head.") else name: x
        for name, x in arrays.items()
        if not re.search(layout.buffers, name)
    }, bare


def _names(layout: _Layout, settings: dict[str, Any]) -> dict[str, str]:
    """For each of their weights in a model with these settings, ours: see `packed`."""
    names = {
        theirs.replace(".N.", f".{n}."): ours.replace(".N.", f".{n}.")
        for theirs, ours in layout.names.items()
        for n in range(settings["num_layers"] if ".N." in theirs else 1)
        if not (settings["tie"] and theirs == "lm_head.weight")
    }
    return with_biases(names, settings["bias"])
