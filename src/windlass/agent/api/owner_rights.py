"""Pods that run with the rights of the engine's owner although other users' pods would not.

In `default` pods run as the owner while the owner is alone (`agent.node.single_tenant`). A user who
gets rights there later must not reach the owner's files through such a pod: sessions into it are
refused, and so is a binding that would end the owner's solitude while such pods run. `api.client`
and, through it, the API server call this.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from windlass.agent.node import single_tenant
from windlass.agent.runtime import procfs
from windlass.kinds.annotations import HELD
from windlass.kinds.types import core
from windlass.kinds.types.resource import Resource
from windlass.store import errors, interface

_SHOWN = 3


class OwnerRights:
    """What the agents' records on this machine say about the rights of pods."""

    def __init__(self, store: interface.Store, agent_state: Path) -> None:
        self._store = store
        self._pods = agent_state / "pods"

    async def check_session(self, pod: dict[str, Any], node: core.Node) -> None:
        """Forbidden if the pod has more rights than a pod that is started now in its namespace."""
        meta = pod["metadata"]
        record = procfs.read_json(self._pods / meta["uid"] / "pod.json")
        if not isolates(node) or record is None or record.get("user") is not None:
            return
        if meta["namespace"] == single_tenant.OWN and await self._is_single_tenant():
            return
        raise errors.Forbidden(
            f"pod {meta['name']} was started with the rights of the engine's owner, when no other "
            f"user could start pods in namespace {meta['namespace']}; only the owner may enter it. "
            "Submit the run again to start it with the rights of the namespace"
        )

    async def check_binding(
        self, resource: Resource, namespace: str, name: str, change: Any
    ) -> None:
        """Invalid if the change gives other users rights in `default` while pods with the owner's
        rights run there. `name`: of the binding that is changed; "" for a new one."""
        if resource.namespaced and namespace != single_tenant.OWN:
            return
        if not _adds_users(change) or not await self._is_single_tenant():
            return
        if await self._role(resource, namespace, name, change) in single_tenant.READ_ONLY_ROLES:
            return
        nodes = (await self._store.list(core.Node)).items
        if not any(isolates(node) for node in nodes):
            return
        names = await self._running()
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise errors.Invalid(
                f"pods in namespace {single_tenant.OWN} run with the rights of the engine's owner, "
                f"which other users must not get: {', '.join(names[:_SHOWN])}{more}. Stop their "
                "runs first (windlass stop), or give the users a namespace of their own (windlass "
                "team create NAME)"
            )

    async def _role(self, resource: Resource, namespace: str, name: str, change: Any) -> str:
        """The role of a new binding, or of the one that is changed: it cannot change later."""
        given = change.get("roleRef") if isinstance(change, dict) else None
        if not name:
            return str(given.get("name")) if isinstance(given, dict) else ""
        try:
            if resource.namespaced:
                return (await self._store.get(core.RoleBinding, name, namespace)).role_ref.name
            return (await self._store.get(core.ClusterRoleBinding, name)).role_ref.name
        except errors.NotFound:
            return ""

    async def _is_single_tenant(self) -> bool:
        here = (await self._store.list(core.RoleBinding, single_tenant.OWN)).items
        everywhere = (await self._store.list(core.ClusterRoleBinding)).items
        return single_tenant.alone([*here, *everywhere])

    async def _running(self) -> list[str]:
        """The names of pods in `default` with the owner's rights that have not ended."""
        pods = (await self._store.list(core.Pod, single_tenant.OWN)).items
        live = [pod for pod in pods if pod.status.phase not in ("Succeeded", "Failed")]
        records = ((pod, procfs.read_json(self._pods / pod.uid / "pod.json")) for pod in live)
        return [pod.name for pod, record in records if record and record.get("user") is None]


def isolates(node: core.Node) -> bool:
    """Whether pods of namespaces run under user ids of their own on this node."""
    try:
        held = json.loads((node.metadata.annotations or {}).get(HELD, "{}"))
    except ValueError:
        return True
    return isinstance(held, dict) and held.get("isolation") == "user"


def _adds_users(change: Any) -> bool:
    """Whether a binding, or any patch of one, sets users."""
    if isinstance(change, list):
        return any(_operation_adds(each) for each in change)
    return isinstance(change, dict) and bool(change.get("subjects"))


def _operation_adds(operation: Any) -> bool:
    path = operation.get("path") if isinstance(operation, dict) else None
    if not isinstance(path, str) or operation.get("op") in ("test", "remove"):
        return False
    return path in ("", "/subjects") or path.startswith("/subjects/")
