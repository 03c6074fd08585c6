"""Tokens of users and programs: created, listed, revoked.

    POST   /apis/platform.windlass.dev/v1alpha1/tokens       {"user": "alice", "ttl": "90d"}
    GET    /apis/platform.windlass.dev/v1alpha1/tokens       all, or the caller's own
    DELETE /apis/platform.windlass.dev/v1alpha1/tokens/ID
    POST   /apis/platform.windlass.dev/v1alpha1/tokens/ID/rotate    a new one in its place

Administrators (`windlass-admin` in all namespaces) create tokens for every name that is not the
system's; every user may list, rotate and revoke the own ones. A token is shown once, when it is
created.
"""

from __future__ import annotations

import datetime
from typing import Any

from aiohttp import web

from windlass.kinds.values import duration, times
from windlass.server.auth import bearer_tokens
from windlass.server.auth.authenticator import Access
from windlass.server.auth.authorization import refusal
from windlass.server.auth.identity import NODE_PREFIX, Attributes, Identity
from windlass.server.fairness.settings import DEFAULTS, NAME, NAMESPACE
from windlass.server.http import bodies
from windlass.server.http.responses import json_response
from windlass.server.platform.call import PlatformCall
from windlass.server.platform.paths import GROUP, VERSION
from windlass.store import errors
from windlass.store.embedded.api import Api

USUAL_TTL, LONGEST_TTL = "90d", "3650d"
_MOST_TEXT, _MOST_GROUPS = 200, 32
_SYSTEM = "system:"


class TokenService:
    def __init__(self, api: Api, access: Access) -> None:
        self._api = api
        self._access = access
        self.limit = DEFAULTS.tokens
        """Valid tokens of one user."""

    async def list_tokens(self, call: PlatformCall) -> web.Response:
        """The tokens that the caller may see."""
        items = await self._visible(call.identity)
        return json_response(_head("TokenList") | {"items": items})

    async def create(self, call: PlatformCall) -> web.Response:
        identity = call.identity
        body = await bodies.read_object(call.request)
        user = _text(body, "user")
        if not user:
            raise _invalid("user", "must name the user of the token")
        groups = body.get("groups") or []
        if not isinstance(groups, list) or len(groups) > _MOST_GROUPS:
            raise _invalid("groups", f"must be a list of at most {_MOST_GROUPS} names")
        names = tuple(_text({"groups": each}, "groups") for each in groups)
        if not identity.is_master:
            for name in (user, *names):
                if _is_system(name):
                    raise _invalid("user", f"{name!r} is reserved for the system: use another name")
        await self._refuse_many(user)
        token = await bearer_tokens.create_token(
            self._api, user, names, _ttl(body), note=_text(body, "note")
        )
        return json_response(_head("Token") | await self._described(token), 201)

    async def _refuse_many(self, user: str) -> None:
        tokens = await bearer_tokens.list_tokens(self._api)
        valid = sum(each["user"] == user and not each["expired"] for each in tokens)
        if valid >= self.limit:
            raise errors.Forbidden(
                f"user {user} has {valid} valid tokens, of at most {self.limit}; revoke some with "
                f"`windlass token revoke`, or raise user.tokens in ConfigMap {NAMESPACE}/{NAME}"
            )

    async def revoke(self, call: PlatformCall) -> web.Response:
        found = await self._named(call, "delete")
        await self._revoke(found["id"])
        return json_response(_head("Token") | found)

    async def rotate(self, call: PlatformCall) -> web.Response:
        """A new token with the user, groups, note and lifetime of the named one, which is revoked
        once the new one is stored. An expired token is not renewed: that would undo its expiry."""
        found = await self._named(call, "update")
        if found["expired"]:
            raise errors.Conflict(
                f"token {found['id']} has expired; an administrator creates a new one: windlass "
                f"token create {found['user']}"
            )
        if found["user"].startswith(NODE_PREFIX):
            raise errors.Conflict(
                f"token {found['id']} is the engine's own; revoke it and restart the engine "
                "(windlass down, windlass up) to replace it"
            )
        lifetime = None
        if found["expires"]:
            lifetime = times.parse(found["expires"]) - times.parse(found["created"])
        token = await bearer_tokens.create_token(
            self._api, found["user"], tuple(found["groups"]), lifetime, note=found["note"]
        )
        await self._revoke(found["id"])
        answer = await self._described(token)
        return json_response(_head("Token") | answer | {"replaces": found["id"]}, 201)

    async def _named(self, call: PlatformCall, verb: str) -> dict[str, Any]:
        """The token of the path. One that the caller may not see is refused like one that does not
        exist."""
        name = call.parameters["token"]
        visible = await self._visible(call.identity)
        found = next((each for each in visible if each["id"] == name), None)
        if found is not None:
            return found
        wanted = Attributes(verb, GROUP, "tokens", name=name)
        # The right to revoke tokens of others is the right to manage them.
        managing = Attributes("delete", GROUP, "tokens", name=name)
        if not await self._access.allowed(call.identity, managing):
            raise refusal(call.identity, wanted)
        raise errors.NotFound(
            f'tokens "{name}" not found', details={"kind": "tokens", "name": name}
        )

    async def _revoke(self, name: str) -> None:
        await bearer_tokens.revoke_token(self._api, name)
        self._access.forget_token(name)

    async def _described(self, token: str) -> dict[str, Any]:
        made = bearer_tokens.id_of(token)
        listed = await bearer_tokens.list_tokens(self._api)
        (created,) = [each for each in listed if each["id"] == made]
        return created | {"token": token}

    async def _visible(self, identity: Identity) -> list[dict[str, Any]]:
        """The caller's own; for administrators also those of users; system tokens for masters."""
        found = await bearer_tokens.list_tokens(self._api)
        if identity.is_master:
            return found
        admin = await self._access.allowed(identity, Attributes("list", GROUP, "tokens"))
        return [
            each
            for each in found
            if each["user"] == identity.user
            or (admin and not any(map(_is_system, (each["user"], *each["groups"]))))
        ]


def _is_system(name: str) -> bool:
    return name.startswith(_SYSTEM)


def _head(kind: str) -> dict[str, Any]:
    return {"kind": kind, "apiVersion": f"{GROUP}/{VERSION}"}


def _text(body: dict[str, Any], name: str) -> str:
    """A short, printable name without commas, which separate groups in the store."""
    value = body.get(name) or ""
    if not isinstance(value, str) or len(value) > _MOST_TEXT or not value.isprintable():
        raise _invalid(name, f"must be at most {_MOST_TEXT} printable characters")
    if "," in value and name != "note":
        raise _invalid(name, "must not have a comma")
    return value.strip()


def _ttl(body: dict[str, Any]) -> datetime.timedelta | None:
    """Its lifetime: 90 days by default; None for `never`."""
    text = body.get("ttl") or USUAL_TTL
    if text == "never":
        return None
    try:
        lasts = duration.milliseconds(str(text))
    except duration.Malformed as problem:
        raise _invalid("ttl", f"{problem}, or never") from problem
    if not 1000 <= lasts <= duration.milliseconds(LONGEST_TTL):
        raise _invalid("ttl", f"must be from 1s to {LONGEST_TTL}, or never")
    return datetime.timedelta(milliseconds=lasts)


def _invalid(field: str, message: str) -> errors.Invalid:
    return errors.Invalid(
        f"the token cannot be made: {field}: {message}", causes=(errors.Cause(field, message),)
    )
