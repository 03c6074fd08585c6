"""`windlass explain`: describes the fields of a kind, from the definitions that validate them."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

import click

from windlass.cli.lib import base, exit_codes, kind_names
from windlass.cli.lib.output import Output, terminal_width
from windlass.kinds import registry
from windlass.kinds.schema import docstrings, type_tree
from windlass.kinds.schema.type_tree import Node
from windlass.kinds.types.meta import Object


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A kind, or a field inside it."""

    kind: type[Object]
    path: str
    node: Node
    text: str
    required: bool = False
    default: Any = None


@base.command(
    examples=(
        "windlass explain run",
        "windlass explain run.spec.roles.resources",
        "windlass explain queue.spec --json | jq -r '.fields[].name'",
    )
)
@click.argument("what", metavar="KIND[.FIELD...]", type=kind_names.KindName())
@click.option("--recursive", is_flag=True, help="Print all nested fields.")
def explain(out: Output, what: str, recursive: bool) -> None:
    """Explain a kind, or one of its fields. Needs no server.

    For fields of list elements leave out the index: run.spec.roles.command.
    """
    place = find(what)
    body = inner(place.node)
    out.result(_as_json(place), names=list(body.fields))
    if not out.human:
        return
    out.say(f"{place.kind.resource.kind}  {place.kind.resource.api_version}")
    if place.path:
        out.say(f"{place.path} <{type_name(place.node)}>")
    _say_wrapped(out, place.text, "  ")
    for fact in facts(place):
        _say_wrapped(out, fact, "  ")
    if body.fields:
        out.say("\nFields")
        _say_fields(out, body, "  ", recursive)
    if place.kind not in registry.OWN:
        out.hint("\nThese are the fields that Windlass uses; the API server has more.")


def find(what: str) -> Place:
    """The field that `kind.field.field` names."""
    word, *steps = what.split(".")
    if what.lower() in registry.by_word():  # runs.windlass.dev
        word, steps = what, []
    kind = kind_names.kind_of(word)
    place = Place(kind, "", type_tree.of_kind(kind), docstrings.of_struct(kind))
    for step in steps:
        place = _step(place, step)
    return place


def inner(node: Node) -> Node:
    """The objects inside lists and maps."""
    while node.type in ("array", "map") and node.items is not None:
        node = node.items
    return node


def type_name(node: Node) -> str:
    if node.type == "array" and node.items is not None:
        return f"[]{type_name(node.items)}"
    if node.type == "map" and node.items is not None:
        return f"map of {type_name(node.items)}"
    return node.type


def facts(place: Place) -> Iterator[str]:
    """Default, allowed values and rules of the field."""
    node = place.node
    if place.required:
        yield "Required."
    if place.default not in (None, {}):
        yield f"Default: {place.default}"
    leaf = inner(node)
    if leaf.enum:
        yield "One of: " + ", ".join(option for option in leaf.enum if option)
    if leaf.minimum is not None or leaf.maximum is not None:
        low = "any" if leaf.minimum is None else leaf.minimum
        high = "any" if leaf.maximum is None else leaf.maximum
        yield f"Range: {low} to {high}"
    if leaf.must:
        yield f"It must {leaf.must}."


def _step(place: Place, name: str) -> Place:
    body = inner(place.node)
    known = {field.lower(): field for field in body.fields}
    exact = known.get(name.lower())
    if exact is None or body.struct is None:
        where = place.path or place.kind.resource.kind
        raise exit_codes.CliError(
            f"{where} has no field {name!r}.{kind_names.did_you_mean(name, body.fields)}",
            f"Fields: {', '.join(body.fields)}." if body.fields else "It has no fields of its own.",
            exit_codes.NOT_FOUND,
        )
    field = body.fields[exact]
    text = docstrings.of_field(body.struct, field.name)
    below = inner(field.node)
    if not text and below.struct is not None:
        text = docstrings.of_struct(below.struct)
    default = None if field.default is type_tree.NOTHING else field.default
    path = f"{place.path}.{exact}" if place.path else exact
    return Place(place.kind, path, field.node, text, field.required, default)


def _say_fields(out: Output, body: Node, indent: str, recursive: bool) -> None:
    place = Place(Object, "", body, "")
    for name in body.fields:
        field = _step(place, name)
        mark = " (required)" if field.required else ""
        out.say(f"{indent}{name} <{type_name(field.node)}>{mark}")
        if not recursive:
            _say_wrapped(out, field.text, indent + "    ")
        elif inner(field.node).fields:
            _say_fields(out, inner(field.node), indent + "  ", recursive)


def _say_wrapped(out: Output, text: str, indent: str) -> None:
    width = max(24, min(100, terminal_width()))
    for line in textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent):
        out.say(line)


def _as_json(place: Place) -> dict[str, Any]:
    body = inner(place.node)
    shell = Place(place.kind, place.path, body, "")
    return {
        "apiVersion": place.kind.resource.api_version,
        "kind": place.kind.resource.kind,
        "path": place.path,
        "type": type_name(place.node),
        "description": place.text,
        "required": place.required,
        "default": place.default,
        "enum": list(inner(place.node).enum),
        "fields": [_summary(_step(shell, name), name) for name in body.fields],
    }


def _summary(field: Place, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": type_name(field.node),
        "required": field.required,
        "description": field.text,
    }
