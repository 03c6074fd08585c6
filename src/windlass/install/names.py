"""Names of objects that several parts of an installation use."""

from __future__ import annotations

from typing import Any

from windlass.control.runtime import informers

SYSTEM = informers.NAMESPACE
NODES = "windlass-nodes"
"""The namespace of node agents: they have access to their nodes, so no other pods belong there."""

SCHEDULER, CONTROLLERS, SERVER, AGENT = (
    f"windlass-{part}" for part in ("scheduler", "controllers", "server", "agent")
)
AUTHORITY = "windlass-authority"
SERVER_TLS = "windlass-server-tls"
METRICS_TLS = "windlass-metrics-tls"
INSTALLATION = "installation"
"""ConfigMap with the options of the installation, which an upgrade keeps."""
CLAIM = f"state-{SERVER}-0"
"""Volume claim of the server."""
CLAIM_PATH = f"/api/v1/namespaces/{SYSTEM}/persistentvolumeclaims/{CLAIM}"
PRIORITY = "windlass-platform"
SCRAPER = "windlass-metrics-reader"
"""ClusterRole of accounts that may read /metrics of the components."""
API_PORT = "https"
METRICS_PORT = "https-metrics"
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
    """The labels that never change, because selectors of Deployments are immutable."""
    return {"app.kubernetes.io/name": "windlass", "app.kubernetes.io/component": part}


def metadata(name: str, part: str, namespace: str = "", **more: Any) -> Object:
    where = {"namespace": namespace} if namespace else {}
    return {"name": name, **where, "labels": labels(part), **more}
