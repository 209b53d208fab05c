"""The product of matrices of any size: all blocks, and what is left of rows, columns and depth."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import minimha as mh
from minimha import functional
from minimha.functional import acceleration
from minimha.kernels import threads

pytest.importorskip("numba")
linear = pytest.importorskip("minimha.kernels.cpu.linear")
pytestmark = pytest.mark.skipif(bool(linear.slow()), reason=str(linear.slow()))

AROUND = [n + k for n in (12, 32, 64, 256, 384, 512, 768) for k in (-1, 0, 1)]
SIZES = st.integers(1, 40) | st.sampled_from(AROUND)


def drawn(rng, rows, columns, turned, dtype):
    """A matrix, or the transpose of one; or one whose rows are not next to each other."""
    if turned is None:
        return rng.standard_normal((rows, 2 * columns)).astype(dtype)[:, ::2]
    x = rng.standard_normal((columns, rows) if turned else (rows, columns)).astype(dtype)
    return x.T if turned else x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_those_of_numpy(dtype):
    ways = st.sampled_from([False, True, None])

    @hypothesis.settings(deadline=None, max_examples=120, derandomize=True)
    @hypothesis.given(SIZES, SIZES, SIZES, ways, ways, st.integers(1, 3), st.booleans())
    def check(m, k, n, a_turned, b_turned, workers, plain):
        rng = np.random.default_rng([m, k, n])
        a, b = drawn(rng, m, k, a_turned, dtype), drawn(rng, k, n, b_turned, dtype)
        bias = None if plain else rng.standard_normal(n).astype(dtype)
        sums = None if plain else np.zeros(n, dtype)
        with threads.limit(workers):
            c = linear.product(a, b, bias=bias, sums=sums)
        wide = a.astype("float64"), b.astype("float64")
        terms = np.abs(wide[0]) @ np.abs(wide[1]) + (0 if plain else np.abs(bias))
        exact, eps = wide[0] @ wide[1] + (0 if plain else bias), np.finfo(dtype).eps
        assert (c.dtype, c.shape) == (np.dtype(dtype), (m, n))
        assert np.all(np.abs(c - exact) <= (16 + k**0.5) * eps * terms)
        if not plain:
            most = np.abs(wide[1]).sum(axis=0)
            assert np.all(np.abs(sums - wide[1].sum(axis=0)) <= (16 + k**0.5) * eps * most)

    check()


def test_threads_change_no_bit(rng):
    x, w, b = rng.standard_normal((900, 300)), rng.standard_normal((300, 70)), np.ones(70)
    arrays = [a.astype("float32") for a in (x, w, b)]
    dy = rng.standard_normal((900, 70)).astype("float32")
    found = []
    for workers in (1, 2, 3, 7):
        with threads.limit(workers), mh.implementation("microkernel"):
            y, pull = functional.linear.with_pullback(*arrays)
            found.append([y, *pull(dy)])
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(a, b)


def test_rounding_grows_slowly_with_the_depth(rng):
    """Blocks of the depth are summed by themselves: one sum after another is ten times as wrong."""
    x = np.abs(rng.standard_normal((24, 60_000))).astype("float32")
    ones = np.ones((60_000, 1), "float32")
    exact = x.astype("float64").sum(axis=1)
    assert np.max(np.abs(linear.product(x, ones)[:, 0] / exact - 1)) < 2e-6


def test_each_gradient_is_there_if_it_is_wanted_and_no_other(rng):
    x, w, b = rng.standard_normal((3, 9, 5)), rng.standard_normal((5, 4)), rng.standard_normal(4)
    dy = rng.standard_normal((3, 9, 4))
    with mh.implementation("microkernel"):
        _, pull = functional.linear.with_pullback(x, w, b)
        every = pull(dy)
        for k in range(8):
            wanted = tuple(bool(k >> n & 1) for n in range(3))
            some = linear.linear(x, w, b, wanted=wanted)[1](dy)
            assert [dx is not None for dx in some] == list(wanted)
            for dx, known in zip(some, every, strict=True):
                if dx is not None:
                    np.testing.assert_allclose(dx, known, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "w", "b"),
    [
        ((30, 0), (0, 5), (5,)),
        ((30, 4), (4, 0), (0,)),
        ((0, 4), (4, 5), (5,)),
        ((40,), (40, 5), (5,)),
    ],
)
def test_what_it_is_not_made_for_goes_by_the_reference(x, w, b, rng):
    arrays = [rng.standard_normal(shape) for shape in (x, w, b)]
    assert linear.linear(*arrays, wanted=(True,) * 3) is None
    with mh.implementation("microkernel"):
        y, pull = functional.linear.with_pullback(*arrays)
        np.testing.assert_allclose(y, arrays[0] @ arrays[1] + arrays[2], rtol=1e-12)
        assert [dx.shape for dx in pull(y)] == [a.shape for a in arrays]


def test_a_wrong_shape_is_named_whatever_computes():
    with mh.implementation("microkernel"):
        for shapes in (((30, 4), (5, 4), (4,)), ((30, 4), (4, 5), (4,)), ((30, 4), (4, 5), (1, 5))):
            with pytest.raises(ValueError, match="need the same M and N"):
                functional.linear(*(np.ones(shape, "float32") for shape in shapes))


@pytest.mark.parametrize(
    ("x", "w", "size"),
    [
        ((64, 32), (32, 9), 576),
        ((63, 32), (32, 9), 0),
        ((2, 32, 31), (31, 9), 0),
        ((40,), (40, 9), 0),
    ],
)
def test_copies_of_the_weights_pay_from_some_rows_and_columns_on(x, w, size, monkeypatch):
    asked = []
    monkeypatch.setattr(acceleration, "kernel", lambda *arguments: asked.append(arguments))
    functional.linear(np.ones(x), np.ones(w))
    assert asked == [("linear", size)]
