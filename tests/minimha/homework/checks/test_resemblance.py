"""How a wrong array resembles the right one, whatever the task."""

import numpy as np
import pytest

from minimha.homework.checks.resemblance import resemblance

X = np.random.default_rng(0).standard_normal((3, 4, 5))
ROWS = np.array([[[2.0]], [[3.0]], [[-1.0]]])
RELATED = {
    "axes are in the order (query, head, width)": X.swapaxes(0, 1),
    "reshaped from an array with the axes (query, head, width)": X.swapaxes(0, 1).reshape(X.shape),
    "only the shape is wrong": X.reshape(3, 20),
    "along the axis head, [0, 1, 2] are the right [2, 1, 0]": X[::-1],
    "along the axis query, [0, 1, 2, 3] are the right [1, 1, 1, 1]": X[:, [1, 1, 1, 1]],
    "along the axis head, [0, 1] are the right [0, 1], but 3 are expected": X[:2],
    "only [2] along the axis head": X[2],
    "only [0] along the axis query": X[:, :1],
    "the sum or the mean over the axis width": X.mean(axis=-1, keepdims=True),
    "in the wrong places": np.random.default_rng(1).permutation(X.ravel()).reshape(X.shape),
    "in another shape and order": np.random.default_rng(1).permutation(X.ravel()),
    "not summed over axis 1": np.stack([X / 4, X * 3 / 4], axis=1),
    "60 of 60 entries are 0": 0 * X,
    "40 of 60 entries are 0": X * np.array([[[0]], [[0]], [[1]]]) * abs(X),
    "the sign is flipped": -X,
    "−3/2 times the right result": -1.5 * X,
    "1/√5 times the right result": X / np.sqrt(5),
    "0.123457 times the right result": 0.123456789 * X,
    "along the axis width, all are off by the same number": X + ROWS,
    "along the axis query, all are off by the same factor:": X * [2, 3, 4, 5, 6],
    "along the axis width, all are off by the same factor and the same number": ROWS * X + 1,
}


@pytest.mark.parametrize("words", RELATED)
def test_a_relation_is_named(words):
    assert words in resemblance(RELATED[words], X, ("head", "query", "width"))


def test_float32_is_compared_with_its_own_rounding():
    assert "only the shape" in resemblance((X / 3).astype("float32").ravel(), X / 3)


def test_axes_without_names_are_numbered():
    assert "along axis 0, [0, 1, 2] are the right [2, 1, 0]" in resemblance(X[::-1], X)


def test_masks_are_compared_too():
    assert resemblance(X > 0, X <= 0) == "True and False are exchanged"
    assert "(key, query)" in resemblance(np.tri(4, 4) == 0, np.tri(4, 4).T == 0, ("query", "key"))


@pytest.mark.parametrize(
    ("yours", "right"),
    [
        (X**2, X),
        (X + 1j, X),
        (np.ones((3, 4)), np.ones((4, 3))),
        (np.where(X > 1, np.nan, -X), X),
        (np.array([1.0, 2.5]), np.array([3.0, 0.1])),
        (np.array(1.0), np.array(4.0)),
        (np.arange(12.0).reshape(3, 4), np.arange(12.0).reshape(3, 4) + ROWS[:, 0]),
        (np.array(0.123), np.array(0.456)),
        (np.array([True, False, False]), np.array([False, True, True, True])),
        ((X / 3).astype("float32"), X / 3),
    ],
    ids=range(10),
)
def test_numbers_that_agree_by_chance_or_not_at_all_are_not_related(yours, right):
    assert resemblance(yours, right) == ""
