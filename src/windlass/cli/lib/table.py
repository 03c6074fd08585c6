"""Objects as table rows, by the columns that each kind declares; and as YAML."""

from __future__ import annotations

import json
from typing import Any

from windlass.cli.lib import terminal_text
from windlass.kinds.types.resource import Column, Resource
from windlass.kinds.values import ages, jsonpath, times


def columns(resource: Resource, wide: bool) -> list[Column]:
    return [column for column in resource.columns if wide or column.priority == 0]


def cells(resource: Resource, obj: dict[str, Any], wide: bool) -> list[str]:
    return [_cell(column, obj) for column in columns(resource, wide)]


def as_list(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Several objects as one, as `kubectl get -o json` prints them."""
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def to_yaml(value: Any) -> str:
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    def dumped(*, unicode: bool) -> str:
        return str(yaml.dump(
            value, Dumper=dumper, sort_keys=False, default_flow_style=False, allow_unicode=unicode
        ))  # fmt: skip

    text = dumped(unicode=True)
    # With characters that a terminal obeys, everything beyond ASCII is escaped.
    return text if terminal_text.clean(text) == text else dumped(unicode=False)


def _cell(column: Column, obj: dict[str, Any]) -> str:
    found = jsonpath.find(jsonpath.parse(column.json_path), obj)
    found = [value for value in found if value is not None]
    if not found:
        return "-"
    if column.type == "date":
        return ages.age(str(found[0]), times.now())
    return " ".join(value if isinstance(value, str) else json.dumps(value) for value in found)
