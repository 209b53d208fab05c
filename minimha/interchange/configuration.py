"""The settings of a GPT and Hugging Face's config.json, each from the other.

Settings that may differ between blocks have entries of many forms: a window with a list of the
blocks that have it, or with a period; rotary positions for all blocks, for some, or of two kinds.
"""

from __future__ import annotations

from typing import Any

from ..multihead import QKNorm, positions
from ..transformers.settings import GPTSettings
from .json_file import BOOLEAN, OBJECT, Kind, Reader, one_of, shown
from .layouts import GPT2, HARMLESS, KINDS, POSITIVE, SIZE, UNSUPPORTED, Layout

_LLAMA3 = {
    "factor": "factor", "low_freq_factor": "low", "high_freq_factor": "high",
    "original_max_position_embeddings": "context",
}  # fmt: skip
"""For each setting of rope scaling in config.json, the name of the same setting in
`positions.Llama3`."""


def common_settings(layout: Layout, config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Read `config`, the content of config.json, as `layout` says. Returns the arguments with which
    `GPT` makes the model described there, and a list of sentences: the reasons found here why no
    GPT is like that model, empty if there are none.

    Windows and other settings that may differ from block to block are left to `with_blocks`. Until
    then, if the model has rotary positions, the argument "rope" is a pair: those of the blocks
    without a window, and those of the blocks with one.
    """
    read = Reader(config)
    for key, values in layout.needed.items():
        read(key, _one_of(values), values[0])

    found = dict(layout.fixed)
    for key, (name, default) in layout.settings.items():
        kind = KINDS.get(name, one_of(layout.activations))
        mistakes = len(read.wrong)
        value = read(key, kind, default)
        if len(read.wrong) > mistakes:
            continue
        if name == "activation":
            value = layout.activations[value]
        elif name == "scale":
            value = value**-0.5  # theirs is a width, and scores are divided by its root

        # config.json has three probabilities of dropout for a GPT-2, and we have one.
        if found.setdefault(name, value) != value:
            read.wrong.append(f"{key} is {value}, but a GPT has one {name}, already {found[name]}")

    if "qk_norm" in found:
        found["qk_norm"] = found["qk_norm"]._replace(eps=found.get("norm_eps"))
    if layout.rope is not None:
        found["rope"] = _ropes(layout, read)

    # An entry that was not read might change what the model computes.
    later = {"model_type", *layout.blocks}
    wrong = read.wrong
    for key, value in read.unread().items():
        if key not in later and not HARMLESS.fullmatch(key):
            wrong.append(unsupported(key, value))
    return found, wrong


def with_blocks(
    layout: Layout, config: dict[str, Any], settings: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Add the windows and the rotary positions of all blocks to the settings from
    `common_settings`. They are read from `config`, the content of config.json, as `layout` says.
    Returns all arguments of the GPT, and a list of sentences: the reasons found here why no GPT is
    like the model, empty if there are none."""
    if layout.rope is None:
        return settings, []
    read = Reader(config)
    n = settings["num_layers"]

    roped = [True] * n
    if "no_rope_layers" in layout.blocks:
        roped = _roped(read, n)

    window = None
    if "sliding_window" in layout.blocks:
        window = read("sliding_window", SIZE.or_none(), layout.blocks["sliding_window"])
    if "use_sliding_window" in layout.blocks and not read("use_sliding_window", BOOLEAN, False):
        window = None
    windowed = _windowed(layout, read, window, roped)

    full, local = settings["rope"]
    common = {"window": None, "rope": full}
    if n and all(windowed):
        common["window"] = window

    # Each block gets only the settings in which it differs from the common ones.
    layers = []
    for near, rotary in zip(windowed, roped, strict=True):
        block = {"window": None, "rope": None}
        if near:
            block["window"] = window
        if rotary:
            block["rope"] = local if near else full
        layers.append({name: x for name, x in block.items() if x != common[name]})
    return settings | common | {"layers": layers if any(layers) else None}, read.wrong


def _roped(read: Reader, n: int) -> list[bool]:
    """A list of n booleans: whether each block has rotary positions. `read` reads the entries of
    config.json that say so."""
    interval = read("no_rope_layer_interval", SIZE, 4)
    flags = read("no_rope_layers", _one_for_each(n, (0, 1)), None)
    if flags is None:
        return [(k + 1) % interval != 0 for k in range(n)]
    return [bool(flag) for flag in flags]


def _windowed(layout: Layout, read: Reader, window: int | None, roped: list[bool]) -> list[bool]:
    """A list of booleans: whether each block has a window. `read` reads the entries of config.json
    that say so, and notes a mistake if they contradict `window`.

    window  how many keys a window has; None if config.json says that there are no windows
    roped   for each block, whether it has rotary positions
    """
    windowed = [False] * len(roped)
    if window:
        windowed = layout.windowed(read, roped)
    if "layer_types" not in layout.blocks:
        return windowed

    kinds = _one_for_each(len(roped), ("full_attention", "sliding_attention"))
    types = read("layer_types", kinds, None)
    if types is None:
        return windowed
    windowed = [kind == "sliding_attention" for kind in types]
    if any(windowed) and not window:
        read.wrong.append(
            "layer_types has 'sliding_attention', but sliding_window is None or "
            "use_sliding_window is False"
        )
    return windowed


def _ropes(layout: Layout, read: Reader) -> tuple[positions.Rope, positions.Rope]:
    """The rotary positions of the blocks without a window, and those of the blocks with one; `read`
    reads the entries of config.json.

    Version 5 of transformers writes them as the entry rope_parameters: one object or, for models in
    which the two kinds of blocks differ, one object for each kind. Version 4 wrote rope_theta and
    rope_scaling and, for blocks with a window, rope_local_base_freq.
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
    default = layout.blocks["rope_local_base_freq"]
    local = {"rope_theta": read("rope_local_base_freq", POSITIVE, default)}
    full |= kinds("full_attention", optional, None) or {}
    full |= scaling
    local |= kinds("sliding_attention", optional, None) or {}
    read.wrong += kinds.wrong
    read.wrong += [unsupported(key, x, kinds.where) for key, x in kinds.unread().items()]
    where = "rope_scaling." if scaling else "rope_parameters.full_attention."
    near = _rope(Reader(local, "rope_parameters.sliding_attention."), read)
    return _rope(Reader(full, where), read), near


def _rope(entries: Reader, config: Reader) -> positions.Rope:
    """Rotary positions as one object in config.json describes them.

    entries  reads the object
    config   reads the whole config.json. Mistakes in the object are added to those that it has
             collected, and its max_position_embeddings replaces a missing
             original_max_position_embeddings
    """
    kind = entries("type", _one_of(("default", "llama3")), "default")  # the former name
    kind = entries("rope_type", _one_of(("default", "llama3")), kind)
    entries("partial_rotary_factor", _one_of((1.0,)), 1.0)
    rope = positions.Rope(base=entries("rope_theta", POSITIVE))
    if kind == "llama3":
        # The context of the original model is by default that of this one.
        defaults = {"context": config.entries.get("max_position_embeddings", ...)}
        found = {
            ours: entries(theirs, POSITIVE, defaults.get(ours, ...))
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
    """The `Kind` of an entry that is None, or a list of n values, one for each block, all taken
    from `values`."""
    kind = Kind(
        f"a list of {n} entries, as many as num_hidden_layers: " + " or ".join(map(repr, values)),
        lambda x: isinstance(x, list) and len(x) == n and all(entry in values for entry in x),
    )
    return kind.or_none()


def unsupported(key: str, value: Any, where: str = "") -> str:
    what = UNSUPPORTED.get(key, "this entry")
    return f"{where}{key} is {shown(value)}: {what} is not supported"


def config_of(layout: Layout, settings: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The entries of config.json for a GPT written as the kind of model of this layout, and a list
    of sentences: how a GPT read back from these entries would differ from it, empty if it would
    not.

    settings  those of the GPT, as `resolved` returns them
    """
    config: dict[str, Any] = {
        "architectures": [layout.architecture], "model_type": layout.model_type,
    }  # fmt: skip
    activations = {ours: theirs for theirs, ours in reversed(layout.activations.items())}
    for key, (name, _) in layout.settings.items():
        value = settings[name]
        if name == "activation":
            value = activations.get(value, value)
        elif name == "scale":
            value = round(value**-2)  # transformers reads only integers
        config[key] = value
    if layout.rope is not None:
        config |= _block_entries(layout, settings["layers"])

    # Reading the entries back shows what they cannot express.
    found, wrong = common_settings(layout, config)
    found, more = with_blocks(layout, config, found)
    return config, wrong + more + _differences(layout, settings, found)


def _differences(layout: Layout, settings: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """A list of sentences, one for each setting in which a GPT differs from the one that its
    config.json, written as the kind of model of this layout, describes.

    settings  those of the GPT, as `resolved` returns them
    found     those that were read back from config.json
    """
    back = resolved(found)
    wrong = []
    blocks = [*settings["layers"], *back["layers"]]
    for name in sorted({name for block in blocks for name in block}):
        here = [block.get(name) for block in settings["layers"]]
        there = [block.get(name) for block in back["layers"]]
        for k, (x, y) in enumerate(zip(here, there, strict=True)):
            if x != y:
                wrong.append(f"{name} of block {k} is {x!r}, but must be {y!r}")
                break

    # Settings that could not be read back are among the reasons already.
    skipped = {name for name, _ in layout.settings.values()} - found.keys()
    skipped.add("layers")
    if any(reason.startswith("rope of ") for reason in wrong):
        skipped.add("learned positions")  # the same difference
    if layout is GPT2:
        skipped |= {"bias", "attention_bias"}  # zeros are written for those missing
    for name, value in back.items():
        if settings[name] != value and name not in skipped:
            wrong.append(f"{name} is {settings[name]!r}, but must be {value!r}")
    return wrong


def _block_entries(layout: Layout, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The entries of config.json about rotary positions and windows, for both versions of
    transformers: see `_ropes`.

    blocks  for each block, a dictionary with its "window" and its "rope", as `resolved` lists them
            under "layers"
    """
    # The first rope of the blocks without a window, and of those with one. A block without rope, as
    # in SmolLM3, says nothing about either.
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
    parameters: dict[str, Any] = {"rope_theta": full.base, "rope_type": "default"}
    if full.scaling is not None:
        names = {theirs: getattr(full.scaling, ours) for theirs, ours in _LLAMA3.items()}
        scaling = {"rope_type": "llama3", **names}
        parameters |= scaling
    if "rope_local_base_freq" in found:
        narrow = {"rope_theta": local.base, "rope_type": "default"}
        parameters = {"full_attention": parameters, "sliding_attention": narrow}
    old = {"rope_theta": full.base, "rope_scaling": scaling}
    return found | old | {"rope_parameters": parameters}


def resolved(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a GPT, except rng and dtype, in a form that can be compared: each default is
    replaced by the value that it stands for, and the list "layers" has a dictionary for each block,
    which includes its "window" and its "rope". "learned positions" is True if `rope` is None."""
    s = with_sizes(vars(GPTSettings(**settings)))
    del s["rng"], s["dtype"]
    common = {"rope": s.pop("rope"), "window": s.pop("window")}
    s["learned positions"] = common["rope"] is None
    layers = s["layers"] or [{}] * s["num_layers"]
    s["layers"] = [common | dict(layer) for layer in layers]

    if s["qk_norm"] is True:
        s["qk_norm"] = QKNorm()
    elif not s["qk_norm"]:
        s["qk_norm"] = None
    if s["attention_bias"] is None:
        s["attention_bias"] = s["bias"]
    if s["scale"] is None:
        s["scale"] = s["head_dim"] ** -0.5
    return s


def with_sizes(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a GPT, with the defaults of num_kv_heads, head_dim and hidden where these are
    None or absent."""
    width = settings["d_model"]
    heads = settings["num_heads"]
    defaults = {"num_kv_heads": heads, "head_dim": width // heads, "hidden": 4 * width}
    missing = {name: n for name, n in defaults.items() if settings.get(name) is None}
    return settings | missing
