"""16-bit floats: every result of an operation is that of float32, rounded once.

The cases of each record in samples.py are tried as they are, with large and with small inputs, and
with one of their axes thousands of entries long.
"""

import copy
import itertools

import numpy as np
import pytest
from each_record import SLOW, every_case, several
from samples import RECORDS

from minimha import nn
from minimha.functional import linear
from minimha.functional.implementations import named
from minimha_autograd import Tensor, backend, detect_anomaly, operation, ops

pytestmark = pytest.mark.half

LONG = 6000
"""The length of a long axis: in 16 bits, a sum of this many ones would stop growing."""

CHANGES = {
    "as they are": lambda x, k: x,
    "large": lambda x, k: 400 * x,
    "the first large": lambda x, k: x if k else 400 * x,
    "far from 0": lambda x, k: x + 3000,
    "the first far from 0": lambda x, k: x if k else x + 3000,
    "small": lambda x, k: x / 1000,
}
"""How input k is changed. The largest float16 is 65504, so the square of 400 is infinite."""


class Half:
    """A case at a place: each floating-point input rounded to 16 bits, and the same in float32."""

    def __init__(self, record, case, place, dtype):
        self.operation, self.place, self.dtype = record.operation, place, dtype
        self.settings = {k: place(v) for k, v in case.settings.items()}
        xp = place.xp
        self.inputs = inputs = [
            xp.astype(place(x.astype("float32")), dtype) if is_drawn(x) else place(x)
            for x in case.inputs
        ]
        self.ours, self.pull = self._computed(inputs)
        self.wide, self.pull_wide = self._computed([self.widened(x) for x in inputs])

    def widened(self, x):
        return self.place.xp.astype(x, self.place.xp.float32) if backend.is_half(x) else x

    def _computed(self, inputs):
        value, pullback = self.operation.with_pullback(*inputs, **self.settings)
        return several(value), pullback

    def pairs(self):
        """Each value and each gradient in 16 bits, and the same in float32."""
        yield from zip(self.ours, self.wide, strict=True)
        dys = self.cotangents()
        yield from zip(self.pull(*dys), self.pull_wide(*map(self.widened, dys)), strict=True)

    def cotangents(self, size=1.0, seed=0):
        """Positive numbers, so that their sums grow."""
        rng, astype = np.random.default_rng(seed), self.place.xp.astype
        low, high = 0.5 * size, 2 * size
        drawn = [rng.uniform(low, high, tuple(y.shape)).astype("float32") for y in self.ours]
        return [astype(self.place(x), y.dtype) for x, y in zip(drawn, self.ours, strict=True)]

    def cotangents_of_uses(self, size):
        """For four uses: c, −c, d and e, each with a cotangent for every value."""
        c, d, e = (self.cotangents(size, seed=k) for k in range(3))
        return c, [backend.asarray(-dy) for dy in c], d, e

    def of_absolute_values(self):
        """Each value and gradient, computed from absolute values: for a sum of products, this is
        the sum of the absolute values of its terms."""
        positive = [abs(x) if backend.is_floating(x) else x for x in self.inputs]
        values, pullback = self._computed([self.widened(x) for x in positive])
        yield from values
        yield from pullback(*map(self.widened, self.cotangents()))


def is_drawn(x):
    return isinstance(x, np.ndarray) and x.dtype == np.float64


def changed(case, change):
    """The case with each entry of its floating-point inputs changed."""
    other = copy.copy(case)
    other.inputs = tuple(
        np.asarray(change(x, k)) if is_drawn(x) else x for k, x in enumerate(case.inputs)
    )
    return other


def lengthened(case, length):
    """The case with every axis of this length repeated until it is long. Sizes of samples are
    distinct, so these are the same axis of all arrays."""

    def repeated(x):
        if not (isinstance(x, np.ndarray) and length in x.shape):
            return x
        for axis, n in enumerate(x.shape):
            if n == length:
                x = np.take(x, np.arange(LONG) % n, axis=axis)
        return x

    other = copy.copy(case)
    other.inputs = tuple(map(repeated, case.inputs))
    other.settings = {name: repeated(x) for name, x in case.settings.items()}
    return other


each = [
    pytest.param(r, id=name, marks=[pytest.mark.thorough] * (name in SLOW))
    for name, r in ((r.operation.__name__, r) for r in RECORDS)
]


def axes_of_their_own(case):
    """The lengths that occur at most once in each array, so that no array gets two long axes."""
    shapes = [x.shape for x in (*case.inputs, *case.settings.values()) if hasattr(x, "shape")]
    lengths = {n for shape in shapes for n in shape if n > 1}
    return sorted(n for n in lengths if all(shape.count(n) < 2 for shape in shapes))


def assert_rounded_once(sample, products=False):
    """Each result has the bits of the one in float32, after rounding.

    On a device, products of matrices are rounded before a bias is added. So they may differ by one
    unit in the last place of the sum of the absolute values of their terms.
    """
    on_device = products and not backend.on_host(sample.ours[0])
    sums = sample.of_absolute_values() if on_device else itertools.repeat(0.0)
    for (ours, wide), total in zip(sample.pairs(), sums, strict=False):
        assert (ours is None) == (wide is None)
        if wide is not None and wide.dtype == sample.place.xp.float32:
            expected = sample.place.xp.astype(wide, sample.dtype)
            assert ours.dtype == expected.dtype
            assert_near(*map(as_float64, (ours, expected, total)), sample.dtype)
        else:
            assert ours is wide is None or ours.dtype == wide.dtype


def assert_near(ours, expected, total, dtype):
    """Equal, or within a unit in the last place of the total."""
    largest, unit = (65504.0, 2**-10) if "bf" not in str(dtype) else (3.39e38, 2**-7)
    near = abs(ours - expected) <= unit * total
    near |= np.isinf(ours) & (total >= largest * (1 - unit))
    np.testing.assert_array_equal(ours[~near], expected[~near])


def as_float64(x):
    return np.asarray(backend.to_numpy(x) if backend.is_array(x) else x).astype("float64")


def by_kernels_for_16_bits(case, place):
    """Whether a kernel for GPUs computes attention. It also rounds the weights to 16 bits, so its
    own tests apply the larger bound of attention_paths.BARS."""
    name = case.settings.get("implementation")
    return name is not None and named("attention", name).native(place(np.zeros(1)))


@pytest.fixture(params=["float16", "bfloat16"])
def dtype(request, place):
    """Both 16-bit dtypes, where the place has them."""
    if request.param == "bfloat16" and backend.indexes_as_numpy(place.xp):
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    if not hasattr(place.xp, request.param):
        pytest.skip(f"no {request.param} there")
    return getattr(place.xp, request.param)


@pytest.mark.filterwarnings("ignore")  # infinities, where a result is too large
@every_case(slow=SLOW)
def test_every_result_is_that_of_float32_rounded_once(sample, place, dtype):
    record, case = sample
    if by_kernels_for_16_bits(case, place):
        return
    for name, change in CHANGES.items():
        try:
            assert_rounded_once(Half(record, changed(case, change), place, dtype), record.products)
        except AssertionError as error:
            error.add_note(f"with inputs {name}")
            raise


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("record", each)
def test_every_result_of_a_long_input_is_that_of_float32_rounded_once(record, place, dtype):
    """In the first case that accepts a long axis, each axis is lengthened in turn."""
    for case in record.cases:
        accepted = False
        for length in axes_of_their_own(case):
            try:
                sample = Half(record, lengthened(case, length), place, dtype)
            except (ValueError, IndexError, TypeError):
                continue  # another axis or a setting would have to grow, too
            accepted = True
            try:
                assert_rounded_once(sample, record.products)
            except AssertionError as error:
                error.add_note(f"in the case {case}, with {LONG} in place of {length}")
                raise
        if accepted:
            assert not record.short
            return
    assert record.short, "no case has an axis that can be long"


@pytest.mark.parametrize("uses", [1, 3000])
def test_a_gradient_is_rounded_once_when_all_its_parts_have_been_added(uses, place, dtype):
    """Even where each part would be 0 in 16 bits: float16 rounds numbers below 3e-8 to 0."""
    xp = place.xp
    x = Tensor(xp.ones(3, dtype=dtype, device=place.device), requires_grad=True)
    for part, bound in ((1.0, 3000.0), (2.0**-26, 3000 * 2.0**-26)):
        x.grad = None
        ops.stack([ops.multiply(x, part) for _ in range(uses)]).astype(xp.float32).sum().backward()
        expected = xp.astype(xp.asarray([uses / 3000 * bound]), dtype)
        np.testing.assert_array_equal(*map(as_float64, (x.grad, expected[[0, 0, 0]])))
        assert x.grad.dtype == dtype


@pytest.mark.filterwarnings("ignore")
@every_case(slow=SLOW)
def test_a_gradient_is_rounded_once_when_the_parts_of_all_uses_have_been_added(
    sample, place, dtype
):
    """One Tensor is used four times, with the cotangents c, −c, d and e. So parts that are too large
    for 16 bits cancel, and small ones, below the smallest 16-bit number, add up."""
    record, case = sample
    if record.products and not backend.on_host(place(np.zeros(1))):
        return  # a device rounds products of matrices
    if by_kernels_for_16_bits(case, place):
        return
    for name, change in CHANGES.items():
        half = Half(record, changed(case, change), place, dtype)
        for size in 1.0, 30_000.0, 2.0**-12:
            try:
                assert_sums_rounded_once(half, size)
            except AssertionError as error:
                error.add_note(f"with inputs {name} and cotangents times {size}")
                raise


def assert_sums_rounded_once(half, size):
    """The gradients of four uses have the bits of their sum in float32, after rounding."""
    cotangents = half.cotangents_of_uses(size)
    leaves = [Tensor(x, requires_grad=True) if backend.is_floating(x) else x for x in half.inputs]
    values = [several(half.operation(*leaves, **half.settings)) for _ in cotangents]
    if not any(isinstance(y, Tensor) and y.requires_grad for y in values[0]):
        return
    libraries = {type(x) for x in half.inputs}
    if any(type(y.data) not in libraries for y in values[0]):
        return  # they were moved to another library, which adds nothing up
    flat = [
        (ops.reshape(y, -1), dy.reshape(-1))
        for ys, dys in zip(values, cotangents, strict=True)
        for y, dy in zip(ys, dys, strict=True)
        if y.requires_grad
    ]
    ys, dys = zip(*flat, strict=True)
    ops.concat(*ys).backward(half.place.xp.concat(dys))

    parts = [half.pull_wide(*map(half.widened, dys)) for dys in cotangents]
    newest_first = parts[::-1]
    for k, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor) or leaf.grad is None:
            continue
        total = newest_first[0][k]
        for part in newest_first[1:]:
            total = backend.asarray(total + part[k])
        expected = half.place.xp.astype(total, leaf.dtype)
        assert leaf.grad.dtype == expected.dtype
        np.testing.assert_array_equal(as_float64(leaf.grad), as_float64(expected))


@pytest.mark.filterwarnings("ignore")
@every_case(slow=SLOW)
def test_a_gradient_has_the_dtype_of_its_argument(sample, place, dtype):
    """Also where one argument has 16 bits and the others 32, as some operations allow."""
    record, case = sample
    floats = [k for k, x in enumerate(case.inputs) if is_drawn(x)]
    settings = {name: place(x) for name, x in case.settings.items()}
    for narrow in floats:
        leaves = []
        for k, x in enumerate(case.inputs):
            y = place(x.astype("float32")) if k in floats else place(x)
            y = place.xp.astype(y, dtype) if k == narrow else y
            leaves.append(Tensor(y, requires_grad=True) if k in floats else y)
        try:
            values = several(record.operation(*leaves, **settings))
        except TypeError:
            continue  # the operation needs one dtype
        for y in values:
            if isinstance(y, Tensor) and y.requires_grad:
                one = backend.namespace(y.data).ones_like(y.data)
                y.backward(one, retain_graph=True)
        for k in floats:
            assert leaves[k].grad is None or leaves[k].grad.dtype == leaves[k].dtype


def narrow_weight(dtype, place):
    """A weight (4, 2) of 16 bits, which also is the product of a leaf, and a wide input."""
    xp = place.xp
    leaf = Tensor(xp.ones((4, 2), dtype=dtype, device=place.device), requires_grad=True)
    return leaf, ops.multiply(leaf, 1.0), xp.ones((3, 4), dtype=xp.float32, device=place.device)


def test_hooks_assignments_and_clipping_keep_the_dtype_of_16_bit_weights(place, dtype):
    """Though the input that they are multiplied by is float32."""
    leaf, weight, x = narrow_weight(dtype, place)
    seen = []
    for tensor in (leaf, weight):
        tensor.register_hook(lambda g: [seen.append(g.dtype), g][1])
    y = linear(x, weight).sum()
    y.backward(retain_graph=True)
    assert seen == [dtype] * 2
    assert weight.grad.dtype == leaf.grad.dtype == dtype
    for number in 1024, 1024.0:  # NumPy's bfloat16, divided by the latter, is float32
        leaf.grad = leaf.grad / number
        assert leaf.grad.dtype == dtype
    for largest in (1e-3, 1e9):
        nn.clip_gradients([leaf], largest)
        assert leaf.grad.dtype == dtype


def test_float32_given_as_a_gradient_of_16_bits_is_rounded(place, dtype):
    """To backward(), by a hook, and as .grad; float64 is refused."""
    xp = place.xp
    number = 1 + 2**-5 + 2**-20
    wide = xp.full((3,), number, dtype=xp.float32, device=place.device)
    expected = as_float64(xp.astype(wide, dtype))
    x = Tensor(xp.ones(3, dtype=dtype, device=place.device), requires_grad=True)
    ops.negative(x).backward(wide)
    np.testing.assert_array_equal(as_float64(x.grad), -expected)

    x.grad = wide
    np.testing.assert_array_equal(as_float64(x.grad), expected)

    x.grad = None
    x.register_hook(lambda _: wide)
    ops.sum(x).backward()
    np.testing.assert_array_equal(as_float64(x.grad), expected)
    assert x.grad.dtype == dtype
    with pytest.raises(TypeError, match="float64"):
        x.grad = xp.astype(wide, xp.float64)


@pytest.mark.parametrize("wide_first", [True, False])
def test_parts_from_operations_in_16_and_in_32_bits_are_rounded_once(wide_first, place, dtype):
    """One part is too large for float16, unless a part of the other kind is subtracted from it."""
    xp = place.xp
    leaf, _, x = narrow_weight(dtype, place)
    parts = [
        lambda: linear(30_000 * x, leaf).sum(),
        lambda: ops.sum(leaf.astype(xp.float32) * -90_001.0),
    ]
    first, second = (parts[k]() for k in (wide_first, not wide_first))
    (first + second).backward()
    np.testing.assert_array_equal(as_float64(leaf.grad), -1.0)


def test_an_operation_that_is_not_native_sees_float32(place, dtype):
    xp = place.xp
    seen = []

    @operation
    def double(x):
        seen.append(x.dtype)

        def pullback(dy):
            seen.append(dy.dtype)
            return (2 * dy,)

        return 2 * x, pullback

    x = Tensor(xp.ones(3, dtype=dtype, device=place.device), requires_grad=True)
    y = double(x)
    y.backward(xp.ones_like(x.data))
    assert seen == [xp.float32] * 2
    assert y.dtype == x.grad.dtype == dtype


def test_a_gradient_of_float64_for_an_argument_of_16_bits_is_refused():
    @operation
    def wrong(x):
        return 2 * x, lambda dy: (dy.astype("float64"),)

    with pytest.raises(TypeError, match="a gradient of float64 for an argument of float16"):
        wrong(Tensor(np.ones(3, "float16"), requires_grad=True)).sum().backward()


def test_an_infinite_gradient_after_rounding_is_an_anomaly_where_it_is_made():
    x = Tensor(np.ones(3, "float16"), requires_grad=True)
    match = "infinity first appeared in the backward of multiply, in the gradient of a"
    with np.errstate(over="ignore"), detect_anomaly():
        y = ops.multiply(x, 300.0)
        with pytest.raises(FloatingPointError, match=match):
            y.backward(np.full(3, 300, "float16"))
