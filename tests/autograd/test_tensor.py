"""The Tensor and its tape."""

import copy
import gc
import operator
import pickle
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import minimha as mh
from minimha_autograd import backend, operation


def leaf(values=(1.0, 2.0, 3.0), dtype="float64"):
    return mh.Tensor(np.array(values, dtype=dtype), requires_grad=True)


def test_operators_on_either_side():
    x = leaf()
    for y, expected, slope in [
        (2 + x, [3, 4, 5], [1, 1, 1]),
        (2 - x, [1, 0, -1], [-1, -1, -1]),
        (2 * x, [2, 4, 6], [2, 2, 2]),
        (6 / x, [6, 3, 2], [-6, -1.5, -6 / 9]),
        (2**x, [2, 4, 8], np.log(2) * np.array([2, 4, 8])),
        (0**x, [0, 0, 0], [0, 0, 0]),
        (np.array([1.0, 0.0, 1.0]) * x, [1, 0, 3], [1, 0, 1]),
        (np.ones((1, 3)) @ x, [6], [1, 1, 1]),
    ]:
        x.grad = None
        y.sum().backward()
        np.testing.assert_allclose(y.data, expected, rtol=1e-15)
        np.testing.assert_allclose(x.grad, slope, rtol=1e-15)


@pytest.mark.parametrize("number", [2, 2.0, np.float64(2), np.int64(2), True])
def test_numbers_do_not_change_the_dtype(number):
    x = leaf(dtype="float32")
    for y in (x * number, number * x, x + number, number / x, x**number, number - x):
        assert y.dtype == np.float32
        y.sum().backward()
        assert x.grad.dtype == np.float32


def test_a_leaf_owns_its_gradient():
    kept, seed = np.ones(3), np.ones(3)

    @operation
    def keeping(x, _):
        return 1 * x, lambda dy: (kept, None)

    @operation
    def viewing(x):
        return 1 * x, lambda dy: (kept[:],)

    a, b, c, d = leaf(), leaf(), leaf(), leaf()
    (a + b).backward(seed)  # both receive the same array
    keeping(c, c).backward(seed)
    viewing(d).backward(seed)
    for change in (seed, kept, a.grad):
        change[:] = 7
    np.testing.assert_array_equal([b.grad, c.grad, d.grad], 1)


def test_a_gradient_that_nothing_else_holds_is_not_copied():
    places = []

    @operation
    def noting(x):
        def pullback(dy):
            dx = 2 * dy
            places.append(dx.ctypes.data)
            return (dx,)

        return 2 * x, pullback

    a, b = leaf(), leaf()
    (noting(a) * noting(b)).sum().backward()
    assert b.grad.ctypes.data == places[0]


def test_a_freed_graph_is_refused_before_any_gradient_changes():
    a, b = leaf(), leaf()
    shared = a * 2.0
    (shared * 3.0).sum().backward()
    fresh = (b * shared).sum()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        fresh.backward()
    assert b.grad is None
    np.testing.assert_array_equal(a.grad, 6)


def test_a_long_chain_needs_no_recursion_and_no_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        assert sys.getrecursionlimit() <= 10_000
        x = y = leaf([1.0])
        for _ in range(200_000):
            y = y * 1.0
        y.register_hook(lambda gradient: gradient)
        last, node = weakref.ref(y), weakref.ref(y._edge[0])
        y.backward(retain_graph=True)
        assert x.grad == 1
        del y
        assert last() is node() is None
    finally:
        gc.enable()


def test_unneeded_intermediates_are_freed():
    middle = leaf() + 1.0
    data, node = weakref.ref(middle.data), weakref.ref(middle._edge[0])
    y = middle.sum()
    del middle
    assert data() is None  # no pullback saved it
    y.backward()
    assert node() is None


@pytest.mark.parametrize(("data", "error", "message"), [
    ([[1.0], [2.0, 3.0]], ValueError, "ragged"),
    (["a"], TypeError, "expected numbers"),
    ([None], TypeError, "expected numbers, got an array of dtype object"),
    (np.array(["2026-01-01"], dtype="datetime64"), TypeError, "expected numbers"),
    ([1, 2], TypeError, "only real floating-point"),
    ([True], TypeError, "only real floating-point"),
    ([1j], TypeError, "only real floating-point"),
])  # fmt: skip
def test_only_real_floating_point_numbers_have_gradients(data, error, message):
    assert mh.Tensor([[1.0, 2.0]], requires_grad=True).shape == (1, 2)
    assert mh.Tensor(3.0, requires_grad=True).shape == ()
    with pytest.raises(error, match=message):
        mh.Tensor(data, requires_grad=True)


@pytest.mark.parametrize(("use", "error", "message"), [
    (lambda x: x + np.ones(3, "float32"), TypeError, r"add: a is .* \(3,\) of float64, b is .*32"),
    (lambda x: x * 1j, TypeError, "multiply: complex values have no gradient"),
    (np.asarray, TypeError, r"\.data"),
    (np.exp, TypeError, "ufunc"),
    (bool, ValueError, "ambiguous"),
    (lambda x: list(x.sum()), TypeError, "without axes"),
    (lambda x: x.reshape(1, 3, 1).T, ValueError, "T is for matrices"),
    (lambda x: x.clip(0.0, max=leaf()), TypeError, "no gradient flows to max: detach"),
    (lambda x: x.register_hook(3), TypeError, "a hook is a function"),
    (lambda x: x.detach().register_hook(print), RuntimeError, "does not require a gradient"),
    (lambda x: (x.detach() * 2).sum().backward(), RuntimeError, "does not require a gradient"),
    (lambda x: x.backward(), RuntimeError, r"shape \(3,\) needs its gradient"),
    (lambda x: x.backward(np.ones(2)), ValueError, r"ndarray \(2,\) .*, the Tensor .* \(3,\)"),
    (lambda x: x.backward(np.ones(3, dtype="float32")), TypeError, "float32"),
    (lambda x: setattr(x, "grad", np.ones(2)), ValueError, r"ndarray \(2,\) .*, the Tensor"),
    (lambda x: setattr(x, "data", [1, 2]), TypeError, "only real floating-point"),
    (lambda x: setattr(x * 2.0, "data", np.ones(3)), RuntimeError, "only a leaf"),
    (lambda x: copy.copy(x * 2.0), TypeError, r"detach\(\) it first"),
    (lambda x: copy.deepcopy(x * 2.0), TypeError, r"detach\(\) it first"),
    (lambda x: pickle.dumps(x * 2.0), TypeError, r"detach\(\) it first"),
    *((lambda x, key=key: x[key], TypeError, "an index must be")
      for key in ([0.0, 1.0], np.array([0.5]), True, 1.0, "a")),
])  # fmt: skip
def test_invalid_uses_are_refused(use, error, message):
    with pytest.raises(error, match=message):
        use(leaf())


def test_mixing_libraries_or_devices_is_refused():
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    a = mh.Tensor(strict.ones(3, dtype=strict.float64), requires_grad=True)
    with pytest.raises(TypeError, match=r"multiply: a is numpy.* b is array_api_strict.Array"):
        leaf() * a
    with pytest.raises(
        ValueError, match=r"a is array_api_strict.Array .*, b is .*Array .* on .*device1"
    ):
        a + a.to("device1")
    assert a.to("cpu").device == a.device


def test_indexing_works_as_in_numpy():
    x = leaf()
    assert x[np.argmax(x.data)].item() == x[np.array(2)].item() == float(x[2]) == 3
    assert [y.item() for y in x] == [1, 2, 3]
    y = x[None, 1:, None]
    assert y.shape == (1, 2, 1)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, [0, 1, 1])


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_give_arrays(name):
    x, compare = leaf(), getattr(operator, name)
    for other in (np.array([1.0, 0.0, 4.0]), leaf([1.0, 0.0, 4.0]), 2.0):
        expected = compare(x.data, other.data if isinstance(other, mh.Tensor) else other)
        np.testing.assert_array_equal(compare(x, other), expected)
    assert not mh.Tensor(0.0)


def test_methods_properties_and_settings_by_position():
    x = mh.Tensor(np.arange(24.0).reshape(2, 3, 4), requires_grad=True)
    assert (x.shape, x.ndim, len(x)) == ((2, 3, 4), 3, 2)
    assert (x.sum().item(), x.mean().item(), x.max().item()) == (276, 11.5, 23)
    assert "requires_grad=True" in repr(x)
    assert x.sum(1).shape == x.sum(axis=1).shape == (2, 4)
    assert x.sum(-1, True).shape == (2, 3, 1)
    assert x.reshape(6, -1).shape == x.reshape((6, 4)).shape == (6, 4)
    assert x.permute(2, 0, 1).shape == x.permute((2, 0, 1)).shape == (4, 2, 3)
    assert x.transpose(0, 1).shape == (3, 2, 4)
    assert x[0].T.shape == x[0].mT.shape == (4, 3)
    assert x[:, :1].expand(2, 3, 4).shape == x.shape
    assert mh.ops.concat([x, x], 1).shape == mh.ops.concat(x, x, axis=1).shape == (2, 6, 4)
    assert x.clip(mh.Tensor(1.0), np.float64(3)).max().item() == 3
    with pytest.raises(TypeError, match=r"sum\(x, \*, axis=None, keepdims=False\) got 4 arguments"):
        mh.ops.sum(x, 0, False, 1)
    with pytest.raises(TypeError, match="got 2 arguments by position"):
        mh.ops.sum(x, 0, axis=0)


def test_unknown_and_absent_libraries_are_named(monkeypatch):
    with pytest.raises(ValueError, match="unknown array library 'jax'"):
        backend.library("jax")
    for name in ("array_api_strict", "cupy"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(RuntimeError, match="array-api-strict is not installed"):
        backend.library("array-api-strict")
    monkeypatch.setattr(backend, "NEWEST_FOR_CUPY", sys.version_info[:2])
    with pytest.raises(RuntimeError, match="cupy is not installed: pip install"):
        leaf().to("cuda")
    monkeypatch.setattr(backend, "NEWEST_FOR_CUPY", (3, 10))
    with pytest.raises(RuntimeError, match=r"cupy is not installed: use Python 3\.10 or earlier"):
        leaf().to("cuda")


@pytest.mark.parametrize(
    "again", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copied_leaf_accumulates_its_own_gradient(again):
    x = leaf()
    x.grad = np.ones(3)
    twin = again(x)
    assert np.shares_memory(twin.data, x.data) == (again is copy.copy)
    (twin * 2.0).sum().backward()
    np.testing.assert_array_equal(twin.grad, 3)
    np.testing.assert_array_equal(x.grad, 1)


def test_integers_and_complex_numbers_work_without_gradients():
    assert (mh.Tensor([1, 2]) + 1).dtype == np.int64
    assert mh.Tensor([2**62 + 1, 3]).max().item() == 2**62 + 1
    with mh.no_grad():
        assert (leaf() * 1j).dtype == complex


def test_a_hook_receives_the_whole_gradient_and_may_replace_it():
    x, seen = leaf(), []
    y = x * 2.0
    y.register_hook(seen.append)
    hook = y.register_hook(lambda gradient: 10 * gradient)
    (y + y * y).sum().backward(retain_graph=True)
    np.testing.assert_array_equal(seen, [1 + 2 * y.data])
    np.testing.assert_array_equal(x.grad, 20 * (1 + 2 * y.data))
    hook.remove()
    hook.remove()
    x.grad = None
    x.register_hook(lambda gradient: mh.Tensor(gradient + 1))
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, 3)
    x.register_hook(lambda gradient: gradient[:1])
    with pytest.raises(
        ValueError, match=r"a hook returned .* \(1,\) .* for a gradient that is .* \(3,\)"
    ):
        (x * 1.0).sum().backward()


def test_a_hook_on_one_of_several_values():
    x = leaf([1.0, 2.0, 3.0, 4.0])
    first, second = x.split(2)
    first.register_hook(lambda gradient: 5 * gradient)
    (first * second).sum().backward()
    np.testing.assert_array_equal(x.grad, [15, 20, 1, 2])


def test_a_retained_graph_keeps_the_gradients_of_all_its_tensors():
    x = leaf()
    y = x * 3.0
    z = (y * y).sum()
    z.backward(retain_graph=True)
    np.testing.assert_array_equal(y.grad, 2 * y.data)
    z.backward()
    np.testing.assert_array_equal(y.grad, 2 * y.data)  # from the backward that retained it
    np.testing.assert_array_equal(x.grad, 12 * y.data)


def test_an_error_during_backward_leaves_every_gradient_unchanged():
    @mh.operation
    def fails(x):
        def pullback(dy):
            raise ZeroDivisionError

        return 1.0 * x, pullback

    early, late = leaf(), leaf()
    y = fails(early * 1.0) * late
    with pytest.raises(ZeroDivisionError) as failure:
        y.sum().backward()
    assert failure.value.__notes__ == ["in the pullback of fails"]
    assert early.grad is late.grad is None


@pytest.mark.parametrize("shape", [(1, 3), (2, 3), ()])
def test_replacing_the_data_of_a_leaf_by_another_shape_invalidates_its_graphs(shape):
    x, w, seen = leaf(np.ones((4, 3))), leaf(2.0), []
    hook = x.register_hook(lambda gradient: seen.append(gradient.shape))
    y = (x * w).sum()
    x.data = np.ones(shape)
    with pytest.raises(RuntimeError, match="or a leaf was given data of another"):
        y.backward()
    assert x.grad is w.grad is None
    assert seen == []
    (x * w).sum().backward()
    assert seen == [x.grad.shape] == [shape]
    hook.remove()
    (x * w).sum().backward()
    assert len(seen) == 1
    x.data = np.ones(shape, dtype="float32")
    assert x.grad is None


def test_data_that_no_pullback_saved_may_be_replaced_by_the_same_kind():
    x = leaf()
    y = (x + 1.0).sum()
    y.backward(retain_graph=True)
    x.data = np.zeros(3)
    y.backward()
    np.testing.assert_array_equal(x.grad, 2)


def test_a_gradient_is_on_the_device_of_the_data():
    strict = pytest.importorskip("array_api_strict")
    there = strict.Device("device1")
    x = mh.Tensor(strict.ones(3), requires_grad=True)
    (x * x).sum().backward()
    x.data = strict.ones(3, device=there)
    assert x.grad is None
    (x * x).sum().backward()
    assert x.grad.device == there
    with pytest.raises(TypeError, match=r"gradient is .*Array .*, the Tensor .*Array .*device1"):
        x.grad = strict.ones(3)


def test_tensor_may_be_subclassed():
    class Named(mh.Tensor):
        __slots__ = ()

    x, w = Named([1.0, 2.0], requires_grad=True), leaf([3.0, 4.0])
    for y in (x * w, w * x, mh.ops.einsum("i,i->i", x, w), mh.ops.concat(x * 1.0, w)[:2] * w):
        x.grad = None
        y.sum().backward()
        np.testing.assert_array_equal(x.grad, [3, 4])


def test_gradients_flow_back_through_a_change_of_device_and_of_dtype(place):
    x = mh.Tensor(place(np.ones((2, 3))), requires_grad=True)
    devices = place.xp.__array_namespace_info__().devices()
    there = next(
        (d for d in devices if str(d) != "meta" and d != x.device and "no_" not in str(d)), x.device
    )
    y = (x * 2.0).to(there)
    assert y.device == there
    (y * y).sum().backward()
    assert x.grad.device == x.device
    np.testing.assert_array_equal(backend.to_numpy(x.grad), 8)
    narrow = x.astype("float32")
    assert narrow.dtype == place.xp.float32
    x.grad = None
    (narrow * 3.0).sum().backward()
    assert x.grad.dtype == place.xp.float64


def test_threads_may_share_a_leaf():
    x = leaf(np.zeros(100_000))

    def work(_):
        for _ in range(50):
            (x * 1.0).sum().backward()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads interleave often
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval)
    np.testing.assert_array_equal(x.grad, 200)


def test_a_gradient_of_a_scalar_is_an_array():
    x, seen = leaf(3.0), []
    y = x * x
    y.register_hook(seen.append)
    y.register_hook(lambda gradient: 0.5 * gradient)  # a NumPy scalar
    (y * y).backward()
    (x * x).backward()
    assert x.grad == 54 + 6
    assert type(x.grad) is type(seen[0]) is np.ndarray
    x.grad = mh.Tensor(2.0)
    assert type(x.grad) is np.ndarray


@pytest.mark.parametrize("seed", range(20))
def test_each_gradient_is_complete_before_it_is_passed_on(seed):
    """On random graphs, every step is visited once, the newest first; c = b · b with b = a + a shows
    why: b needs both gradients before it passes their sum on."""
    rng, visited = np.random.default_rng(seed), []
    leaf = mh.Tensor(rng.standard_normal(3), requires_grad=True)
    steps, slopes = [leaf], [1.0]
    for k in range(30):
        i, j = rng.integers(max(0, len(steps) - 6), len(steps), 2)
        negated = rng.random() < 0.6
        steps.append(-steps[i] if negated else steps[i] + steps[j])
        slopes.append(-slopes[i] if negated else slopes[i] + slopes[j])
        steps[-1].register_hook(lambda dy, k=k: visited.append(k))
    dy = rng.standard_normal(3)
    steps[-1].backward(dy)
    assert visited == sorted(set(visited), reverse=True)
    np.testing.assert_allclose(leaf.grad, slopes[-1] * dy, rtol=1e-12)  # sums of 30 terms


def test_bfloat16_of_ml_dtypes_is_a_float_with_gradients():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = mh.Tensor(np.array([1.5, -2.0], bfloat16), requires_grad=True)
    (x * 3).sum().backward()
    assert x.grad.dtype == bfloat16
    assert list(x.grad) == [3, 3]
    assert not backend.is_integral(x.data)
    assert backend.is_half(x.data)
