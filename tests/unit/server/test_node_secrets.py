"""A stolen node token reads what pods on its node name, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.server.conftest import Served
from windlass.server.auth import node_authorizer
from windlass.server.auth.identity import NODES

SPACE = "/api/v1/namespaces/team"


def pod(node: str, resource: str, use: str) -> dict[str, Any]:
    ref = "secret" if resource == "secrets" else "configMap"
    container: dict[str, Any] = {"name": "c", "image": "i", "command": ["x"]}
    spec: dict[str, Any] = {"nodeName": node, "containers": [container]}
    if use == "env":
        value = {f"{ref}KeyRef": {"name": "mine", "key": "k"}}
        container["env"] = [{"name": "A", "valueFrom": value}]
    elif use == "envFrom":
        container["envFrom"] = [{f"{ref}Ref": {"name": "mine"}}]
    elif use == "volume":
        named = {"secretName": "mine"} if ref == "secret" else {"name": "mine"}
        spec["volumes"] = [{"name": "v", ref: named}]
    elif use == "projected":
        spec["volumes"] = [{"name": "v", "projected": {"sources": [{ref: {"name": "mine"}}]}}]
    elif use == "init":
        spec["initContainers"] = [{**container, "name": "i", "envFrom": [
            {f"{ref}Ref": {"name": "mine"}}]}]  # fmt: skip
    return {"metadata": {"name": f"p-{node}"}, "spec": spec}


@pytest.mark.parametrize("use", ["env", "envFrom", "volume", "projected", "init"])
@pytest.mark.parametrize("resource", ["secrets", "configmaps"])
async def test_an_agent_reads_what_its_pods_name(served: Served, resource: str, use: str) -> None:
    await served.team()
    for name in ("mine", "other"):
        await served.call("POST", f"{SPACE}/{resource}", {"metadata": {"name": name}})
    made = await served.call("POST", f"{SPACE}/pods", pod("n1", resource, use))
    assert made.code == 201, made.body
    own = await served.user("system:node:n1", NODES)
    another = await served.user("system:node:n2", NODES)
    assert (await served.call("GET", f"{SPACE}/{resource}/mine", token=own)).code == 200
    refusals = [
        (own, f"{SPACE}/{resource}/other"), (own, f"{SPACE}/{resource}/missing"),
        (own, f"{SPACE}/{resource}"), (own, f"/api/v1/{resource}"),
        (own, f"{SPACE}/{resource}?watch=true"), (another, f"{SPACE}/{resource}/mine"),
        (own, f"{SPACE}/{resource}/mine?watch=true"),
        (own, f"/api/v1/namespaces/default/{resource}/mine"),
        (own, f"/api/v1/namespaces/windlass-system/{resource}/mine"),
    ]  # fmt: skip
    for token, path in refusals:
        assert (await served.call("GET", path, token=token)).code == 403, path


def test_a_pod_that_ended_names_nothing() -> None:
    value = pod("n1", "secrets", "envFrom")
    assert node_authorizer.names(value, "secrets") == {"mine"}
    assert node_authorizer.names(value | {"status": {"phase": "Failed"}}, "secrets") == set()
