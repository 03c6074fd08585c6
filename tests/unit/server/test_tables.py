"""Tables for `kubectl get`: paths into objects, cells by type, ages, rows and metadata."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from windlass.kinds.types import core
from windlass.kinds.types.resource import Column, Resource
from windlass.kinds.values import ages, jsonpath
from windlass.server.apiserver import tables

NOW = datetime.datetime(2026, 1, 10, 12, 0, 0, tzinfo=datetime.UTC)
NODE: dict[str, Any] = {
    "metadata": {"name": "n1", "labels": {"a.b/c": "x"}, "resourceVersion": "7"},
    "status": {
        "conditions": [
            {"type": "DiskPressure", "status": "False"},
            {"type": "Ready", "status": "True", "count": 3},
        ],
        "addresses": [{"address": "10.0.0.1"}, {"address": "10.0.0.2"}],
    },
}

PATHS = {
    ".metadata.name": ["n1"],
    "{.metadata.name}": ["n1"],
    ".metadata.labels['a.b/c']": ["x"],
    r".metadata.labels.a\.b/c": ["x"],
    ".status.addresses[0].address": ["10.0.0.1"],
    ".status.addresses[-1].address": ["10.0.0.2"],
    ".status.addresses[5].address": [],
    ".status.addresses[*].address": ["10.0.0.1", "10.0.0.2"],
    '.status.conditions[?(@.type=="Ready")].status': ["True"],
    ".status.conditions[?(@.type!='Ready')].status": ["False"],
    ".status.conditions[?(@.count==3)].type": ["Ready"],
    ".status.nothing.below": [],
    ".metadata.name.below": [],
    "": [NODE],
}


@pytest.mark.parametrize("path", PATHS)
def test_paths_find_what_they_name(path: str) -> None:
    assert jsonpath.find(jsonpath.parse(path), NODE) == PATHS[path]


@pytest.mark.parametrize("path", ["metadata", ".a[", ".a[?(@.b)]", ".a[x]", "..a"])
def test_paths_outside_the_subset_are_named(path: str) -> None:
    with pytest.raises(jsonpath.PathError, match="column path"):
        jsonpath.parse(path)


def test_every_column_of_every_kind_has_a_path_we_read() -> None:
    from windlass.kinds import registry

    for kind in registry.ALL:
        for column in kind.resource.columns:
            jsonpath.parse(column.json_path)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"), (119, "119s"), (120, "2m"), (182, "3m2s"), (600, "10m"), (10_799, "179m"),
        (10_800, "3h"), (18_600, "5h10m"), (8 * 3600, "8h"), (47 * 3600, "47h"),
        (48 * 3600, "2d"), (51 * 3600, "2d3h"), (192 * 3600, "8d"), (400 * 86400, "400d"),
        (730 * 86400, "2y"), (760 * 86400, "2y30d"), (3000 * 86400, "8y"),
    ],
)  # fmt: skip
def test_ages_read_as_kubectl_writes_them(seconds: int, shown: str) -> None:
    born = (NOW - datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert ages.age(born, NOW) == shown


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-10", "2027-01-01T00:00:00Z"])
def test_ages_of_no_past_time_are_marked(text: str) -> None:
    assert ages.age(text, NOW) == "<invalid>"


def columns(*given: Column) -> Resource:
    return Resource("g", "v1", "Thing", "things", namespaced=True, columns=given)


CELLS = {
    "text": (Column("A", ".a"), {"a": "x"}, "x"),
    "missing": (Column("A", ".a"), {}, None),
    "null": (Column("A", ".a"), {"a": None}, None),
    "a list as text": (Column("A", ".a[*].n"), {"a": [{"n": "x"}, {"n": "y"}]}, "x y"),
    "a number as text": (Column("A", ".a"), {"a": 3}, "3"),
    "an object as text": (Column("A", ".a"), {"a": {"b": 1}}, '{"b":1}'),
    "integer": (Column("A", ".a", "integer"), {"a": 3}, 3),
    "integer from text": (Column("A", ".a", "integer"), {"a": "3"}, None),
    "integer from bool": (Column("A", ".a", "integer"), {"a": True}, None),
    "boolean": (Column("A", ".a", "boolean"), {"a": False}, False),
    "date": (Column("A", ".a", "date"), {"a": "2026-01-10T11:59:00Z"}, "60s"),
    "no date": (Column("A", ".a", "date"), {}, None),
    "no age": (core.AGE, {}, "<unknown>"),
}


@pytest.mark.parametrize("case", CELLS)
def test_cells_hold_the_value_in_its_type(case: str) -> None:
    column, obj, wanted = CELLS[case]
    data = msgspec.json.encode({"metadata": {"name": "one"}, **obj})
    made = render(columns(column), [data])
    assert made["rows"][0]["cells"] == ["one", wanted]


def render(resource: Resource, objects: list[bytes], **options: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"version": "v1", "include": "None", "metadata": {}, "now": NOW}
    found: dict[str, Any] = msgspec.json.decode(
        tables.table(resource, objects, **(settings | options))
    )
    return found


def test_name_comes_first_and_rare_columns_carry_their_priority() -> None:
    made = render(columns(Column("IP", ".ip", priority=1)), [])
    assert made["kind"] == "Table"
    assert made["apiVersion"] == "meta.k8s.io/v1"
    assert [(c["name"], c["priority"]) for c in made["columnDefinitions"]] == [
        ("Name", 0),
        ("IP", 1),
    ]
    assert made["columnDefinitions"][0]["format"] == "name"


def test_rows_carry_as_much_of_the_object_as_was_asked_for() -> None:
    data = msgspec.json.encode({"metadata": {"name": "one", "uid": "u"}, "spec": {"x": 1}})
    rows = {
        include: render(columns(), [data], include=include, version="v1beta1")["rows"][0]
        for include in ("None", "Metadata", "Object")
    }
    assert "object" not in rows["None"]
    assert rows["Metadata"]["object"] == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1beta1",
        "metadata": {"name": "one", "uid": "u"},
    }
    assert rows["Object"]["object"] == msgspec.json.decode(data)
