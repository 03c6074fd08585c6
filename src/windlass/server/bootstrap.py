"""What a state folder needs before the server answers: namespaces, the default queue, the admin's
kubeconfig. Called by `server.main` at every start; does nothing that is already done.
"""

from __future__ import annotations

import base64
import contextlib
from pathlib import Path
from typing import Any

from windlass.control.model import capabilities
from windlass.kinds.types import core, queue
from windlass.kinds.types.resource import Resource
from windlass.server.auth.bearer_tokens import SERVER_USER, Tokens, create_token
from windlass.server.auth.identity import MASTERS, SYSTEM_NAMESPACE
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.options import WriteOptions
from windlass.store.kubernetes.config import kubeconfig
from windlass.store.kubernetes.config.model import KubeconfigError

CONTEXT = "windlass"
ADMIN = "admin"
NAMESPACES = ("default", SYSTEM_NAMESPACE, "kube-node-lease")


async def ensure_objects(api: Api) -> None:
    """Creates the namespaces and the queue that everything else needs."""
    for name in NAMESPACES:
        await _ensure(api, core.Namespace.resource, {"metadata": {"name": name}})
    await _ensure(
        api, queue.Queue.resource, {"metadata": {"name": "default"}, "spec": {}}
    )  # fmt: skip


async def write_engine(api: Api, facts: capabilities.Engine) -> None:
    """Publishes the capabilities of this engine for controllers and users, at every start."""
    body = {"metadata": {"name": capabilities.NAME}, "data": facts.data()}
    resource, options = core.ConfigMap.resource, WriteOptions(user=SERVER_USER)
    try:
        await api.create(resource, capabilities.NAMESPACE, body, options)
    except errors.AlreadyExists:
        await api.patch(
            resource,
            capabilities.NAMESPACE,
            capabilities.NAME,
            {"data": facts.data()},
            "merge",
            options,
        )


async def ensure_kubeconfig(api: Api, path: Path, url: str, authority: bytes | None) -> None:
    """The admin's kubeconfig for this address; keeps its token while the store knows it."""
    # A lock of a killed server is stale: only this process writes here.
    path.with_name(path.name + ".lock").unlink(missing_ok=True)
    token = known_token(path)
    if not token or await Tokens(api).identify(token) is None:
        token = await create_token(api, ADMIN, (MASTERS,))
    cluster: dict[str, Any] = {"server": url}
    if authority is not None:
        encoded = base64.b64encode(authority).decode()
        cluster["certificate-authority-data"] = encoded
    kubeconfig.merge_context(
        path, CONTEXT, cluster, {"token": token}, namespace="default", make_current=True
    )


def known_token(path: Path) -> str:
    """The token in the admin's kubeconfig, "" if there is none yet."""
    with contextlib.suppress(KubeconfigError):
        user = kubeconfig.load([path]).users.get(CONTEXT)
        return user.token if user else ""
    return ""


def known_port(path: Path) -> int:
    """The port of the last start, so that clients find the server after a restart."""
    with contextlib.suppress(KubeconfigError, ValueError):
        cluster = kubeconfig.load([path]).clusters.get(CONTEXT)
        return int(cluster.server.rpartition(":")[2]) if cluster else 0
    return 0


async def _ensure(api: Api, resource: Resource, body: dict[str, Any]) -> None:
    with contextlib.suppress(errors.AlreadyExists):
        await api.create(resource, "", body, WriteOptions(user=SERVER_USER))
