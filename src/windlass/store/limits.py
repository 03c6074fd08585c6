"""Limits of the size and depth of an object: they bound the cost of one request.

Checked when a value is received (`server.http.bodies`), when a patch makes it grow (`patches`) and
when it is stored (`embedded.api`), so that every stored object can be read and written again.
"""

from __future__ import annotations

from typing import Any

from windlass.store import errors

MAX_OBJECT_BYTES = 3 << 19
"""Limit of one encoded object: 1.5 MiB, as for Kubernetes with etcd."""
MAX_DEPTH = 100
"""Limit of nested objects and lists; served kinds are far below it."""
MAX_COPIED_BYTES = 3 << 20
"""Limit of what the `copy` operations of one JSON-patch add, as in Kubernetes."""


def refuse_large(data: bytes) -> None:
    if len(data) > MAX_OBJECT_BYTES:
        raise errors.TooLarge(
            f"the object has {len(data)} bytes, more than the limit of {MAX_OBJECT_BYTES}; keep "
            "large data in files and store their paths"
        )


def refuse_deep(value: Any) -> None:
    """Raises BadRequest when the value is nested deeper than MAX_DEPTH. Does not recurse."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for outer in level for inner in _containers(outer)]
        if not level:
            return
    raise errors.BadRequest(
        f"the body is nested too deeply: more than {MAX_DEPTH} objects and lists inside each other"
    )


def _containers(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [inner for inner in value.values() if isinstance(inner, dict | list)]
    if isinstance(value, list):
        return [inner for inner in value if isinstance(inner, dict | list)]
    return []
