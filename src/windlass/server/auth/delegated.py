"""Delegates to the cluster: authorisation by SubjectAccessReview, pod tokens by TokenReview.

Answers are cached for a few seconds (`store.kubernetes.reviews`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from typing import Any

from windlass.server.auth.authorization import refusal
from windlass.server.auth.identity import Attributes, Identity, PodRef
from windlass.store import errors
from windlass.store.kubernetes import reviews
from windlass.store.kubernetes.client import KubernetesStore

AUDIENCE = "windlass"
_POD, _UID = (f"authentication.kubernetes.io/pod-{name}" for name in ("name", "uid"))
_ACCOUNT = "system:serviceaccount:"


class Reviews:
    """`authorization.Rights`, answered by the API server."""

    def __init__(self, store: KubernetesStore) -> None:
        self._store = store
        self._known: reviews.Remembered[bool] = reviews.Remembered()

    async def authorize(self, identity: Identity, wanted: Attributes) -> None:
        if not await self.allowed(identity, wanted):
            raise refusal(identity, wanted)

    async def allowed(self, identity: Identity, wanted: Attributes) -> bool:
        """Always False for a pod: `pod_authorizer` has its permissions, whatever its account
        has."""
        if identity.pod is not None:
            return False
        attributes = {
            "verb": wanted.verb, "group": wanted.group, "resource": wanted.resource,
            "subresource": wanted.subresource, "namespace": wanted.namespace, "name": wanted.name,
        }  # fmt: skip
        return await self._ask(identity, wanted, {"resourceAttributes": attributes})

    async def authorize_path(self, identity: Identity, path: str) -> None:
        attributes = {"nonResourceAttributes": {"path": path, "verb": "get"}}
        if identity.pod is not None or not await self._ask(identity, path, attributes):
            raise errors.Forbidden(
                f'forbidden: User "{identity.user}" cannot get path "{path}"', details={}
            )

    async def _ask(self, identity: Identity, what: Hashable, attributes: dict[str, Any]) -> bool:
        async def ask() -> bool:
            spec = {
                "user": identity.user,
                "groups": identity.groups,
                "extra": dict(identity.extra),
                **attributes,
            }
            return await reviews.access(self._store, spec)

        return await self._known.get((identity, what), ask)


class PodTokens:
    """The pods of tokens of the audience `windlass`."""

    def __init__(self, store: KubernetesStore) -> None:
        self._store = store
        self._known: reviews.Remembered[Identity | None] = reviews.Remembered()

    async def identify(self, authorization: str | None) -> Identity:
        """The pod of an Authorization header; Unauthorized if there is none."""
        scheme, _, token = (authorization or "").partition(" ")
        found = None
        if scheme.lower() == "bearer" and token.strip():
            digest = hashlib.sha256(token.strip().encode()).digest()
            found = await self._known.get(digest, lambda: self._ask(token.strip()))
        if found is None:
            raise errors.Unauthorized("Unauthorized")
        return found

    async def _ask(self, token: str) -> Identity | None:
        spec = {"token": token, "audiences": [AUDIENCE]}
        review_status = await reviews.token(self._store, spec)
        if not review_status.get("authenticated") or AUDIENCE not in (
            review_status.get("audiences") or ()
        ):
            return None
        user: Mapping[str, Any] = review_status.get("user") or {}
        extra: Mapping[str, list[str]] = user.get("extra") or {}
        name = str(user.get("username", ""))
        pod, uid = extra.get(_POD), extra.get(_UID)
        if not name.startswith(_ACCOUNT) or not pod or not uid:
            return None  # users come through the API server
        namespace = name.removeprefix(_ACCOUNT).partition(":")[0]
        groups = tuple(user.get("groups") or ())
        extra_values = tuple((key, tuple(values)) for key, values in sorted(extra.items()))
        return Identity(name, groups, PodRef(namespace, pod[0], uid[0]), extra_values)
