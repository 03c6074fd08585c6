"""Tokens: how people and programs prove who they are.

The embedded engine gives tokens to users, who exist by having one. On Kubernetes people are the
cluster's own, and only service accounts get tokens. Which of the two a server does is found out by
asking it: `list_or_none`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import pathlib
from typing import Any

from windlass.kinds import duration, kubernetes, meta
from windlass.store import errors
from windlass.store.kubernetes import access, kubeconfig
from windlass.store.kubernetes.client import KubernetesStore

PATH = "/apis/platform.windlass.dev/v1alpha1/tokens"
USUAL_TTL = "90d"


Tokens = list[dict[str, Any]]


class NoUserTokens(errors.NotFound):
    """This server knows its people by other means than tokens of ours."""

    def __init__(self) -> None:
        super().__init__(
            "this cluster has its own users: people sign in as they do for kubectl; for a program "
            "take a service account (windlass token create NAME --account -N TEAM)"
        )


class AsyncTokens:
    """`client.tokens`."""

    def __init__(self, store: KubernetesStore) -> None:
        self._store = store

    async def create(
        self, user: str, *, ttl: str = USUAL_TTL, groups: tuple[str, ...] = (), note: str = ""
    ) -> dict[str, Any]:
        """A new token of a user; its `token` is shown this once. `ttl="never"` has no end."""
        body = {"user": user, "ttl": ttl, "groups": list(groups), "note": note}
        return await self._asked("POST", PATH, body)

    async def create_for_account(
        self, account: str, namespace: str, *, ttl: str = USUAL_TTL
    ) -> dict[str, Any]:
        """A token of a service account, which is made if it is not there: for programs on
        Kubernetes."""
        made = meta.ObjectMeta(name=account, namespace=namespace)
        with contextlib.suppress(errors.AlreadyExists):
            await self._store.create(kubernetes.ServiceAccount(metadata=made))
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": duration.seconds(ttl)},
        }
        status, answer = await ask(self._store, "POST", path, body)
        if status >= 300:
            raise errors.from_status(answer, status)
        told = answer["status"]
        user = f"system:serviceaccount:{namespace}:{account}"
        return {"user": user, "token": told["token"], "expires": told["expirationTimestamp"]}

    async def list(self) -> Tokens:
        """All tokens, or the caller's own if he may not see others'."""
        found: Tokens = (await self._asked("GET", PATH))["items"]
        return found

    async def list_or_none(self) -> Tokens | None:
        """The same; None where users have no tokens of ours."""
        try:
            return await self.list()
        except NoUserTokens:
            return None

    async def revoke(self, token_id: str) -> dict[str, Any]:
        """Ends a token by its id, at once."""
        return await self._asked("DELETE", f"{PATH}/{token_id}")

    async def _asked(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        try:
            status, answer = await ask(self._store, method, path, body)
        except errors.Unavailable:
            status, answer = 503, {}
        # On a cluster it is another server that would answer, and it has no tokens, up or not.
        if status == 503 or (status == 404 and not (answer.get("details") or {}).get("name")):
            raise NoUserTokens
        if status >= 300:
            raise errors.from_status(answer, status)
        return answer


def write_kubeconfig(
    path: pathlib.Path, own: access.Access, token: str, namespace: str, name: str = "windlass"
) -> None:
    """A file with which its owner reaches the same server as we do, as whom the token says."""
    cluster: dict[str, Any] = {"server": own.cluster.server}
    authority = access.pem(
        own.cluster.certificate_authority_data,
        own.cluster.certificate_authority,
        "certificate-authority",
        own.source,
    )
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    kubeconfig.merge_context(
        path, name, cluster, {"token": token}, namespace=namespace, make_current=True
    )
    path.chmod(0o600)


async def ask(
    store: KubernetesStore, method: str, path: str, body: Any = None
) -> tuple[int, dict[str, Any]]:
    """Any request, JSON in and out; the caller looks at the status."""
    data = None if body is None else json.dumps(body).encode()
    status, _, answer = await store.raw(method, path, body=data)
    try:
        value = json.loads(answer)
    except ValueError:
        value = {}
    return status, value if isinstance(value, dict) else {}
