"""Extension points: a default, a function provided from above, and replacements for a block."""

import copy
import inspect
import subprocess
import sys

import numpy as np

from minimha_autograd.extension import ExtensionPoint, extension_point, providers


def triple(x):
    return 3 * x


def sixfold(x):
    return 6 * x


def test_without_a_provider_the_default_is_called():
    point = extension_point(triple)
    assert point(2) == point.function(2) == 6


def test_a_function_provided_by_its_path_is_imported_at_the_first_call():
    program = """
import sys
from minimha_autograd.extension import extension_point, providers

@extension_point
def area(r):
    return None

providers["__main__:area"] = "colorsys:rgb_to_yiq"
assert "colorsys" not in sys.modules
assert area(0, 0, 0) == (0, 0, 0)
assert area.function is sys.modules["colorsys"].rgb_to_yiq
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_provider_named_after_the_first_call_is_called_too(monkeypatch):
    point = extension_point(triple)
    assert point(2) == 6
    monkeypatch.setitem(providers, f"{__name__}:triple", "operator:neg")
    assert point(2) == -2


def test_blocks_may_be_nested():
    point = ExtensionPoint(triple)
    with point.replaced_by(sixfold):
        with point.replaced_by(abs):
            assert point(-1) == 1
        assert point(-1) == -6
    assert point(-1) == -3


def test_a_block_may_repeat_the_function_of_an_outer_one():
    point = ExtensionPoint(triple)
    with point.replaced_by(sixfold), point.replaced_by(abs):
        with point.replaced_by(sixfold):
            assert point(-1) == -6
        assert point(-1) == 1


def test_a_block_may_call_the_default_again():
    point = ExtensionPoint(triple)
    with point.replaced_by(abs):
        with point.replaced_by(point.default):
            assert point(-1) == -3
        assert point(-1) == 1
        point.provide(sixfold)
    assert point(-1) == -6


def test_functions_are_never_compared():
    class Scaled:
        """A callable whose == returns an array."""

        def __init__(self, factor):
            self.factor = np.array([factor, factor])

        def __call__(self, x):
            return x * self.factor[0]

        def __eq__(self, other):
            return self.factor == other.factor

        __hash__ = None

    point = ExtensionPoint(triple)
    with point.replaced_by(Scaled(2)):
        with point.replaced_by(Scaled(5)):
            assert point(1) == 5
        assert point(1) == 2
    assert point(1) == 3


def test_a_point_has_the_name_and_the_signature_of_its_default():
    def area(width, height=1):
        """The area of a rectangle."""

    for point in (ExtensionPoint(area), extension_point(area)):
        assert point.__name__ == "area"
        assert point.__doc__ == "The area of a rectangle."
        assert str(inspect.signature(point)) == "(width, height=1)"


def test_blocks_of_several_threads_may_end_in_any_order():
    point = ExtensionPoint(triple)
    first, second = point.replaced_by(sixfold), point.replaced_by(abs)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert point(-1) == 1
    second.__exit__(None, None, None)
    assert point(-1) == -3


def test_an_error_ends_the_replacement():
    point = ExtensionPoint(triple)
    try:
        with point.replaced_by(sixfold):
            raise ValueError
    except ValueError:
        assert point(1) == 3


def test_what_is_provided_during_a_block_is_called_after_it():
    point = ExtensionPoint(triple)
    with point.replaced_by(abs):
        point.provide(sixfold)
        assert point(-1) == 1
    assert point(-1) == -6


def test_a_copy_is_replaced_on_its_own():
    point = ExtensionPoint(triple)
    other = copy.deepcopy(point)
    other.provide(sixfold)
    assert (point(1), other(1)) == (3, 6)
