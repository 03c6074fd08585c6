"""Objects out of files: YAML with several documents, or JSON, each with the line of every field.

Called by `apply` and `delete`. It reads and points; it neither validates nor sends anything.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from windlass.cli import exits

_SUFFIXES = (".yaml", ".yml", ".json")
_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One object as a file has it."""

    source: str
    """The file's name, or `stdin`."""
    number: int
    """Counts the documents of the file from 1."""
    data: dict[str, Any]
    lines: dict[str, int]
    """`spec.roles[0].command` -> its line in the file."""

    def place(self, field: str = "") -> str:
        """`file.yaml:12` for a field, or the nearest part above it that the file has."""
        while field not in self.lines and field:
            field = field[: max(field.rfind("."), field.rfind("["), 0)]
        line = self.lines.get(field)
        return f"{self.source}:{line}" if line else f"{self.source}, document {self.number}"


def read_all(names: tuple[str, ...]) -> list[Document]:
    """All documents of files, folders (not those below them) and `-` for stdin, in order."""
    documents = [document for name in names for document in _read(name)]
    if not documents:
        raise exits.CliError(
            f"No objects found in {', '.join(names)}.",
            "A file holds objects with apiVersion, kind and metadata; see `windlass explain run`.",
            exits.INVALID,
        )
    return documents


def parse(text: str, source: str) -> list[Document]:
    """The documents of one text; lists (`kind: List`) are opened."""
    found: list[Document] = []
    try:
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except (yaml.YAMLError, ValueError) as problem:
        raise _unreadable(source, problem) from None
    for number, node in enumerate((n for n in nodes if n is not None), 1):
        if node.tag == "tag:yaml.org,2002:null":
            continue
        found += _document(node, source, number)
    return found


def _read(name: str) -> Iterator[Document]:
    if name == "-":
        yield from parse(sys.stdin.read(), "stdin")
        return
    path = Path(name)
    if path.is_dir():
        for entry in sorted(path.iterdir()):
            if entry.suffix in _SUFFIXES and entry.is_file():
                yield from _read(str(entry))
        return
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise exits.CliError(
            f"There is no file {name}.", "Check the path; `-f -` reads stdin.", exits.NOT_FOUND
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise exits.CliError(f"{name} cannot be read: {problem}.", "", exits.FAILED) from None
    yield from parse(text, name)


def _document(node: Any, source: str, number: int) -> Iterator[Document]:
    lines: dict[str, int] = {}
    try:
        _note_lines(node, "", lines)
        data = _construct(node)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise _unreadable(source, problem) from None
    if not isinstance(data, dict):
        raise exits.CliError(
            f"{source}:{node.start_mark.line + 1} is not an object but a {type(data).__name__}.",
            "An object begins with apiVersion, kind and metadata.",
            exits.INVALID,
        )
    if data.get("kind") == "List" and isinstance(data.get("items"), list):
        for index, item in enumerate(data["items"]):
            prefix = f"items[{index}]"
            own = {
                key[len(prefix) :].lstrip("."): line
                for key, line in lines.items()
                if key.startswith(prefix)
            }
            if isinstance(item, dict):
                yield Document(source, number, item, own)
    else:
        yield Document(source, number, data, lines)


def _construct(node: Any) -> Any:
    """The value of a node, with dates and the like left as the text they were written as."""
    loader = _Loader("")
    try:
        return _plain(loader.construct_document(node))
    finally:
        loader.dispose()


def _plain(value: Any) -> Any:
    import datetime

    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value


def _note_lines(node: Any, path: str, lines: dict[str, int]) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = f"{path}.{key.value}" if path else str(key.value)
            lines[below] = key.start_mark.line + 1
            _note_lines(value, below, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _note_lines(item, f"{path}[{index}]", lines)


def _unreadable(source: str, problem: Exception) -> exits.CliError:
    mark = getattr(problem, "problem_mark", None)
    where = f"{source}:{mark.line + 1}" if mark else source
    what = getattr(problem, "problem", None) or str(problem).splitlines()[0]
    return exits.CliError(
        f"{where} is not valid YAML or JSON: {what}.",
        "Check the indentation and the quotes on that line and the one above.",
        exits.INVALID,
    )
