"""Tokens of pods on the embedded engine; `pod_authorizer` has their permissions.

Issued through TokenRequest (`serviceaccounts/NAME/token`, as the kubelet does), for the audience
`windlass`, bound to one pod, with an expiry. A token is signed, not stored: `wp_<claims>.<mac>`. It
is valid until its expiry, while its pod exists and has not ended.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import hashlib
import hmac
import os
import secrets
import time
from pathlib import Path
from typing import Any

import msgspec

from windlass.kinds.types import core
from windlass.kinds.values import times
from windlass.server.auth.identity import AUTHENTICATED, Identity, PodRef
from windlass.server.auth.pod_authorizer import is_alive, live_pod
from windlass.store import errors, interface

AUDIENCE = "windlass"
PREFIX = "wp_"
SHORTEST, LONGEST, USUAL = 600, 86400, 3600
"""The lifetime of a token in seconds; the minimum is that of Kubernetes."""


class Claims(msgspec.Struct, frozen=True):
    namespace: str
    pod: str
    uid: str
    account: str
    expires: int


class PodTokens:
    """Issues and verifies them."""

    def __init__(self, store: interface.Store, key: bytes) -> None:
        self._store = store
        self._key = key

    async def issue(
        self, identity: Identity, namespace: str, account: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        """The response to a TokenRequest."""
        given = body.get("spec")
        spec: dict[str, Any] = given if isinstance(given, dict) else {}
        lasts = _lasts(spec)
        if spec.get("audiences") not in (None, [], [AUDIENCE]):
            raise _invalid("spec.audiences", f'must be ["{AUDIENCE}"]')
        bound = spec.get("boundObjectRef")
        if not isinstance(bound, dict) or bound.get("kind") != "Pod" or not bound.get("name"):
            raise _invalid("spec.boundObjectRef", "must name a Pod: tokens are for pods only")
        pod = await self._pod(namespace, str(bound["name"]))
        if pod is None or bound.get("uid") not in (None, "", pod.uid) or not is_alive(pod):
            raise errors.NotFound(f'pods "{bound["name"]}" not found', details={"kind": "pods"})
        if identity.node and pod.spec.node_name != identity.node:
            raise errors.Forbidden(
                f'pod "{pod.name}" does not run on node "{identity.node}"', details={}
            )
        if (pod.spec.service_account_name or "default") != account:
            raise _invalid("spec.boundObjectRef", f"pod {pod.name} has another service account")
        expires = int(time.time()) + lasts
        claims = Claims(namespace, pod.name, pod.uid, account, expires)
        ends = datetime.datetime.fromtimestamp(expires, datetime.UTC)
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": account, "namespace": namespace},
            "spec": {
                "audiences": [AUDIENCE],
                "expirationSeconds": lasts,
                "boundObjectRef": {
                    "kind": "Pod", "apiVersion": "v1", "name": pod.name, "uid": pod.uid,
                },
            },
            "status": {"token": self.sign(claims), "expirationTimestamp": times.seconds(ends)},
        }  # fmt: skip

    def sign(self, claims: Claims) -> str:
        encoded = _encode(msgspec.json.encode(claims))
        return f"{PREFIX}{encoded}.{self._mac(encoded)}"

    async def identify(self, token: str) -> Identity | None:
        """The pod of a token; None if it has another signature, is expired, or its pod has
        ended."""
        claims = self._read(token)
        if claims is None or time.time() >= claims.expires:
            return None
        if await live_pod(self._store, claims.namespace, claims.pod, claims.uid) is None:
            return None
        everyone = f"system:serviceaccounts:{claims.namespace}"
        return Identity(
            f"system:serviceaccount:{claims.namespace}:{claims.account}",
            ("system:serviceaccounts", everyone, AUTHENTICATED),
            PodRef(claims.namespace, claims.pod, claims.uid),
        )

    def _read(self, token: str) -> Claims | None:
        encoded, _, mac = token.removeprefix(PREFIX).partition(".")
        if len(token) > 2048 or not token.isascii() or not token.startswith(PREFIX):
            return None
        if not hmac.compare_digest(mac, self._mac(encoded)):
            return None
        try:
            return msgspec.json.decode(_decode(encoded), type=Claims)
        except (msgspec.DecodeError, binascii.Error, ValueError):
            return None

    async def _pod(self, namespace: str, name: str) -> core.Pod | None:
        try:
            return await self._store.get(core.Pod, name, namespace)
        except errors.NotFound:
            return None

    def _mac(self, encoded: str) -> str:
        return _encode(hmac.digest(self._key, encoded.encode(), hashlib.sha256))


def ensure_key(path: Path) -> bytes:
    """The signing key; created once, readable by the owner alone."""
    with contextlib.suppress(FileNotFoundError):
        found = path.read_bytes()
        if len(found) >= 32:
            return found
    key = secrets.token_bytes(32)
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, key)
        os.fsync(handle)
    finally:
        os.close(handle)
    fresh.replace(path)
    return key


def _lasts(spec: dict[str, Any]) -> int:
    lasts = spec.get("expirationSeconds", USUAL)
    if not isinstance(lasts, int) or isinstance(lasts, bool) or lasts < SHORTEST:
        raise _invalid("spec.expirationSeconds", f"must be a number, at least {SHORTEST}")
    return min(lasts, LONGEST)


def _invalid(field: str, message: str) -> errors.Invalid:
    return errors.Invalid(f"{field}: {message}", causes=(errors.Cause(field, message),))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
