"""Models in the files of Hugging Face: config.json and model.safetensors in a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from minimha_autograd import backend

from ..transformers import GPT
from . import states
from .configuration import (
    common_settings,
    config_of,
    resolved,
    unsupported,
    with_blocks,
    with_sizes,
)
from .files import written_whole
from .json_file import OBJECT, Kind, naming, one_of, read_json, require, shown
from .layouts import GPT2, HARMLESS, LAYOUTS, UNSUPPORTED, Layout
from .safetensors_file import bfloat16_of_numpy, mapped, write
from .states import blank, mismatches, packed, parts, refuse, state, unpacked, with_biases

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_TOKENS = "bos_token_id", "eos_token_id", "pad_token_id"
"""Entries that transformers uses to generate text, and a GPT does not use. Their defaults in
transformers may be outside the vocabulary of a small model."""
_FLOATS = "float16", "float32", "float64", "bfloat16"


def from_pretrained(folder: str | Path, *, dtype: str | None = None) -> GPT:
    """The model in a folder that Hugging Face's `save_pretrained` has written: a GPT-2, Llama,
    Mistral, Qwen2, Qwen3, SmolLM3, OLMo 2, Gemma 2 or the text model of a Gemma 3.

    dtype  the dtype of the weights in the model: "float16", "float32", "float64" or "bfloat16",
           which needs the package ml_dtypes. With "bfloat16", only the matrices have this dtype,
           and take half the memory of float32; the model computes in float32 and widens its
           matrices when it multiplies by them. By default the weights keep the dtype that they have
           in the file, except that bfloat16, which NumPy lacks, becomes float32

    Reads config.json and model.safetensors, or the parts listed in model.safetensors.index.json.
    Weights that keep their dtype stay in the file and are read when they are first used. The names
    of the weights may lack their prefix ("transformer.", "model."), as in the file of a model
    without lm_head. Files written by old versions of transformers also hold constants, such as
    causal masks, which are ignored. Dropout acts only in calls with an rng.

    Raises ValueError, with all reasons, for a config.json with entries that are missing, of the
    wrong type or out of range, with settings that a `GPT` does not have, or with entries that
    minimha does not know; for an index that names anything but files in the folder; for weights
    that are missing or extra, or whose shape or dtype does not fit config.json; and for a `dtype`
    that is not listed above. Raises OSError if a file is missing, RuntimeError for bfloat16 without
    ml_dtypes.
    """
    folder = Path(folder)
    path = folder / _CONFIG
    config = read_json(path, OBJECT)
    layout = _layout(path, config)
    settings, wrong = common_settings(layout, config)
    refuse(f"{path} does not describe a GPT", wrong)

    files = _files(folder)
    arrays, bare = _entries(files, layout, dtype)
    table = next(iter(layout.names))
    kind = getattr(arrays.get(table), "dtype", np.dtype("float32")).name
    with naming(path, {name: key for key, (name, _) in reversed(layout.settings.items())}):
        check_size(settings, files)
        settings, wrong = with_blocks(layout, config, settings)
        if not wrong:
            kind = kind if kind in _FLOATS else "float32"
            model = GPT(**settings, rng=backend.EMPTY, dtype=kind)
    refuse(f"{path} does not describe a GPT", wrong)
    if settings["tie"] and np.array_equal(arrays.get("lm_head.weight", 0), arrays.get(table, 1)):
        del arrays["lm_head.weight"]  # the same weights, stored twice
    ours = {name: backend.to_numpy(p.data) for name, p in model.named_parameters()}
    names = _names(layout, settings["num_layers"], ours)
    wrong = mismatches(arrays, blank(names, ours))
    refuse(f"the weights in {folder} do not fit its {_CONFIG}", wrong)
    loaded = unpacked(names, arrays)
    for name, p in model.named_parameters():
        p.data = loaded[name]  # set_state would copy it
    kept = {key: x for key, x in config.items() if HARMLESS.fullmatch(key)}
    vars(model)["origin"] = {"kind": layout.model_type, "bare": bare, "kept": kept}
    return model


def save_pretrained(model: GPT, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which Hugging Face's transformers can load.

    A model from `from_pretrained` is written as the kind of model that it was, a Llama as a Llama,
    with the same names, shapes and values, except that vectors get the dtype of the matrices, and
    that constants (such as the causal masks in old files) and a second copy of tied weights are
    left out. Any other model is written as the first kind in `layouts.LAYOUTS` that supports all
    its settings. GPT-2 always has biases: for a model without them, zeros are written. The folder
    is made if needed; each file appears completely or not at all. The same model always gives the
    same bytes.

    Raises ValueError for a model that no kind can represent, and says why the most similar kind
    cannot; TypeError for a module that is not a GPT; OSError if the files cannot be written.
    """
    states.require(GPT, "model", model)
    origin = vars(model).get("origin", {})
    settings = resolved(model.settings | {"norm_eps": model.norm.eps})
    tried = [LAYOUTS[origin["kind"]]] if origin else []
    found = [(layout, *config_of(layout, settings)) for layout in [*tried, *LAYOUTS.values()]]
    norm = settings["norm"]
    layout, config, wrong = min(found, key=lambda x: (x[0].fixed["norm"] != norm, len(x[2])))
    refuse(f"{layout.architecture} has no such model", wrong)

    arrays = state(model)
    if layout is GPT2:
        for name in [*arrays]:
            bias = re.sub(r"\bw_(.)$", r"b_\1", name).replace(".weight", ".bias")
            if bias != "head.bias" and bias not in arrays:
                arrays[bias] = np.zeros(arrays[name].shape[-1], arrays[name].dtype)
    names = _names(layout, settings["num_layers"], arrays)
    if others := arrays.keys() - {part for ours in names.values() for part in parts(ours)}:
        listed = ", ".join(sorted(others))
        layers = {name.rpartition(".")[0] for name in others if ".attention." in name}
        if any(f"{layer}.w_q" not in arrays for layer in layers):
            raise ValueError(
                f"attention must be in the stacked form, see `convert`; other names are {listed}"
            )
        raise ValueError(
            f"the layout {layout.model_type} in minimha/interchange/layouts.py has no names for "
            f"{listed}"
        )
    same = layout.model_type == origin.get("kind")
    config = (origin["kept"] if same else dict.fromkeys(_TOKENS)) | config
    config.pop("torch_dtype", None)  # the former name of dtype
    dtype = arrays["tokens.table"].dtype
    config["dtype"] = dtype.name
    theirs = {name: x.astype(dtype, copy=False) for name, x in packed(names, arrays).items()}
    if same and origin["bare"]:
        theirs = {name.removeprefix(layout.prefix): x for name, x in theirs.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # config.json comes last: a folder without it is not a model
    write(theirs, folder / _WEIGHTS, metadata={"format": "pt"})
    with written_whole(folder / _CONFIG) as unfinished:
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        unfinished.write_text(text, encoding="utf-8")


def _layout(path: Path, config: dict[str, Any]) -> Layout:
    """The layout for the kind of model that `config`, read from config.json at `path`, describes.
    Raises ValueError if there is none; the message names model_type, or entries such as num_experts
    that show what a GPT lacks."""
    kind, text = config.get("model_type", ...), config.get("text_config")
    entries = config | (text if isinstance(text, dict) else {})
    reasons = [unsupported(key, entries[key]) for key in UNSUPPORTED if entries.get(key)]
    if reasons and isinstance(kind, str) and kind not in LAYOUTS:
        reasons.insert(0, f"model_type is {kind!r}")
        refuse(f"{path} does not describe a GPT", reasons)
    require(path, "model_type", kind, one_of(LAYOUTS))
    return LAYOUTS[kind]


def check_size(settings: dict[str, Any], files: list[Path]) -> None:
    """Raise ValueError if a GPT with these settings has more parameters, by a low estimate, than
    the files with its weights have bytes. Without this check, a mistyped size in config.json might
    make the building of the GPT take hours, or all memory."""
    s = with_sizes({"rope": None} | settings)
    rows = s["vocabulary"] + (0 if s["rope"] else s["context"])
    columns = s["num_heads"] * s["head_dim"] + s["hidden"]  # of W^Q and of the MLP's first map
    size = sum(file.stat().st_size for file in files)
    if s["d_model"] * (rows + 2 * s["num_layers"] * columns) > size:
        names = "vocabulary", "context", "d_model", "num_heads", "head_dim", "hidden", "num_layers"
        sizes = ", ".join(f"{name} = {shown(s[name])}" for name in names)
        weights = ", ".join(file.name for file in files)
        raise ValueError(f"a GPT with {sizes} needs more than the {size:,} bytes of {weights}")


def _files(folder: Path) -> list[Path]:
    """The files in a folder that hold the weights: model.safetensors or, if it does not exist,
    those that model.safetensors.index.json lists. If neither exists, the list has model.safetensors
    all the same, so that reading it raises an error."""
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


def _entries(
    files: list[Path], layout: Layout, dtype: str | None
) -> tuple[dict[str, np.ndarray], bool]:
    """Read the weights from the files. Returns a dictionary of arrays by name, and whether the
    names in the files lack the prefix of the layout, such as "model.".

    If they lack it, the names in the dictionary get it, except those of lm_head. If a dtype is
    given, the arrays are converted to it; with "bfloat16", vectors become float32. Constants such
    as causal masks, whose names the pattern `layout.buffers` matches, are left out. Raises
    ValueError for an unknown dtype, RuntimeError for "bfloat16" without the package ml_dtypes.
    """
    if dtype not in (None, *_FLOATS):
        raise ValueError(f"dtype = {dtype!r} must be {' or '.join(map(repr, _FLOATS))}")
    keep = dtype == "bfloat16"
    if keep:
        bfloat16_of_numpy()  # NumPy knows the dtype from then on
    arrays = {name: x for file in files for name, x in mapped(file, bfloat16=keep).items()}
    if dtype is not None:
        vectors = "float32" if keep else dtype
        arrays = {
            name: x.astype(vectors if x.ndim == 1 else dtype, copy=False)
            for name, x in arrays.items()
        }
    bare = not any(name.startswith(layout.prefix) for name in arrays)
    return {
        layout.prefix + name if bare and not name.startswith("lm_head.") else name: x
        for name, x in arrays.items()
        if not re.search(layout.buffers, name)
    }, bare


def _names(layout: Layout, num_layers: int, ours: Collection[str]) -> dict[str, str]:
    """A dictionary from the names of weights in files with this layout to their names in a GPT,
    such as {"transformer.h.0.attn.c_proj.weight": "blocks.0.attention.w_o"}, in the notation of
    `packed`.

    ours  the names of the weights that the GPT has; the dictionary leaves out all others
    """
    names = {
        theirs.replace(".N.", f".{n}."): ours.replace(".N.", f".{n}.")
        for theirs, ours in layout.names.items()
        for n in range(num_layers if ".N." in theirs else 1)
    }
    names, known = with_biases(names, bias=True), set(ours)
    return {theirs: name for theirs, name in names.items() if known.issuperset(parts(name))}
