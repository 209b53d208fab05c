"""The picture of costs shows what `mh.cost` says, and where the cheapest form changes."""

import math

import numpy as np
import pytest

import minimha as mh
from minimha import pictures
from minimha.pictures.costs import takeovers

EVEN = mh.cost.Machine(((1.0, 1e-9),), ((1.0, 1e-9),), 1e-6)  # 1 Gflop/s, 1 GB/s, 1 µs


@pytest.fixture
def compared():
    return mh.cost.compare(M=64, H=4, T=16, machine=EVEN)


def lines(axes):
    """By form, the points of its line."""
    return {
        form: dict(zip(*line.get_data(), strict=True))
        for line in axes.get_lines()
        for form in str(line.get_label()).split(" = ")
        if form in mh.projections.FORMS
    }


def rings(axes):
    return [
        tuple(np.ravel(line.get_data())) for line in axes.get_lines() if line.get_marker() == "o"
    ]


@pytest.mark.parametrize("over", "MHDT")
def test_lines_are_the_costs_of_the_forms(compared, over):
    figure = pictures.costs(compared, over)
    costs = compared.costs(**{over: 8})
    for axes, of in zip(
        figure.axes,
        [lambda c: c.parameters, lambda c: c.flops, EVEN.seconds],
        strict=True,
    ):
        found = lines(axes)
        assert set(found) == set(mh.projections.FORMS)
        if over == "M":
            costs = compared.costs(M=32)
        assert {form: y[32 if over == "M" else 8] for form, y in found.items()} == {
            form: of(cost) for form, cost in costs.items()
        }
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_axes_have_names_and_units(compared):
    figure = pictures.costs(compared, "D")
    assert [axes.get_xlabel() for axes in figure.axes] == ["head width D"] * 3
    assert [axes.get_ylabel() for axes in figure.axes] == ["parameters", "flop", "expected time"]
    assert figure.axes[2].yaxis.get_major_formatter()(2e-3) == "2 ms"
    assert figure.axes[1].yaxis.get_major_formatter()(5e6) == "5 M"
    assert figure.get_suptitle() == compared.title()


def test_lines_are_apart_without_colour(compared):
    for axes in pictures.costs(compared).axes:
        drawn = [
            line
            for line in axes.get_lines()
            if str(line.get_label()).split(" = ")[0] in mh.projections.FORMS
        ]
        assert len({str(line._dash_pattern) for line in drawn}) == len(drawn) >= 3


def test_forms_of_equal_cost_are_one_line(compared):
    parameters = pictures.costs(compared).axes[0]
    assert [t.get_text() for t in parameters.get_legend().get_texts()] == [
        "per-head = stacked = fused", "double", "bilinear",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "letters", [{"M": 64, "H": 4, "T": 16}, {"M": 48, "H": 6, "G": 2, "T": 5, "bias": False}]
)
def test_a_ring_is_where_the_formula_says(letters):
    """The D beyond which bilinear has fewer parameters, and flops, is `crossovers`'s: the next whole
    number."""
    compared = mh.cost.compare(**letters, machine=EVEN)
    figure = pictures.costs(compared, "D")
    for axes, (name, beyond) in zip(figure.axes, compared.crossovers().items(), strict=False):
        ((n, y),) = rings(axes)
        assert n == math.floor(beyond) + 1, name
        assert axes.get_title(loc="left") == f"least: bilinear from D = {n:.0f}"
        cost = compared.costs(D=int(n))["bilinear"]
        assert y == (cost.parameters if name == "parameters" else cost.flops)


def test_those_that_win_together_are_named_together(compared):
    assert pictures.costs(compared, "H").axes[0].get_title(loc="left") == (
        "least: per-head = stacked = fused from H = 4"
    )


def test_without_a_crossing_there_is_no_ring(compared):
    parameters, flop, _ = pictures.costs(compared, "T").axes
    assert not rings(parameters) + rings(flop)
    assert not parameters.get_title(loc="left")


def test_who_is_ahead_by_less_than_the_margin_has_not_won():
    near = {"a": {1: 1.0, 2: 2.0, 4: 4.0, 8: 8.0}, "b": {1: 1.1, 2: 1.9, 4: 3.0, 8: 9.0}}
    assert takeovers(near, 1.0) == [(1, 2, "a", "b"), (4, 8, "b", "a")]
    assert takeovers(near, 1.2) == [(1, 2, "a", "b")]
    assert takeovers(near, 1.5) == []


def test_cross_attention_has_no_fused_form():
    found = lines(pictures.costs(mh.cost.compare(M=64, H=4, T=16, S=5, machine=EVEN), "D").axes[0])
    assert set(found) == set(mh.projections.FORMS) - {"fused"}


def test_only_sizes_of_the_axes_are_varied(compared):
    with pytest.raises(ValueError, match="over is one of M, H, D, T, not 'S'"):
        pictures.costs(compared, "S")
