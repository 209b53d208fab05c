"""Every argument of attention reaches each implementation, `explain_dispatch`, and the tests."""

import dataclasses
import inspect

import hypothesis
import numpy as np
import pytest
from attention_paths import PATHS, Case, assert_exact, case_of, cases
from implementations import NAMES, WHY_NOT, results_by

import minimha as mh
from minimha.attention import Arguments, dispatch, scaled_dot_product

T, S, H, G = 7, 9, 4, 2

OPTIONAL = [
    name
    for name in Arguments._fields
    if name not in ("query", "key", "value", "p", "return_weights", "return_lse")
]
"""The arguments that change the output. p is set together with keep, as dropout."""


def optional(rng):
    """A value for each optional argument."""
    keep = rng.random((H, T, S)) < 0.6
    return {
        "mask": {"mask": mh.masks.causal(align="bottom-right")},
        "bias": {"bias": rng.standard_normal((H, T, S))},
        "sink": {"sink": rng.standard_normal(H)},
        "scale": {"scale": 0.3},
        "softcap": {"softcap": 0.8},
        "keep": {"keep": keep, "dropout": 0.4},
    }


def changed(case):
    """The fields of a case that are not at their defaults."""
    return {
        field.name
        for field in dataclasses.fields(Case)
        if field.default is not dataclasses.MISSING
        and getattr(case, field.name) is not field.default
    }


@pytest.mark.parametrize("option", OPTIONAL)
@pytest.mark.parametrize("name", NAMES)
def test_every_implementation_computes_with_every_argument(name, option, rng):
    """If its `obstacle` names the argument, the reference computes instead."""
    if WHY_NOT.get(name):
        pytest.skip(WHY_NOT[name])
    values = optional(rng)
    assert option in values, f"add {option} to `optional` in {__file__}"
    case = case_of(rng, T, S, batch=(2,), heads=(H, G)).but(**values[option])
    try:
        assert_exact(results_by(name, case), case)
    except Exception as error:
        error.add_note(
            f"attention by {name!r} does not compute with {option}: compute with it there, or name "
            "it in the implementation's `obstacle`, so that the reference computes instead"
        )
        raise


def test_random_cases_have_every_argument():
    """Otherwise no invariant sees that an implementation ignores it."""
    drawn = set()

    @hypothesis.settings(
        max_examples=200, database=None, derandomize=True, phases=[hypothesis.Phase.generate]
    )
    @hypothesis.given(cases())
    def draw(case):
        drawn.update(changed(case))

    draw()
    missing = {*OPTIONAL} - drawn
    assert not missing, (
        f"add {missing} to Case in tests/attention_paths.py, and draw it in `cases` there"
    )


@pytest.mark.parametrize("path", [path for path in PATHS if path.family == "reference"], ids=str)
def test_paths_pass_every_argument_to_attention(path, monkeypatch, rng):
    """All other paths through attention are made in the same way, except for the steps."""
    received = []

    def choose(request, x):
        received.append(x)
        return dispatch.choose(request, x)

    monkeypatch.setattr(scaled_dot_product, "choose", choose)
    case = case_of(rng, T, S, heads=(H, G))
    for values in optional(rng).values():
        case = case.but(**values)
    path(case)
    without = [name for name in OPTIONAL if getattr(received[0], name) is None]
    assert not without, f"{path} in tests/attention_paths.py does not pass {without} to attention"


def test_explain_dispatch_takes_every_argument_and_passes_it_on(monkeypatch, rng):
    """It explains the call with these arguments, so it must not drop one."""
    functions = mh.scaled_dot_product_attention, mh.explain_dispatch
    taken = [{*inspect.signature(function).parameters} for function in functions]
    assert taken[0] == taken[1], f"only one of the two takes {taken[0] ^ taken[1]}"

    received = []
    arguments = dispatch.arguments

    def recorded(*args, **settings):
        received.append(arguments(*args, **settings))
        return received[-1]

    monkeypatch.setattr(scaled_dot_product, "arguments", recorded)
    monkeypatch.setattr(dispatch, "arguments", recorded)
    case = case_of(rng, T, S, heads=(H, G))
    given = {"query": case.query, "key": case.key, "value": case.value}
    for values in optional(rng).values():
        given |= values
    given |= {"return_weights": True, "return_lse": True}
    for function in functions:
        function(**given)
    called, explained = received
    for name in Arguments._fields:
        x, y = getattr(called, name), getattr(explained, name)
        same = np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y
        assert same, f"explain_dispatch in minimha/attention/dispatch.py does not pass {name} on"
