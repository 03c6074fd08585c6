"""Asks the cluster for the identity of callers (TokenReview) and for their rights
(SubjectAccessReview).

Components that serve something themselves ask them. Answers are cached for a few seconds: ten
requests of a client in a row cost one review, and a revoked permission is gone within that time.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

SECONDS = 10.0
MOST = 10_000
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_TOKEN = "/apis/authentication.k8s.io/v1/tokenreviews"  # noqa: S105 (a path)

V = TypeVar("V")


async def access(store: KubernetesStore, spec: Mapping[str, Any]) -> bool:
    """Whether a SubjectAccessReview with this spec is allowed."""
    status = await _review(store, _ACCESS, "authorization", "SubjectAccessReview", spec)
    return bool(status.get("allowed")) and not status.get("denied")


async def token(store: KubernetesStore, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The status of a TokenReview with this spec."""
    return await _review(store, _TOKEN, "authentication", "TokenReview", spec)


class PathGuard:
    """Admits callers to a path such as /metrics: by bearer token, with the right to get the path
    (`nonResourceURLs` of a ClusterRole), as components of Kubernetes do."""

    def __init__(self, store: KubernetesStore) -> None:
        self._store = store
        self._known: Remembered[str | None] = Remembered()

    async def admit(self, authorization: str | None, path: str) -> None:
        """Raises Unauthorized or Forbidden."""
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise errors.Unauthorized("Unauthorized")
        key = hashlib.sha256(secret.strip().encode()).digest(), path
        refused = await self._known.get(key, lambda: self._refused(secret.strip(), path))
        if refused is None:
            return
        if not refused:
            raise errors.Unauthorized("Unauthorized")
        raise errors.Forbidden(refused, details={})

    async def _refused(self, secret: str, path: str) -> str | None:
        """None: admitted; "": the token is not valid; else why it may not."""
        status = await token(self._store, {"token": secret})
        if not status.get("authenticated"):
            return ""
        user = status.get("user") or {}
        spec = {
            "user": user.get("username", ""), "groups": user.get("groups") or [],
            "uid": user.get("uid", ""), "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": path, "verb": "get"},
        }  # fmt: skip
        if await access(self._store, spec):
            return None
        return (
            f'forbidden: User "{spec["user"]}" cannot get path "{path}": bind the ClusterRole '
            "windlass-metrics-reader to it"
        )


class Remembered(Generic[V]):
    """Answers of the last seconds, up to a maximum count."""

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
    store: KubernetesStore, path: str, group: str, kind: str, spec: Mapping[str, Any]
) -> dict[str, Any]:
    body = {"apiVersion": f"{group}.k8s.io/v1", "kind": kind, "spec": spec}
    status, _, answer = await store.raw("POST", path, body=msgspec.json.encode(body))
    if status not in (200, 201):
        raise errors.Unavailable(
            f"the cluster did not answer a {kind} ({status}); try again. If it persists, check "
            "the permissions of the component's service account: windlass doctor"
        )
    found: dict[str, Any] = msgspec.json.decode(answer).get("status") or {}
    return found
