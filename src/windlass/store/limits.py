"""How large and how deep an object may be: what keeps one request from costing everybody.

Checked where values come in (`server.bodies`), where patches make them grow (`patches`) and where
they are stored (`embedded.api`): whatever is stored can always be read and written again.
"""

from __future__ import annotations

from typing import Any

from windlass.store import errors

MAX_OBJECT_BYTES = 3 << 19
"""Of one stored object, encoded: 1.5 MiB, as etcd takes from Kubernetes."""
MAX_DEPTH = 100
"""Of objects and lists inside each other. No served kind comes near it."""
MAX_COPIED_BYTES = 3 << 20
"""What the `copy` operations of one JSON-patch may add, as in Kubernetes."""


def refuse_large(data: bytes) -> None:
    if len(data) > MAX_OBJECT_BYTES:
        raise errors.TooLarge(
            f"the object has {len(data)} bytes; at most {MAX_OBJECT_BYTES} are stored: keep large "
            "data in files and store where they are"
        )


def refuse_deep(value: Any) -> None:
    """BadRequest when the value is nested deeper than MAX_DEPTH. Never recurses itself."""
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
