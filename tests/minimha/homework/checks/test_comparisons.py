"""Messages about arrays that differ."""

import re

import numpy as np
import pytest

from minimha import homework
from minimha.homework.checks.comparisons import same_operation
from minimha.homework.checks.mistakes import Patch, defined
from minimha.homework.checks.verdicts import FAILED


def shown(yours, expected, axes):
    with pytest.raises(AssertionError) as failure:
        homework.same(np.array(yours), np.array(expected), "the mask", axes)
    return str(failure.value)


CAUSAL = """\
               yours    expected
               ■ ■ ■    ■ · ·
               · ■ ■    ■ ■ ·
               · · ■    ■ ■ ■"""
WIDE = """\
               yours    expected
               ■ ■      ■ · ·
               · ■      ■ ■ ·
               · ·"""


@pytest.mark.parametrize(("queries", "drawing"), [(3, CAUSAL), (2, WIDE)])
def test_small_masks_are_drawn_side_by_side_even_of_transposed_shapes(queries, drawing):
    mask = np.tri(queries, 3, dtype=bool)
    drawn, _, guess = shown(mask.T, mask, "query key").partition("\n  relation     ")
    assert "(key, query)" in guess
    assert drawn.endswith(f"  drawn        ■ True, · False; rows: query, columns: key\n{drawing}")


def test_of_a_mask_with_more_axes_the_part_with_the_worst_entry_is_drawn():
    masks = np.ones((2, 1, 2, 2), dtype=bool)
    wrong = masks.copy()
    wrong[1, 0, 0, 1] = False
    text = shown(wrong, masks, "batch head query key")
    assert "at [1, 0]  (batch, head)" in " ".join(text.split("\n")).replace("               ", "")
    assert text.endswith("■ ·      ■ ■\n               ■ ■      ■ ■")


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        (lambda x: x.ravel(), "scores has the wrong shape"),
        (lambda x: [[1], [2, 3]], "a list of list, list; it should be an array"),
    ],
    ids=["flat", "ragged"],
)
def test_a_step_that_is_no_product_and_no_array_gets_its_facts(scores, says):
    task = homework.course()["attention_forward"]

    def yours(query, key, value, *, tap):
        tap("scores", scores(query @ key.mT))

    assert says in next(task.verdicts(yours)).message


@pytest.mark.parametrize(("factor", "named"), [("", True), ("-", False), ("0.37 * ", False)])
def test_a_wrong_product_is_named_only_if_it_is_exactly_this_product(factor, named):
    task = homework.course()["tiled_backward"]
    edit = Patch("weights.T @ dout[rows]", f"{factor}dscores.T @ dout[rows]", "")
    yours = defined(edit.made_in(task.code(solved=True)), task.name)
    message = next(v.message for v in task.verdicts(yours) if v.outcome == FAILED)
    assert message.startswith("dvalue is wrong")
    assert ("looks like   dvalue is made from dscores" in message) is named
    assert ("looks like" in message) is named


@pytest.mark.parametrize("shape", [(5,), (11, 2)])
def test_one_axis_and_large_masks_are_not_drawn(shape):
    mask = np.ones(shape, dtype=bool)
    assert "drawn" not in shown(~mask, mask, None)


def twice(x):
    return 2 * x, lambda dy: (2 * dy,)


def value_if_small(x):
    return 2 * x if x.size < 100 else x, lambda dy: (2 * dy,)


def gradient_if_small(x):
    return 2 * x, lambda dy: (2 * dy if dy.size < 100 else dy,)


def only_at_first():
    """An affine function around the first input, where it is right, and the pullback of that."""
    first = {}

    def f(x):
        start = first.setdefault(x.shape, x)
        y = 2 * start + np.sum(x - start)
        return y, lambda dy: (np.full(dy.shape, np.sum(dy)),)

    return f


@pytest.mark.parametrize(
    ("yours", "says"),
    [
        (value_if_small, "y for x of shape (50, 4) is wrong"),
        (gradient_if_small, "dx for x of shape (50, 4) is wrong"),
        (only_at_first(), "dx for x of shape (50, 4) is wrong"),
        (lambda x: (x, twice(x)[1]), "y is wrong"),
        (lambda x: (2 * x, lambda dy: (3 * dy,)), "the gradient of x is wrong"),
    ],
    ids=["value of large", "gradient of large", "affine", "value", "gradient"],
)
def test_an_operation_is_compared_with_the_right_one_on_large_inputs_too(yours, says):
    x, large = np.arange(1.0, 7.0).reshape(2, 3), np.arange(1.0, 201.0).reshape(50, 4)
    same_operation(twice, twice, x, large=[large])
    with pytest.raises(AssertionError, match=re.escape(says)):
        same_operation(yours, twice, x, large=[large])


@pytest.mark.parametrize("last_bits", [0, 1e-9, -1e-9])
def test_of_entries_that_are_equally_wrong_the_first_is_named(last_bits):
    yours = [1.0, 2.0 + last_bits, 3.0 - last_bits]
    text = shown(yours, [0.0, 1.0, 2.0], "key")
    assert re.search(r"worst entry  \[0\]  \(key\)", text)
