"""metrics.k8s.io and the node's own pages, from what an agent tells."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.conftest import Served, serving
from windlass.server.auth import node_credentials
from windlass.server.auth.bearer_tokens import Tokens
from windlass.server.platform.handlers import metrics
from windlass.store import errors
from windlass.store.embedded.api import Api

ROOT = "/apis/metrics.k8s.io/v1beta1"
OURS = "/apis/platform.windlass.dev/v1alpha1"


class Agents:
    """One node whose pod uses half a core; another that does not answer."""

    def __init__(self) -> None:
        self.uid = ""
        self.looks = 0

    async def usage(self, node: dict[str, Any], path: str) -> tuple[int, str, bytes]:
        if node["metadata"]["name"] == "away":
            raise errors.Unavailable("nobody there")
        if path == "metrics/resource":
            return 200, "text/plain", b"node_cpu_usage_seconds_total 1\n"
        self.looks += 1
        used = {
            "cpu": {"usageCoreNanoSeconds": self.looks * 10**9},
            "memory": {"workingSetBytes": 4096},
        }
        pod = {
            "podRef": {"uid": self.uid, "namespace": "default", "name": "one"},
            "containers": [{"name": "c", **used}],
        }
        node = {**used, "windlass": {"devices": {"gpu/0": 0.37}}}
        return 200, "application/json", json.dumps({"node": node, "pods": [pod]}).encode()


@pytest.fixture
async def served(api: Api, tmp_path: Path) -> AsyncIterator[Served]:
    agents: Any = Agents()
    async with serving(api, tmp_path, gateway=agents) as made:
        for name in ("here", "away"):
            await made.call("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        body = {
            "metadata": {"name": "one", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        answer = await made.call("POST", "/api/v1/namespaces/default/pods", body)
        agents.uid = answer.body["metadata"]["uid"]
        yield made


@pytest.mark.parametrize("path", [f"{ROOT}/nodes", f"{OURS}/nodemetrics"])
async def test_nodes_that_answer_are_shown(served: Served, path: str) -> None:
    answer = await served.call("GET", path)
    (item,) = answer.body["items"]
    assert (item["kind"], item["metadata"]["name"]) == ("NodeMetrics", "here")
    assert item["usage"]["memory"] == "4Ki"
    assert int(item["usage"]["cpu"].removesuffix("n")) > 0


async def test_the_ledger_gets_the_usage_of_nodes_pods_and_devices(served: Served) -> None:
    measured = await served.app._node_metrics.measured()
    assert set(measured.nodes) == {"here"}
    here = measured.nodes["here"]
    assert (here.memory, dict(here.devices)) == (4096, {"gpu/0": 370})
    assert here.cpu > 0
    assert measured.pods["default", "one"].cpu > 0


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("pods", 1),
        ("namespaces/default/pods", 1),
        ("namespaces/default/pods?labelSelector=a%3Db", 1),
        ("namespaces/default/pods?labelSelector=a%3Dc", 0),
        ("namespaces/windlass-system/pods", 0),
    ],
)
async def test_pods_are_chosen_as_asked(served: Served, path: str, count: int) -> None:
    for root in (f"{ROOT}/{path}", f"{OURS}/{path.replace('pods', 'podmetrics')}"):
        assert len((await served.call("GET", root)).body["items"]) == count


async def test_one_pod_by_name_and_none_by_another(served: Served) -> None:
    found = await served.call("GET", f"{ROOT}/namespaces/default/pods/one")
    assert found.body["containers"][0]["usage"]["memory"] == "4Ki"
    assert (await served.call("GET", f"{ROOT}/namespaces/default/pods/two")).code == 404
    assert (await served.call("GET", f"{OURS}/namespaces/default/podmetrics/one")).code == 200
    assert (await served.call("GET", f"{OURS}/nodemetrics/away")).code == 404


async def test_agents_of_this_engine_are_asked_and_tell_nothing_by_themselves(
    served: Served,
) -> None:
    assert (await served.call("PUT", f"{OURS}/nodemetrics/here", {})).code == 405
    somebody = await served.user("somebody")
    assert (await served.call("PUT", f"{OURS}/nodemetrics/here", {}, token=somebody)).code == 403


async def test_the_agents_own_page_comes_through(served: Served) -> None:
    answer = await served.call("GET", "/api/v1/nodes/here/proxy/metrics/resource")
    assert (answer.code, answer.body) == (200, "node_cpu_usage_seconds_total 1\n")
    assert (await served.call("GET", "/api/v1/nodes/away/proxy/stats/summary")).code == 503


async def test_the_group_is_discovered(served: Served) -> None:
    answer = await served.call("GET", "/apis")
    assert metrics.GROUP in [group["name"] for group in answer.body["groups"]]


# --- the agent's own token


async def test_the_agent_gets_a_token_of_its_node_and_keeps_it(api: Api, tmp_path: Path) -> None:
    await node_credentials.ensure(api, tmp_path, "n1", "https://127.0.0.1:1", None)
    path = node_credentials.path_in(tmp_path)
    first = node_credentials._known(path)
    found = await Tokens(api).identify(first)
    assert found is not None
    assert found[0].node == "n1"
    assert not found[0].is_master
    assert path.stat().st_mode & 0o077 == 0
    await node_credentials.ensure(api, tmp_path, "n1", "https://127.0.0.1:2", None)
    assert node_credentials._known(path) == first
    await node_credentials.ensure(api, tmp_path, "n2", "https://127.0.0.1:2", None)
    assert node_credentials._known(path) != first
