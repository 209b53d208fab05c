"""NumPy's stand-in for cuTile refuses what a GPU leaves undefined, and shows a block step by step."""

import operator

import numpy as np
import pytest

from minimha.kernels.gpu import numpy_tile as ct

ZERO = ct.PaddingMode.ZERO


def doubled(x, y, factor: ct.Constant[float]):
    """y = factor · x + 1 in tiles of 4."""
    i = ct.bid(0)
    tile = ct.load(x, (i,), (4,), padding_mode=ZERO)
    tile = tile * factor
    tile += 1.0
    ct.store(y, (i,), tile)


def run(kernel, *arrays, grid=(3,)):
    ct.launch(None, grid, ct.kernel(kernel), arrays)


def test_blocks_fill_an_array_and_nothing_beyond_its_edge():
    x, y = np.arange(10.0), np.zeros(10)
    run(doubled, x, y, 2.0)
    np.testing.assert_array_equal(y, 2 * x + 1)


def test_a_tile_beyond_the_edge_is_nan_unless_the_kernel_asks_for_zeros():
    def total(x, y):
        ct.store(y, (ct.bid(0),), ct.sum(ct.load(x, (ct.bid(0),), (4,)), axis=0, keepdims=True))

    y = np.zeros(3)
    run(total, np.ones(10), y)
    np.testing.assert_array_equal(y, [4, 4, np.nan])


@pytest.mark.parametrize(
    ("dtype", "filling"), [("int32", 2**31 - 1), ("uint8", 255), ("bool", True)]
)
def test_beyond_the_edge_integers_are_huge_and_booleans_true(dtype, filling):
    found = []
    run(lambda x: found.append(np.array(tile_of(x))), np.zeros(3, dtype), grid=(1,))
    assert found[0].tolist() == [0, 0, 0, filling]


def test_what_hides_the_nan_beyond_the_edge():
    """Maxima, minima and comparisons, but not !=, as chapter 12 says."""
    found = []

    def kernel(x):
        tile = tile_of(x)
        found.extend([ct.max(tile), ct.min(tile), *(tile < 5)[2:], *(tile == 5)[2:]])
        found.extend((tile != 5)[2:])

    run(kernel, np.array([1.0, 2.0, 3.0]), grid=(1,))
    assert found == [3, 1, True, False, False, False, True, True]


def test_launch_needs_a_stream_in_cutile_and_none_on_numpy():
    cutile = pytest.importorskip("cuda.tile")
    with pytest.raises(TypeError, match="Stream is required"):
        cutile.launch(None, (1,), cutile.kernel(lambda x: None), (np.zeros(3),))
    run(lambda x: None, np.zeros(3))


def tile_of(x):
    """The tile of an array that this block computes on."""
    return ct.load(x, (ct.bid(0),), (4,))


SINGLES, HALVES = (np.ones((4, 4), dtype) for dtype in ("float32", "float16"))


@pytest.mark.parametrize(("kernel", "error", "says"), [
    (lambda x, y: ct.load(x, (ct.bid(0) + 1,), (4,)), IndexError, r"tile \(3,\) of shape \(4,\) is outside an array of \(10,\)"),
    (lambda x, y: ct.load(x, (ct.bid(0),), (3,)), ValueError, "powers of 2"),
    (lambda x, y: ct.load(x, (0, 0), (4, 4)), ValueError, r"tile \(0, 0\) of shape \(4, 4\) of an array of shape \(10,\)"),
    (lambda x, y: ct.load(x, (0,), (4,), padding_mode="zero"), ValueError, "'zero' is not a valid PaddingMode"),
    (lambda x, y: ct.store(y, (0,), tile_of(x)), RuntimeError, "two stores to the same place"),
    (lambda x, y: (ct.store(y, (ct.bid(0),), tile_of(x)), ct.load(y, (0,), (4,))), RuntimeError, "blocks have no order"),
    (lambda x, y: ct.store(x, (ct.bid(0),), ct.load(x, (0,), (4,))), RuntimeError, "blocks have no order"),
    (lambda x, y: ct.store(y, (ct.bid(0),), tile_of(x).astype(ct.float32)), TypeError, "a tile of float32 for an array of float64"),
    (lambda x, y: ct.mma(SINGLES, HALVES, SINGLES), TypeError, "a product of float32 and float16"),
    (lambda x, y: operator.setitem(tile_of(x), 0, 1.0), TypeError, "make a new tile"),
    (lambda x, y: x[0], TypeError, "reads an array by load"),
    (lambda x, y: np.exp(x), TypeError, "reads an array by load"),
    (lambda x, y: operator.setitem(y, 0, 1.0), TypeError, "writes it by store"),
    (lambda x, y: tile_of(np.ones(10)), TypeError, "an array that was launched"),
])  # fmt: skip
def test_what_a_gpu_leaves_undefined_is_an_error_that_names_the_block(kernel, error, says):
    with pytest.raises(error, match=says) as info:
        run(kernel, np.ones(10), np.ones(10))
    assert "in block (" in info.value.__notes__[0]


@pytest.mark.parametrize("writer", [0, 1])
def test_a_race_is_found_whether_the_load_or_the_store_comes_first(writer):
    def races(x):
        if ct.bid(0) == writer:
            ct.store(x, (0,), ct.full((4,), 1.0, ct.float64))
        else:
            ct.load(x, (0,), (4,))

    with pytest.raises(RuntimeError, match="blocks have no order"):
        run(races, np.ones(4), grid=(2,))


def test_blocks_run_in_another_order_than_their_numbers():
    order = []
    run(lambda: order.append(ct.bid(0)), grid=(20,))
    assert sorted(order) == list(range(20)) != order


def test_a_block_can_be_run_line_by_line():
    x, y = np.arange(10.0), np.zeros(10)
    steps = ct.steps((3,), doubled, (x, y, 2.0), block=(1,))
    assert [list(step.changed) for step in steps] == [["i"], ["tile"], ["tile"], ["tile"], []]
    np.testing.assert_array_equal(steps[1].changed["tile"], [4, 5, 6, 7])
    np.testing.assert_array_equal(steps[3].changed["tile"], [9, 11, 13, 15])
    assert "tile = tile * factor\n    tile = float64 (4,)\n    [ 8. 10. 12. 14.]" in repr(steps[2])
    np.testing.assert_array_equal(y, [0, 0, 0, 0, 9, 11, 13, 15, 0, 0])


def test_a_float_that_is_no_constant_is_a_float32():
    def types(a: float, b: ct.Constant[float]):
        found.append((type(a), type(b)))

    found = []
    run(types, 0.1, 0.1, grid=(1,))
    assert found == [(np.float32, float)]


def test_tf32_keeps_10_bits_of_fraction():
    for rest, rounded in ((0.49, 0), (0.51, 1), (-0.49, 0), (-0.51, -1)):
        x = ct.full((1,), 1.5 + rest * 2**-10, ct.float32)
        np.testing.assert_array_equal(x.astype(ct.tfloat32), np.float32(1.5 + rounded * 2**-10))
