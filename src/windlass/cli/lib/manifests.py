"""Reads objects from files (YAML with several documents, or JSON) with the line of every field.

`check` validates them before any is sent; each problem names its line.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from windlass.cli.lib import exit_codes
from windlass.cli.lib.flags import field_flags
from windlass.kinds import registry, validate
from windlass.kinds.types.meta import Object
from windlass.kinds.values import duplicate_keys

_SHOWN_DUPLICATES = 5
_UNKNOWN = re.compile(r'unknown field "([^"]+)"')
_SUFFIXES = (".yaml", ".yml", ".json")
_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One object of a file."""

    source: str
    """The file's name, or `stdin`."""
    number: int
    """Counts the documents of the file from 1."""
    data: dict[str, Any]
    lines: dict[str, int]
    """`spec.roles[0].command` -> its line in the file."""

    def place(self, field: str = "") -> str:
        """`file.yaml:12` for a field, or for its nearest parent in the file."""
        while field not in self.lines and field:
            field = field[: max(field.rfind("."), field.rfind("["), 0)]
        line = self.lines.get(field)
        return f"{self.source}:{line}" if line else f"{self.source}, document {self.number}"


def read_all(names: tuple[str, ...]) -> list[Document]:
    """All documents of files, folders (not those below them) and `-` for stdin, in order."""
    documents = [document for name in names for document in _read(name)]
    if not documents:
        raise exit_codes.CliError(
            f"No objects found in {', '.join(names)}.",
            "An object has apiVersion, kind and metadata; see `windlass explain run`.",
            exit_codes.INVALID,
        )
    return documents


def parse(text: str, source: str) -> list[Document]:
    """The documents of one text; lists (`kind: List`) are opened."""
    found: list[Document] = []
    try:
        nodes = list(yaml.compose_all(text, Loader=_Loader))
    except (yaml.YAMLError, ValueError) as problem:
        raise _unreadable(source, problem) from None
    _refuse_duplicate_keys(nodes, source)
    for number, node in enumerate((n for n in nodes if n is not None), 1):
        if node.tag == "tag:yaml.org,2002:null":
            continue
        found += _document(node, source, number)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One problem at one place of a file."""

    place: str
    field: str
    message: str

    def __str__(self) -> str:
        if typed := field_flags.line(self.field, self.message):
            return typed
        return ": ".join(part for part in (self.place, self.field, self.message) if part)


def check(documents: Iterable[tuple[type[Object], Document]]) -> None:
    """Raises with every problem of every document.

    The project knows only part of Kubernetes' own kinds, so the server checks their fields.
    """
    faults = [fault for kind, document in documents for fault in _faults(kind, document)]
    if not faults:
        return
    plural = "problem was" if len(faults) == 1 else "problems were"
    raise exit_codes.CliError(
        f"{len(faults)} {plural} found; nothing was sent.",
        "\n".join(str(fault) for fault in faults),
        exit_codes.INVALID,
    )


def refuse_repeated(documents: Iterable[tuple[type[Object], Document]], namespace: str) -> None:
    """Raises if two documents describe the same object. `namespace` is that of objects which name
    none."""
    places: dict[tuple[str, str, str], str] = {}
    for kind, document in documents:
        metadata = document.data["metadata"]
        name = metadata.get("name")
        if not name:
            continue
        own = metadata.get("namespace") or namespace if kind.resource.namespaced else ""
        place = document.place("metadata.name")
        first = places.setdefault((kind.resource.kind, own, name), place)
        if first != place:
            raise exit_codes.CliError(
                f"{kind.resource.singular}/{name} is described twice, in {first} and in {place}; "
                "nothing was sent.",
                "Remove one of them, or give it another name.",
                exit_codes.INVALID,
            )


def _refuse_duplicate_keys(nodes: Iterable[Any], source: str) -> None:
    try:
        found = [each for node in nodes if node is not None for each in duplicate_keys.find(node)]
    except RecursionError as problem:
        raise _unreadable(source, problem) from None
    if found:
        raise exit_codes.CliError(
            f"{source}: {'; '.join(map(str, found[:_SHOWN_DUPLICATES]))}.",
            "YAML would use the last value and ignore the others: remove those that you do not "
            "mean.",
            exit_codes.INVALID,
        )


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
        raise exit_codes.CliError(
            f"There is no file {name}.", "Check the path; `-f -` reads stdin.", exit_codes.NOT_FOUND
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise exit_codes.CliError(
            f"{name} cannot be read: {problem}.", "", exit_codes.FAILED
        ) from None
    yield from parse(text, name)


def _document(node: Any, source: str, number: int) -> Iterator[Document]:
    lines: dict[str, int] = {}
    try:
        _note_lines(node, "", lines)
        data = _construct(node)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise _unreadable(source, problem) from None
    if not isinstance(data, dict):
        raise exit_codes.CliError(
            f"{source}:{node.start_mark.line + 1} is not an object but a {type(data).__name__}.",
            "An object begins with apiVersion, kind and metadata.",
            exit_codes.INVALID,
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
    """The value of a node; dates stay text."""
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


def _unreadable(source: str, problem: Exception) -> exit_codes.CliError:
    mark = getattr(problem, "problem_mark", None)
    where = f"{source}:{mark.line + 1}" if mark else source
    what = getattr(problem, "problem", None) or str(problem).splitlines()[0]
    return exit_codes.CliError(
        f"{where} is not valid YAML or JSON: {what}.",
        "Check the indentation and the quotes on that line and the one above.",
        exit_codes.INVALID,
    )


def _faults(kind: type[Object], document: Document) -> Iterable[Fault]:
    own = kind in registry.OWN
    metadata = document.data.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        yield Fault(
            document.place("metadata"), "metadata.name", "Required value: the object needs a name"
        )
        return
    if not own:
        return
    named = document.data
    if not metadata.get("name"):  # the server, or the submission, completes it
        named = {**named, "metadata": {**metadata, "name": f"{metadata['generateName']}00000"}}
    pruned, unknown = validate.prune(kind, named)
    for message in unknown:
        found = _UNKNOWN.search(message)
        field = found[1] if found else ""
        yield Fault(document.place(field), "", message)
    for problem in validate.validate(kind, validate.defaulted(kind, pruned), None):
        yield Fault(document.place(problem.path), problem.path, problem.message)
