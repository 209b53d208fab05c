"""Every registered operation, by its record in samples.py, on every array library asked for."""

import numpy as np
import pytest
from samples import SAMPLES

import minimha as mh
from minimha_autograd import GradcheckError, Tensor, backend, gradcheck, registry

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=str)


def on(xp, sample, dtype="float64"):
    """The inputs of a sample in a library, the floating-point ones in a dtype."""
    return [
        backend.move(x.astype(dtype) if x.dtype == np.float64 else x, xp)
        if isinstance(x, np.ndarray)
        else x
        for x in sample.inputs
    ]


def settings_on(xp, sample):
    return {
        k: backend.move(v, xp) if isinstance(v, np.ndarray) else v
        for k, v in sample.settings.items()
    }


def values(result):
    return [backend.to_numpy(y) for y in (result if isinstance(result, tuple) else (result,))]


def value_and_gradients(xp, sample, dtype="float64", seed=0):
    """The values, and the gradients of the raw pullback for random cotangents."""
    result, pullback = sample.operation.with_pullback(
        *on(xp, sample, dtype), **settings_on(xp, sample)
    )
    rng = np.random.default_rng(seed)
    results = result if isinstance(result, tuple) else (result,)
    cotangents = [
        backend.move(rng.standard_normal(tuple(y.shape)).astype(dtype), xp) for y in results
    ]
    return result, cotangents, pullback


def test_every_operation_has_a_record():
    ours = {f for name, f in registry.items() if name.startswith("minimha")}
    assert ours == {sample.operation for sample in SAMPLES}


@every_sample
def test_value_equals_the_reference(sample, xp):
    result = sample.operation(*on(xp, sample), **settings_on(xp, sample))
    expected = sample.reference(*sample.inputs)
    for ours, theirs in zip(values(result), values(expected), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(
            ours, theirs, rtol=0, atol=1e-13 * max(1, abs(theirs).max(initial=0))
        )


@every_sample
def test_gradients_equal_the_complex_step(sample, xp):
    def f(*arrays):
        return sample.operation.with_pullback(*arrays, **settings_on(xp, sample))

    report = gradcheck(f, *on(xp, sample))
    used = {row.method for row in report.rows}
    assert ("complex step" in used) == sample.analytic


@every_sample
@pytest.mark.parametrize("damage", [0.0, 2.0, 1 + 1e-9])
def test_a_wrong_gradient_is_found(sample, damage):
    """Each gradient of each operation damaged in turn, and each must be found."""
    operation = sample.operation

    def damaged(at, *inputs):
        """The operation as a function of one input, with its gradient damaged."""

        def f(x):
            arrays = (*inputs[:at], x, *inputs[at + 1 :])
            value, pullback = operation.with_pullback(*arrays, **sample.settings)
            return value, lambda *dy: (damage * pullback(*dy)[at],)

        return f

    for k, x in enumerate(sample.inputs):
        key_bias = operation is mh.multi_head_attention and k == 8  # its true gradient is zero
        empty = 0 in [n for y in sample.inputs for n in np.shape(y)]
        if backend.is_floating(x) and not key_bias and not empty:
            with pytest.raises(GradcheckError, match="the gradient of x is wrong"):
                gradcheck(damaged(k, *sample.inputs), x)


@every_sample
def test_float32_stays_float32(sample, xp):
    result, cotangents, pullback = value_and_gradients(xp, sample, "float32")
    for y in result if isinstance(result, tuple) else (result,):
        assert y.dtype == xp.float32
    for x, dx in zip(on(xp, sample, "float32"), pullback(*cotangents), strict=True):
        assert dx is None or (dx.dtype == xp.float32 and dx.shape == x.shape)
    gradcheck(
        lambda *a: sample.operation.with_pullback(*a, **settings_on(xp, sample)),
        *on(xp, sample, "float32"),
    )


@every_sample
def test_the_tape_gives_what_the_pullback_gives(sample, xp):
    result, cotangents, pullback = value_and_gradients(xp, sample)
    arrays = on(xp, sample)
    leaves = [Tensor(x, requires_grad=True) if backend.is_floating(x) else x for x in arrays]
    outputs = sample.operation(*leaves, **settings_on(xp, sample))
    for y, c in zip(outputs if isinstance(outputs, tuple) else (outputs,), cotangents, strict=True):
        y.backward(c, retain_graph=True)
    assert all(
        np.array_equal(a, b) for a, b in zip(values(result), values(untaped(outputs)), strict=True)
    )
    gradients = [backend.to_numpy(dx) for dx in pullback(*cotangents) if dx is not None]
    taped = [backend.to_numpy(leaf.grad) for leaf in leaves if isinstance(leaf, Tensor)]
    largest = max(abs(dx).max(initial=0) for dx in gradients)
    for ours, theirs in zip(taped, gradients, strict=True):
        assert abs(ours - theirs).max(initial=0) <= 1e-14 * largest


def untaped(outputs):
    return tuple(y.data for y in outputs) if isinstance(outputs, tuple) else outputs.data


@every_sample
def test_inputs_and_cotangents_stay_as_they_were(sample, xp):
    inputs = on(xp, sample)
    _, cotangents, _ = value_and_gradients(xp, sample)
    before = [backend.to_numpy(x).copy() for x in [*inputs, *cotangents] if backend.is_array(x)]
    _, pullback = sample.operation.with_pullback(*inputs, **settings_on(xp, sample))
    first, again = pullback(*cotangents), pullback(*cotangents)
    after = [backend.to_numpy(x) for x in [*inputs, *cotangents] if backend.is_array(x)]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    for one, two in zip(first, again, strict=True):
        assert (one is None) == (two is None)
        assert one is None or np.array_equal(backend.to_numpy(one), backend.to_numpy(two))


@every_sample
def test_only_wanted_gradients_come_back(sample, xp):
    inputs = on(xp, sample)
    for k, x in enumerate(inputs):
        if backend.is_floating(x):
            wanted = tuple(j == k for j in range(len(inputs)))
            value, pullback = sample.operation.with_pullback(
                *inputs, wanted=wanted, **settings_on(xp, sample)
            )
            ys = value if isinstance(value, tuple) else (value,)
            gradients = pullback(*(xp.ones_like(y) for y in ys))
            assert [dx is not None for dx in gradients] == list(wanted)
