"""The settings of a GPT and Hugging Face's config.json, each from the other.

Settings that may differ between blocks have entries of many forms: a window with a list of the
blocks that have it, or with a period; rotary positions for all blocks, for some, or of two kinds.
"""

from __future__ import annotations

from typing import Any

from ..multihead import QKNorm, positions
from ..transformers.gpt import GPTSettings
from .json_file import BOOLEAN, OBJECT, Kind, Reader, one_of, shown
from .layouts import GPT2, HARMLESS, KINDS, POSITIVE, SIZE, UNSUPPORTED, Layout

_LLAMA3 = {
    "factor": "factor", "low_freq_factor": "low", "high_freq_factor": "high",
    "original_max_position_embeddings": "context",
}  # fmt: skip
"""Their names for the settings of `positions.Llama3`."""


def common_settings(layout: Layout, config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments of the GPT that config.json describes, without those of single blocks, and all
    reasons why it describes none. "rope" is a pair, for blocks without and with a window."""
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
    return found, read.wrong + [unsupported(key, value) for key, value in unread.items()]


def with_blocks(
    layout: Layout, config: dict[str, Any], settings: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The settings with those of single blocks, and all reasons why no GPT has them."""
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
        unsupported(key, x, kinds.where) for key, x in kinds.unread().items()
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
        unsupported(key, x, entries.where) for key, x in entries.unread().items()
    ]
    return rope


def _one_of(values: tuple[Any, ...]) -> Kind:
    return Kind(" or ".join(map(repr, values)), lambda x: x in values)


def _one_for_each(n: int, values: tuple[Any, ...]) -> Kind:
    """One of these values for each of n blocks, or None."""
    kind = Kind(
        f"a list of {n} entries, as many as num_hidden_layers: " + " or ".join(map(repr, values)),
        lambda x: isinstance(x, list) and len(x) == n and all(entry in values for entry in x),
    )
    return kind.or_none()


def unsupported(key: str, value: Any, where: str = "") -> str:
    what = UNSUPPORTED.get(key, "this entry")
    return f"{where}{key} is {shown(value)}: {what} is not supported"


def config_of(layout: Layout, settings: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
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
            value = round(value**-2)  # transformers reads integers alone
        config[key] = value
    blocks = settings["layers"]
    if layout.rope is not None:
        config |= _block_entries(layout, blocks)
    found, wrong = common_settings(layout, config)
    found, more = with_blocks(layout, config, found)
    back = resolved(found)
    wrong += more
    for name in sorted({name for block in blocks + back["layers"] for name in block}):
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
    full = ropes.get(False) or ropes.get(True) or positions.Rope(layout.rope or 10000.0)
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


def resolved(settings: dict[str, Any]) -> dict[str, Any]:
    """All settings of a GPT, in one form: defaults are replaced by what they stand for, and each
    block has its own window and rotary positions."""
    s = with_sizes(vars(GPTSettings(**settings)))
    del s["rng"], s["dtype"]
    common = {"rope": s.pop("rope"), "window": s.pop("window")}
    s["layers"] = [common | dict(layer) for layer in s["layers"] or [{}] * s["num_layers"]]
    s["learned positions"] = common["rope"] is None
    s["qk_norm"] = QKNorm() if s["qk_norm"] is True else s["qk_norm"] or None
    s["attention_bias"] = s["bias"] if s["attention_bias"] is None else s["attention_bias"]
    s["scale"] = s["head_dim"] ** -0.5 if s["scale"] is None else s["scale"]
    return s


def with_sizes(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a GPT, with every size that is None replaced by its default."""
    m, h = settings["d_model"], settings["num_heads"]
    sizes = {"num_kv_heads": h, "head_dim": m // h, "hidden": 4 * m}
    return settings | {name: n for name, n in sizes.items() if settings.get(name) is None}
