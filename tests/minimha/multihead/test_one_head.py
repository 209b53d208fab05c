"""What chapter 07 says that one head cannot do: its inequalities have no solution."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

A, B = 0, 1
CIRCLES = list(itertools.product((A, B), repeat=2))  # the letters on the left and on the right


def solvable(rows):
    """Whether an x has rows @ x ≥ 1: where the rows can be scaled, the same as rows @ x > 0."""
    rows = np.array(rows)
    return linprog(np.zeros(rows.shape[1]), -rows, -np.ones(len(rows)), bounds=(None, None)).success


def inequalities(answer, weights):
    """Those of an answer, 0 for the left letter and 1 for the right: in f(a), f(b) and the rest."""
    rows = []
    for circle in CIRCLES:
        lead = np.array([0.0, 0.0, 1.0])
        for letter, weight in zip(circle, weights, strict=True):
            lead[letter] += weight
        rows.append(lead if circle[answer] == A else -lead)
    return rows


@pytest.mark.parametrize("of_the_left", np.linspace(0.05, 0.75, 15))
def test_one_head_finds_the_letter_with_the_larger_weight_and_no_other(of_the_left):
    of_the_right = 0.8 - of_the_left
    weights = of_the_left, of_the_right
    found = [solvable(inequalities(answer, weights)) for answer in (0, 1)]
    larger = 0 if np.isclose(*weights) else np.sign(of_the_left - of_the_right)
    assert found == [larger > 0, larger < 0]


@pytest.mark.parametrize("weights", [(3 / 4, 1 / 4), (1 / 2, 1 / 2), (1 / 4, 3 / 4), (0.99, 0.01)])
def test_one_head_cannot_report_the_same_two_values_in_both_orders(weights):
    w, other = weights
    in_order, swapped = [w, -w], [-other, other]  # in the change (d_1, d_2)
    assert solvable([in_order])
    assert solvable([swapped])
    assert not solvable([in_order, swapped])
