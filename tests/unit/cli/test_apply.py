"""The three-way merge behind `windlass apply`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.sdk import apply
from windlass.store import patches

CASES: list[tuple[str, Any, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("nothing to do", {"a": 1}, {"a": 1}, {"a": 1}, {}),
    ("a changed field is set", {"a": 1}, {"a": 1}, {"a": 2}, {"a": 2}),
    ("a new field is set", {}, {}, {"a": 1}, {"a": 1}),
    ("a dropped field is removed", {"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1}, {"b": None}),
    ("what only the server has stays", {}, {"b": 2}, {"a": 1}, {"a": 1}),
    ("a dropped field that is gone already", {"b": 2}, {}, {}, {}),
    ("somebody else's change is undone", {"a": 1}, {"a": 9}, {"a": 1}, {"a": 1}),
    ("inside an object", {"s": {"x": 1}}, {"s": {"x": 1, "y": 2}}, {"s": {}}, {"s": {"x": None}}),
    ("a list is replaced whole", {"l": [1]}, {"l": [1]}, {"l": [1, 2]}, {"l": [1, 2]}),
    ("defaults in elements are no change", {"l": [{"a": 1}]}, {"l": [{"a": 1, "d": 0}]},
     {"l": [{"a": 1}]}, {}),
    ("a field dropped from an element", {"l": [{"a": 1, "b": 2}]}, {"l": [{"a": 1, "b": 2}]},
     {"l": [{"a": 1}]}, {"l": [{"a": 1}]}),
    ("true is not 1", {"a": True}, {"a": 1}, {"a": True}, {"a": True}),
    ("no memory of an earlier file", None, {"a": 1, "b": 2}, {"a": 1}, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("last", "current", "wanted", "patch"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_three_way(last: Any, current: Any, wanted: Any, patch: Any) -> None:
    assert apply.three_way(last, current, wanted) == patch


leaves = st.one_of(st.integers(0, 2), st.text("ab", max_size=1), st.booleans())
objects = st.recursive(
    st.dictionaries(st.sampled_from("xyz"), leaves, max_size=3),
    lambda inner: st.dictionaries(
        st.sampled_from("xyz"), st.one_of(leaves, inner, st.lists(leaves, max_size=2)), max_size=3
    ),
    max_leaves=12,
)


@given(objects, objects, objects)
def test_applying_twice_changes_nothing_and_arguments_stay(
    last: dict[str, Any], current: dict[str, Any], wanted: dict[str, Any]
) -> None:
    kept = copy.deepcopy((last, current, wanted))
    result = patches.merge(current, apply.three_way(last, current, wanted))
    assert (last, current, wanted) == kept
    assert apply.three_way(wanted, result, wanted) == {}


@given(objects, objects, objects)
def test_what_the_file_says_holds_and_what_it_dropped_is_gone(
    last: dict[str, Any], current: dict[str, Any], wanted: dict[str, Any]
) -> None:
    result = patches.merge(current, apply.three_way(last, current, wanted))
    for key, value in wanted.items():
        if not isinstance(value, dict):
            assert result[key] == value
    for key in last:
        assert key in wanted or key not in result
    for key, value in current.items():
        if key not in last and key not in wanted:
            assert result[key] == value
