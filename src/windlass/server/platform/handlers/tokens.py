"""Tokens of users and programs: created, listed, revoked.

    POST   /apis/platform.windlass.dev/v1alpha1/tokens       {"user": "alice", "ttl": "90d"}
    GET    /apis/platform.windlass.dev/v1alpha1/tokens       all, or the caller's own
    DELETE /apis/platform.windlass.dev/v1alpha1/tokens/ID

Administrators (`windlass-admin` in all namespaces) create tokens for every name that is not the
system's; every user may list and revoke the own ones. A token is shown once, when it is created.
"""

from __future__ import annotations

import datetime
from typing import Any

from aiohttp import web

from windlass.kinds.values import duration
from windlass.server.auth import bearer_tokens
from windlass.server.auth.authenticator import Access
from windlass.server.auth.authorization import refusal
from windlass.server.auth.identity import Attributes, Identity
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
        token = await bearer_tokens.create_token(
            self._api, user, names, _ttl(body), note=_text(body, "note")
        )
        made = bearer_tokens.id_of(token)
        (created,) = [
            each for each in await bearer_tokens.list_tokens(self._api) if each["id"] == made
        ]
        return json_response(_head("Token") | created | {"token": token}, 201)

    async def revoke(self, call: PlatformCall) -> web.Response:
        """A token that the caller may not see is refused like one that does not exist."""
        name = call.parameters["token"]
        visible = await self._visible(call.identity)
        found = next((each for each in visible if each["id"] == name), None)
        if found is None:
            wanted = Attributes("delete", GROUP, "tokens", name=name)
            if not await self._access.allowed(call.identity, wanted):
                raise refusal(call.identity, wanted)
            raise errors.NotFound(
                f'tokens "{name}" not found', details={"kind": "tokens", "name": name}
            )
        await bearer_tokens.revoke_token(self._api, name)
        self._access.forget_token(name)
        return json_response(_head("Token") | found)

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
