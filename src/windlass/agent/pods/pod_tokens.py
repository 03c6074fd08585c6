"""A pod's own token: asked for as kubelet asks, bound to the pod, renewed by `agent.volumes`."""

from __future__ import annotations

from typing import Any, Protocol

from windlass.agent import environment
from windlass.kinds import kubernetes


class Acting(Protocol):
    """A store that can POST to a subresource."""

    async def create_subresource(
        self, kind: type[Any], name: str, namespace: str, subresource: str, body: dict[str, Any]
    ) -> dict[str, Any]: ...


class ApiTokens:
    """TokenRequests to the API."""

    def __init__(self, store: Acting) -> None:
        self._store = store

    async def request(self, pod: kubernetes.Pod, audience: str, seconds: int) -> str:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
        spec: dict[str, Any] = {"expirationSeconds": seconds, "boundObjectRef": bound}
        if audience:
            spec["audiences"] = [audience]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        account = pod.spec.service_account_name or "default"
        answer = await self._store.create_subresource(
            kubernetes.ServiceAccount, account, pod.namespace, "token", body
        )
        token = (answer.get("status") or {}).get("token")
        if not token:
            raise environment.MissingError(f"the API gave no token for service account {account}")
        return str(token)
