"""Corner cases in which operations were once wrong."""

import sys

import numpy as np
import pytest

import minimha as mh
from minimha import ops
from minimha_autograd import backend


def leaf(values, dtype="float64"):
    return mh.Tensor(np.array(values, dtype=dtype), requires_grad=True)


def gradient(f, x, seed=None):
    y = f(x)
    y.backward(np.ones(y.shape, dtype=y.dtype) if seed is None else seed)
    return x.grad


@pytest.mark.parametrize(("base", "power", "to_base", "to_power"), [
    (np.inf, 0.0, 0.0, np.inf),  # ∞⁰ is flat in its base
    (np.nan, 0.0, 0.0, np.nan),
    (0.0, 3.0, 0.0, 0.0),
    (0.0, 0.0, 0.0, 0.0),
    (0.0, -1.0, -np.inf, -np.inf),
    (-2.0, 3.0, 12.0, np.nan),  # a negative base has no real power nearby
])  # fmt: skip
def test_powers_of_zero_and_infinity_have_the_right_gradients(base, power, to_base, to_power):
    a, b = leaf([base]), leaf([power])
    with np.errstate(all="ignore"):
        (a**b).sum().backward()
    np.testing.assert_array_equal(a.grad, [to_base])
    np.testing.assert_array_equal(b.grad, [to_power])


@pytest.mark.parametrize("power", [np.array([-128], dtype="int8"), np.array([True])])
def test_powers_may_be_integer_or_boolean_arrays(power):
    base = leaf([1.01])
    number = float(power[0])
    np.testing.assert_allclose(gradient(lambda x: x**power, base), number * 1.01 ** (number - 1))


def test_integers_combined_with_floats_are_not_truncated():
    integers = np.array([0, 1, 2])
    np.testing.assert_array_equal(ops.maximum(integers, 0.5), [0.5, 1, 2])
    np.testing.assert_array_equal(ops.minimum(integers, 1.5), [0, 1, 1.5])
    np.testing.assert_array_equal(ops.clip(integers, 0.5, 1.5), [0.5, 1, 1.5])
    assert ops.maximum(integers, 1).dtype == integers.dtype
    small = np.array([16, 255], dtype="uint8")  # an intermediate result would overflow
    np.testing.assert_array_equal(ops.erf(small), 1)
    np.testing.assert_array_equal(ops.erf(np.array([-128], dtype="int8")), -1)
    np.testing.assert_allclose(ops.logsumexp(small), 255)


def test_float16_is_summed_in_float32():
    assert ops.mean(np.full(1000, 100, dtype="float16")) == 100
    many = leaf(np.zeros(70_000), "float16")
    share = np.float16(1 / 70_000)  # the nearest float16, not 0
    assert share > 0
    np.testing.assert_array_equal(gradient(ops.mean, many), share)
    assert many.grad.dtype == np.float16
    np.testing.assert_allclose(ops.var(np.tile([100, -100], 500).astype("float16")), 10_000)
    np.testing.assert_allclose(
        ops.erf(np.array([0.1, 2, 3, 5], dtype="float16")), [0.1125, 0.9953, 1, 1], atol=1e-3
    )
    np.testing.assert_array_equal(gradient(ops.max, leaf(np.zeros(70_000), "float16")), share)


@pytest.mark.parametrize(
    "total",
    [lambda x: x.sum(axis=0), lambda x: ops.einsum("ij->j", x), lambda x: ops.cumsum(x, 0)[-1]],
)
def test_sums_of_float16_do_not_stop_growing(total):
    y = total(leaf(np.ones((5000, 2)), "float16"))
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y.data, 5000)


def test_gradients_of_float16_are_summed_in_float32():
    b, rows = leaf(np.zeros(2), "float16"), np.zeros((5000, 2), dtype="float16")
    np.testing.assert_array_equal(gradient(lambda b: rows + b, b), 5000)
    table = leaf(np.zeros((3, 2)), "float16")
    gradient(lambda table: ops.gather(table, np.ones(5000, int)), table)
    np.testing.assert_array_equal(table.grad, [[0, 0], [5000, 5000], [0, 0]])


def test_a_variance_without_degrees_of_freedom_is_nan():
    with np.errstate(all="ignore"):
        x = leaf([[1.0, 2.0]])
        assert np.isnan(gradient(lambda x: x.var(axis=0, correction=1), x)).all()
        assert np.isnan(ops.var(x, correction=3).data)
        assert gradient(lambda x: x.var(axis=1), leaf(np.zeros((2, 0)))).shape == (2, 0)


def test_logsumexp_of_infinities():
    inf = np.inf
    x = leaf([[-inf, -inf], [0.0, -inf], [800.0, 800.0]])
    y = ops.logsumexp(x, axis=1)
    np.testing.assert_allclose(y.data, [-inf, 0, 800 + np.log(2)])
    y.backward(np.ones(3))
    np.testing.assert_array_equal(x.grad, [[0, 0], [1, 0], [0.5, 0.5]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_indices_of_a_narrow_dtype_reach_every_entry(dtype, place):
    x = np.arange(600.0).reshape(300, 2)
    indices = np.zeros((300, 1), dtype=dtype)
    taken = ops.take_along_axis(place(x), place(indices), axis=1)
    np.testing.assert_array_equal(backend.to_numpy(taken), x[:, :1])


def test_an_infinite_gradient_does_not_spread(place):
    x = mh.Tensor(place(np.array([0.0, 4.0, 9.0])), requires_grad=True)
    with np.errstate(all="ignore"):
        ops.sqrt(x[:2]).sum().backward()
    np.testing.assert_array_equal(backend.to_numpy(x.grad), [np.inf, 0.25, 0])


def test_einsum_of_scalars_and_empty_arrays():
    assert ops.einsum("...,...->...", np.array(3.0), np.array(2.0)) == 6
    np.testing.assert_array_equal(ops.einsum("i,->i", np.array([1.0, 2.0]), np.array(2.0)), [2, 4])
    assert ops.einsum("j,j->", np.ones(1), np.ones(0)) == 0
    x = leaf(np.ones((1, 2)))
    ops.einsum("ij,ij->i", x, np.ones((0, 2))).backward(np.ones(0))
    np.testing.assert_array_equal(x.grad, [[0, 0]])


@pytest.mark.parametrize("operation", [ops.matmul, ops.concat, ops.stack])
def test_the_error_of_a_dtype_mismatch_is_the_librarys_own(operation):
    strict = pytest.importorskip("array_api_strict")
    with pytest.raises(TypeError, match="cannot be type promoted together"):
        operation(strict.ones((2, 2)), strict.ones((2, 2), dtype=strict.int64))


def test_settings_may_be_zero_dimensional_arrays(place):
    x, two = leaf(np.arange(6.0)), place(np.asarray(2))
    assert x.reshape(two, 3).shape == (2, 3)
    assert ops.expand_dims(x, two - 2).shape == (1, 6)
    np.testing.assert_array_equal(ops.repeat(x[:2], two).data, [0, 0, 1, 1])
    ops.stack([x, x], two - 2).sum().backward()
    np.testing.assert_array_equal(x.grad, 2)


def test_bounds_of_clip_may_be_arrays():
    x = leaf([1.0, 2.0, 3.0])
    y = ops.clip(x, np.array([0.0, 2.5, 0.0]), np.array([1.0, 3.0, 2.0]))
    np.testing.assert_array_equal(y.data, [1, 2.5, 2])
    np.testing.assert_array_equal(gradient(lambda _: y, x), [1, 0, 0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("other", ["float16", "float32", "float64"])
def test_bounds_of_clip_have_the_float_type_of_x(dtype, other):
    x, bound = np.ones(3, dtype), np.full(3, 2, other)
    if dtype == other:
        y = ops.clip(x, min=bound)
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, 2)
    else:
        with pytest.raises(TypeError, match=r"clip: min is .* nothing is converted silently"):
            ops.clip(x, min=bound)
        with pytest.raises(TypeError, match=r"clip: max is .* nothing is converted silently"):
            ops.clip(x, max=bound)


def test_the_ends_of_a_slice_may_be_arrays_that_change_later():
    x, start, stop = leaf(np.zeros(4)), np.array(0), np.array(2)
    y = x[start:stop]
    start += 2
    stop += 2
    np.testing.assert_array_equal(gradient(lambda _: y, x), [1, 1, 0, 0])


def test_integer_outputs_of_an_operation_have_no_gradient():
    @mh.operation
    def largest(x):
        place = np.asarray(x.argmax())

        def pullback(dy, _):
            return (np.where(np.arange(3) == place, dy, 0.0),)

        return (x.max(), place), pullback

    x = leaf([1.0, 3.0, 2.0])
    value, place = largest(x)
    assert value.requires_grad
    assert not place.requires_grad
    (value * place).backward()
    np.testing.assert_array_equal(x.grad, [0, 1, 0])


def test_nothing_flows_back_through_integers():
    x = leaf([1.5, 2.5])
    whole = x.astype("int64")
    assert not whole.requires_grad
    (x - whole.astype("float64")).sum().backward()
    np.testing.assert_array_equal(x.grad, 1)
    np.testing.assert_array_equal(x[whole - 1].data, [1.5, 2.5])


def test_empty_lists_and_foreign_byte_orders():
    assert leaf([1.0, 2.0])[[]].shape == (0,)
    assert leaf(np.ones((3, 2)))[:, []].shape == (3, 0)
    for key in ((slice(None), [], [0]), (0, slice(None), [])):  # beside other arrays, as in NumPy
        assert leaf(np.ones((2, 3, 4)))[key].shape == np.ones((2, 3, 4))[key].shape
    assert mh.Tensor(np.ones(2, dtype=">f8")).exp().dtype == np.float64
    assert mh.Tensor(np.ones(6)).reshape(np.int64(2), 3).shape == (2, 3)
    assert ops.pad(leaf([1.0]), np.array([1, 2])).shape == (4,)


REFUSED = {
    "masked": (np.ma.masked_array(np.ones((2, 3)), mask=np.eye(2, 3)), r"pass x\.filled\(0\)"),
    "matrix": (np.ones((2, 3)).view(np.matrix), r"pass np\.asarray\(x\)"),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize(("x", "fix"), REFUSED.values(), ids=REFUSED)
def test_arrays_that_compute_in_their_own_way_are_refused(x, fix):
    plain = np.ones((2, 3))
    softmax, attention = mh.functional.softmax, mh.scaled_dot_product_attention
    for call in (
        mh.Tensor, softmax, softmax.with_pullback,
        mh.Tensor(plain).__add__, mh.Tensor(plain, requires_grad=True).backward,
        lambda v: attention(plain, plain, v), lambda m: attention(plain, plain, plain, bias=m[:, :2]),
        lambda m: attention(plain, plain, plain, m[:, :2] > 0),
    ):  # fmt: skip
        for _ in range(2):  # what the first call caches must not hide the second
            with pytest.raises(TypeError, match=fix):
                call(x)
            call(plain)


def test_the_byte_order_of_another_machine_is_named_with_the_fix():
    x = np.ones((2, 3))
    swapped = x.astype(x.dtype.newbyteorder())
    for call in (mh.functional.softmax, lambda v: mh.scaled_dot_product_attention(x, x, v)):
        call(x)
        with pytest.raises(TypeError, match=r"byte order .*\.astype\('float64'\)"):
            call(swapped)


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: ops.outer(2.0, x), "outer: it needs arrays, not numbers"),
    (lambda x: mh.functional.linear(x, np.ones((2, 1)), b=0.5), "not numbers .* b is 0.5"),
    (lambda x: x + None, "b must be an array, not None"),
    (lambda x: x.reshape(-1, -1), "^reshape: .*one unknown"),
    (lambda x: ops.split(x, (2, 1)), "must not decrease"),
    (lambda x: ops.repeat(x, -1), "repeats must be at least 0"),
    (lambda x: x.astype("sum"), "no dtype 'sum'"),
    (lambda x: x.expand(3, 1, 2) @ np.ones((5, 2, 1)), r"leading axes \(3,\) and \(5,\)"),
    (lambda x: mh.Tensor([x, x]), "ops.stack for a list"),
    (lambda x: ops.sum(x, dim=0), "sum: .* unexpected keyword argument 'dim'"),
    (lambda _: ops.add(), "required positional arguments: 'a' and 'b'$"),
    (lambda x: ops.matmul(x, x, out=1), "matmul: .* unexpected keyword argument 'out'"),
    (lambda x: ops.reshape(x, 1, 2), r"reshape\(x, \*, shape\) got 3 arguments by position"),
    (lambda x: x.cumsum((0,)), r"axis must be an integer, not \(0,\)"),
    (lambda x: x.astype("complex128"), "complex values have no gradient"),
    (lambda x: x.backward([[1, 2], [3]]), "the nested lists are ragged"),
    (lambda x: x.backward("a"), "expected numbers"),
])  # fmt: skip
def test_messages_say_what_to_do(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(leaf([1.0, 2.0]))


def test_equal_numbers_share_the_gradient_of_the_larger_and_of_the_smaller():
    for operation in (ops.maximum, ops.minimum):
        _, pullback = operation.with_pullback(np.ones(2), np.ones(2))
        assert [dx.tolist() for dx in pullback(np.array([2.0, 4.0]))] == [[1.0, 2.0]] * 2


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_erf_is_the_same_without_scipy(dtype, monkeypatch):
    x = np.array([-np.inf, -4, -1.5, -1e-3, 0, 1e-9, 0.7, 2, np.inf]).astype(dtype)
    x = x + x.dtype.type(1e-20j) if x.dtype.kind == "c" else x
    with_scipy = ops.erf(x)
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    without = ops.erf(x)
    assert without.dtype == with_scipy.dtype
    for part in (np.real, np.imag):  # exp(−x²) amplifies the rounding error of x² by x²
        rtol = 16 * np.finfo(dtype).eps
        np.testing.assert_allclose(part(without), part(with_scipy), rtol=rtol)
