"""Tokens of people and programs: made, listed, ended.

    POST   /apis/platform.windlass.dev/v1alpha1/tokens       {"user": "alice", "ttl": "90d"}
    GET    /apis/platform.windlass.dev/v1alpha1/tokens       all, or one's own
    DELETE /apis/platform.windlass.dev/v1alpha1/tokens/ID

Administrators (`windlass-admin` everywhere) make tokens for anybody who is not the system itself;
everybody may see and end his own. A token is shown once, in the answer that made it.
"""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from aiohttp import web

from windlass.kinds import duration
from windlass.server import bodies, tokens
from windlass.server.access import Access
from windlass.server.identity import Attributes, Identity
from windlass.server.objects import json_response
from windlass.server.platformpaths import GROUP, ROOT, VERSION
from windlass.server.rights import refusal
from windlass.store import errors
from windlass.store.embedded.api import Api

USUAL_TTL, LONGEST_TTL = "90d", "3650d"
_MOST_TEXT, _MOST_GROUPS = 200, 32
_SYSTEM = "system:"
_METHODS = {"GET": "list", "POST": "create", "DELETE": "delete"}


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    token: str = ""

    def right(self, method: str) -> Attributes:
        return Attributes(_METHODS.get(method, ""), GROUP, "tokens", name=self.token)


def match(raw_path: str) -> Question | None:
    """The question that a path asks, if it is one of ours."""
    base = f"{ROOT}/tokens"
    if raw_path == base:
        return Question()
    name = raw_path.removeprefix(base + "/")
    return Question(name) if name != raw_path and name.isalnum() and name.isascii() else None


class TokenApi:
    """Answers, with the caller's rights."""

    def __init__(self, api: Api, access: Access) -> None:
        self._api = api
        self._access = access

    async def answer(
        self, request: web.BaseRequest, identity: Identity, asked: Question
    ) -> web.Response:
        if request.method not in (("DELETE",) if asked.token else ("GET", "POST")):
            raise errors.MethodNotAllowed("tokens know GET and POST, one of them DELETE")
        wanted = asked.right(request.method)
        if identity.pod is not None or identity.node:
            raise refusal(identity, wanted)
        if request.method == "POST":
            await self._access.authorize(identity, wanted)
            return await self._create(request, identity)
        seen = await self._seen_by(identity)
        if request.method == "GET":
            return json_response(_head("TokenList") | {"items": seen})
        return await self._revoke(identity, asked, seen)

    async def _seen_by(self, identity: Identity) -> list[dict[str, Any]]:
        """One's own; an administrator's people's; the system's only for those it belongs to."""
        found = await tokens.list_tokens(self._api)
        if identity.is_master:
            return found
        admin = await self._access.allowed(identity, Question().right("GET"))
        return [
            each
            for each in found
            if each["user"] == identity.user
            or (admin and not any(map(_is_systems, (each["user"], *each["groups"]))))
        ]

    async def _create(self, request: web.BaseRequest, identity: Identity) -> web.Response:
        body = await bodies.read_object(request)
        user = _text(body, "user")
        if not user:
            raise _invalid("user", "must name whom the token is for")
        groups = body.get("groups") or []
        if not isinstance(groups, list) or len(groups) > _MOST_GROUPS:
            raise _invalid("groups", f"must be a list of at most {_MOST_GROUPS} names")
        names = tuple(_text({"groups": each}, "groups") for each in groups)
        if not identity.is_master:
            for name in (user, *names):
                if _is_systems(name):
                    raise _invalid("user", f"{name!r} is the system's own: take another name")
        token = await tokens.create_token(
            self._api, user, names, _ttl(body), note=_text(body, "note")
        )
        made = tokens.id_of(token)
        (told,) = [each for each in await tokens.list_tokens(self._api) if each["id"] == made]
        return json_response(_head("Token") | told | {"token": token}, 201)

    async def _revoke(
        self, identity: Identity, asked: Question, seen: list[dict[str, Any]]
    ) -> web.Response:
        """What one may not see is refused like what does not exist."""
        found = next((each for each in seen if each["id"] == asked.token), None)
        if found is None:
            if not await self._access.allowed(identity, asked.right("DELETE")):
                raise refusal(identity, asked.right("DELETE"))
            raise errors.NotFound(
                f'tokens "{asked.token}" not found', details={"kind": "tokens", "name": asked.token}
            )
        await tokens.revoke_token(self._api, asked.token)
        self._access.forget_token(asked.token)
        return json_response(_head("Token") | found)


def _is_systems(name: str) -> bool:
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
    """How long it lasts: 90 days if nobody says; `never` has no end."""
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
