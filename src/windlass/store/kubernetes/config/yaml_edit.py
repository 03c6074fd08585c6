"""Changes entries of a YAML file in its text, so that comments, order and style of the rest stay.

Called by `kubeconfig.merge_context`, which checks that the new text has the wanted content.
"""

from __future__ import annotations

import json
from typing import Any

import yaml


def put(text: str, entries: dict[str, dict[str, Any]], scalars: dict[str, str]) -> str:
    """The text with an entry, identified by its `name`, added or replaced in the list of each
    section, and with scalar values of the top level set."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    values = {key.value: value for key, value in pairs}
    edits: list[tuple[int, int, str]] = []
    tail = ""
    for section, entry in entries.items():
        if section in values:
            edits.append(_entry_edit(text, values[section], entry))
        else:
            tail += f"{section}:\n- {json.dumps(entry)}\n"
    for key, value in scalars.items():
        if key in values:
            node = values[key]
            edits.append(_replaced(node, json.dumps(value)))
        else:
            tail += f"{key}: {json.dumps(value)}\n"
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    if tail and not text.endswith("\n"):
        text += "\n"
    return text + tail


def _entry_edit(text: str, node: yaml.Node, entry: dict[str, Any]) -> tuple[int, int, str]:
    """Start and end of the text to replace, and the new text."""
    new = json.dumps(entry)
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        return _replaced(node, f"[{new}]")
    for item in node.value:
        if _name(item) == entry["name"]:
            return _replaced(item, new)
    end = _end(node)
    if node.flow_style:
        return end - 1, end - 1, f", {new}"
    line = f"{' ' * node.start_mark.column}- {new}"
    at_line_start = text[end - 1] == "\n"
    return end, end, f"{line}\n" if at_line_start else f"\n{line}"


def _replaced(node: yaml.Node, new: str) -> tuple[int, int, str]:
    start, end = node.start_mark.index, _end(node)
    return start, end, f" {new}" if start == end else new


def _name(item: yaml.Node) -> str:
    pairs = item.value if isinstance(item, yaml.MappingNode) else []
    return next((str(value.value) for key, value in pairs if key.value == "name"), "")


def _end(node: yaml.Node) -> int:
    """Where the text of a node ends; the mark of a block collection is behind later comments."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    end: int = node.end_mark.index
    return end
