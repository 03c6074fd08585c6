"""Tokens: what is stored, what opens, what expires."""

from __future__ import annotations

import base64
import datetime
from typing import Any

import msgspec
import pytest

from windlass.kinds.types import core
from windlass.server.auth import bearer_tokens
from windlass.store.embedded.api import Api
from windlass.store.embedded.options import ListQuery

SYSTEM = "windlass-system"


async def stored(api: Api) -> list[dict[str, Any]]:
    found = await api.list(core.Secret.resource, SYSTEM, ListQuery())
    return [msgspec.json.decode(item) for item in found.items]


async def test_the_store_holds_the_hash_and_never_the_token(api: Api) -> None:
    token = await bearer_tokens.create_token(api, "alice", ("ops",), datetime.timedelta(hours=1))
    (secret,) = await stored(api)
    assert secret["type"] == "windlass.dev/token"
    assert secret["metadata"]["name"] == token.split("_")[1]
    assert len(token.split("_", 2)[2]) == 43
    data = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
    assert data["user"] == "alice"
    assert data["groups"] == "ops"
    assert token.split("_", 2)[2] not in msgspec.json.encode(secret).decode()


async def test_a_token_opens_only_as_a_whole(api: Api) -> None:
    token = await bearer_tokens.create_token(api, "alice", ("ops",))
    index = bearer_tokens.Tokens(api)
    found = await index.identify(token)
    assert found is not None
    assert found[0].user == "alice"
    assert found[0].groups == ("ops", "system:authenticated")
    for wrong in (token[:-1], token + "x", token.upper(), token.replace("wl_", "xx_"), "wl__", ""):
        assert await index.identify(wrong) is None


async def test_an_expired_token_opens_nothing(api: Api) -> None:
    token = await bearer_tokens.create_token(api, "alice", (), datetime.timedelta(seconds=-1))
    assert await bearer_tokens.Tokens(api).identify(token) is None


async def test_use_is_noted_at_most_once_a_minute(api: Api) -> None:
    token = await bearer_tokens.create_token(api, "alice")
    index = bearer_tokens.Tokens(api)
    notes = [(await index.identify(token) or (None, "?"))[1] for _ in range(3)]
    assert notes == [token.split("_")[1], "", ""]
    await index.note_use(notes[0])
    (secret,) = await stored(api)
    assert bearer_tokens.LAST_USED in secret["metadata"]["annotations"]


def secret(**changes: Any) -> dict[str, Any]:
    data = {"hash": "aa", "user": "u"} | changes.pop("data", {})
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"type": bearer_tokens.TOKEN_TYPE, "data": encoded} | changes


BROKEN = {
    "another type": secret(type="Opaque"),
    "no user": secret(data={"user": ""}),
    "no hash": secret(data={"hash": ""}),
    "not base64": {"type": bearer_tokens.TOKEN_TYPE, "data": {"hash": "%", "user": "%"}},
    "no data": {"type": bearer_tokens.TOKEN_TYPE},
    "expiry that is no time": secret(data={"expires": "tomorrow"}),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_secret_that_is_no_token_opens_nothing(case: str) -> None:
    assert bearer_tokens.read_record(BROKEN[case]) is None


def test_a_secret_elsewhere_is_no_token() -> None:
    index = bearer_tokens.Tokens(api=None)
    index.put("team", "x", secret())
    assert index._records == {}
