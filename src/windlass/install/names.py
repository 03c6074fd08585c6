"""Names that the parts of an installation know each other by."""

from __future__ import annotations

from typing import Any

from windlass.control import views

SYSTEM = views.NAMESPACE
NODES = "windlass-nodes"
"""The node agents' namespace: they reach into their nodes, so nobody else's pods belong there."""

SCHEDULER, CONTROLLERS, SERVER, AGENT = (
    f"windlass-{part}" for part in ("scheduler", "controllers", "server", "agent")
)
AUTHORITY = "windlass-authority"
SERVER_TLS = "windlass-server-tls"
INSTALLATION = "installation"
"""ConfigMap of the options that were given: an upgrade keeps them."""
PRIORITY = "windlass-platform"
MANAGER = "windlass-install"
"""Field manager of server-side apply."""

Object = dict[str, Any]


def labels(part: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "windlass",
        "app.kubernetes.io/component": part,
        "app.kubernetes.io/managed-by": MANAGER,
    }


def selector(part: str) -> dict[str, str]:
    """What never changes of the labels: selectors of Deployments are immutable."""
    return {"app.kubernetes.io/name": "windlass", "app.kubernetes.io/component": part}


def metadata(name: str, part: str, namespace: str = "", **more: Any) -> Object:
    where = {"namespace": namespace} if namespace else {}
    return {"name": name, **where, "labels": labels(part), **more}
