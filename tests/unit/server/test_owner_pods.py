"""A pod with the rights of the engine's owner, as the API protects it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.conftest import Served, serving
from windlass.agent.api.client import AgentGateway
from windlass.kinds.annotations import HELD
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

SPACE = "/api/v1/namespaces/default"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
SOCKET = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
          "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
          "Sec-WebSocket-Protocol": "v5.channel.k8s.io"}  # fmt: skip


@pytest.fixture
async def engine(api: Api, tmp_path: Path) -> AsyncIterator[Served]:
    """A server with the pod `old`, which its agent recorded as the owner's."""
    gateway = AgentGateway(EmbeddedStore(api), tmp_path / "agent")
    async with serving(api, tmp_path, gateway) as server:
        node = {"metadata": {"name": "n1", "annotations": {HELD: '{"isolation": "user"}'}}}
        await server.call("POST", "/api/v1/nodes", node)
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        merge = {"headers": {"Content-Type": "application/merge-patch+json"}}
        await server.call("PATCH", "/api/v1/nodes/n1/status", ready, **merge)
        spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "i", "command": ["x"]}]}
        made = await server.call("POST", f"{SPACE}/pods", {"metadata": {"name": "old"},
                                                           "spec": spec})  # fmt: skip
        folder = tmp_path / "agent/pods" / made.body["metadata"]["uid"]
        folder.mkdir(parents=True)
        record = {"namespace": "default", "name": "old", "user": None}
        (folder / "pod.json").write_text(json.dumps(record))
        yield server


def binding(user: str) -> dict[str, Any]:
    return {"metadata": {"name": f"b-{user}"},
            "roleRef": {"kind": "ClusterRole", "name": "windlass-member"},
            "subjects": [{"kind": "User", "name": user}]}  # fmt: skip


async def test_a_member_cannot_be_added_while_the_owners_pod_runs(engine: Served) -> None:
    refused = await engine.call("POST", BINDINGS, binding("eve"))
    assert refused.code == 422
    assert "old" in refused.body["message"]
    assert "windlass stop" in refused.body["message"]
    assert (await engine.call("GET", BINDINGS)).body["items"] == []


@pytest.mark.parametrize("session", ["exec?command=id", "attach?stdout=true", "portforward"])
async def test_a_member_does_not_enter_it_and_the_owner_may(
    engine: Served, session: str, tmp_path: Path
) -> None:
    # Added before the pod had its record, as a race would have it.
    (record,) = tmp_path.glob("agent/pods/*/pod.json")  # noqa: ASYNC240
    known = record.read_text()
    record.unlink()
    assert (await engine.call("POST", BINDINGS, binding("eve"))).code == 201
    record.write_text(known)
    eve = await engine.user("eve")
    headers = dict(SOCKET)
    if session == "portforward":
        headers["Sec-WebSocket-Protocol"] = "SPDY/3.1+portforward.k8s.io"
    path = f"{SPACE}/pods/old/{session}"
    refused = await engine.call("GET", path, token=eve, headers=headers)
    assert refused.code == 403
    assert "rights of the engine's owner" in refused.body["message"]
    owner = await engine.call("GET", path, headers=headers)
    assert owner.code == 503  # there is no agent here; only the owner gets as far
    engine.app._audit.flush()
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    kind = session.partition("?")[0]
    codes = [(line["user"], line["code"]) for line in lines if line.get("subresource") == kind]
    assert codes == [("eve", 403), ("admin", 503)]
