"""Every invariant of attention holds on every path and finds the mistakes listed for it."""

import dataclasses

import pytest
from attention_paths import KERNELS, PATHS
from hypothesis import Phase, settings
from invariants import FEW, FEWER, INVARIANTS, hold
from wrong_attention import FAULTS, broken


def rarely(path):
    """Marks for paths that nearly repeat another: the tiles on BLAS, the reference in a loop."""
    return [pytest.mark.thorough] if path.family in ("tiled", "loop") else []


@pytest.mark.parametrize(
    ("name", "path"),
    [
        pytest.param(name, path, marks=rarely(path))
        for name, (_, needs, _) in INVARIANTS.items()
        for path in PATHS
        if needs <= path.gives and (path.family == "reference" or path.form != "its pullback")
    ],
    ids=str,
)
def test_every_invariant_holds_for_every_implementation(name, path):
    """A Tensor calls the pullback of each implementation; the reference's is called alone, too."""
    if path.family in KERNELS:  # these have their own tests, with sizes beyond a tile
        hold(name, path, FEWER)
    else:
        many = settings(FEW, max_examples=2 * FEW.max_examples)
        hold(name, path, many if name == "the_result_equals_the_formula" else FEW)


@pytest.mark.parametrize("name", INVARIANTS)
def test_every_invariant_holds_on_every_array_library(name, place):
    if place.name == "numpy" or (place.name == "array-api-strict" and not place.device):
        return  # tested above, and on the device that lets no array of the host through
    for path in PATHS:
        compiled = path.family in KERNELS  # on other libraries it is the reference
        if path.form == "Tensors" and not compiled and INVARIANTS[name][1] <= path.gives:
            there = dataclasses.replace(path, place=place)
            hold(name, there, FEWER, dtypes=("float64", "float32"))


@pytest.mark.parametrize("name", INVARIANTS)
def test_every_invariant_holds_for_attention_built_from_small_operations(name):
    hold(name, broken(""), dtypes=("float64",))


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # from the expected failures
@pytest.mark.parametrize(("fault", "name"), FAULTS.items())
def test_each_wrong_implementation_violates_its_invariant(fault, name, tables):
    row = [fault, name, "not found"]
    tables["wrong forward passes and the invariants that find them"].append(row)
    many = settings(FEW, max_examples=60, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        hold(name, broken(fault.partition(",")[0]), many, dtypes=("float64",))
    row[-1] = "found"


def test_two_of_26_wrong_implementations_have_their_mistake_in_the_backward_pass():
    assert len(FAULTS) == 26
    assert len([fault for fault in FAULTS if "treated as constant" in fault]) == 2


def test_every_invariant_catches_a_wrong_implementation():
    assert set(FAULTS.values()) == set(INVARIANTS)
