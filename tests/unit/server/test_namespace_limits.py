"""What a namespace may store: refused beyond the limits with the remedy, freed by deleting."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from tests.harness.waiting import until_async
from tests.unit.server.conftest import Served
from windlass.server.auth.identity import AUTHENTICATED, Identity
from windlass.server.fairness import follower, settings
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore
from windlass.store.embedded.namespace_usage import NamespaceUsage

TEAM = "/api/v1/namespaces/team"
MAPS = f"{TEAM}/configmaps"
BLOBS = "/apis/platform.windlass.dev/v1alpha1/namespaces/team/blobs"
TOKENS = "/apis/platform.windlass.dev/v1alpha1/tokens"


async def member(served: Served) -> str:
    await served.team("team")
    subject = {"kind": "User", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": "windlass-member",
            "apiGroup": "rbac.authorization.k8s.io"}  # fmt: skip
    await served.call(
        "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings",
        {"metadata": {"name": "bob"}, "subjects": [subject], "roleRef": role},
    )  # fmt: skip
    bob = Identity("bob", (AUTHENTICATED,))
    await until_async(lambda: served.app._access.bindings.roles(bob, "team"))
    return await served.user("bob")


def config(name: str, size: int = 10) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"text": "x" * size}}


async def limited(served: Served, **limits: str) -> None:
    """As the administrator sets them."""
    body = {"metadata": {"name": settings.NAME}, "data": limits}
    made = await served.call("POST", "/api/v1/namespaces/windlass-system/configmaps", body)
    assert made.code == 201


async def test_the_number_of_objects_is_limited(served: Served) -> None:
    token = await member(served)
    served.app.apply_limits(settings.read({"namespace.objects": "2"})[0])
    for name in ("a", "b"):
        assert (await served.call("POST", MAPS, config(name), token=token)).code == 201
    refused = await served.call("POST", MAPS, config("c"), token=token)
    assert refused.code == 403
    assert "namespace team has 2 configmaps, of at most 2; delete some" in refused.body["message"]
    assert (
        "raise namespace.objects in ConfigMap windlass-system/server-limits"
        in (refused.body["message"])
    )
    assert (await served.call("POST", MAPS, config("admin"))).code == 201  # is not limited
    for name in ("a", "admin"):
        assert (await served.call("DELETE", f"{MAPS}/{name}", token=token)).code == 200
    assert (await served.call("POST", MAPS, config("c"), token=token)).code == 201


async def test_the_bytes_of_objects_are_limited(served: Served) -> None:
    token = await member(served)
    served.app.apply_limits(settings.read({"namespace.bytes": "100k"})[0])
    merge = {"Content-Type": "application/merge-patch+json"}
    assert (await served.call("POST", MAPS, config("a", 90_000), token=token)).code == 201
    assert (await served.call("POST", MAPS, config("b", 30_000), token=token)).code == 201
    assert (await served.call("POST", MAPS, config("c"), token=token)).code == 403
    large = b'{"data":{"more":"%b"}}' % (b"x" * 50_000)
    grown = await served.call("PATCH", f"{MAPS}/a", data=large, headers=merge, token=token)
    assert grown.code == 403
    small = b'{"data":{"text":"short"}}'
    shrunk = await served.call("PATCH", f"{MAPS}/a", data=small, headers=merge, token=token)
    assert shrunk.code == 200
    assert (await served.call("POST", MAPS, config("c"), token=token)).code == 201


async def test_the_usage_after_a_restart_is_that_before(api: Api, served: Served) -> None:
    token = await member(served)
    for name in ("a", "b", "c"):
        await served.call("POST", MAPS, config(name, 1000), token=token)
    await served.call("PUT", f"{MAPS}/a", config("a", 5000), token=token)
    await served.call("DELETE", f"{MAPS}/b", token=token)
    counted = NamespaceUsage(api.mvcc.usage())
    assert counted.objects("configmaps", "team") == api.usage.objects("configmaps", "team") == 2
    assert counted.bytes("team") == api.usage.bytes("team") > 6000


async def test_uploads_are_limited_in_number_and_bytes(served: Served) -> None:
    token = await member(served)

    async def upload(data: bytes) -> Any:
        headers = {"Upload-Offset": "0", "Upload-Length": str(len(data))}
        path = f"{BLOBS}/sha256:{hashlib.sha256(data).hexdigest()}"
        return await served.call("PATCH", path, data=data, headers=headers, token=token)

    served.app.apply_limits(
        settings.read({"namespace.uploads": "2", "namespace.uploadBytes": "1000"})[0]
    )
    assert (await upload(b"a" * 600)).code == 204
    refused = await upload(b"b" * 600)
    assert refused.code == 403
    assert "has 1200 bytes of uploads with this one, of at most 1000" in refused.body["message"]
    assert (await upload(b"c" * 100)).code == 204
    refused = await upload(b"d")
    assert refused.code == 403
    assert "has 2 uploads, of at most 2; leave files out" in refused.body["message"]


async def test_tokens_of_one_user_are_limited(served: Served) -> None:
    served.app.apply_limits(settings.read({"user.tokens": "2"})[0])
    for _ in range(2):
        assert (await served.call("POST", TOKENS, {"user": "carol"})).code == 201
    refused = await served.call("POST", TOKENS, {"user": "carol"})
    assert refused.code == 403
    assert "user carol has 2 valid tokens, of at most 2" in refused.body["message"]
    assert (await served.call("POST", TOKENS, {"user": "dave"})).code == 201


async def test_the_config_map_takes_effect_without_a_restart(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[settings.Settings] = []
    monkeypatch.setattr(follower, "_POLL_SECONDS", 0.01)
    following = asyncio.create_task(follower.follow(EmbeddedStore(served.api), found.append))
    await until_async(lambda: len(found) == 1)
    assert found == [settings.DEFAULTS]
    await limited(served, **{"members.seats": "5", "user.tokens": "1"})
    await until_async(lambda: len(found) == 2)
    assert (found[1].levels["members"].seats, found[1].tokens) == (5, 1)
    following.cancel()
