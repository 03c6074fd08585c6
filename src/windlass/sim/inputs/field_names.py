"""Field names that a described scenario does not have, with the nearest one that it has.

msgspec refuses an unknown field only where a struct says so, and never names the nearest one. Here
the whole document is compared with the structs that it will become, before it is converted.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any

import msgspec

from windlass.kinds.schema import field_errors
from windlass.sim.scenario import BadInput


def refuse_unknown(document: Any, kind: Any, path: str = "") -> None:
    """Raises for the first field that the type does not have."""
    if isinstance(document, dict):
        struct = _struct(kind)
        if struct is not None:
            _refuse_in(document, struct, path)
            return
        values = _argument(kind, dict, 1)
        for name, value in document.items() if values is not None else ():
            refuse_unknown(value, values, f"{path}.{name}" if path else str(name))
    elif isinstance(document, list):
        items = _argument(kind, list, 0)
        for number, value in enumerate(document) if items is not None else ():
            refuse_unknown(value, items, f"{path}[{number}]")


def unknown(name: str, path: str, known: Iterable[str]) -> BadInput:
    """The error about one unknown name."""
    options = sorted(known)
    near = field_errors.nearest(name, options)
    hint = f"did you mean `{near}`?" if near else f"there are {', '.join(options)}."
    return BadInput(f"unknown field `{name}`{f' in `{path}`' if path else ''}: {hint}")


def _refuse_in(document: dict[Any, Any], struct: type[msgspec.Struct], path: str) -> None:
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    for name, value in document.items():
        if name not in fields:
            raise unknown(str(name), path, fields)
        refuse_unknown(value, fields[name], f"{path}.{name}" if path else name)


def _struct(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a mapping would become; None: it stays a mapping."""
    for each in _alternatives(kind):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            return each
    return None


def _argument(kind: Any, container: type, position: int) -> Any:
    for each in _alternatives(kind):
        if typing.get_origin(each) is container:
            return typing.get_args(each)[position]
    return None


def _alternatives(kind: Any) -> Iterable[Any]:
    """The members of a union, without annotations."""
    if hasattr(kind, "__metadata__"):
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in (typing.Union, _UNION):
        for each in typing.get_args(kind):
            yield from _alternatives(each)
    else:
        yield kind


_UNION = type(int | str)
