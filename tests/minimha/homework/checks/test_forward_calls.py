"""A pullback may repeat its forward pass, but not for each entry of its input."""

import pytest
from answers import function

from minimha.homework.checks.forward_calls import MOST, limited

SQUARE = """
def square(x):
    def pullback(dy):
        for _ in range({}):
            y, _ = square(x)
        return (2 * x * dy,)
    return x * x, pullback
"""


def square(times):
    return function("square", SQUARE.format(times))


def test_a_pullback_may_repeat_its_forward_pass():
    y, pullback = limited(square(MOST))(3.0)
    assert y == 9
    for _ in range(2):  # each call is counted by itself
        assert pullback(1.0) == (6,)


def test_a_pullback_that_repeats_it_for_each_entry_is_stopped_and_told_why():
    f = square(MOST + 1)
    _, pullback = limited(f)(3.0)
    with pytest.raises(AssertionError, match=r"called square 2,000 times; it should"):
        pullback(1.0)
    assert f.__globals__["square"] is f


def test_anything_else_stays_as_it_is():
    f = function("square", "def square(x):\n    return [x * x, None]")
    assert limited(f)(3.0) == [9.0, None]
    assert limited(max) is max
