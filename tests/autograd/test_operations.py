"""Tests of every operation by its record in samples.py, on every requested library and device."""

import inspect
from functools import partial

import numpy as np
import pytest
from each_record import SLOW, every_case, hosts, several
from samples import FIRST, RECORDS, REFUSED, Case, named, not_public

from minimha_autograd import GradcheckError, Tensor, backend, gradcheck, no_grad, registry
from minimha_autograd.ops import elementwise

one_each = [
    pytest.param(s, marks=[pytest.mark.thorough] * (s[0].operation.__name__ in SLOW)) for s in FIRST
]


class Call:
    """An operation at a sample, with arrays moved to a place and floating-point arrays cast."""

    def __init__(self, sample, place=lambda x: x, dtype="float64", strided=False):
        self.record, self.case = sample
        self.operation = self.record.operation
        self.hosts = [self._cast(x, dtype, strided) for x in self.case.inputs]
        self.arrays = [place(x) for x in self.hosts]
        self.settings = {k: place(v) for k, v in self.case.settings.items()}
        self.dtype = dtype
        self.floats = [k for k, x in enumerate(self.arrays) if backend.is_floating(x)]

    @staticmethod
    def _cast(x, dtype, strided):
        if not (isinstance(x, np.ndarray) and x.dtype == np.float64):
            return x
        x = x.astype(dtype)
        if strided and x.ndim:  # the same entries, in every other place of memory, in column order
            x = np.asfortranarray(np.repeat(x, 2, axis=0))[::2]
            assert x.size < 2 or x.shape[0] < 2 or not x.flags.c_contiguous
        return x

    def widened(self):
        """The same case in float64."""
        arrays = [x.astype("float64") if k in self.floats else x for k, x in enumerate(self.hosts)]
        return Case(*arrays, **self.case.settings)

    def with_pullback(self, **more):
        return self.operation.with_pullback(*self.arrays, **self.settings, **more)

    def cotangents(self, result, seed=0):
        rng = np.random.default_rng(seed)
        return [
            backend.like(np.asarray(rng.standard_normal(tuple(y.shape))).astype(self.dtype), y)
            for y in several(result)
        ]


def assert_same(ours, theirs):
    for k, (one, two) in enumerate(zip(ours, theirs, strict=True)):
        assert (one is None) == (two is None), f"only one of the arrays {k} is None"
        assert one is None or np.array_equal(one, two), f"array {k} is {one}, not {two}"


def assert_close(expected, ours, tolerance, zero=()):
    """Relative to the largest entry of each array; if the true value is 0, of all arrays."""
    largest = [0.0 if x is None else abs(x).max(initial=0) for x in expected]
    for k, (one, two) in enumerate(zip(expected, ours, strict=True)):
        assert (one is None) == (two is None), f"only one of the arrays {k} is None"
        if one is not None:
            assert one.shape == two.shape, f"array {k} has the shape {two.shape}, not {one.shape}"
            size = max(largest) if k in zero else largest[k]
            np.testing.assert_allclose(
                two, one, rtol=0, atol=tolerance * size, err_msg=f"array {k}"
            )


def test_every_operation_has_a_record():
    ours = {f: name for name, f in registry.items() if name.startswith("minimha")}
    recorded = [record.operation for record in RECORDS]
    missing = [name for f, name in ours.items() if f not in recorded]
    assert not missing, f"no record for {', '.join(missing)}: add one each to tests/samples.py"
    several = [f.__name__ for f in ours if recorded.count(f) > 1]
    assert not several, f"tests/samples.py has several records for {', '.join(several)}"


def test_every_operation_is_public():
    assert not not_public(), not_public()


@pytest.mark.parametrize("name", elementwise._FUNCTIONS)
def test_a_row_of_the_table_saves_what_its_slope_takes(name):
    row = elementwise._FUNCTIONS[name]
    where = f'"{name}" in _FUNCTIONS of autograd/minimha_autograd/ops/elementwise.py'
    assert row.saved in ("x", "y", None), (
        f'{where} saves {row.saved!r}: "x", "y" or None is possible'
    )
    (taken,) = inspect.signature(row.slope).parameters
    assert taken == (row.saved or "_"), f"{where} saves {row.saved!r}, but its slope takes {taken}"
    assert name in elementwise._OTHERWISE or hasattr(np, name), (
        f"{where}: the libraries have no {name}: write a function that computes it, and name it in "
        "_OTHERWISE below the table"
    )
    assert hasattr(elementwise, name), f'{where} needs the line {name} = _unary("{name}") below'


@every_case
def test_every_library_agrees_with_the_reference_value_and_numpy_gradients(sample, place):
    here, there = Call(sample), Call(sample, place)
    expected = there.record.reference(*there.case.inputs, **there.case.settings)
    (on_numpy, pull), (result, pull_there) = here.with_pullback(), there.with_pullback()
    assert_close(several(expected), hosts(several(result)), 1e-13)
    gradients = pull_there(*there.cotangents(result))
    for k, (x, dx) in enumerate(zip(there.arrays, gradients, strict=True)):
        where = f"gradient {k} is not of the dtype and on the device of its array"
        assert dx is None or (dx.dtype, dx.device) == (x.dtype, x.device), where
    expected = pull(*here.cotangents(on_numpy))
    assert_close(expected, hosts(gradients), 1e-13, zero=there.record.zero)


@every_case(slow=SLOW)
def test_gradients_equal_the_complex_step(sample):
    call = Call(sample)
    report = gradcheck(partial(call.operation.with_pullback, **call.settings), *call.arrays)
    used = {}
    for row in report.rows:
        used.setdefault(row.input, set()).add(row.method)
    empty = not any(call.hosts[k].size for k in call.floats)
    exact = all("complex step" in methods for methods in used.values())  # of every input
    advice = f"set analytic={exact} in its record in tests/samples.py"
    if not exact:
        advice = f"let it accept complex numbers or, if it is not an analytic function, {advice}"
    assert empty or exact == call.record.analytic, f"checked by {used}: {advice}"
    wide = [x for x in report.rows if not x.note and x.method != "central" and x.allowed > 1e-10]
    assert not wide, f"the check allows large errors: {wide}"


def assert_damage_is_found(sample, damage):
    """Multiply each gradient of an operation in turn; the check must find every one."""
    call = Call(sample)
    if damage and not call.record.analytic:
        damage = 1 + 1e-8  # differences are less accurate than the complex step
    value, pullback = call.with_pullback()
    gradients = pullback(*call.cotangents(value))
    for k in call.floats:

        def damaged(x, k=k):
            arrays = [*call.arrays[:k], x, *call.arrays[k + 1 :]]
            value, pullback = call.operation.with_pullback(*arrays, **call.settings)
            return value, lambda *dy: (damage * pullback(*dy)[k],)

        if np.any(gradients[k]) and k not in call.record.zero:
            with pytest.raises(GradcheckError, match="the gradient of x is wrong"):
                gradcheck(damaged, call.arrays[k])


@pytest.mark.parametrize("sample", one_each, ids=named)
def test_a_wrong_gradient_is_found(sample):
    """The first case of each operation is enough: the test above allows every case 1e-10."""
    assert_damage_is_found(sample, 1 + 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("sample", FIRST, ids=named)
def test_a_gradient_of_zeros_is_found(sample):
    assert_damage_is_found(sample, 0.0)


@every_case
def test_strided_inputs_give_the_same_results(sample):
    plain, strided = Call(sample), Call(sample, strided=True)
    (y, pull), (z, pull_strided) = plain.with_pullback(), strided.with_pullback()
    dys = plain.cotangents(y)
    assert_close(several(y), several(z), 1e-13)
    assert_close(pull(*dys), pull_strided(*dys), 1e-13, zero=plain.record.zero)


@every_case
def test_float32_stays_float32(sample, place):
    """Values and gradients agree with float64 up to the rounding of a few float32 sums."""
    call = Call(sample, place, "float32")
    if "dtype" in call.settings:
        return  # it converts dtypes
    result, pullback = call.with_pullback()
    cotangents = call.cotangents(result)
    gradients = pullback(*cotangents)
    for kind, arrays in (("value", several(result)), ("gradient", gradients)):
        for k, y in enumerate(arrays):
            assert y is None or y.dtype == place.xp.float32, f"{kind} {k} is {y.dtype}"
    exact, exact_pullback = Call((call.record, call.widened())).with_pullback()
    expected = exact_pullback(*(x.astype("float64") for x in hosts(cotangents)))
    eps = np.finfo("float32").eps
    assert_close(several(exact), hosts(several(result)), 32 * eps)
    zero = [k for k, x in enumerate(expected) if x is not None and not x.any()]
    assert_close(expected, hosts(gradients), 32 * eps, zero=[*zero, *call.record.zero])


@every_case
def test_the_tape_gives_the_gradients_of_the_pullback(sample, place):
    call = Call(sample, place)
    result, pullback = call.with_pullback()
    cotangents = call.cotangents(result)
    leaves = [Tensor(x, requires_grad=True) if backend.is_floating(x) else x for x in call.arrays]
    with no_grad():
        unrecorded = several(call.operation(*leaves, **call.settings))
    outputs = several(call.operation(*leaves, **call.settings))
    recorded = [k for k, y in enumerate(unrecorded) if y.requires_grad]
    assert not recorded, f"values {recorded} require gradients inside no_grad()"
    for values in (unrecorded, outputs):
        assert_same(hosts(several(result)), hosts([y.data for y in values]))
    for _ in range(2):  # backward twice: the gradients accumulate
        for y, c in zip(outputs, cotangents, strict=True):
            y.backward(c, retain_graph=True)
    expected = hosts(dx for dx in pullback(*cotangents) if dx is not None)
    taped = hosts(leaf.grad for leaf in leaves if isinstance(leaf, Tensor))
    largest = max(abs(dx).max(initial=0) for dx in expected)
    for k, (ours, theirs) in enumerate(zip(taped, expected, strict=True)):
        off = abs(ours - 2 * theirs).max(initial=0)
        assert off <= 1e-14 * largest, f"gradient {k} on the tape is off by {off}"


@every_case
def test_a_pullback_changes_no_array_and_returns_the_required_gradients(sample, place):
    call = Call(sample, place)
    result, pullback = call.with_pullback()
    cotangents = call.cotangents(result)
    everything = [x for x in (*call.arrays, *cotangents) if backend.is_array(x)]
    before = [x.copy() for x in hosts(everything)]
    gradients = hosts(pullback(*cotangents))
    again = hosts(pullback(*cotangents))
    if place.name == "cupy":  # a GPU adds up the updates of an entry in no fixed order
        assert_close(gradients, again, 1e-14)
    else:
        assert_same(gradients, again)
    for k in call.floats:
        wanted = tuple(j == k for j in range(len(call.arrays)))
        _, pullback = call.with_pullback(wanted=wanted)
        alone = hosts(pullback(*cotangents))
        given = [j for j, dx in enumerate(alone) if dx is not None]
        assert given == [k], f"only gradient {k} is wanted, but {given} are returned"
        try:
            assert_close(gradients[k : k + 1], alone[k : k + 1], 1e-13)
        except AssertionError as error:
            error.add_note(f"gradient {k} is another one if it is the only one that is wanted")
            raise
    assert_same(before, hosts(everything))


@pytest.mark.parametrize("sample", REFUSED, ids=named)
def test_invalid_arguments_raise_an_error_with_the_reason(sample, place):
    record, case = sample
    arrays = [place(x) for x in case.inputs]
    if not (case.on_devices or backend.on_host(arrays[0])):
        return
    settings = {k: place(v) for k, v in case.settings.items()}
    match = case.match.replace("ndarray", "[A-Za-z]+").replace("float", "[a-z_.]*float")
    for call in (record.operation, record.operation.with_pullback):
        with pytest.raises(case.error, match=match) as failure:
            call(*arrays, **settings)
        assert str(failure.value).startswith(f"{record.operation.__name__}")
