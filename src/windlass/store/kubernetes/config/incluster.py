"""Access from inside a pod: the service account's token, the cluster's CA and the namespace.

Called by `store.connect` when no kubeconfig is found. `credentials` reads the token, also after it
rotates.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from windlass.store.kubernetes.config.model import Access, Cluster, KubeconfigError, User

SERVICE_ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")


def available(environ: Mapping[str, str], folder: pathlib.Path = SERVICE_ACCOUNT) -> bool:
    """Whether this process runs in a pod with a service account."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (folder / "token").exists()


def access(environ: Mapping[str, str], folder: pathlib.Path = SERVICE_ACCOUNT) -> Access:
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    if not available(environ, folder):
        raise KubeconfigError(
            f"not inside a pod with a service account: KUBERNETES_SERVICE_HOST is "
            f'"{host}" and {folder / "token"} must exist'
        )
    port = environ.get("KUBERNETES_SERVICE_PORT") or "443"
    namespace = folder / "namespace"
    return Access(
        cluster=Cluster(
            server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            certificate_authority=str(folder / "ca.crt"),
        ),
        user=User(token_file=str(folder / "token")),
        namespace=(namespace.read_text().strip() if namespace.exists() else "") or "default",
        context="in-cluster",
        source=str(folder),
        remedy="check that the pod's network reaches the cluster's API service",
    )
