"""Bearer tokens: created, stored as hashes, looked up.

A token is `wl_<id>_<43 url-safe characters>`. Its Secret (type `windlass.dev/token`, namespace
`windlass-system`, named by the id) has only its SHA-256, the user, groups and expiry. The 32 random
bytes cannot be guessed, so a slow hash would add nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import dataclasses
import datetime
import hashlib
import hmac
import logging
import secrets
import time
from typing import Any

import msgspec

from windlass.kinds.types import core
from windlass.kinds.values import times
from windlass.server.auth.identity import AUTHENTICATED, SYSTEM_NAMESPACE, Identity
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.options import DeleteOptions, ListQuery, WriteOptions

TOKEN_TYPE = "windlass.dev/token"  # noqa: S105 (a type, not a secret)
LAST_USED = "windlass.dev/last-used"
SERVER_USER = "system:windlass-server"
_USED_EVERY_SECONDS = 60.0
KEPT_SECONDS = 30 * 86400.0
"""How long an expired token is still listed."""
SWEEP_SECONDS = 6 * 3600.0
_log = logging.getLogger(__name__)


@dataclasses.dataclass(slots=True)
class Record:
    """A token as the server knows it."""

    hash: str
    identity: Identity
    expires: float | None
    note: str = ""
    """Its purpose, as its creator describes it."""
    noted: float = float("-inf")
    """When its last use was last recorded, by the monotonic clock."""


class Tokens:
    """All tokens by their id. Filled by a watch; `put` and `remove` are the watch's."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._records: dict[str, Record] = {}

    def put(self, namespace: str, name: str, obj: dict[str, Any]) -> None:
        record = read_record(obj) if namespace == SYSTEM_NAMESPACE else None
        old = self._records.get(name)
        if record is None:
            self._records.pop(name, None)
            return
        if old is not None:
            record.noted = old.noted
        self._records[name] = record

    def remove(self, namespace: str, name: str) -> None:
        if namespace == SYSTEM_NAMESPACE:
            self._records.pop(name, None)

    async def identify(self, token: str) -> tuple[Identity, str] | None:
        """The identity of a token and, once a minute, the id whose use should be recorded."""
        token_id = id_of(token)
        if not token_id:
            return None
        record = self._records.get(token_id) or await self._fetch(token_id)
        if record is None or not hmac.compare_digest(record.hash, _hash(token)):
            return None
        if record.expires is not None and time.time() >= record.expires:
            return None
        now = time.monotonic()
        if now - record.noted < _USED_EVERY_SECONDS:
            return record.identity, ""
        record.noted = now
        return record.identity, token_id

    async def note_use(self, token_id: str) -> None:
        """Writes down when the token was last used; a token that is gone meanwhile is no error."""
        patch = {"metadata": {"annotations": {LAST_USED: times.seconds(times.now())}}}
        try:
            await self._api.patch(
                core.Secret.resource, SYSTEM_NAMESPACE, token_id, patch, "merge",
                WriteOptions(user=SERVER_USER),
            )  # fmt: skip
        except errors.NotFound:
            self._records.pop(token_id, None)

    async def _fetch(self, token_id: str) -> Record | None:
        """A token that was just created may not have come through the watch yet."""
        try:
            data = await self._api.get(core.Secret.resource, SYSTEM_NAMESPACE, token_id)
        except errors.ApiError:
            return None
        self.put(SYSTEM_NAMESPACE, token_id, msgspec.json.decode(data))
        return self._records.get(token_id)


async def create_token(
    api: Api,
    user: str,
    groups: tuple[str, ...] = (),
    ttl: datetime.timedelta | None = None,
    note: str = "",
) -> str:
    """A new token for a user. Only this call returns it: the store keeps its hash."""
    token_id = secrets.token_hex(6)
    token = f"wl_{token_id}_{secrets.token_urlsafe(32)}"
    content = {"hash": _hash(token), "user": user, "groups": ",".join(groups)}
    if note:
        content["note"] = note
    if ttl is not None:
        content["expires"] = times.seconds(times.now() + ttl)
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": TOKEN_TYPE,
        "metadata": {"name": token_id, "namespace": SYSTEM_NAMESPACE},
        "data": {key: base64.b64encode(value.encode()).decode() for key, value in content.items()},
    }
    await api.create(core.Secret.resource, SYSTEM_NAMESPACE, body, WriteOptions(user=SERVER_USER))
    return token


async def revoke_token(api: Api, token_id: str) -> None:
    """Revokes a token by its id (the part between the underscores)."""
    await api.delete(core.Secret.resource, SYSTEM_NAMESPACE, token_id, DeleteOptions())


async def list_tokens(api: Api) -> list[dict[str, Any]]:
    """All tokens for listing, oldest first; never the hash."""
    query = ListQuery(field_selector=f"type={TOKEN_TYPE}")
    page = await api.list(core.Secret.resource, SYSTEM_NAMESPACE, query)
    found = [
        described for data in page.items if (described := _described(msgspec.json.decode(data)))
    ]
    return sorted(found, key=lambda each: (each["created"], each["id"]))


async def sweep(api: Api, now: float) -> list[str]:
    """Removes tokens that expired long ago; until then users see the time. Returns their ids."""
    gone = []
    for each in await list_tokens(api):
        if each["expires"] and now - times.parse(each["expires"]).timestamp() > KEPT_SECONDS:
            with contextlib.suppress(errors.NotFound):
                await revoke_token(api, each["id"])
            gone.append(each["id"])
    return gone


async def sweep_regularly(api: Api) -> None:
    while True:
        try:
            await sweep(api, time.time())
        except errors.ApiError as problem:
            _log.warning("tokens that ended could not be removed: %s", problem.message)
        await asyncio.sleep(SWEEP_SECONDS)


def id_of(token: str) -> str:
    """The id in a token; "" if the text is no token."""
    parts = token.split("_", 2)
    well_formed = len(parts) == 3 and parts[0] == "wl" and parts[1].isalnum() and token.isascii()
    return parts[1] if well_formed and len(token) <= 256 else ""


def _described(obj: dict[str, Any]) -> dict[str, Any] | None:
    record = read_record(obj)
    if record is None:
        return None
    metadata = obj["metadata"]
    ends = None if record.expires is None else times.seconds(times.from_unix(record.expires))
    return {
        "id": metadata["name"],
        "user": record.identity.user,
        "groups": [group for group in record.identity.groups if group != AUTHENTICATED],
        "created": metadata.get("creationTimestamp", ""),
        "expires": ends,
        "expired": record.expires is not None and time.time() >= record.expires,
        "lastUsed": (metadata.get("annotations") or {}).get(LAST_USED),
        "note": record.note,
    }


def read_record(obj: dict[str, Any]) -> Record | None:
    """The token that a Secret describes; None if it is no token or cannot be parsed (it is then
    invalid)."""
    if obj.get("type") != TOKEN_TYPE:
        return None
    try:
        data = {
            key: base64.b64decode(value, validate=True).decode()
            for key, value in (obj.get("data") or {}).items()
        }
        expires = data.get("expires")
        until = times.parse(expires).timestamp() if expires else None
    except (binascii.Error, ValueError, TypeError):
        return None
    if not data.get("hash") or not data.get("user"):
        return None
    groups = tuple(group for group in data.get("groups", "").split(",") if group)
    identity = Identity(data["user"], (*groups, AUTHENTICATED))
    return Record(data["hash"], identity, until, data.get("note", ""))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
