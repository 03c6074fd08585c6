"""Service account tokens of pods: requested as kubelet does, bound to the pod, renewed by
`agent.pods.volumes`."""

from __future__ import annotations

from typing import Any, Protocol

from windlass.agent.pods import env
from windlass.kinds.types import core


class SubresourceStore(Protocol):
    """A store that can POST to a subresource."""

    async def create_subresource(
        self, kind: type[Any], name: str, namespace: str, subresource: str, body: dict[str, Any]
    ) -> dict[str, Any]: ...


class ApiTokens:
    """Requests tokens from the API (TokenRequest)."""

    def __init__(self, store: SubresourceStore) -> None:
        self._store = store

    async def request(self, pod: core.Pod, audience: str, seconds: int) -> str:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid}
        spec: dict[str, Any] = {"expirationSeconds": seconds, "boundObjectRef": bound}
        if audience:
            spec["audiences"] = [audience]
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        account = pod.spec.service_account_name or "default"
        answer = await self._store.create_subresource(
            core.ServiceAccount, account, pod.namespace, "token", body
        )
        token = (answer.get("status") or {}).get("token")
        if not token:
            raise env.MissingError(f"the API returned no token for service account {account}")
        return str(token)
