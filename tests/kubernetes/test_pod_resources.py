"""Which devices a real kubelet gave to pods, read back by the agent; and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.contract.objects import ok
from tests.harness import device_plugin, images, kubelet
from tests.harness.processes import Process
from tests.harness.waiting import until
from windlass.agent.daemonset import pod_resources
from windlass.control.model import members
from windlass.kinds.annotations import GRANTED
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core

pytestmark = pytest.mark.kubelet

RESOURCE = "example.com/gpu"
DEVICES = ("GPU-aaaa", "GPU-bbbb", "GPU-cccc")
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def node(cluster: kubelet.Cluster) -> Iterator[kubelet.Node]:
    """One whose plug-in has three devices."""
    found = cluster.nodes[0]
    with device_plugin.offering(found, cluster.plane.rest, RESOURCE, *DEVICES):
        yield found


def make(cluster: kubelet.Cluster, node: kubelet.Node, name: str, limits: dict[str, str]) -> None:
    container = {
        "name": "main", "image": images.PLATFORM, "command": ["sleep", "1000"],
        "resources": {"limits": limits},
    }  # fmt: skip
    body = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"windlass.dev/run": name}},
        "spec": {"nodeName": node.name, "restartPolicy": "Never", "containers": [container],
                 "terminationGracePeriodSeconds": 0},
    }  # fmt: skip
    ok(cluster.plane.rest.post(PODS, body), 201)


def reaches(cluster: kubelet.Cluster, name: str, phase: str) -> dict[str, Any]:
    path = f"{PODS}/{name}"
    until(
        lambda: ok(cluster.plane.rest.get(path))["status"]["phase"] == phase,
        f"{name} is {phase}",
        60,
    )
    found: dict[str, Any] = ok(cluster.plane.rest.get(path))
    return found


def held_by(cluster: kubelet.Cluster, name: str) -> list[str]:
    """What a pod says that it was given."""
    pod = ok(cluster.plane.rest.get(f"{PODS}/{name}"))
    told = json.loads(pod["metadata"].get("annotations", {}).get(GRANTED, "{}"))
    found: list[str] = told.get(RESOURCE, [])
    return found


def test_the_agent_writes_on_pods_what_kubelet_gave_them(
    cluster: kubelet.Cluster, node: kubelet.Node, tmp_path: Path
) -> None:
    command = [
        sys.executable, "-m", "windlass.agent", "cluster", "--node", node.name,
        "--kubeconfig", cluster.plane.kubeconfig, "--logs", node.path("/var/log/pods"),
        "--state", tmp_path / "state", "--kubelet", node.path("/var/lib/kubelet"),
    ]  # fmt: skip
    agent = Process("agent", command, tmp_path / "agent.log")
    for name, count in (("one", 1), ("two", 2), ("none", 0)):
        make(cluster, node, name, {RESOURCE: str(count)} if count else {})
        reaches(cluster, name, "Running")
    agent.start()
    try:
        one, two = (
            until(lambda n=name: held_by(cluster, n), f"{name} is told", 60)
            for name in ("one", "two")
        )
    finally:
        agent.stop()
    assert sorted((len(one), len(two))) == [1, 2]
    assert sorted(one + two) == sorted(DEVICES)
    assert held_by(cluster, "none") == []
    for name in ("one", "two", "none"):
        cluster.plane.rest.delete(f"{PODS}/{name}")


@pytest.mark.parametrize("limits", [{"cpu": "1000"}, {"memory": "1Pi"}, {RESOURCE: "4"}])
def test_what_a_kubelet_refuses_is_the_nodes_doing(
    cluster: kubelet.Cluster, node: kubelet.Node, limits: dict[str, str]
) -> None:
    make(cluster, node, "too-much", limits)
    refused = reaches(cluster, "too-much", "Failed")
    cluster.plane.rest.delete(f"{PODS}/too-much")
    pod = msgspec.convert(refused, core.Pod)
    assert members.failure(pod)[0] is Reason.NODE_REFUSED, refused["status"]


async def test_a_kubelet_that_does_not_answer_blocks_no_other_node(tmp_path: Path) -> None:
    """Its socket is there and no process listens."""
    (tmp_path / "kubelet.sock").touch()
    pod = core.Pod(
        spec=core.PodSpec(containers=[core.Container(
            name="main", resources=core.ResourceRequirements(limits={RESOURCE: "1"}))]),
        status=core.PodStatus(phase="Running"),
    )  # fmt: skip
    await pod_resources.DeviceRecorder(tmp_path / "kubelet.sock", None).update([pod])
