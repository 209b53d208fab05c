"""Models in the files of Hugging Face: config.json and model.safetensors in a folder."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from minimha_autograd import backend

from ..multihead import QKNorm, positions
from ..transformers import GPT
from . import states
from .files import written_whole
from .json_file import (
    BOOLEAN,
    OBJECT,
    Kind,
    Reader,
    naming,
    one_of,
    read_json,
    require,
    shown,
)
from .layouts import GPT2, HARMLESS, KINDS, LAYOUTS, POSITIVE, SIZE, UNSUPPORTED, Layout
from .safetensors_file import mapped, write
from .states import blank, mismatches, packed, refuse, state, unpacked, with_biases

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_TOKENS = "bos_token_id", "eos_token_id", "pad_token_id"
"""Entries that transformers uses to generate text, and a GPT does not. Their defaults there may be
outside the vocabulary of a small model."""
_FLOATS = "float16", "float32", "float64", "bfloat16"
_LLAMA3 = {
    "factor": "factor", "low_freq_factor": "low", "high_freq_factor": "high",
    "original_max_position_embeddings": "context",
}  # fmt: skip
"""Their names for the settings of `positions.Llama3`."""


def from_pretrained(folder: str | Path, *, dtype: str | None = None) -> GPT:
    """The model in a folder that Hugging Face's `save_pretrained` has written: a GPT-2, Llama,
    Mistral, Qwen2, Qwen3, SmolLM3, OLMo 2, Gemma 2 or the text model of a Gemma 3.

    dtype  of the matrices: "float16", "float32", "float64" or "bfloat16", which needs the package
           ml_dtypes and halves the memory; the model then computes in float32 and widens its
           matrices when it multiplies by them. By default the weights keep their dtype, except that
           bfloat16, which NumPy lacks, becomes float32

    Reads config.json and model.safetensors, or the parts listed in model.safetensors.index.json.
    Weights that keep their dtype stay in the file and are read when they are first used. The names
    may lack the prefix ("transformer.", "model."), as in a file of a model without its head.
    Constants that old versions stored among the weights are ignored. Dropout acts only in calls
    with an rng.

    Raises ValueError, with all reasons, for a config.json with entries that are missing, of another
    type or out of range, with settings that a `GPT` does not have, or with entries that are not
    known here; for an index that names anything but files in the folder; for weights that are
    missing, extra or of another shape or dtype; and for another dtype. Raises OSError if a file is
    missing, RuntimeError for bfloat16 without ml_dtypes.
    """
    folder = Path(folder)
    path = folder / _CONFIG
    no_gpt = f"{path} does not describe a GPT"
    config = read_json(path, OBJECT)
    kind, text = config.get("model_type", ...), config.get("text_config")
    if kind is not ... and kind not in [*LAYOUTS]:
        more = [f"model_type is {shown(kind)}"] * isinstance(kind, str)
        entries = config | (text if isinstance(text, dict) else {})
        reasons = [_unsupported(key, entries[key]) for key in UNSUPPORTED if entries.get(key)]
        refuse(no_gpt, [*more, *reasons] if reasons else [])
    require(path, "model_type", kind, one_of(LAYOUTS))
    layout = LAYOUTS[kind]
    settings, wrong = _settings(layout, config)
    refuse(no_gpt, wrong)

    files = _files(folder)
    arrays, bare = _entries(files, layout, dtype)
    theirs = {name: key for key, (name, _) in reversed(layout.settings.items())}
    with naming(path, theirs):
        check_size(settings, files)
    settings, wrong = _with_blocks(layout, config, settings)
    refuse(no_gpt, wrong)
    with naming(path, theirs):
        table = next(iter(layout.names))
        kind = getattr(arrays.get(table), "dtype", np.dtype("float32")).name
        kind = kind if kind in _FLOATS else "float32"
        model = GPT(**settings, rng=backend.EMPTY, dtype=kind)
    if settings["tie"] and np.array_equal(arrays.get("lm_head.weight", 0), arrays.get(table, 1)):
        del arrays["lm_head.weight"]  # the same weights, stored twice
    ours = {name: backend.to_numpy(p.data) for name, p in model.named_parameters()}
    names = {
        theirs: name
        for theirs, name in _names(layout, settings["num_layers"]).items()
        if {*states.parts(name)} <= ours.keys()
    }
    wrong = mismatches(arrays, blank(names, ours))
    refuse(f"the weights in {folder} do not fit its {_CONFIG}", wrong)
    loaded = unpacked(names, arrays)
    for name, p in model.named_parameters():
        narrow_vector = kind == "bfloat16" and p.ndim == 1
        p.data = loaded[name].astype("float32") if narrow_vector else loaded[name]
    kept = {key: x for key, x in config.items() if HARMLESS.fullmatch(key)}
    vars(model)["origin"] = {"kind": layout.model_type, "bare": bare, "kept": kept}
    return model


def save_pretrained(model: GPT, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which Hugging Face's transformers can load.

    A model that was loaded is written as the same kind of model, with the same names, shapes, dtype
    and values; any other as the first kind in `layouts.LAYOUTS` that has all its settings. GPT-2
    always has biases: for a model without them, zeros are written. The folder is made if needed;
    each file appears completely or not at all. The same model always gives the same bytes.

    Raises ValueError, with all reasons, for a model that no kind can represent, where the reasons
    are those of the most similar kind; TypeError for another module; OSError if the files cannot be
    written.
    """
    states.require(GPT, "model", model)
    origin = vars(model).get("origin", {})
    settings = _resolved(model.settings | {"norm_eps": model.norm.eps})
    tried = [LAYOUTS[origin["kind"]]] if origin else []
    found = [(layout, *_config(layout, settings)) for layout in [*tried, *LAYOUTS.values()]]
    norm = settings["norm"]
    layout, config, wrong = min(found, key=lambda x: (x[0].fixed["norm"] != norm, len(x[2])))
    refuse(f"{layout.architecture} has no such model", wrong)

    arrays = state(model)
    names = _names(layout, settings["num_layers"])
    if layout is GPT2:
        for name in {part for ours in names.values() for part in states.parts(ours)}:
            rows = re.sub(r"\bb_(.)$", r"w_\1", name).replace(".bias", ".weight")
            if name not in arrays and rows in arrays:
                arrays[name] = np.zeros(arrays[rows].shape[-1], arrays[rows].dtype)
    names = {
        theirs: ours for theirs, ours in names.items() if {*states.parts(ours)} <= arrays.keys()
    }
    if others := arrays.keys() - {part for ours in names.values() for part in states.parts(ours)}:
        raise ValueError(
            "attention must be in the stacked form, see `convert`; other names are "
            + ", ".join(sorted(others))
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


def _settings(layout: Layout, config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments of the GPT that config.json describes, without those of single blocks, and all
    reasons why there is none. "rope" is a pair, for blocks without and with a window."""
    read, found = Reader(config), dict(layout.fixed)
    for key, values in layout.needed.items():
        read(key, _one_of(values), values[0])
    for key, (name, default) in layout.settings.items():
        known, count = KINDS.get(name, one_of(layout.activations)), len(read.wrong)
        value = read(key, known, default)
        if read.wrong[count:]:
            continue
        if name == "activation":
            value = layout.activations[value]
        elif name == "scale":
            value = value**-0.5
        if found.setdefault(name, value) != value:
            read.wrong.append(f"{key} is {value}, but a GPT has one {name}, already {found[name]}")
    if "qk_norm" in found:
        found["qk_norm"] = found["qk_norm"]._replace(eps=found.get("norm_eps"))
    if layout.rope is not None:
        found["rope"] = _ropes(layout, read)
    later = {"model_type", *layout.blocks}
    unread = {
        key: value
        for key, value in read.unread().items()
        if key not in later and not HARMLESS.fullmatch(key)
    }
    return found, read.wrong + [_unsupported(key, value) for key, value in unread.items()]


def _ropes(layout: Layout, read: Reader) -> tuple[positions.Rope, positions.Rope]:
    """The rotary positions of blocks without and with a window.

    Version 5 of transformers writes rope_parameters, with one object for each kind of block where
    they differ; version 4 wrote rope_theta, rope_scaling, and rope_local_base_freq for blocks with
    a window.
    """
    optional = OBJECT.or_none()
    scaling = read("rope_scaling", optional, None) or {}
    parameters = read("rope_parameters", optional, None) or {}
    full = {"rope_theta": read("rope_theta", POSITIVE, layout.rope)}
    if "rope_local_base_freq" not in layout.blocks:
        where = "rope_scaling." if scaling else "rope_parameters."
        rope = _rope(Reader(full | (scaling or parameters), where), read)
        return rope, rope
    kinds = Reader(parameters, "rope_parameters.")
    local = {
        "rope_theta": read("rope_local_base_freq", POSITIVE, layout.blocks["rope_local_base_freq"])
    }
    full |= (kinds("full_attention", optional, None) or {}) | scaling
    local |= kinds("sliding_attention", optional, None) or {}
    read.wrong += kinds.wrong + [
        _unsupported(key, x, kinds.where) for key, x in kinds.unread().items()
    ]
    where = "rope_scaling." if scaling else "rope_parameters.full_attention."
    near = _rope(Reader(local, "rope_parameters.sliding_attention."), read)
    return _rope(Reader(full, where), read), near


def _rope(entries: Reader, config: Reader) -> positions.Rope:
    """Rotary positions from one object; its mistakes are added to those of config.json."""
    kind = entries("type", _one_of(("default", "llama3")), "default")  # the former name
    kind = entries("rope_type", _one_of(("default", "llama3")), kind)
    entries("partial_rotary_factor", _one_of((1.0,)), 1.0)
    rope = positions.Rope(base=entries("rope_theta", POSITIVE))
    if kind == "llama3":
        context = config.entries.get("max_position_embeddings", ...)
        found = {
            ours: entries(theirs, POSITIVE, context if ours == "context" else ...)
            for theirs, ours in _LLAMA3.items()
        }
        rope = rope._replace(scaling=positions.Llama3(**found))
    config.wrong += entries.wrong or [
        _unsupported(key, x, entries.where) for key, x in entries.unread().items()
    ]
    return rope


def _with_blocks(
    layout: Layout, config: dict[str, Any], settings: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The settings with those of single blocks, and all reasons why there are none."""
    if layout.rope is None:
        return settings, []
    read, n, has = Reader(config), settings["num_layers"], layout.blocks.keys()
    roped, types, window = [True] * n, None, None
    if "no_rope_layers" in has:
        interval = read("no_rope_layer_interval", SIZE, 4)
        flags = read("no_rope_layers", _one_for_each(n, (0, 1)), None)
        roped = (
            [(k + 1) % interval != 0 for k in range(n)] if flags is None else [*map(bool, flags)]
        )
    if "sliding_window" in has:
        window = read("sliding_window", SIZE.or_none(), layout.blocks["sliding_window"])
    if "use_sliding_window" in has and not read("use_sliding_window", BOOLEAN, False):
        window = None
    windowed = layout.windowed(read, roped) if window else [False] * n
    if "layer_types" in has:
        types = read("layer_types", _one_for_each(n, ("full_attention", "sliding_attention")), None)
    if types is not None:
        windowed = [kind == "sliding_attention" for kind in types]
        if any(windowed) and not window:
            read.wrong.append(
                "layer_types has 'sliding_attention', but sliding_window is None or "
                "use_sliding_window is False"
            )
    full, local = settings["rope"]
    common = {"window": window if n and all(windowed) else None, "rope": full}
    blocks = [
        {"window": window if near else None, "rope": (local if near else full) if rotary else None}
        for near, rotary in zip(windowed, roped, strict=True)
    ]
    own = [{k: x for k, x in block.items() if x != common[k]} for block in blocks]
    return settings | common | {"layers": own if any(own) else None}, read.wrong


def _one_of(values: tuple[Any, ...]) -> Kind:
    return Kind(" or ".join(map(repr, values)), lambda x: x in values)


def _one_for_each(n: int, values: tuple[Any, ...]) -> Kind:
    """One of these values for each of n blocks, or None."""
    kind = Kind(
        f"a list of {n} entries, as many as num_hidden_layers: " + " or ".join(map(repr, values)),
        lambda x: isinstance(x, list) and len(x) == n and all(entry in values for entry in x),
    )
    return kind.or_none()


def _unsupported(key: str, value: Any, where: str = "") -> str:
    what = UNSUPPORTED.get(key, "this entry")
    return f"{where}{key} is {shown(value)}: {what} is not supported"


def _config(layout: Layout, settings: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The entries of config.json for the resolved settings of a GPT, and how the GPT that they
    describe differs from it."""
    config: dict[str, Any] = {
        "architectures": [layout.architecture], "model_type": layout.model_type,
    }  # fmt: skip
    activations = {ours: theirs for theirs, ours in reversed(layout.activations.items())}
    for key, (name, _) in layout.settings.items():
        value = settings[name]
        if name == "activation":
            value = activations.get(value, value)
        elif name == "scale":
            value = round(value**-2) if round(value**-2, 6).is_integer() else value**-2
        config[key] = value
    blocks = settings["layers"]
    if layout.rope is not None:
        config |= _block_entries(layout, blocks)
    found, wrong = _settings(layout, config)
    found, more = _with_blocks(layout, config, found)
    back = _resolved(found)
    wrong += more
    for name in sorted({name for block in blocks + back["layers"] for name in block}, reverse=True):
        here, there = ([block.get(name) for block in s["layers"]] for s in (settings, back))
        for k, (x, y) in enumerate(zip(here, there, strict=True)):
            if x != y:
                wrong.append(f"{name} of block {k} is {x!r}, but must be {y!r}")
                break
    unread = {name for name, _ in layout.settings.values()} - found.keys()
    wrong += [
        f"{name} is {settings[name]!r}, but must be {value!r}"
        for name, value in back.items()
        if settings[name] != value and name not in unread | {"layers"}
        if not (name == "learned positions" and any(x.startswith("rope of ") for x in wrong))
        if not (layout is GPT2 and name.endswith("bias"))
    ]
    return config, wrong


def _block_entries(layout: Layout, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The entries of config.json about rotary positions and windows, for both versions of
    transformers: see `_ropes`."""
    ropes = {bool(block["window"]): block["rope"] for block in reversed(blocks) if block["rope"]}
    full = ropes.get(False) or ropes.get(True) or positions.Rope(layout.rope)
    local = ropes.get(True, full)
    near = [block["window"] is not None for block in blocks]
    found = {
        "layer_types": ["sliding_attention" if x else "full_attention" for x in near],
        "no_rope_layers": [int(block["rope"] is not None) for block in blocks],
        "rope_local_base_freq": local.base,
        "sliding_window": next((block["window"] for block in blocks if block["window"]), None),
        "use_sliding_window": any(near),
    }
    found = {key: value for key, value in found.items() if key in layout.blocks}
    scaling = None
    if full.scaling is not None:
        names = {theirs: getattr(full.scaling, ours) for theirs, ours in _LLAMA3.items()}
        scaling = {"rope_type": "llama3", **names}
    parameters: dict[str, Any] = {
        "rope_theta": full.base, **({"rope_type": "default"} if scaling is None else scaling),
    }  # fmt: skip
    if "rope_local_base_freq" in found:
        narrow = {"rope_theta": local.base, "rope_type": "default"}
        parameters = {"full_attention": parameters, "sliding_attention": narrow}
    old = {"rope_theta": full.base, "rope_scaling": scaling}
    return found | old | {"rope_parameters": parameters}


def _resolved(settings: dict[str, Any]) -> dict[str, Any]:
    """All settings of a GPT, in one form: defaults are replaced by what they stand for, and each
    block has its own window and rotary positions."""
    defaults = {name: p.default for name, p in inspect.signature(GPT).parameters.items()}
    s = _with_sizes(defaults | settings)
    del s["rng"], s["dtype"]
    common = {"rope": s.pop("rope"), "window": s.pop("window")}
    s["layers"] = [common | dict(layer) for layer in s["layers"] or [{}] * s["num_layers"]]
    s["learned positions"] = common["rope"] is None
    s["qk_norm"] = QKNorm() if s["qk_norm"] is True else s["qk_norm"] or None
    s["attention_bias"] = s["bias"] if s["attention_bias"] is None else s["attention_bias"]
    s["scale"] = s["head_dim"] ** -0.5 if s["scale"] is None else s["scale"]
    return s


def _with_sizes(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a GPT, with every size that is None replaced by its default."""
    m, h = settings["d_model"], settings["num_heads"]
    sizes = {"num_kv_heads": h, "head_dim": m // h, "hidden": 4 * m}
    return settings | {name: n for name, n in sizes.items() if settings.get(name) is None}


def check_size(settings: dict[str, Any], files: list[Path]) -> None:
    """Raise ValueError for a GPT that has more parameters than these files have bytes: to build a
    model with a mistyped size might take hours, or all memory."""
    s = _with_sizes({"rope": None} | settings)
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


def _entries(
    files: list[Path], layout: Layout, dtype: str | None
) -> tuple[dict[str, np.ndarray], bool]:
    """The arrays in the files by their full names, without the constants, and whether the names in
    the files lack the prefix. Raises as `from_pretrained` for a dtype."""
    if dtype not in (None, *_FLOATS):
        raise ValueError(f"dtype = {dtype!r} must be {' or '.join(map(repr, _FLOATS))}")
    if dtype == "bfloat16":
        try:
            import ml_dtypes  # noqa: F401  registers the dtype with NumPy
        except ImportError as error:
            fix = "pip install ml_dtypes"
            raise RuntimeError(f"dtype='bfloat16' needs the package ml_dtypes: {fix}") from error
    keep = dtype == "bfloat16"
    arrays = {name: x for file in files for name, x in mapped(file, bfloat16=keep).items()}
    if dtype is not None:
        arrays = {name: x.astype(dtype, copy=False) for name, x in arrays.items()}
    bare = not any(name.startswith(layout.prefix) for name in arrays)
    return {
        layout.prefix + name if bare and not name.startswith("lm_head.") else name: x
        for name, x in arrays.items()
        if not re.search(layout.buffers, name)
    }, bare


def _names(layout: Layout, num_layers: int) -> dict[str, str]:
    """For each weight that a model of this kind may have, ours: see `packed`."""
    names = {
        theirs.replace(".N.", f".{n}."): ours.replace(".N.", f".{n}.")
        for theirs, ours in layout.names.items()
        for n in range(num_layers if ".N." in theirs else 1)
    }
    return with_biases(names, bias=True)
