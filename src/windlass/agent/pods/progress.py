"""The progress of a job: a small JSON file that the job replaces atomically.

The agent reads it at its own rate, so a job that writes a thousand times a second costs nothing.
`agent.pods.worker` copies it into an annotation of the pod.
"""

from __future__ import annotations

import json
import math
from typing import Any

from windlass.agent.runtime import exit_status

EVERY = 10.0
"""Seconds between two writes for one pod."""
BYTES = 4096
_METRICS = 50
_NAME = 63


def read(path: str, user: int | None) -> str:
    """The text of the annotation; "" if the file is missing or not valid."""
    text = exit_status.read_owned(path, user, BYTES + 1)
    if not text or len(text.encode()) > BYTES:
        return ""
    try:
        given = json.loads(text)
    except ValueError:
        return ""
    if not isinstance(given, dict):
        return ""
    report: dict[str, Any] = {}
    fraction = _number(given.get("fraction"))
    if fraction is not None:
        report["fraction"] = min(1.0, max(0.0, fraction))
    metrics = given.get("metrics")
    if isinstance(metrics, dict):
        numbers = {name: _number(value) for name, value in list(metrics.items())[:_METRICS]}
        named = {name[:_NAME]: value for name, value in numbers.items() if value is not None}
        if named:
            report["metrics"] = named
    return json.dumps(report, separators=(",", ":")) if report else ""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
