"""Queues of a scenario, read field by field from what `core.model.types.Queue` has.

A described queue, `--set queue.NAME.FIELD=VALUE` and the list of valid names all follow from the
fields and types of the dataclass: a field that is added there can be described and set at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from windlass.core.model import types as model_types
from windlass.core.model.types import Amounts, Queue
from windlass.kinds.schema import field_errors
from windlass.kinds.values import duration, quantity
from windlass.sim.inputs import field_names, job_spec
from windlass.sim.scenario import BadInput

NOT_DESCRIBED = frozenset(("paused", "namespaces"))
"""Fields that the platform fills in from the state of objects. A scenario has no namespaces."""


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field of a queue as users know it."""

    name: str
    """In the dataclass; users write it in camelCase."""
    annotation: Any
    """Its type."""
    inner: str
    """What follows its name in a change: `.RESOURCE`, `.FIELD`, or nothing."""

    @property
    def optional(self) -> bool:
        """Whether it may be absent: `none` in a change."""
        return _present(self.annotation) is not self.annotation


def queue(document: Mapping[str, Any], path: str) -> Queue:
    """A described queue; `path` is its position in the file."""
    known = by_word()
    if not isinstance(document.get("name"), str):
        raise BadInput(f"`{path}` has no name: give the queue one.")
    given: dict[str, Any] = {}
    for word, value in document.items():
        if word not in known:
            raise field_names.unknown(word, path, known)
        given[known[word].name] = read(known[word], value, f"`{path}.{word}`")
    return Queue(**given)


def read(field: Field, value: Any, where: str) -> Any:
    """The value of a field; errors name the field's position in the file."""
    with _named(field, value, where):
        return _reader(field.annotation)(value)


def put(field: Field, had: Any, path: str, text: str, where: str) -> Any:
    """The value of a field in which one part, such as the amount of a resource, is set."""
    with _named(field, text, where):
        return _put(field.annotation, had, path, text)


@contextlib.contextmanager
def _named(field: Field, value: Any, where: str) -> Iterator[None]:
    try:
        yield
    except (duration.Malformed, quantity.Malformed) as problem:
        raise BadInput(f"{where}: {problem}.") from problem
    except BadInput as problem:
        raise BadInput(f"{where}: {problem}") from problem
    except (TypeError, ValueError, KeyError, AttributeError) as problem:
        hint = f": {problem}" if isinstance(problem, _NoChoice) else "."
        raise BadInput(f"{where}: {value!r} is no value for {word(field.name)}{hint}") from problem


@functools.cache
def by_word() -> dict[str, Field]:
    """Every field that can be described, by the name that users write."""
    hints = typing.get_type_hints(Queue, vars(model_types))
    found: dict[str, Field] = {}
    for each in dataclasses.fields(Queue):
        if each.name in NOT_DESCRIBED:
            continue
        hint = hints[each.name]
        kind = _present(hint)
        inner = ".FIELD" if dataclasses.is_dataclass(kind) else ""
        found[word(each.name)] = Field(each.name, hint, ".RESOURCE" if kind == Amounts else inner)
    return found


def word(name: str) -> str:
    """`min_runtime` as users write it: `minRuntime`."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def amounts(given: Mapping[str, Any]) -> dict[str, int]:
    """Quantities as users write them into the core's integers."""
    return {
        name: quantity.whole(value) if name == "memory" else quantity.milli(value)
        for name, value in given.items()
    }


def _reader(hint: Any) -> Callable[[Any], Any]:
    """How a value of this type is read; a type that nothing reads is a mistake of ours."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint == Amounts:
        return lambda value: amounts(_mapping(value))
    if _present(hint) is not hint:
        given = _reader(_present(hint))
        return lambda value: None if _absent(value) else given(value)
    if origin is Literal:
        return functools.partial(_choice, arguments)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        inner = _reader(arguments[1])
        return lambda value: {str(name): inner(each) for name, each in _mapping(value).items()}
    if dataclasses.is_dataclass(hint):
        return _nested(hint)
    readers: dict[Any, Callable[[Any], Any]] = {
        bool: _switch, int: _whole, float: job_spec.seconds, str: _text,
    }  # fmt: skip
    if hint not in readers:
        raise TypeError(f"no reader for {hint}: add one, or name the field in NOT_DESCRIBED")
    return readers[hint]


def _nested(kind: Any) -> Callable[[Any], Any]:
    inner = _inner(kind)

    def made(value: Any) -> Any:
        given = _mapping(value)
        for each in given:
            if each not in inner:
                raise field_names.unknown(each, kind.__name__, inner)
        return kind(**{inner[each][0]: _reader(inner[each][1])(given[each]) for each in given})

    return made


def _inner(kind: Any) -> dict[str, tuple[str, Any]]:
    """The fields of a dataclass by the names that users write: name and type."""
    hints = typing.get_type_hints(kind, vars(model_types))
    return {word(each.name): (each.name, hints[each.name]) for each in dataclasses.fields(kind)}


def _put(hint: Any, had: Any, path: str, text: str) -> Any:
    """The value in which what the path names is set; it may have been absent."""
    kind = _present(hint)
    if not path:
        return _reader(hint)(text)
    if kind == Amounts:
        return {**(had or {}), path: _amount(had or {}, path, text)}
    head, _, rest = path.partition(".")
    if dataclasses.is_dataclass(kind):
        inner = _inner(kind)
        if word(head) not in inner:
            raise field_names.unknown(head, "", inner)
        name, each = inner[word(head)]
        whole: Any = had or kind()  # type: ignore[operator]
        return dataclasses.replace(whole, **{name: _put(each, getattr(whole, name), rest, text)})
    return {**(had or {}), head: _put(typing.get_args(kind)[1], (had or {}).get(head), rest, text)}


def _amount(had: Mapping[str, int], resource: str, text: str) -> int:
    """`32`, or more or less than now: `+16`, `-8`."""
    given = amounts({resource: text.lstrip("+-")})[resource]
    if text[:1] not in ("+", "-"):
        return given
    if resource not in had:
        raise BadInput(f"the queue names no {resource} yet; say how much it is in all.")
    return max(0, had[resource] + (given if text[0] == "+" else -given))


def _present(hint: Any) -> Any:
    """The type of what is there, where it may be absent."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    (kind,) = (each for each in typing.get_args(hint) if each is not type(None))
    return kind


def _choice(allowed: tuple[str, ...], value: Any) -> Any:
    if value not in allowed:
        near = field_errors.nearest(str(value), allowed)
        raise _NoChoice(f"did you mean {near}?" if near else f"there are {', '.join(allowed)}.")
    return value


class _NoChoice(ValueError):
    """Not one of the allowed values; the message names them."""


def _absent(value: Any) -> bool:
    return value is None or value == "none"


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(value)  # noqa: TRY004 - the caller says where it stands
    return value


def _switch(value: Any) -> bool:
    return value if isinstance(value, bool) else {"true": True, "false": False}[value.lower()]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError(value)
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)  # noqa: TRY004 - the caller says where it stands
    return value
