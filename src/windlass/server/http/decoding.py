"""JSON and YAML texts of requests as plain values, or BadRequest. Pure.

Used by `bodies` and, for texts that take long, by its `parser_process`.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from windlass.kinds.values import duplicate_keys
from windlass.store import errors, limits

MAX_YAML_BYTES = 256 << 10
"""YAML is slow to parse."""


def decode_json(data: bytes) -> Any:
    try:
        value = msgspec.json.decode(data)
        if data.count(b"{") + data.count(b"[") > limits.MAX_DEPTH:  # else it cannot be too deep
            limits.refuse_deep(value)
    except RecursionError as problem:
        raise errors.BadRequest("the body is nested too deeply") from problem
    except ValueError as problem:
        raise errors.BadRequest(f"the body is not valid JSON: {problem}") from problem
    return value


def refuse_duplicates(data: bytes) -> None:
    """BadRequest if an object has a field twice."""

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise errors.BadRequest(f'strict decoding error: duplicate field "{name[:80]}"')
            found[name] = value
        return found

    json.loads(data, object_pairs_hook=checked)


def decode_yaml(data: bytes, *, strict: bool = False) -> Any:
    import yaml  # late: most servers never get YAML

    if len(data) > MAX_YAML_BYTES:
        raise too_large(MAX_YAML_BYTES)
    try:
        _refuse_deep_yaml(data)
        if strict:
            _refuse_duplicate_keys(data)
        return _plain(yaml.load(data, Loader=_yaml_loader()), set())  # noqa: S506 (a safe loader)
    except yaml.YAMLError as problem:
        reason = " ".join(str(problem).split())
        raise errors.BadRequest(f"the body is not valid YAML: {reason}") from problem
    except RecursionError as problem:
        raise errors.BadRequest("the body is nested too deeply") from problem
    except (ValueError, OverflowError, TypeError) as problem:
        raise errors.BadRequest(f"the body is not valid YAML: {problem}") from problem


def _refuse_deep_yaml(data: bytes) -> None:
    """libyaml builds nested values by recursion in C: too much depth crashes the process."""
    import yaml

    depth = 0
    for event in yaml.parse(data, Loader=_yaml_loader()):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > limits.MAX_DEPTH:
            raise errors.BadRequest("the body is nested too deeply")


def _refuse_duplicate_keys(data: bytes) -> None:
    import yaml

    for each in duplicate_keys.find(yaml.compose(data, Loader=_yaml_loader())):
        key = each.path.rpartition(".")[2]
        raise errors.BadRequest(
            f'strict decoding error: yaml: line {each.line}: key "{key[:80]}" already set in map '
            f"(on line {each.first})"
        )


def _yaml_loader() -> Any:
    """The safe loader that keeps dates as text."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
        for first, found in base.yaml_implicit_resolvers.items()
    }
    return type("Loader", (base,), {"yaml_implicit_resolvers": resolvers})


def _plain(value: Any, seen: set[int]) -> Any:
    """The YAML value as JSON. An alias could expand to a huge tree: aliases are refused."""
    if isinstance(value, dict | list):
        if id(value) in seen:
            raise errors.BadRequest("YAML anchors and aliases are not accepted; write it out")
        seen.add(id(value))
        if isinstance(value, list):
            return [_plain(item, seen) for item in value]
        return {_key(key): _plain(item, seen) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a number that JSON knows")
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"a {type(value).__name__} has no place in JSON")


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int | float):
        return str(key)
    raise ValueError("a key must be a string")


def too_large(limit: int) -> errors.TooLarge:
    return errors.TooLarge(f"the request body is larger than the limit of {limit} bytes")
