"""The cluster's own word on callers: rights by SubjectAccessReview, pods by TokenReview.

Answers are remembered for a few seconds: a client that asks ten things in a row costs one review,
and a right that was taken away is gone within that time.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from windlass.server.identity import Attributes, Identity, PodRef
from windlass.server.rights import refusal
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

AUDIENCE = "windlass"
SECONDS = 10.0
MOST = 10_000
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_TOKEN = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 (a path)
_POD, _UID = (f"authentication.kubernetes.io/pod-{name}" for name in ("name", "uid"))
_ACCOUNT = "system:serviceaccount:"

V = TypeVar("V")


class Reviews:
    """`rights.Rights`, answered by the API server."""

    def __init__(self, store: KubernetesStore) -> None:
        self._store = store
        self._known: _Remembered[bool] = _Remembered()

    async def authorize(self, identity: Identity, wanted: Attributes) -> None:
        if not await self.allowed(identity, wanted):
            raise refusal(identity, wanted)

    async def allowed(self, identity: Identity, wanted: Attributes) -> bool:
        """A pod never may: what it may is in `podrights`, whatever its account is bound to."""
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
            told = await _review(self._store, _ACCESS, "authorization", "SubjectAccessReview", spec)
            return bool(told.get("allowed")) and not told.get("denied")

        return await self._known.get((identity, what), ask)


class PodTokens:
    """The pods behind tokens of the audience `windlass`."""

    def __init__(self, store: KubernetesStore) -> None:
        self._store = store
        self._known: _Remembered[Identity | None] = _Remembered()

    async def identify(self, authorization: str | None) -> Identity:
        """The pod behind an Authorization header; Unauthorized if there is none."""
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
        told = await _review(self._store, _TOKEN, "authentication", "TokenReview", spec)
        if not told.get("authenticated") or AUDIENCE not in (told.get("audiences") or ()):
            return None
        user: Mapping[str, Any] = told.get("user") or {}
        extra: Mapping[str, list[str]] = user.get("extra") or {}
        name = str(user.get("username", ""))
        pod, uid = extra.get(_POD), extra.get(_UID)
        if not name.startswith(_ACCOUNT) or not pod or not uid:
            return None  # people come through the API server
        namespace = name.removeprefix(_ACCOUNT).partition(":")[0]
        groups = tuple(user.get("groups") or ())
        told_of = tuple((key, tuple(values)) for key, values in sorted(extra.items()))
        return Identity(name, groups, PodRef(namespace, pod[0], uid[0]), told_of)


class _Remembered(Generic[V]):
    """Answers of the last seconds, and not more than so many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: dict[Hashable, tuple[float, V]] = {}

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[V]]) -> V:
        now = self._clock()
        known = self._answers.get(key)
        if known is not None and now - known[0] < SECONDS:
            return known[1]
        answer = await ask()
        self._answers.pop(key, None)
        while len(self._answers) >= MOST:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = (now, answer)
        return answer


async def _review(
    store: KubernetesStore, path: str, group: str, kind: str, spec: dict[str, Any]
) -> dict[str, Any]:
    body = {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec}
    status, _, answer = await store.raw("POST", path, body=msgspec.json.encode(body))
    if status not in (200, 201):
        raise errors.Unavailable(
            f"the cluster did not answer a {kind} ({status}); try again, and if it stays so look "
            "at the rights of the service account windlass-server"
        )
    found: dict[str, Any] = msgspec.json.decode(answer).get("status") or {}
    return found
