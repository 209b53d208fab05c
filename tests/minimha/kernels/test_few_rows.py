"""A few rows times a matrix of float32, bfloat16 or int8, in both memory orders."""

import numpy as np
import pytest

import minimha as mh
from minimha import functional
from minimha.functional.linear import WantedOfMaps, linear_maps
from minimha.kernels import threads

pytest.importorskip("numba")
few_rows = pytest.importorskip("minimha.kernels.cpu.few_rows")

SHAPES = [(1, 1, 1), (1, 33, 7), (3, 131, 37), (4, 1030, 259)]
NOT_WANTED = WantedOfMaps(False, (False,), (False,))


def matrix(rng, shape, dtype, transposed):
    """A random matrix, and the same as float64."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    shape = shape[::-1] if transposed else shape
    w = rng.standard_normal(shape).astype("float32")
    w = functional.Quantised.of(w, -1 if transposed else 0) if dtype == "int8" else w.astype(dtype)
    w = w.mT if transposed else w
    return w, w.values * w.scale.astype("float64") if dtype == "int8" else w.astype("float64")


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(dtype, shape) for dtype in ("float32", "bfloat16", "int8") for shape in SHAPES]
    + [("bfloat16", (16, 131, 37)), ("int8", (16, 131, 37))],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_agree_with_float64(shape, dtype, transposed, rng):
    r, m, n = shape
    x, b = (
        rng.standard_normal((1, r, m)).astype("float32"),
        rng.standard_normal(n).astype("float32"),
    )
    w, wide = matrix(rng, (m, n), dtype, transposed)
    ys = []
    for workers in (1, 2):
        with threads.limit(workers):
            wanted = WantedOfMaps(False, (False, False), (False, False))
            ys.append(few_rows.linear_maps(x, (w, w), (b, None), wanted))
    bound = (4 + np.sqrt(m)) * np.finfo("float32").eps * (abs(x) @ abs(wide) + abs(b))
    for y, one_thread, bias in zip(ys[1], ys[0], (b, 0), strict=True):
        assert (y.dtype, y.shape) == (np.float32, (1, r, n))
        assert np.all(np.abs(y - (x.astype("float64") @ wide + bias)) <= bound)
        np.testing.assert_array_equal(y, one_thread)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("transposed", [False, True])
def test_nan_and_infinity_reach_their_entries_and_no_others(dtype, transposed, rng):
    w, _ = matrix(rng, (70, 9), dtype, transposed)
    w[3, 2], w[69, 5] = np.nan, np.inf
    x = np.ones((2, 70), "float32")
    x[1, 0] = np.nan
    (y,) = few_rows.linear_maps(x, (w,), (None,), NOT_WANTED)
    assert np.isnan(y[0, 2])
    assert y[0, 5] == np.inf
    assert np.isfinite(np.delete(y[0], [2, 5])).all()
    assert np.isnan(y[1]).all()


@pytest.mark.parametrize(("dtype", "most"), [("float32", 6), ("bfloat16", 16), ("int8", 16)])
def test_more_rows_are_multiplied_where_the_weights_would_be_widened(dtype, most, rng):
    w, _ = matrix(rng, (6, 4), dtype, transposed=False)
    for rows, used in ((most, True), (most + 1, False)):
        ys = few_rows.linear_maps(np.ones((rows, 6), "float32"), (w,), (None,), NOT_WANTED)
        assert (ys is not None) == used


def test_a_linear_map_uses_the_kernel_unless_gradients_are_wanted(monkeypatch):
    """A kernel that returns ones shows where it is used."""
    ones, kernel = np.ones((2, 130), "float32"), few_rows.linear_maps
    monkeypatch.setattr(few_rows, "linear_maps", lambda *given: kernel(*given) and [ones])
    linear, x = mh.Linear(160, 130), np.zeros((2, 160), "float32")
    with mh.no_grad():
        np.testing.assert_array_equal(linear(x).data, ones)
    np.testing.assert_array_equal(linear(x).data, 0)


@pytest.mark.parametrize(
    "wrong", ["no rows", "no columns", "wanted", "many rows", "float64", "strided"]
)
def test_what_the_kernel_does_not_compute_is_left_to_the_reference(wrong, rng):
    x, w = np.ones((2, 6), "float32"), np.ones((6, 4), "float32")
    x = {"no rows": x[:0], "many rows": np.ones((7, 6), "float32")}.get(wrong, x)
    x = x.astype("float64") if wrong == "float64" else x
    w = {"no columns": w[:, :0], "strided": np.ones((6, 8), "float32")[:, ::2]}.get(wrong, w)
    wanted = WantedOfMaps(True, (False,), (False,))
    assert (
        few_rows.linear_maps(x, (w,), (None,), wanted if wrong == "wanted" else NOT_WANTED) is None
    )
    with mh.implementation("microkernel"):
        (y,), _ = linear_maps(x, (w.astype(x.dtype),), (None,), wanted=NOT_WANTED)
    np.testing.assert_array_equal(y, np.full((len(x), w.shape[1]), 6))
