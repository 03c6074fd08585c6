"""Nodes from the user's side."""

from __future__ import annotations

from windlass.kinds import kubernetes


def is_ready(node: kubernetes.Node) -> bool:
    """Whether the node says that it can run pods."""
    return any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ())
