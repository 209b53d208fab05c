"""The picture of costs shows the values of `mh.cost`."""

import pytest

import minimha as mh
from minimha import pictures

EVEN = mh.cost.Machine(((1.0, 1e-9),), ((1.0, 1e-9),), 1e-6)  # 1 Gflop/s, 1 GB/s, 1 µs


@pytest.fixture
def compared():
    return mh.cost.compare(M=64, H=4, T=16, machine=EVEN)


def lines(axes):
    """The points of each line, by form."""
    return {
        form: dict(zip(*line.get_data(), strict=True))
        for line in axes.get_lines()
        for form in str(line.get_label()).split(" = ")
        if form in mh.projections.FORMS
    }


@pytest.mark.parametrize("over", "MHDT")
def test_lines_show_the_costs_of_the_forms(compared, over):
    values = (lambda c: c.parameters), (lambda c: c.flops), EVEN.seconds
    costs = compared.costs(**{over: 32})
    for axes, value in zip(pictures.costs(compared, over).axes, values, strict=True):
        found = {form: y[32] for form, y in lines(axes).items()}
        assert found == {form: value(cost) for form, cost in costs.items()}
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_axes_have_names_and_units(compared):
    figure = pictures.costs(compared, "D")
    assert [axes.get_xlabel() for axes in figure.axes] == ["head width D"] * 3
    assert [axes.get_ylabel() for axes in figure.axes] == ["parameters", "flop", "expected time"]
    assert figure.axes[2].yaxis.get_major_formatter()(2e-3) == "2 ms"
    assert figure.axes[1].yaxis.get_major_formatter()(5e6) == "5 M"
    assert figure.get_suptitle() == compared.title()


def test_lines_are_distinguishable_without_colour(compared):
    for axes in pictures.costs(compared).axes:
        *forms, _ = axes.get_lines()  # the last one is dotted and marks this setting
        assert len({str(line._dash_pattern) for line in forms}) == len(forms) >= 3


def test_forms_of_equal_cost_are_one_line(compared):
    parameters = pictures.costs(compared).axes[0]
    assert [t.get_text() for t in parameters.get_legend().get_texts()] == [
        "per-head = stacked = fused", "double", "bilinear",
    ]  # fmt: skip


def test_cross_attention_has_no_fused_form():
    found = lines(pictures.costs(mh.cost.compare(M=64, H=4, T=16, S=5, machine=EVEN), "D").axes[0])
    assert set(found) == set(mh.projections.FORMS) - {"fused"}


def test_only_sizes_of_the_axes_can_be_varied(compared):
    with pytest.raises(ValueError, match="over must be one of M, H, D, T, not 'S'"):
        pictures.costs(compared, "S")


def test_with_more_heads_every_form_takes_longer_and_one_needs_more_parameters(compared):
    few, many = (compared.over("H")[h] for h in (2, 32))
    for form, cost in few.items():
        assert EVEN.seconds(many[form]) > EVEN.seconds(cost)
    assert {form for form in few if many[form].parameters > few[form].parameters} == {"bilinear"}
