"""The walk over nested tuples, lists and dictionaries."""

import json
from collections import OrderedDict, namedtuple
from operator import eq

import pytest

from minimha.homework.checks.nested import agree, mapped, packed, unpacked

Pair = namedtuple("Pair", "value rest")
NESTED = {"a": (1, [2, {"b": 3}], ()), "c": []}


def test_every_leaf_is_mapped_and_nothing_else_changes():
    assert mapped(lambda x: 10 * x, NESTED) == {"a": (10, [20, {"b": 30}], ()), "c": []}
    assert mapped(str, {1: None}) == {1: "None"}


def test_changes_of_a_copy_do_not_reach_the_original():
    copy = mapped(lambda x: x, NESTED)
    copy["a"][1][1]["b"] = 4
    copy["c"].append(5)
    assert NESTED == {"a": (1, [2, {"b": 3}], ()), "c": []}


def test_subclasses_become_their_bases():
    copy = mapped(lambda x: x, OrderedDict(pair=Pair(1, 2)))
    assert (type(copy), type(copy["pair"])) == (dict, tuple)


def test_leaves_are_compared_in_their_places():
    pairs = []

    def noted(a, b):
        pairs.append((a, b))
        return True

    assert agree(noted, [1, (2, {"x": 3, "y": 4})], [5, (6, {"y": 8, "x": 7})])
    assert pairs == [(1, 5), (2, 6), (3, 7), (4, 8)]


@pytest.mark.parametrize(("x", "y", "wanted"), [
    ([1, 2], [1, 2], True),
    ([1, 2], (1, 2), True),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
    ([1, 2], [1, 2, 3], False),
    ([1, [2]], [1, [3]], False),
    ({"a": 1}, {"b": 1}, False),
    ({"a": 1}, {"a": 1, "b": 2}, False),
    ([1], 1, False),
    ({"a": 1}, [1], False),
])  # fmt: skip
def test_what_agrees(x, y, wanted):
    assert agree(eq, x, y) is wanted
    assert agree(eq, y, x) is wanted


def test_json_keeps_the_types():
    text = json.dumps(packed(lambda x: x, NESTED))
    assert unpacked(lambda x: x, json.loads(text)) == NESTED


def test_a_dictionary_with_numbers_as_keys_and_a_list_without_a_known_type_are_leaves():
    seen = []
    packed(seen.append, [{1: 2}, {"a": 3}])
    assert seen == [{1: 2}, 3]
    assert unpacked(lambda item: ("leaf", item), ["list", ["other", 1], []]) == [
        ("leaf", ["other", 1]), ("leaf", []),
    ]  # fmt: skip
