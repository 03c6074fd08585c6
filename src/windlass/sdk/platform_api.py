"""The platform API as the SDK calls it: its path, and its JSON answers."""

from __future__ import annotations

import json
from typing import Any

PATH = "/apis/platform.windlass.dev/v1alpha1"
UNRESOLVABLE = ("Impossible", "Unsupported", "NoSuchQueue")
"""Reasons that waiting cannot resolve."""


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in an answer; empty if the answer is something else."""
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
