"""Every registered operation, by its record in samples.py, on every library and device asked for."""

import numpy as np
import pytest
from samples import RECORDS, REFUSED, SAMPLES, named

from minimha_autograd import GradcheckError, Tensor, backend, gradcheck, no_grad, registry

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=map(named, SAMPLES))


class Call:
    """An operation at a sample, its arrays brought to a place and those of floats cast."""

    def __init__(self, sample, place=lambda x: x, dtype="float64", strided=False):
        self.record, case = sample
        self.operation = self.record.operation
        self.hosts = [self._cast(x, dtype, strided) for x in case.inputs]
        self.arrays = [place(x) for x in self.hosts]
        self.settings = {k: place(v) for k, v in case.settings.items()}
        self.place, self.dtype = place, dtype
        self.floats = [k for k, x in enumerate(self.arrays) if backend.is_floating(x)]

    @staticmethod
    def _cast(x, dtype, strided):
        if not (isinstance(x, np.ndarray) and x.dtype == np.float64):
            return x
        x = x.astype(dtype)
        if strided and x.ndim:  # the same entries, every other one of memory, in column order
            x = np.asfortranarray(np.repeat(x, 2, axis=0))[::2]
            assert x.size < 2 or x.shape[0] < 2 or not x.flags.c_contiguous
        return x

    def with_pullback(self, **more):
        return self.operation.with_pullback(*self.arrays, **self.settings, **more)

    def cotangents(self, result, seed=0):
        rng = np.random.default_rng(seed)
        return [
            backend.like(np.asarray(rng.standard_normal(tuple(y.shape))).astype(self.dtype), y)
            for y in several(result)
        ]


def several(result):
    return result if isinstance(result, tuple) else (result,)


def hosts(arrays):
    return [None if x is None else backend.to_numpy(x) for x in arrays]


def assert_same(ours, theirs):
    for one, two in zip(ours, theirs, strict=True):
        assert (one is None) == (two is None)
        assert one is None or np.array_equal(one, two)


def test_every_operation_has_a_record():
    ours = {f for name, f in registry.items() if name.startswith("minimha")}
    assert ours == {record.operation for record in RECORDS}
    assert len(RECORDS) == len(ours)


@every_sample
def test_value_equals_the_reference(sample, place):
    call = Call(sample, place)
    expected = call.record.reference(*sample[1].inputs, **sample[1].settings)
    for ours, theirs in zip(
        hosts(several(call.operation(*call.arrays, **call.settings))),
        several(expected),
        strict=True,
    ):
        assert ours.shape == np.shape(theirs)
        bound = 1e-13 * max(1, np.max(abs(theirs), initial=0))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)


@every_sample
def test_gradients_equal_the_complex_step(sample, place):
    call = Call(sample, place)

    def f(*arrays):
        return call.operation.with_pullback(*arrays, **call.settings)

    report = gradcheck(f, *call.arrays)
    used = {row.method for row in report.rows}
    empty = not any(call.hosts[k].size for k in call.floats)
    assert empty or ("complex step" in used) == call.record.analytic
    for row in report.rows:
        assert row.note or row.method == "central" or row.allowed <= 1e-10
    if not call.record.analytic:
        assert_equal_to_richardson(call)


def assert_equal_to_richardson(call):
    """To 1e-10, for what takes no complex numbers."""
    result, pullback = call.with_pullback()
    (cotangent,) = hosts(call.cotangents(result))
    gradients = hosts(pullback(*call.cotangents(result)))

    for k in call.floats:
        x = call.hosts[k]

        def loss(moved, k=k):
            arrays = [*call.arrays[:k], call.place(moved), *call.arrays[k + 1 :]]
            return np.sum(cotangent * hosts([call.operation(*arrays, **call.settings)])[0])

        numeric = np.array([richardson(loss, x, at) for at in np.ndindex(x.shape)])
        error = abs(gradients[k].ravel() - numeric).max(initial=0)
        assert error <= 1e-10 * abs(numeric).max(initial=0)


def richardson(loss, x, at, levels=5, h=0.1):
    """Central differences at h, h/2, h/4 …, the powers of h taken out one by one."""
    table = []
    for level in range(levels):
        up, down, step = x.copy(), x.copy(), h / 2**level
        up[at] += step
        down[at] -= step
        row = [(loss(up) - loss(down)) / (2 * step)]
        for k, above in enumerate(table, 1):
            row.append(row[-1] + (row[-1] - above) / (4**k - 1))
        table = row
    return table[-1]


@every_sample
def test_strided_inputs_are_as_good(sample):
    plain, strided = Call(sample), Call(sample, strided=True)
    (y, pull), (z, pull_strided) = plain.with_pullback(), strided.with_pullback()
    dys = plain.cotangents(y)
    for a, b in zip([*several(y), *pull(*dys)], [*several(z), *pull_strided(*dys)], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-13 * max(1, abs(a).max(initial=0)))


@every_sample
@pytest.mark.parametrize("damage", [0.0, 1 + 1e-9])
def test_a_wrong_gradient_is_found(sample, damage):
    """Each gradient of each operation damaged in turn, and each must be found."""
    call = Call(sample)
    if damage and not call.record.analytic:
        damage = 1 + 1e-8  # differences do not see as little as the complex step does
    for k in call.floats:

        def damaged(x, k=k):
            arrays = [*call.arrays[:k], x, *call.arrays[k + 1 :]]
            value, pullback = call.operation.with_pullback(*arrays, **call.settings)
            return value, lambda *dy: (damage * pullback(*dy)[k],)

        _, pullback = call.with_pullback()
        gradient = pullback(*call.cotangents(call.with_pullback()[0]))[k]
        if gradient.size and np.any(gradient) and k not in call.record.zero:
            with pytest.raises(GradcheckError, match="the gradient of x is wrong"):
                gradcheck(damaged, call.arrays[k])


@every_sample
def test_float32_stays_float32(sample, place):
    call = Call(sample, place, "float32")
    if "dtype" in call.settings:
        pytest.skip("it converts")
    result, pullback = call.with_pullback()
    assert all(y.dtype == place.xp.float32 for y in several(result))
    for x, dx in zip(call.arrays, pullback(*call.cotangents(result)), strict=True):
        assert dx is None or (dx.dtype == place.xp.float32 and dx.shape == x.shape)
    gradcheck(lambda *a: call.operation.with_pullback(*a, **call.settings), *call.arrays)


@every_sample
def test_the_tape_gives_what_the_pullback_gives(sample, place):
    call = Call(sample, place)
    result, pullback = call.with_pullback()
    cotangents = call.cotangents(result)
    leaves = [Tensor(x, requires_grad=True) if backend.is_floating(x) else x for x in call.arrays]
    outputs = several(call.operation(*leaves, **call.settings))
    assert_same(hosts(several(result)), hosts([y.data for y in outputs]))
    for _ in range(2):  # backward twice: the gradients add up
        for y, c in zip(outputs, cotangents, strict=True):
            y.backward(c, retain_graph=True)
    expected = hosts(dx for dx in pullback(*cotangents) if dx is not None)
    taped = hosts(leaf.grad for leaf in leaves if isinstance(leaf, Tensor))
    largest = max(abs(dx).max(initial=0) for dx in expected)
    for ours, theirs in zip(taped, expected, strict=True):
        assert abs(ours - 2 * theirs).max(initial=0) <= 1e-14 * largest


@every_sample
def test_inputs_and_cotangents_stay_as_they_were(sample, place):
    call = Call(sample, place)
    result, pullback = call.with_pullback()
    cotangents = call.cotangents(result)
    everything = [x for x in (*call.arrays, *cotangents) if backend.is_array(x)]
    before = [x.copy() for x in hosts(everything)]
    first, again = pullback(*cotangents), pullback(*cotangents)
    assert_same(before, hosts(everything))
    assert_same(hosts(first), hosts(again))


@every_sample
def test_only_wanted_gradients_come_back(sample, place):
    call = Call(sample, place)
    for k in call.floats:
        wanted = tuple(j == k for j in range(len(call.arrays)))
        value, pullback = call.with_pullback(wanted=wanted)
        gradients = pullback(*call.cotangents(value))
        assert [dx is not None for dx in gradients] == list(wanted)


@every_sample
def test_where_no_gradient_is_wanted_none_is_recorded(sample):
    call = Call(sample)
    leaves = [Tensor(x, requires_grad=k in call.floats) if backend.is_array(x) else x
              for k, x in enumerate(call.arrays)]  # fmt: skip
    with no_grad():
        outputs = several(call.operation(*leaves, **call.settings))
    assert not any(y.requires_grad for y in outputs)


@pytest.mark.parametrize("sample", REFUSED, ids=map(named, REFUSED))
def test_what_cannot_be_is_refused_with_the_reason(sample, place):
    record, case = sample
    arrays = [place(x) for x in case.inputs]
    settings = {k: place(v) for k, v in case.settings.items()}
    match = case.match.replace("ndarray", "[A-Za-z]+").replace("float", "[a-z_.]*float")
    for call in (record.operation, record.operation.with_pullback):
        with pytest.raises(case.error, match=match) as failure:
            call(*arrays, **settings)
        assert str(failure.value).startswith(f"{record.operation.__name__}")
