"""The Tensor and its tape."""

import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import minimha as mh
from minimha_autograd import backend, operation


def leaf(values=(1.0, 2.0, 3.0)):
    return mh.Tensor(np.array(values), requires_grad=True)


def test_operators_on_either_side():
    x = leaf()
    for y, expected, slope in [
        (2 + x, [3, 4, 5], [1, 1, 1]),
        (2 - x, [1, 0, -1], [-1, -1, -1]),
        (2 * x, [2, 4, 6], [2, 2, 2]),
        (6 / x, [6, 3, 2], [-6, -1.5, -6 / 9]),
        (2**x, [2, 4, 8], np.log(2) * np.array([2, 4, 8])),
        (np.array([1.0, 0.0, 1.0]) * x, [1, 0, 3], [1, 0, 1]),
        (np.ones((1, 3)) @ x, [6], [1, 1, 1]),
    ]:
        x.grad = None
        y.sum().backward()
        np.testing.assert_allclose(y.data, expected, rtol=1e-15)
        np.testing.assert_allclose(x.grad, slope, rtol=1e-15)


@pytest.mark.parametrize("number", [2, 2.0, np.float64(2), np.int64(2), True])
def test_numbers_are_weak(number):
    x = mh.Tensor(np.ones(3, dtype="float32"), requires_grad=True)
    for y in (x * number, number * x, x + number, number / x, x**number, number - x):
        assert y.dtype == np.float32
        y.sum().backward()
        assert x.grad.dtype == np.float32


def test_gradients_add_up_over_uses_and_over_backwards():
    a = leaf([2.0])
    b = a + a
    c = b * b  # why a topological order: b must have both its gradients before it passes them on
    c.backward(retain_graph=True)
    assert a.grad == 16
    c.backward()
    assert a.grad == 32


def test_a_topological_order_not_a_depth_first_one():
    a = leaf([3.0])
    deep = a * 1.0 * 1.0 * 1.0
    (a * deep + deep).backward()
    assert a.grad == 7


def test_leaves_never_share_a_gradient():
    a, b = leaf(), leaf()
    (a + b).sum().backward()
    assert not np.shares_memory(a.grad, b.grad)
    a.grad[:] = 7
    np.testing.assert_array_equal(b.grad, 1)


def test_a_leaf_does_not_share_what_a_pullback_keeps():
    kept = np.ones(3)

    @operation
    def keeping(x):
        return 1 * x, lambda dy: (kept,)

    a = leaf()
    keeping(a).backward(np.ones(3))
    kept[:] = 7
    np.testing.assert_array_equal(a.grad, 1)


def test_the_callers_gradient_is_not_kept():
    a, seed = leaf(), np.ones(3)
    (+1.0 * a).backward(seed)
    seed[:] = 5
    np.testing.assert_array_equal(a.grad, 1)


def test_a_freed_graph_is_refused_before_any_gradient_changes():
    a, b = leaf(), leaf()
    shared = a * 2.0
    (shared * 3.0).sum().backward()
    fresh = (b * shared).sum()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        fresh.backward()
    assert b.grad is None
    np.testing.assert_array_equal(a.grad, 6)


def test_backward_of_a_non_scalar_asks_for_the_gradient():
    y = leaf() * 2.0
    with pytest.raises(RuntimeError, match=r"shape \(3,\) needs its gradient"):
        y.backward()
    with pytest.raises(ValueError, match=r"ndarray \(2,\) .*, the Tensor .*ndarray \(3,\)"):
        y.backward(np.ones(2))
    with pytest.raises(TypeError, match="float32"):
        y.backward(np.ones(3, dtype="float32"))
    y.backward([1.0, 0.0, 2.0])


def test_backward_without_a_graph_is_refused():
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        (mh.Tensor([1.0]) * 2).backward()


def test_detach_cuts_the_tape():
    x = leaf()
    (x * x.detach()).sum().backward()
    np.testing.assert_array_equal(x.grad, x.data)


def test_a_long_chain_needs_no_recursion_and_no_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        assert sys.getrecursionlimit() <= 10_000
        x = y = leaf([1.0])
        for _ in range(200_000):
            y = y * 1.0
        last = weakref.ref(y)
        y.backward(retain_graph=True)
        assert x.grad == 1
        del y
        assert last() is None
    finally:
        gc.enable()


def test_values_that_no_pullback_saved_are_freed():
    x = leaf()
    middle = x + 1.0
    data = weakref.ref(middle.data)
    y = middle + 1.0
    del middle
    assert data() is None
    y.sum().backward()


def test_data_may_be_lists_and_numbers_but_nothing_else():
    assert mh.Tensor([[1.0, 2.0]]).shape == (1, 2)
    assert mh.Tensor(3.0, requires_grad=True).ndim == 0
    with pytest.raises(ValueError, match="ragged"):
        mh.Tensor([[1.0], [2.0, 3.0]])
    with pytest.raises(TypeError, match="numbers"):
        mh.Tensor(["a"])
    with pytest.raises(TypeError, match="object"):
        mh.Tensor([None])


@pytest.mark.parametrize("data", [[1, 2], [True], [1j]])
def test_only_real_floating_point_numbers_have_gradients(data):
    with pytest.raises(TypeError, match="only real floating-point"):
        mh.Tensor(data, requires_grad=True)


def test_mixed_float_types_are_refused_by_name():
    with pytest.raises(
        TypeError,
        match=r"add: a is numpy.ndarray \(3,\) of float64, b is .* of float32: convert one",
    ):
        leaf() + np.ones(3, dtype="float32")


def test_mixed_libraries_are_refused():
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    with pytest.raises(
        TypeError, match=r"multiply: a is numpy.ndarray .* b is array_api_strict.Array"
    ):
        mh.ops.multiply(leaf(), mh.Tensor(strict.ones(3, dtype=strict.float64)))


def test_a_tensor_is_not_silently_an_array():
    with pytest.raises(TypeError, match=r"\.data"):
        np.asarray(leaf())
    with pytest.raises(TypeError):
        np.exp(leaf())


@pytest.mark.parametrize("key", [[0.0, 1.0], np.array([0.5]), True, 1.0, "a"])
def test_what_cannot_be_an_index_is_refused(key):
    with pytest.raises(TypeError, match="an index must be"):
        leaf()[key]


def test_integers_of_any_kind_are_indices():
    x = leaf()
    assert x[np.argmax(x.data)].item() == x[np.array(2)].item() == 3


def test_comparisons_give_arrays():
    x, y = leaf(), leaf([1.0, 0.0, 4.0])
    for ours, theirs in [
        (x == y, x.data == y.data),
        (x != 1.0, x.data != 1.0),
        (x < y, x.data < y.data),
        (x <= y, x.data <= y.data),
        (x > np.ones(3), x.data > 1),
        (x >= 2.0, x.data >= 2),
    ]:
        np.testing.assert_array_equal(ours, theirs)
    assert not mh.Tensor(0.0)
    assert float(mh.Tensor([1.5])[0]) == 1.5
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)


def test_zero_to_a_power():
    a, b = leaf([0.0, 2.0]), leaf([3.0, 2.0])
    (a**b).sum().backward()
    np.testing.assert_allclose(a.grad, [0, 4])
    np.testing.assert_allclose(b.grad, [0, 4 * np.log(2)])
    b.grad = None
    (0**b).sum().backward()
    np.testing.assert_array_equal(b.grad, 0)


def test_new_axes_by_index():
    x = leaf()
    y = x[None, 1:, None]
    assert y.shape == (1, 2, 1)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, [0, 1, 1])


def test_methods_and_properties():
    x = mh.Tensor(np.arange(6.0).reshape(2, 3), requires_grad=True)
    assert (x.shape, x.ndim, len(x)) == ((2, 3), 2, 2)
    assert x.mT.shape == x.reshape(3, 2).shape == x.reshape((3, -1)).shape == (3, 2)
    assert (x.sum().item(), x.mean().item(), x.max().item()) == (15, 2.5, 5)
    assert "requires_grad=True" in repr(x)


def test_float16_and_int_arrays_pass_where_no_gradient_is_asked():
    assert (mh.Tensor([1, 2]) + 1).data.dtype == np.int64


def test_the_engine_moves_arrays_between_libraries(xp, rng):
    host = rng.standard_normal((2, 3))
    there = backend.move(host, xp)
    np.testing.assert_array_equal(backend.to_numpy(there), host)
    assert backend.namespace(there) is xp


def test_unknown_and_absent_libraries_are_named(monkeypatch):
    with pytest.raises(ValueError, match="unknown array library 'jax'"):
        backend.library("jax")
    monkeypatch.setitem(sys.modules, "array_api_strict", None)
    with pytest.raises(RuntimeError, match="array-api-strict is not installed"):
        backend.library("array-api-strict")


@pytest.mark.parametrize(
    "again", [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copied_leaf_gathers_its_own_gradient(again):
    x = leaf()
    x.grad = np.ones(3)
    twin = again(x)
    (twin * 2.0).sum().backward()
    np.testing.assert_array_equal(twin.grad, 3)
    np.testing.assert_array_equal(x.grad, 1)
    with pytest.raises(TypeError, match=r"detach\(\) it first"):
        again(x * 2.0)


def test_a_pickled_module_trains_in_another_process(tmp_path):
    for _ in range(100):
        leaf()
    (tmp_path / "module").write_bytes(pickle.dumps(mh.MultiHeadAttention(4, 2)))
    code = (
        "import pickle, numpy as np; m = pickle.load(open('module', 'rb'));"
        "m(np.ones((1, 3, 4), dtype='float32')).sum().backward();"
        "print(sum(p.grad is not None for p in m.parameters()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True
    )
    assert done.stdout.strip() == b"8"


def test_a_scalar_needs_no_gradient_on_any_library(xp):
    x = mh.Tensor(xp.ones((2, 3)), requires_grad=True)
    (x * x).sum().backward()
    np.testing.assert_array_equal(backend.to_numpy(x.grad), 2)


def test_complex_values_are_kept_off_the_tape():
    with pytest.raises(TypeError, match="multiply: complex values have no gradient"):
        leaf() * 1j
    with mh.no_grad():
        assert (leaf() * 1j).data.dtype == complex


def test_iterating_goes_along_the_first_axis():
    assert [y.item() for y in leaf()] == [1, 2, 3]
    with pytest.raises(TypeError, match="without axes"):
        list(mh.Tensor(1.0))


def test_the_maximum_is_exact_and_shared_between_ties():
    x = leaf([0.1] * 10)
    y = x.max()
    y.backward()
    assert y.item() == 0.1
    np.testing.assert_allclose(x.grad, 0.1)
    assert mh.Tensor([2**62 + 1, 3]).max().item() == 2**62 + 1


def test_object_and_text_arrays_are_refused():
    for data in (np.array(["a"]), np.array([None]), np.array(["2026-01-01"], dtype="datetime64")):
        with pytest.raises(TypeError, match="expected numbers"):
            mh.Tensor(data)


def test_a_hook_sees_the_whole_gradient_and_may_replace_it():
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


def test_a_hook_on_one_of_several_values():
    x = leaf([1.0, 2.0, 3.0, 4.0])
    first, second = x.split(2)
    first.register_hook(lambda gradient: 5 * gradient)
    (first * second).sum().backward()
    np.testing.assert_array_equal(x.grad, [15, 20, 1, 2])


def test_a_hook_that_returns_something_else_is_refused():
    x = leaf()
    x.register_hook(lambda gradient: gradient.sum(keepdims=True))
    with pytest.raises(
        ValueError, match=r"a hook returned .* \(1,\) .* for a gradient that is .* \(3,\)"
    ):
        (x * 1.0).sum().backward()
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        mh.Tensor(1.0).register_hook(print)


def test_a_hooked_graph_is_freed_without_the_garbage_collector():
    gc.disable()
    try:
        x = leaf()
        y = x * 2.0
        y.register_hook(lambda gradient: gradient)
        node = weakref.ref(y._edge[0])
        del y
        assert node() is None
    finally:
        gc.enable()


def test_a_retained_graph_keeps_the_gradients_of_all_its_tensors():
    x = leaf()
    y = x * 3.0
    z = (y * y).sum()
    z.backward(retain_graph=True)
    np.testing.assert_array_equal(y.grad, 2 * y.data)
    z.backward()
    np.testing.assert_array_equal(y.grad, 2 * y.data)  # of the backward that retained
    np.testing.assert_array_equal(x.grad, 12 * y.data)


def test_an_error_in_the_middle_leaves_every_gradient_as_it_was():
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


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda dy: (dy.astype("float64"),), "a gradient of float64 for an argument of float32"),
        (lambda dy: (dy[:2],), r"shape \(2,\) for an argument of \(3,\)"),
        (lambda dy: ("dy",), "expected numbers"),
        (lambda dy: [dy], "must return a tuple of 1"),
    ],
)
def test_a_gradient_of_the_wrong_kind_names_the_operation(returned, message):
    @mh.operation
    def wrong(query):
        return 1.0 * query, returned

    x = mh.Tensor(np.ones(3, dtype="float32"), requires_grad=True)
    with pytest.raises((TypeError, ValueError), match=f"wrong.*{message}"):
        wrong(x).sum().backward()


def test_a_leaf_may_be_given_other_data():
    x = leaf()
    x.data = np.ones((2, 2), dtype="float32")
    (x * 2.0).sum().backward()
    assert x.grad.dtype == np.float32
    with pytest.raises(TypeError, match="only real floating-point"):
        x.data = [1, 2]
    with pytest.raises(RuntimeError, match="only a leaf"):
        (x * 2.0).data = np.ones((2, 2))


@pytest.mark.parametrize("shape", [(1, 3), (2, 3), ()])
def test_data_of_another_shape_ends_the_graphs_of_a_leaf(shape):
    x, w, seen = leaf(np.ones((4, 3))), leaf(2.0), []
    hook = x.register_hook(lambda gradient: seen.append(gradient.shape))
    y = (x * w).sum()
    x.data = np.ones(shape)
    with pytest.raises(RuntimeError, match="leaf whose data was replaced by data of another"):
        y.backward()
    assert x.grad is w.grad is None
    assert seen == []
    (x * w).sum().backward()
    assert seen == [x.grad.shape] == [shape]
    hook.remove()
    (x * w).sum().backward()
    assert len(seen) == 1


def test_data_of_the_same_kind_may_take_the_place_of_what_nobody_saved():
    x = leaf(np.ones(3))
    y = (x + 1.0).sum()
    y.backward(retain_graph=True)
    x.data = np.zeros(3)
    y.backward()
    np.testing.assert_array_equal(x.grad, 2)


def test_a_gradient_lives_where_the_data_does():
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
    with pytest.raises(TypeError, match=r"gradient is .*Array .*, the Tensor .*Array .*device1"):
        (x * x).backward(strict.ones(3))


def test_a_class_may_derive_from_tensor():
    class Named(mh.Tensor):
        __slots__ = ()

    x, w = Named([1.0, 2.0], requires_grad=True), leaf([3.0, 4.0])
    for y in (x * w, w * x, mh.ops.einsum("i,i->i", x, w), mh.ops.concat(x * 1.0, w)[:2] * w):
        x.grad = None
        y.sum().backward()
        np.testing.assert_array_equal(x.grad, [3, 4])
    np.testing.assert_array_equal(mh.ops.exp(x).data, np.exp(x.data))


def test_settings_may_follow_by_position():
    x = mh.Tensor(np.arange(24.0).reshape(2, 3, 4), requires_grad=True)
    assert x.sum(1).shape == x.sum(axis=1).shape == (2, 4)
    assert x.sum(-1, True).shape == (2, 3, 1)
    assert x.reshape(6, -1).shape == x.reshape((6, 4)).shape == (6, 4)
    assert x.permute(2, 0, 1).shape == x.permute((2, 0, 1)).shape == (4, 2, 3)
    assert x.transpose(0, 1).shape == (3, 2, 4)
    assert x[:, :1].expand(2, 3, 4).shape == x.shape
    assert mh.ops.concat([x, x], 1).shape == mh.ops.concat(x, x, axis=1).shape == (2, 6, 4)
    assert x[0].T.shape == (4, 3)
    with pytest.raises(ValueError, match="T is for matrices"):
        x.T  # noqa: B018
    with pytest.raises(TypeError, match=r"sum\(x, \*, axis=None, keepdims=False\) got 4 arguments"):
        mh.ops.sum(x, 0, False, 1)
    with pytest.raises(TypeError, match="got 2 arguments by position"):
        mh.ops.sum(x, 0, axis=0)
    with pytest.raises(TypeError, match="no gradient flows to max: detach"):
        x.clip(0.0, max=leaf())
    assert x.clip(mh.Tensor(1.0), np.float64(3)).max().item() == 3


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


def test_devices_are_not_mixed():
    strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")
    a = mh.Tensor(strict.ones(3, dtype=strict.float64), requires_grad=True)
    b = a.to("device1")
    with pytest.raises(
        ValueError, match=r"a is array_api_strict.Array .*, b is .*Array .* on .*device1"
    ):
        a + b
    assert a.to("cpu").device == a.device


def test_a_device_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ValueError, match="cupy is not installed"):
        leaf().to("cuda")


def test_threads_may_share_a_leaf():
    x = leaf(np.zeros(100_000))

    def work():
        for _ in range(50):
            (x * 1.0).sum().backward()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet often
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    np.testing.assert_array_equal(x.grad, 200)


def test_a_gradient_is_always_an_array_that_fits():
    x, seen = leaf(3.0), []
    y = x * 1.0
    y.register_hook(seen.append)
    (y * y).backward()
    (x * x).backward()
    assert type(x.grad) is type(seen[0]) is np.ndarray
    x.grad = mh.Tensor(2.0)
    assert type(x.grad) is np.ndarray
    with pytest.raises(ValueError, match=r"ndarray \(2,\) .*, the Tensor .*ndarray \(\)"):
        x.grad = np.ones(2)
    x.data = np.ones(3)
    assert x.grad is None
    with pytest.raises(TypeError, match="a hook is a function"):
        x.register_hook(3)


def test_a_hook_of_a_scalar_may_return_what_arithmetic_makes_of_it():
    x = leaf(3.0)
    y = x * x
    y.register_hook(lambda gradient: 0.5 * gradient)
    y.backward()
    assert x.grad == 3
    assert type(x.grad) is np.ndarray


@pytest.mark.parametrize("seed", range(20))
def test_each_gradient_is_whole_when_its_turn_comes(seed):
    """On graphs drawn at random: every step is visited once, the newest first."""
    rng, visited = np.random.default_rng(seed), []
    leaf = mh.Tensor(rng.standard_normal(3), requires_grad=True)
    steps, slopes = [leaf], [1.0]
    for k in range(30):
        i, j = rng.integers(max(0, len(steps) - 6), len(steps), 2)
        if rng.random() < 0.6:
            steps.append(-steps[i])
            slopes.append(-slopes[i])
        else:
            steps.append(steps[i] + steps[j])
            slopes.append(slopes[i] + slopes[j])
        steps[-1].register_hook(lambda dy, k=k: visited.append(k))
    dy = rng.standard_normal(3)
    steps[-1].backward(dy)
    assert visited == sorted(set(visited), reverse=True)
    np.testing.assert_allclose(leaf.grad, slopes[-1] * dy, rtol=1e-12)  # sums of 30 terms round
