"""What a job says of its progress: a small JSON file that it replaces whole.

The agent looks at it when it may write again, never the other way round: a job that writes a
thousand times a second costs nothing. `agent.pods` carries what is read into an annotation.
"""

from __future__ import annotations

import json
import math
from typing import Any

from windlass.agent import endings

EVERY = 10.0
"""Seconds between two writes for one pod."""
BYTES = 4096
_METRICS = 50
_NAME = 63


def read(path: str, user: int | None) -> str:
    """The annotation's text; "" if there is nothing that can be read."""
    text = endings.read_owned(path, user, BYTES + 1)
    if not text or len(text.encode()) > BYTES:
        return ""
    try:
        told = json.loads(text)
    except ValueError:
        return ""
    if not isinstance(told, dict):
        return ""
    kept: dict[str, Any] = {}
    fraction = _number(told.get("fraction"))
    if fraction is not None:
        kept["fraction"] = min(1.0, max(0.0, fraction))
    metrics = told.get("metrics")
    if isinstance(metrics, dict):
        numbers = {name: _number(value) for name, value in list(metrics.items())[:_METRICS]}
        named = {name[:_NAME]: value for name, value in numbers.items() if value is not None}
        if named:
            kept["metrics"] = named
    return json.dumps(kept, separators=(",", ":")) if kept else ""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
