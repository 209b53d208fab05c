"""Settings are written down once, and calls and signatures are as if they were arguments."""

import inspect
import re
import typing
from dataclasses import fields

import numpy as np
import pytest
from model_settings import NAMES, NEEDED, OTHER, SMALL

import minimha as mh
from minimha.transformers import stream
from minimha.transformers.generation import Sampling
from minimha.transformers.settings import BlockSettings, GPTSettings

SIZES = {"context": 6, "d_model": 8, "num_heads": 2, "num_layers": 2}


def arguments(function):
    """The names of the arguments with a default, and their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


CLASSES = pytest.mark.parametrize(
    ("cls", "settings"), [(mh.GPT, GPTSettings), (mh.Block, BlockSettings)]
)


@CLASSES
def test_a_signature_shows_every_setting_with_its_default_after_what_is_required(cls, settings):
    required = [p.name for p in fields(settings) if p.name not in arguments(settings)]
    assert arguments(cls) == arguments(settings)
    shown = list(inspect.signature(cls).parameters)
    assert set(shown) >= set(required)
    assert shown[-len(arguments(settings)) :] == list(arguments(settings))


@CLASSES
def test_help_explains_every_argument(cls, settings):
    text = inspect.getdoc(cls)
    of_attention = re.search(r"^(num_kv_heads, .*) are those of `MultiHeadAttention`", text, re.M)
    elsewhere = re.split(", | and ", of_attention[1])
    assert set(elsewhere) <= set(inspect.signature(mh.MultiHeadAttention).parameters)
    here = re.findall(r"^(\w+)  +\S", text, re.M)
    taken = inspect.signature(cls).parameters.keys()
    differ = sorted({*here, *elsewhere} ^ taken)
    assert not differ, (
        f"a docstring in minimha/transformers/settings.py explains something else than the arguments "
        f"of {cls.__name__}: {differ}"
    )
    assert len(here + elsewhere) == len(taken), "a docstring explains an argument twice"


@CLASSES
def test_type_hints_are_those_of_the_arguments(cls, settings):
    hints = typing.get_type_hints(cls.__init__)
    assert hints.pop("return") is type(None)
    expected = typing.get_type_hints(settings)
    assert hints == {field.name: expected[field.name] for field in fields(settings)}
    assert inspect.signature(cls.__init__).return_annotation is None


@pytest.mark.parametrize("function", [mh.generate, stream, mh.speculate])
def test_functions_that_draw_tokens_have_the_same_defaults(function):
    own = {"generate": {"cache": True}, "stream": {"cache": True}, "speculate": {"ahead": 4}}
    assert arguments(function) == arguments(Sampling) | own[function.__name__]


@pytest.mark.parametrize("function", [mh.generate, stream, mh.speculate])
def test_type_checkers_see_the_arguments_of_functions_that_draw_tokens(function):
    """They read the code: a signature made when the program runs would be hidden from them."""
    code = function.__code__
    written = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    assert written == tuple(inspect.signature(function).parameters)
    assert code.co_posonlyargcount == 0


def test_tokens_are_checked_before_settings():
    model = mh.GPT(5, **SIZES)
    for draw in (mh.generate, stream):
        with pytest.raises(ValueError, match="tokens has shape"):
            draw(model, np.array([1]), 2, temperature=-1)
    with pytest.raises(ValueError, match="tokens has shape"):
        mh.speculate(model, model, np.array([1]), 2, ahead=0)


def test_settings_of_a_block_and_of_its_attention_have_the_same_defaults():
    of_block, of_layer = arguments(BlockSettings), arguments(mh.MultiHeadAttention)
    shared = of_block.keys() & of_layer.keys()
    assert shared >= {"num_kv_heads", "head_dim", "scale", "softcap", "qk_norm", "rope", "dropout"}
    assert {name: of_block[name] for name in shared} == {name: of_layer[name] for name in shared}


def test_an_unknown_or_a_missing_argument_is_named_with_what_was_called():
    with pytest.raises(TypeError, match=r"GPT\S* got an unexpected keyword argument 'norm_first'"):
        mh.GPT(5, **SIZES, norm_first=False)
    with pytest.raises(TypeError, match=r"Block\S* missing 1 .* argument: 'num_heads'"):
        mh.Block(8)
    with pytest.raises(TypeError, match=r"GPT\S* missing 3 .*: 'num_heads', .* and 'num_layers'"):
        mh.GPT(5, d_model=8)
    with pytest.raises(TypeError, match=r"Block\S* got an unexpected keyword argument 'windows'"):
        mh.GPT(5, **SIZES, layers=[{}, {"windows": 3}])
    model = mh.GPT(5, **SIZES)
    with pytest.raises(TypeError, match=r"generate\(\) got an unexpected keyword argument 'k'"):
        mh.generate(model, np.array([[1]]), 2, k=3)


def test_positional_arguments_may_also_be_given_by_name():
    model = mh.GPT(vocabulary=5, **SIZES)
    tokens = mh.generate(count=3, tokens=np.array([[1]]), model=model, rng=2)
    np.testing.assert_array_equal(tokens, mh.generate(model, np.array([[1]]), 3, rng=2))
    assert mh.Block(num_heads=2, d_model=8).attention.num_heads == 2


def test_the_settings_of_a_model_make_one_of_the_same_shapes_and_can_be_written_to_a_file():
    rope = mh.positions.Rope()
    layers = [{"window": np.int64(3)}, {"rope": None}]
    model = mh.GPT(np.int64(5), **SIZES, rope=rope, sinks=np.array(1), layers=layers)
    other = mh.GPT(**model.settings)
    assert repr(other) == repr(model)
    assert type(model.settings["vocabulary"]) is type(model.settings["sinks"]) is int
    assert type(model.settings["layers"][0]["window"]) is int
    assert "rng" not in model.settings


def logits(model):
    """Of a whole sequence, with a generator, so that dropout has an effect."""
    tokens = np.arange(6)[None] % 5
    return model(tokens, rng=np.random.default_rng(3)).data


def shapes(model):
    return {name: p.shape for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_a_gpt_has_an_effect_and_is_saved_with_the_model(name):
    assert name in OTHER, f"add {name} to OTHER in tests/model_settings.py, with another value"
    needed = SMALL | NEEDED.get(name, {})
    changed = needed | {name: OTHER[name]}
    without, model = mh.GPT(**needed), mh.GPT(**changed)

    before, after = logits(without), logits(model)
    same_shapes = shapes(without) == shapes(model)
    same_logits = before.dtype == after.dtype and np.array_equal(before, after)
    assert not (same_shapes and same_logits), (
        f"{name} = {OTHER[name]!r} changes neither shapes nor logits of a GPT: use it in "
        "gpt.py or block.py of minimha/transformers"
    )

    if name == "rng":
        assert name not in model.settings  # used up
        return
    assert name in model.settings, (
        f"minimha/transformers/gpt.py does not keep {name} in model.settings, so it is not saved"
    )
    restored = mh.GPT(**model.settings)
    for own, p in zip(restored.parameters(), model.parameters(), strict=True):
        own.data = p.data
    assert np.array_equal(logits(restored), after), (
        f"GPT(**model.settings) computes something else if {name} = {OTHER[name]!r}"
    )
