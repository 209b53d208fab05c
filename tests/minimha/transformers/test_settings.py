"""Settings are written down once, and calls and signatures are as if they were arguments."""

import inspect
from dataclasses import fields

import numpy as np
import pytest

import minimha as mh
from minimha.transformers import stream
from minimha.transformers.generation import Generation
from minimha.transformers.settings import BlockSettings, GPTSettings
from minimha.transformers.speculation import Drafting

SIZES = {"context": 6, "d_model": 8, "num_heads": 2, "num_layers": 2}


def arguments(function):
    """The names of the arguments with a default, and their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (mh.GPT, GPTSettings), (mh.Block, BlockSettings), (mh.generate, Generation),
        (stream, Generation), (mh.speculate, Drafting),
    ],
)  # fmt: skip
def test_a_signature_shows_every_setting_with_its_default_after_what_is_required(
    function, settings
):
    required = [p.name for p in fields(settings) if p.name not in arguments(settings)]
    assert arguments(function) == arguments(settings)
    shown = list(inspect.signature(function).parameters)
    assert set(shown) >= set(required)
    assert shown[-len(arguments(settings)) :] == list(arguments(settings))


def test_settings_of_a_block_and_of_its_attention_have_the_same_defaults():
    of_block, of_layer = arguments(BlockSettings), arguments(mh.MultiHeadAttention)
    shared = of_block.keys() & of_layer.keys()
    assert shared >= {"num_kv_heads", "head_dim", "scale", "softcap", "qk_norm", "rope", "dropout"}
    assert {name: of_block[name] for name in shared} == {name: of_layer[name] for name in shared}


def test_an_unknown_or_a_missing_argument_is_named_with_what_was_called():
    with pytest.raises(TypeError, match=r"GPT\S* got an unexpected keyword argument 'norm_first'"):
        mh.GPT(5, **SIZES, norm_first=False)
    with pytest.raises(TypeError, match=r"Block\S* missing a required argument: 'num_heads'"):
        mh.Block(8)
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
