"""The JSONPath subset of printer columns: `.status.phase`, `[0]`, `[*]`, `['a.b']`, filters.

A path is compiled once into steps; `find` never raises, it returns nothing for an object that does
not fit. Filters compare one field with a literal: `[?(@.type=="Ready")]`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

_TOKEN = re.compile(
    r"""
    \.(?P<field>(?:\\.|[^.\[\]\\'"])+)
  | \[(?P<index>-?\d+)\]
  | \[(?P<all>\*)\]
  | \[(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\]
  | \[\?\(\s*@\.(?P<key>[\w.-]+)\s*(?P<op>==|!=)\s*(?P<literal>'[^']*'|"[^"]*"|[\w.-]+)\s*\)\]
    """,
    re.VERBOSE,
)
_LITERALS: dict[str, Any] = {"true": True, "false": False, "null": None}


class PathError(ValueError):
    """The path of a column is not in the subset."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str

    def apply(self, value: Any) -> list[Any]:
        return [value[self.name]] if isinstance(value, dict) and self.name in value else []


@dataclasses.dataclass(frozen=True, slots=True)
class _Index:
    index: int

    def apply(self, value: Any) -> list[Any]:
        if isinstance(value, list) and -len(value) <= self.index < len(value):
            return [value[self.index]]
        return []


@dataclasses.dataclass(frozen=True, slots=True)
class _All:
    def apply(self, value: Any) -> list[Any]:
        if isinstance(value, dict):
            return list(value.values())
        return list(value) if isinstance(value, list) else []


@dataclasses.dataclass(frozen=True, slots=True)
class _Filter:
    keys: tuple[str, ...]
    equal: bool
    literal: Any

    def apply(self, value: Any) -> list[Any]:
        return [item for item in _All().apply(value) if self._matches(item)]

    def _matches(self, item: Any) -> bool:
        for key in self.keys:
            if not isinstance(item, dict) or key not in item:
                return False
            item = item[key]
        return (item == self.literal) is self.equal


Step = _Field | _Index | _All | _Filter


@functools.cache
def parse(path: str) -> tuple[Step, ...]:
    """The steps of a path, with or without kubectl's braces."""
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    steps: list[Step] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise PathError(f"column path {path!r} cannot be read from {text[position:]!r} on")
        steps.append(_step(match))
        position = match.end()
    return tuple(steps)


def find(steps: tuple[Step, ...], value: Any) -> list[Any]:
    """Every value the path leads to."""
    found = [value]
    for step in steps:
        found = [result for item in found for result in step.apply(item)]
        if not found:
            break
    return found


def _step(match: re.Match[str]) -> Step:
    if match["field"] is not None:
        return _Field(re.sub(r"\\(.)", r"\1", match["field"]))
    if match["index"] is not None:
        return _Index(int(match["index"]))
    if match["all"] is not None:
        return _All()
    if match["quote"] is not None:
        return _Field(match["quoted"])
    return _Filter(tuple(match["key"].split(".")), match["op"] == "==", _literal(match["literal"]))


def _literal(text: str) -> Any:
    if text[0] in "'\"":
        return text[1:-1]
    if text in _LITERALS:
        return _LITERALS[text]
    try:
        return int(text)
    except ValueError:
        return text
