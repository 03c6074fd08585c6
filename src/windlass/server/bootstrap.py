"""What a state folder needs before the server answers: namespaces, the default queue, the admin's
kubeconfig. Called by `server.main` at every start; does nothing that is already done.
"""

from __future__ import annotations

import base64
import contextlib
from pathlib import Path
from typing import Any

from windlass.control import engine
from windlass.kinds import kubernetes, queue
from windlass.kinds.resources import Resource
from windlass.server.identity import MASTERS, SYSTEM_NAMESPACE
from windlass.server.tokens import SERVER_USER, Tokens, create_token
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.requests import WriteOptions
from windlass.store.kubernetes import kubeconfig
from windlass.store.kubernetes.access import KubeconfigError

CONTEXT = "windlass"
ADMIN = "admin"
NAMESPACES = ("default", SYSTEM_NAMESPACE, "kube-node-lease")


async def ensure_objects(api: Api) -> None:
    """The namespaces and the queue that everything else takes for granted."""
    for name in NAMESPACES:
        await _ensure(api, kubernetes.Namespace.resource, {"metadata": {"name": name}})
    await _ensure(
        api, queue.Queue.resource, {"metadata": {"name": "default"}, "spec": {}}
    )  # fmt: skip


async def write_engine(api: Api, facts: engine.Engine) -> None:
    """What this engine can do, for controllers and for people; ours to say at every start."""
    body = {"metadata": {"name": engine.NAME}, "data": facts.data()}
    resource, options = kubernetes.ConfigMap.resource, WriteOptions(user=SERVER_USER)
    try:
        await api.create(resource, engine.NAMESPACE, body, options)
    except errors.AlreadyExists:
        await api.patch(
            resource, engine.NAMESPACE, engine.NAME, {"data": facts.data()}, "merge", options
        )


async def ensure_kubeconfig(api: Api, path: Path, url: str, authority: bytes | None) -> None:
    """The admin's kubeconfig for this address; keeps its token as long as the store knows it."""
    # A lock left by a server that was killed; only we write here, and the folder is ours alone.
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
    """The port the server had last time, so that clients find it again after a restart."""
    with contextlib.suppress(KubeconfigError, ValueError):
        cluster = kubeconfig.load([path]).clusters.get(CONTEXT)
        return int(cluster.server.rpartition(":")[2]) if cluster else 0
    return 0


async def _ensure(api: Api, resource: Resource, body: dict[str, Any]) -> None:
    with contextlib.suppress(errors.AlreadyExists):
        await api.create(resource, "", body, WriteOptions(user=SERVER_USER))
