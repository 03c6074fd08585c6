"""Keys that a YAML or JSON text gives twice in one mapping.

YAML loaders keep the last of them without a word. It is unknown which of the two the author meant,
so the CLI, the SDK and the server refuse the text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Duplicate:
    """A key that is in its mapping already."""

    path: str
    """`spec.priority`"""
    first: int
    """The line of the first one, counted from 1."""
    line: int

    def __str__(self) -> str:
        if self.first == self.line:
            return f"{self.path} is given twice, on line {self.line}"
        return f"{self.path} is given twice, on lines {self.first} and {self.line}"


def find(node: Any) -> list[Duplicate]:
    """All duplicates of a document that `yaml.compose` returned, in the order of their lines."""
    if node is None:  # an empty text
        return []
    return sorted(_below(node, "", set()), key=lambda each: each.line)


def _below(node: Any, path: str, seen: set[int]) -> Iterator[Duplicate]:
    if id(node) in seen:  # an alias, possibly to a mapping around it
        return
    seen.add(id(node))
    if node.id == "sequence":
        for index, item in enumerate(node.value):
            yield from _below(item, f"{path}[{index}]", seen)
    elif node.id == "mapping":
        lines: dict[str, int] = {}
        for key, value in node.value:
            below = f"{path}.{key.value}" if path else str(key.value)
            line = key.start_mark.line + 1
            if key.tag != "tag:yaml.org,2002:merge":
                if below in lines:
                    yield Duplicate(below, lines[below], line)
                lines.setdefault(below, line)
            yield from _below(value, below, seen)
