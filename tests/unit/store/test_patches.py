"""Patches: the examples of the RFCs, Kubernetes' strategic rules, and laws over any JSON."""

from __future__ import annotations

import contextlib
import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.store import errors, patches

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab/~", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text("abc", max_size=2), JSON, max_size=4)


def without_nulls(value: object) -> object:
    """Merge-patches cannot say null inside an object, so laws about them leave nulls out."""
    if isinstance(value, dict):
        return {key: without_nulls(v) for key, v in value.items() if v is not None}
    return value


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_follows_the_rfc(target: object, patch: object, result: object) -> None:
    assert patches.merge(target, patch) == result


@given(OBJECTS.map(without_nulls), OBJECTS.map(without_nulls))
def test_a_diff_applied_gives_the_other_side(before: dict, after: dict) -> None:
    assert patches.merge(before, patches.merge_diff(before, after)) == after


@given(OBJECTS)
def test_a_diff_of_equals_is_empty(value: dict) -> None:
    assert patches.merge_diff(value, copy.deepcopy(value)) == {}


@pytest.mark.parametrize(
    ("target", "operations", "result"),
    [
        ({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
        ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a": 1, "b": 2}, [{"op": "remove", "path": "/b"}], {"a": 1}),
        ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
        ({"a": 1}, [{"op": "replace", "path": "/a", "value": None}], {"a": None}),
        ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
        ({"a/b": 1, "m~n": 2}, [{"op": "replace", "path": "/a~1b", "value": 3},
                                {"op": "test", "path": "/m~0n", "value": 2}], {"a/b": 3, "m~n": 2}),
        ({"a": 1}, [{"op": "add", "path": "", "value": {"b": 1}}], {"b": 1}),
    ],
)  # fmt: skip
def test_json_patch_follows_the_rfc(target: object, operations: list, result: object) -> None:
    assert patches.json_patch(target, operations) == result


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": True},
        {"op": "remove", "path": "/missing"},
        {"op": "replace", "path": "/missing", "value": 1},
        {"op": "add", "path": "/list/9", "value": 1},
        {"op": "add", "path": "/list/x", "value": 1},
        {"op": "add", "path": "no-slash", "value": 1},
        {"op": "add", "path": "/a"},
        {"op": "move", "path": "/a"},
        {"op": "dance", "path": "/a"},
        {"op": "add", "path": "/a/b", "value": 1},
        {"op": "remove", "path": ""},
    ],
)
def test_json_patch_refuses_what_cannot_be_done(operation: dict) -> None:
    with pytest.raises(errors.Invalid):
        patches.json_patch({"a": 1, "list": [1]}, [operation])


OPERATION = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test", "x"])},
    optional={
        "path": st.text("/ab01-~", max_size=5),
        "from": st.text("/ab0", max_size=4),
        "value": JSON,
    },
)


@given(JSON, st.lists(OPERATION, max_size=4))
def test_json_patch_changes_nothing_it_was_given(target: object, operations: list) -> None:
    before, asked = copy.deepcopy(target), copy.deepcopy(operations)
    with contextlib.suppress(errors.ApiError):
        patches.json_patch(target, operations)
    assert (target, operations) == (before, asked)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        pytest.param(
            {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]},
            {"containers": [{"name": "b", "image": "3"}]},
            {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "3"}]},
            id="lists merge by their key",
        ),
        pytest.param(
            {"containers": [{"name": "a"}, {"name": "b"}]},
            {"containers": [{"name": "a", "$patch": "delete"}]},
            {"containers": [{"name": "b"}]},
            id="an element can be deleted",
        ),
        pytest.param(
            {"containers": [{"name": "a"}, {"name": "b"}]},
            {"containers": [{"$patch": "replace"}, {"name": "c"}]},
            {"containers": [{"name": "c"}]},
            id="a list can be replaced",
        ),
        pytest.param(
            {"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "b"}]}, id="a list without a key is replaced",
        ),
        pytest.param(
            {"finalizers": ["a", "b"]},
            {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]},
            {"finalizers": ["b", "c"]}, id="sets of words merge",
        ),
        pytest.param(
            {"a": {"x": 1}}, {"a": {"$patch": "replace", "y": 2}}, {"a": {"y": 2}},
            id="a map can be replaced",
        ),
        pytest.param(
            {"a": {"x": 1, "y": 2}}, {"a": {"$retainKeys": ["y"], "y": 3}}, {"a": {"y": 3}},
            id="only retained keys stay",
        ),
        pytest.param(
            {"env": [{"name": "a"}, {"name": "b"}]},
            {
                "$setElementOrder/env": [{"name": "b"}, {"name": "a"}],
                "env": [{"name": "a", "value": "1"}],
            },
            {"env": [{"name": "b"}, {"name": "a", "value": "1"}]}, id="order is as asked",
        ),
    ],
)  # fmt: skip
def test_strategic_merge(target: dict, patch: dict, result: dict) -> None:
    before = copy.deepcopy(target)
    assert patches.strategic(target, patch) == result
    assert target == before


def test_strategic_merge_names_the_missing_key() -> None:
    with pytest.raises(errors.BadRequest, match="has no name"):
        patches.strategic({"containers": []}, {"containers": [{"image": "x"}]})
