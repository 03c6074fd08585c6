"""Problems of fields, with the messages and reasons of Kubernetes.

Independent of the store: a store turns Problems into the causes of its Invalid error.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

import msgspec

_SHOWN = 120


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One problem of one field."""

    path: str
    """`spec.roles[0].replicas`"""
    value: Any
    """The type of the problem, as in the causes of a Status."""
    message: str
    """The value found and the values allowed, without the path."""
    reason: str = "FieldValueInvalid"

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def invalid(path: str, value: Any, allowed: str) -> Problem:
    return Problem(path, value, f"Invalid value: {shown(value)}: {allowed}")


def wrong_type(path: str, value: Any, allowed: str) -> Problem:
    message = f"Invalid value: {shown(value)}: {allowed}"
    return Problem(path, value, message, "FieldValueTypeInvalid")


def required(path: str, why: str = "") -> Problem:
    message = f"Required value: {why}" if why else "Required value"
    return Problem(path, None, message, "FieldValueRequired")


def forbidden(path: str, why: str) -> Problem:
    return Problem(path, None, f"Forbidden: {why}", "FieldValueForbidden")


def duplicate(path: str, value: Any) -> Problem:
    return Problem(path, value, f"Duplicate value: {shown(value)}", "FieldValueDuplicate")


def too_long(path: str, value: Any, limit: int) -> Problem:
    message = f"Too long: may not be more than {limit} bytes"
    return Problem(path, value, message, "FieldValueTooLong")


def too_many(path: str, count: int, limit: int) -> Problem:
    message = f"Too many: {count}: must have at most {limit} items"
    return Problem(path, count, message, "FieldValueTooMany")


def unsupported(path: str, value: Any, allowed: Iterable[str]) -> Problem:
    options = sorted(option for option in allowed if option)
    message = f"Unsupported value: {shown(value)}: supported values: " + ", ".join(
        f'"{option}"' for option in options
    )
    guess = nearest(str(value), options)
    if guess:
        message += f'; did you mean "{guess}"?'
    return Problem(path, value, message, "FieldValueNotSupported")


def unknown_field(path: str, name: str, known: Iterable[str]) -> str:
    """The message about an unknown field, with the nearest known one."""
    guess = nearest(name, list(known))
    return f'unknown field "{path}"' + (f": did you mean {guess}?" if guess else "")


def nearest(word: str, options: Iterable[str]) -> str:
    """The nearest option, or ""."""
    lowered = {option.lower(): option for option in options}
    found = difflib.get_close_matches(word.lower()[:64], lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else ""


def shown(value: Any) -> str:
    """A value as JSON, shortened for logs and terminals."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
