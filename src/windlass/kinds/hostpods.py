"""What controllers write on pods for the embedded agent to read."""

from __future__ import annotations

from typing import Final

HOST_IMAGE: Final = "windlass.dev/host"
"""The image of a pod that runs on the node's own files."""

STOP_SIGNAL: Final = "windlass.dev/stop-signal"
"""Annotation: the signal that asks the pod's processes to end. SIGTERM when absent."""
