"""What to write instead of a field that a kind does not have.

Called by `kinds.validate`. The answer is, in this order: what users of other systems mean by the
name; the place of the field with this very name; the nearest name beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from windlass.kinds.schema import field_errors
from windlass.kinds.schema.type_tree import Node

_GPU = "write devices: [{kind: gpu, count: 1}] in the role"
_AMOUNTS = "write the amounts without it: resources: {cpu: 2, memory: 4Gi}"
_DEVICES = dict.fromkeys(("gpu", "gpus", "nvidia.com/gpu", "amd.com/gpu"), _GPU)
_MEANT: Mapping[str, Mapping[str, str]] = {
    "Resources": {**_DEVICES, "limits": _AMOUNTS, "requests": _AMOUNTS},
    "Role": {**_DEVICES, "count": "write replicas", "workers": "write replicas"},
    "RunSpec": {
        **_DEVICES,
        "timeout": "write duration: {max: 2h}",
        "workers": "write replicas in the role",
        "containers": "write roles: [{command: [...]}]",
    },
}
"""By the struct and the field that it does not have."""
_SPEC = "spec"


def message(root: Node, parent: Node, path: str, name: str) -> str:
    """`root` is the kind's tree, `parent` the part of it that lacks the field `name`."""
    meant = _MEANT.get(parent.struct.__name__ if parent.struct else "", {}).get(name)
    if meant:
        return f'unknown field "{path}": {meant}'
    if path.startswith(f"{_SPEC}.") and (elsewhere := _elsewhere(root, name)):
        return f'unknown field "{path}": did you mean {_numbered(elsewhere, path)}?'
    return field_errors.unknown_field(path, name, parent.fields)


def _elsewhere(root: Node, name: str) -> str:
    """The path of the only field with this name that is nearest to the top; empty if there is none
    or more than one."""
    spec = root.fields.get(_SPEC)
    level = [(_SPEC, spec.node)] if spec else []
    while level:
        found = [f"{path}.{name}" for path, node in level if name in node.fields]
        if found:
            return found[0] if len(found) == 1 else ""
        level = [below for path, node in level for below in _below(path, node)]
    return ""


def _below(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    for name, field in node.fields.items():
        yield f"{path}.{name}", field.node
    if node.type == "array" and node.items is not None:
        yield f"{path}[]", node.items


def _numbered(path: str, beside: str) -> str:
    """`spec.roles[].command` with the numbers of another path as far as both are the same, else 0:
    `spec.roles[1].command` beside `spec.roles[1].cmd`."""
    parts, others = path.split("[]"), re.split(r"(\[\d+\])", beside)
    text = parts[0]
    for at, part in enumerate(parts[1:]):
        number = others[2 * at + 1] if text == "".join(others[: 2 * at + 1]) != beside else "[0]"
        text += number + part
    return text
