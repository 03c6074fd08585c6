"""Which devices a real kubelet gave to pods, read back by the agent's code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.objects import ok
from tests.harness import deviceplugin, images, kubelet
from tests.harness.rest import eventually
from windlass.agent import granted
from windlass.kinds import hostpods, kubernetes
from windlass.store import connect

pytestmark = pytest.mark.kubelet

RESOURCE = "example.com/gpu"
DEVICES = ("GPU-aaaa", "GPU-bbbb", "GPU-cccc")
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def node(cluster: kubelet.Cluster) -> Iterator[kubelet.Node]:
    """One whose plug-in has three devices."""
    found = cluster.nodes[0]
    plugin = deviceplugin.DevicePlugin(found.path(deviceplugin.FOLDER), RESOURCE, DEVICES)
    plugin.start()

    def counted() -> bool:
        told = ok(cluster.plane.rest.get(f"/api/v1/nodes/{found.name}"))
        return bool(told["status"]["allocatable"].get(RESOURCE) == "3")

    eventually("the node counts its devices", counted, 60)
    yield found
    plugin.stop()


def start(cluster: kubelet.Cluster, node: kubelet.Node, name: str, count: int) -> None:
    limits = {RESOURCE: str(count)} if count else {}
    container = {
        "name": "main", "image": images.PLATFORM, "command": ["sleep", "1000"],
        "resources": {"limits": limits},
    }  # fmt: skip
    body = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": node.name, "restartPolicy": "Never", "containers": [container],
                 "terminationGracePeriodSeconds": 0},
    }  # fmt: skip
    ok(cluster.plane.rest.post(PODS, body), 201)
    eventually(
        f"{name} runs",
        lambda: ok(cluster.plane.rest.get(f"{PODS}/{name}"))["status"]["phase"] == "Running",
        60,
    )


async def test_what_kubelet_gave_is_written_on_the_pod_once(
    cluster: kubelet.Cluster, node: kubelet.Node
) -> None:
    for name, count in (("one", 1), ("two", 2), ("none", 0)):
        start(cluster, node, name, count)
    store = connect.open_store(str(cluster.plane.kubeconfig))
    try:
        agent = granted.Devices(node.path(f"/var/lib/kubelet/{granted.SOCKET}"), store)
        for _ in range(2):
            await agent.look((await store.list(kubernetes.Pod, "default")).items)
    finally:
        await store.close()
    held: dict[str, Any] = {}
    for name in ("one", "two", "none"):
        pod = ok(cluster.plane.rest.get(f"{PODS}/{name}"))
        held[name] = json.loads(pod["metadata"].get("annotations", {}).get(hostpods.GRANTED, "{}"))
        cluster.plane.rest.delete(f"{PODS}/{name}")
    assert held["none"] == {}
    assert [len(held[name][RESOURCE]) for name in ("one", "two")] == [1, 2]
    assert sorted(held["one"][RESOURCE] + held["two"][RESOURCE]) == sorted(DEVICES)


async def test_a_kubelet_that_cannot_be_asked_keeps_nobody(tmp_path: Any) -> None:
    """Its socket is there and nobody listens."""
    (tmp_path / "kubelet.sock").touch()
    pod = kubernetes.Pod(
        spec=kubernetes.PodSpec(containers=[kubernetes.Container(
            name="main", resources=kubernetes.ResourceRequirements(limits={RESOURCE: "1"}))]),
        status=kubernetes.PodStatus(phase="Running"),
    )  # fmt: skip
    await granted.Devices(tmp_path / "kubelet.sock", None).look([pod])  # type: ignore[arg-type]
