"""Bearer tokens of users and programs.

The embedded engine issues tokens for users. On Kubernetes users sign in to the cluster, and only
service accounts get tokens. `list_or_none` finds out which of the two a server is.
"""

from __future__ import annotations

import base64
import contextlib
import json
import pathlib
from typing import Any

from windlass.kinds.types import core, meta
from windlass.kinds.values import duration
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.config import kubeconfig, model

PATH = "/apis/platform.windlass.dev/v1alpha1/tokens"
USUAL_TTL = "90d"


Tokens = list[dict[str, Any]]


class NoUserTokens(errors.NotFound):
    """This server authenticates users by other means than Windlass' tokens."""

    def __init__(self) -> None:
        super().__init__(
            "users of this cluster sign in as for kubectl; for a program use a service account "
            "(windlass token create NAME --account -N TEAM)"
        )


class AsyncTokens:
    """`client.tokens`."""

    def __init__(self, store: KubernetesStore) -> None:
        self._store = store

    async def create(
        self, user: str, *, ttl: str = USUAL_TTL, groups: tuple[str, ...] = (), note: str = ""
    ) -> dict[str, Any]:
        """Creates a token of a user; `token` is returned only once. `ttl="never"` does not
        expire."""
        body = {"user": user, "ttl": ttl, "groups": list(groups), "note": note}
        return await self._asked("POST", PATH, body)

    async def create_for_account(
        self, account: str, namespace: str, *, ttl: str = USUAL_TTL
    ) -> dict[str, Any]:
        """Creates a token of a service account, and the account if it does not exist, for programs
        on Kubernetes."""
        made = meta.ObjectMeta(name=account, namespace=namespace)
        with contextlib.suppress(errors.AlreadyExists):
            await self._store.create(core.ServiceAccount(metadata=made))
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": duration.seconds(ttl)},
        }
        status, answer = await ask(self._store, "POST", path, body)
        if status >= 300:
            raise errors.from_status(answer, status)
        status = answer["status"]
        user = f"system:serviceaccount:{namespace}:{account}"
        return {"user": user, "token": status["token"], "expires": status["expirationTimestamp"]}

    async def list(self) -> Tokens:
        """All tokens, or the caller's own without permission for those of others."""
        found: Tokens = (await self._asked("GET", PATH))["items"]
        return found

    async def list_or_none(self) -> Tokens | None:
        """As `list`; None if the server does not issue tokens for users."""
        try:
            return await self.list()
        except NoUserTokens:
            return None

    async def revoke(self, token_id: str) -> dict[str, Any]:
        """Revokes a token by its ID."""
        return await self._asked("DELETE", f"{PATH}/{token_id}")

    async def rotate(self, token_id: str) -> dict[str, Any]:
        """Replaces a token, by its ID, with a new one of the same user and lifetime; `token` is
        returned only once, and the old one is revoked."""
        return await self._asked("POST", f"{PATH}/{token_id}/rotate")

    async def _asked(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        try:
            status, answer = await ask(self._store, method, path, body)
        except errors.Unavailable:
            status, answer = 503, {}
        # On a cluster another server would answer, and it has no tokens, running or not.
        if status == 503 or (status == 404 and not (answer.get("details") or {}).get("name")):
            raise NoUserTokens
        if status >= 300:
            raise errors.from_status(answer, status)
        return answer


def write_kubeconfig(
    path: pathlib.Path, own: model.Access, token: str, namespace: str, name: str = "windlass"
) -> None:
    """Writes a kubeconfig for the same server, with the token as its credentials."""
    cluster: dict[str, Any] = {"server": own.cluster.server}
    authority = model.pem(
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
