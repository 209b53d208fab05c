"""The steps of attention by name: values, gradients, taps and replay."""

import copy
import gc
import math
import weakref

import numpy as np
import pytest

import minimha as mh
from minimha.attention import attention_steps
from minimha_autograd import backend

H, G, T, S, D, DV = 4, 2, 3, 5, 2, 6
NAMES = "raw", "scaled", "capped", "biased", "scores", "weights", "dropped", "out"
VISIBLE = np.tri(T, S, k=-1, dtype=bool)  # the first query sees nothing


@pytest.fixture
def inputs(rng):
    """All inputs of attention, on the host."""
    normal = rng.standard_normal
    return {
        "query": normal((H, T, D)), "key": normal((G, S, D)), "value": normal((G, S, DV)),
        "bias": normal((H, 1, S)), "sink": normal(H), "scale": normal((H, 1, 1)),
        "softcap": np.asarray(1.5), "keep": rng.random((H, T, S)) < 0.7,
    }  # fmt: skip


SETTINGS = {"mask": mh.masks.dense(VISIBLE), "dropout": 0.3}


def leaves(inputs, place=lambda x: x):
    return {
        k: place(x) if k == "keep" else mh.Tensor(place(x), requires_grad=True)
        for k, x in inputs.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_each_step_agrees_with_finite_differences(name, inputs, rng):
    dout = rng.standard_normal((H, T, DV))

    def through(step):
        return attention_steps(
            **inputs, **SETTINGS, tap=lambda n, x: x + step if n == name else x
        ).out

    zeros = np.zeros((H, T, DV) if name == "out" else (H, T, S))
    report = mh.gradcheck(through, mh.Tensor(zeros))
    assert {row.method for row in report.rows} == {"central", "complex step"}
    step = mh.Tensor(zeros, requires_grad=True)
    through(step).backward(dout)
    steps = attention_steps(**leaves(inputs), **SETTINGS)
    assert not steps.gradients
    steps.out.backward(dout)
    np.testing.assert_allclose(steps.gradients[name], step.grad, rtol=0, atol=1e-15)


def test_every_step_has_a_name_a_shape_and_a_gradient(inputs, rng, place):
    made = leaves(inputs, place)
    steps = attention_steps(**made, **SETTINGS)
    assert tuple(steps) == (*NAMES[:-2], "keep", *NAMES[-2:])
    assert len(steps) == 9
    steps.out.backward(place(rng.standard_normal((H, T, DV))))
    assert set(steps.gradients) == set(NAMES)
    for name in NAMES:
        shape = (H, T, DV) if name == "out" else (H, T, S)
        assert steps[name].shape == steps.gradients[name].shape == shape
        assert backend.namespace(steps.gradients[name]) is place.xp
        assert f"{name} {shape}" in repr(steps)
    assert all(x.grad is not None for k, x in made.items() if k != "keep")


def test_each_step_has_the_value_that_its_name_says(inputs):
    steps = attention_steps(**inputs, **SETTINGS)
    query, key, value, bias, sink, scale, softcap, keep = inputs.values()
    key, value = np.repeat(key, 2, axis=0), np.repeat(value, 2, axis=0)
    e, sinks = np.exp(steps.scores), np.exp(sink)[:, None, None]
    expected = {
        "raw": query @ key.mT,
        "scaled": scale * steps.raw,
        "capped": softcap * np.tanh(steps.scaled / softcap),
        "biased": steps.capped + bias,
        "scores": np.where(VISIBLE, steps.biased, -math.inf),
        "weights": e / (e.sum(-1, keepdims=True) + sinks),
        "keep": keep,
        "dropped": np.where(keep, steps.weights / 0.7, 0),
        "out": steps.dropped @ value,
    }
    assert tuple(steps) == tuple(expected)
    for name, x in steps.items():
        assert isinstance(x, np.ndarray)  # arrays give arrays
        np.testing.assert_allclose(x, expected[name], atol=1e-15)


def test_steps_of_unused_options_are_absent(inputs):
    steps = attention_steps(inputs["query"], inputs["key"], inputs["value"])
    assert tuple(steps) == ("raw", "scaled", "scores", "weights", "out")
    with pytest.raises(AttributeError, match="no step 'capped': there are raw, scaled, scores"):
        _ = steps.capped
    with pytest.raises(KeyError, match="capped"):
        _ = steps["capped"]
    assert not hasattr(steps, "_other")


def test_tap_is_called_in_order_and_its_result_replaces_the_intermediate(inputs):
    seen = []

    def tap(name, x):
        seen.append(name)
        return np.where(VISIBLE, 0.25, 0.0) * np.ones((H, 1, 1)) if name == "weights" else x

    steps = attention_steps(**inputs, **SETTINGS, tap=tap)
    assert tuple(seen) == NAMES  # keep has no gradient and is not tapped
    expected = np.where(inputs["keep"], np.where(VISIBLE, 0.25, 0.0) / 0.7, 0)
    np.testing.assert_allclose(steps.dropped, expected, rtol=1e-15)
    np.testing.assert_allclose(
        steps.out, expected @ np.repeat(inputs["value"], 2, axis=0), atol=1e-15
    )


def test_a_function_of_the_scores_has_gradients_that_reach_its_own_tensors(inputs, rng):
    """Scores x² − b(i − j), with b learned; what the mask hides has no influence."""
    query, key, value = (inputs[k] for k in ("query", "key", "value"))
    distance = np.arange(T)[:, None] - np.arange(S) + S - 1

    def attend(query, key, value, b):
        def tap(name, x):
            return x * x - b[:, distance] if name == "scaled" else x

        return attention_steps(query, key, value, VISIBLE, tap=tap).out

    given = query, key, value, rng.standard_normal((H, T + S - 1))
    mh.gradcheck(attend, *map(mh.Tensor, given))

    scores = (query @ np.repeat(key, 2, axis=0).mT) ** 2 / D - given[3][:, distance]
    weights = np.where(VISIBLE, np.exp(scores), 0)
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300)
    hidden = ~VISIBLE.any(axis=0)
    for poison in (0, np.nan):
        key, value = (np.where(hidden[:, None], poison, x) for x in (key, value))
        xs = [mh.Tensor(x, requires_grad=True) for x in (query, key, value, given[3])]
        out = attend(*xs)
        expected = weights @ np.repeat(given[2], 2, axis=0)
        np.testing.assert_allclose(out.data, expected, atol=1e-12)
        out.backward(rng.standard_normal(out.shape))
        assert all(np.isfinite(x.grad).all() for x in xs)


def test_a_drawn_dropout_mask_is_among_the_steps_and_can_be_reused(inputs, place):
    x = {k: place(v) for k, v in inputs.items() if k != "keep"}
    steps = attention_steps(**x, **SETTINGS, rng=np.random.default_rng(8))
    assert backend.is_boolean(steps.keep)
    for other in (
        attention_steps(**x, **SETTINGS, keep=steps.keep).out,
        attention_steps(**x, **SETTINGS, rng=np.random.default_rng(8)).out,
        *(
            mh.scaled_dot_product_attention(**x, **SETTINGS, **draw, implementation=name)
            for name in mh.attention.IMPLEMENTATIONS
            for draw in ({"keep": steps.keep}, {"rng": np.random.default_rng(8)})
        ),
    ):
        off = abs(backend.to_numpy(other) - backend.to_numpy(steps.out)).max()
        assert off <= 1e-12 * abs(backend.to_numpy(steps.out)).max()


def test_half_precision_is_computed_in_single_precision(inputs, rng):
    half = {k: x if k == "keep" else x.astype("float16") for k, x in inputs.items()}
    made = leaves(half)
    steps = attention_steps(**made, **SETTINGS)
    assert {n: str(steps[n].dtype) for n in NAMES} == dict.fromkeys(NAMES, "float32") | {
        "out": "float16"
    }
    steps.out.backward(rng.standard_normal((H, T, DV)).astype("float16"))
    assert all(x.grad.dtype == "float16" for k, x in made.items() if k != "keep")
    assert steps.gradients["out"].dtype == "float16"
    assert steps.gradients["scores"].dtype == "float32"


def test_scores_of_hidden_pairs_are_finite_before_masking(inputs):
    inputs["key"][:, 4] = math.nan  # no query sees the last key
    steps = attention_steps(**inputs, **SETTINGS)
    for name in NAMES[:4]:
        assert np.isfinite(steps[name]).all()
    assert np.isfinite(steps.out).all()


@pytest.fixture
def no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("backward", [False, True])
def test_the_graph_of_the_steps_is_freed_with_its_last_reference(backward, inputs, rng):
    steps = attention_steps(**leaves(inputs), **SETTINGS)
    watched = [weakref.ref(x) for x in steps.values() if isinstance(x, mh.Tensor)]
    if backward:
        steps.out.backward(rng.standard_normal((H, T, DV)))
    gradients = steps.gradients
    del steps
    assert len(watched) == len(NAMES)
    assert not any(ref() for ref in watched)
    assert bool(gradients) == backward  # the copies outlive the graph


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("implementation", mh.attention.IMPLEMENTATIONS)
def test_the_graph_of_the_function_is_freed_with_its_last_reference(implementation, inputs, rng):
    x = leaves(inputs)
    out, weights = mh.scaled_dot_product_attention(
        **x, **SETTINGS, return_weights="dropped", implementation=implementation
    )
    out.backward(rng.standard_normal((H, T, DV)), retain_graph=True)
    watched = [weakref.ref(x) for x in (out, weights, x["query"])]
    del out, weights, x
    assert not any(ref() for ref in watched)


def test_steps_can_be_copied(inputs):
    steps = attention_steps(**inputs, **SETTINGS)
    for other in (copy.copy(steps), copy.deepcopy(steps)):
        np.testing.assert_array_equal(other.out, steps.out)


@pytest.mark.parametrize(
    "cut",
    [
        "scores",
        *(pytest.param(c, marks=pytest.mark.thorough) for c in ("raw", "weights", "dropped")),
    ],
)
def test_a_gradient_check_locates_the_wrong_step(cut, inputs):
    def attend(query, key, value, *, tap=lambda _, x: x):
        def broken(name, x):
            x = tap(name, x)
            return x.detach() if name == cut else x

        rest = {name: x for name, x in inputs.items() if name not in ("query", "key", "value")}
        return attention_steps(query, key, value, **rest, **SETTINGS, tap=broken).out

    with pytest.raises(mh.GradcheckError) as failure:
        mh.gradcheck(attend, *(mh.Tensor(inputs[name]) for name in ("query", "key", "value")))
    assert (failure.value.diagnosis.nodes, failure.value.diagnosis.cause) == ((cut,), "zero")
