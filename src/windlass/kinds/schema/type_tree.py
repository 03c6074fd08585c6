"""The fields of each kind as a tree, built once from its struct types.

Everything that walks or describes an object uses this tree: pruning, defaulting, validation with
paths (`kinds.validate`), JSON overlays (`kinds.codec`), CRD, OpenAPI and editor schemas
(`kinds.schema_export`) and the reference pages.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, Final, Literal

import msgspec
from msgspec import inspect

from windlass.kinds.types.meta import Object

Type = Literal[
    "string", "integer", "number", "boolean", "object", "map", "array", "int-or-string", "any"
]
StructClass = type[msgspec.Struct]
NOTHING: Final = msgspec.UNSET
OWN_GROUP: Final = "windlass.dev"
"""The API group of Windlass' own kinds."""


@dataclasses.dataclass(slots=True)
class Node:
    """The type and the bounds of a value. Which attributes apply depends on `type`."""

    type: Type
    struct: StructClass | None = None
    fields: dict[str, Field] = dataclasses.field(default_factory=dict)
    items: Node | None = None
    """Of an array's elements, or a map's values."""
    keys: Node | None = None
    enum: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    pattern: str = ""
    """In the syntax of the CRDs: anchored by ^ and $."""
    regex: re.Pattern[str] | None = None
    must: str = ""
    """Completes "must ..." for a value that does not match."""
    format: str = ""
    list_key: str = ""
    """The field that identifies elements of the array."""
    has_defaults: bool = False
    """Whether this node or a node below it has a default."""


@dataclasses.dataclass(slots=True)
class Field:
    """A field of an object."""

    name: str
    """In Python."""
    node: Node
    required: bool
    default: Any = NOTHING
    """The default; NOTHING if the field has none."""
    implied: bool = False
    """An absent value is read as an empty object, so that none need be written."""


@functools.cache
def of_kind(kind: type[Object]) -> Node:
    """The tree of a kind. For Windlass' own kinds `status` gets defaults like the other fields, so
    that a new object has its first phase before a controller writes one. For Kubernetes' own kinds
    it does not: there the controllers write all of it."""
    node = of_type(kind)
    if "status" in node.fields and kind.resource.group != OWN_GROUP:
        status = node.fields["status"]
        node.fields["status"] = dataclasses.replace(
            status, node=_without_defaults(status.node), default=NOTHING
        )
    node.fields["metadata"].default = NOTHING
    node.has_defaults = any(_fills(field) for field in node.fields.values())
    return node


def of_type(type_: Any) -> Node:
    """The tree of a struct type, or of anything a struct's field may be annotated with."""
    return _convert(inspect.type_info(type_))


def _convert(info: inspect.Type) -> Node:
    extra: dict[str, Any] = {}
    while isinstance(info, inspect.Metadata):
        extra, info = {**(info.extra or {}), **extra}, info.type
    if isinstance(info, inspect.UnionType):
        node = _union(info)
    elif isinstance(info, inspect.StructType):
        node = _struct(info)
    else:
        node = _leaf(info)
    node.must = extra.get("must", node.must)
    node.format = extra.get("format", node.format)
    node.list_key = extra.get("key", node.list_key)
    return node


def _union(info: inspect.UnionType) -> Node:
    """`X | None` is X; int | str (| float) is what Kubernetes calls int-or-string."""
    options = [
        _convert(option) for option in info.types if not isinstance(option, inspect.NoneType)
    ]
    if len(options) == 1:
        return options[0]
    text = next((option for option in options if option.type == "string"), None)
    number = next((option for option in options if option.type == "integer"), None)
    if text is None or number is None:
        return Node("any")
    text.type, text.minimum, text.maximum = "int-or-string", number.minimum, number.maximum
    if any(option.type == "number" for option in options):
        text.format = "quantity"
    return text


def _struct(info: inspect.StructType) -> Node:
    fields = {}
    for field in info.fields:
        node = _convert(field.type)
        default = _default(field, node)
        implied = field.default_factory is not msgspec.NODEFAULT and node.type == "object"
        fields[field.encode_name] = Field(field.name, node, field.required, default, implied)
    node = Node("object", struct=info.cls, fields=fields)
    node.has_defaults = any(_fills(field) for field in fields.values())
    return node


def _leaf(info: inspect.Type) -> Node:
    match info:
        case inspect.StrType():
            node = Node("string", min_size=info.min_length, max_size=info.max_length)
            if info.pattern:
                node.regex = re.compile(info.pattern)
                node.pattern = info.pattern.replace("\\Z", "$")
            return node
        case inspect.IntType():
            return Node("integer", minimum=info.ge, maximum=info.le)
        case inspect.FloatType():
            return Node("number")
        case inspect.BoolType():
            return Node("boolean")
        case inspect.LiteralType():
            return Node("string", enum=tuple(str(value) for value in info.values))
        case inspect.ListType():
            items = _convert(info.item_type)
            size = (info.min_length, info.max_length)
            return Node("array", items=items, min_size=size[0], max_size=size[1],
                        has_defaults=items.has_defaults)  # fmt: skip
        case inspect.DictType():
            items = _convert(info.value_type)
            return Node("map", items=items, keys=_convert(info.key_type),
                        max_size=info.max_length, has_defaults=items.has_defaults)  # fmt: skip
    return Node("any")


def _default(field: inspect.Field, node: Node) -> Any:
    """The default of a struct is {}, because its fields have their own defaults. Zero values are
    not written into objects: an absent `suspend` means false."""
    if field.required:
        return NOTHING
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
        if isinstance(value, msgspec.Struct):
            return {} if node.has_defaults else NOTHING
        return msgspec.to_builtins(value) or NOTHING
    return field.default or NOTHING


def _fills(field: Field) -> bool:
    return field.default is not NOTHING or field.node.has_defaults


def _without_defaults(node: Node) -> Node:
    """A copy of the tree without defaults; the original may be shared and is not changed."""
    fields = {
        name: dataclasses.replace(field, default=NOTHING, node=_without_defaults(field.node))
        for name, field in node.fields.items()
    }
    items = _without_defaults(node.items) if node.items else None
    return dataclasses.replace(node, fields=fields, items=items, has_defaults=False)
