"""Real nodes: pods run, reach each other, and nothing of them outlives the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.objects import ok
from tests.harness import images, kubelet
from tests.harness.rest import Rest
from tests.harness.waiting import until

pytestmark = pytest.mark.kubelet

_PODS = "/api/v1/namespaces/default/pods"
_STARTER = """
import sys, time
from tests.harness import images, kubelet
cluster = kubelet.Cluster.start()
node = cluster.nodes[0]
print(node.directory, cluster.network.link, flush=True)
container = {"name": "main", "image": images.PLATFORM, "command": ["sleep", "%s"]}
spec = {"nodeName": node.name, "restartPolicy": "Never", "containers": [container]}
body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
cluster.plane.rest.post("/api/v1/namespaces/default/pods", body)
time.sleep(1000)
"""


def run(api: Rest, name: str, node: str, *command: str, **fields: Any) -> None:
    container = {"name": "main", "image": images.PLATFORM, "command": [*command], **fields}
    spec = {"nodeName": node, "restartPolicy": "Never", "containers": [container]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    ok(api.post(_PODS, body), 201)


def status(api: Rest, name: str) -> dict[str, Any]:
    found: dict[str, Any] = ok(api.get(f"{_PODS}/{name}"))["status"]
    return found


def ended(api: Rest, name: str) -> dict[str, Any]:
    until(lambda: status(api, name)["phase"] in ("Succeeded", "Failed"), name, 60)
    terminated: dict[str, Any] = status(api, name)["containerStatuses"][0]["state"]["terminated"]
    return terminated


@pytest.fixture
def api(cluster: kubelet.Cluster) -> Iterator[Rest]:
    """Of the cluster that other files use too: no pod is left there."""
    yield cluster.plane.rest
    ok(cluster.plane.rest.delete(_PODS))
    until(lambda: not ok(cluster.plane.rest.get(_PODS))["items"], "the pods are gone", 60)


def test_pods_of_two_nodes_reach_each_other(api: Rest) -> None:
    run(api, "listens", "node-0", "python3", "-m", "http.server", "8000")
    address = until(lambda: status(api, "listens").get("podIP"), "an address")
    ask = f"until wget -q -O- http://{address}:8000; do sleep 0.1; done > /dev/null 2>&1; id -u"
    run(api, "asks", "node-1", "sh", "-c", ask)
    assert ended(api, "asks")["exitCode"] == 0
    assert api.get(f"{_PODS}/asks/log").body == f"{images.USER}\n".encode()


def test_too_much_memory_is_killed_and_said(api: Rest) -> None:
    limits = {"limits": {"memory": "64Mi"}}
    run(api, "greedy", "node-0", "python3", "-c", "b = b'x' * (200 << 20)", resources=limits)
    assert ended(api, "greedy")["reason"] == "OOMKilled"


def test_platform_image_has_the_package_and_all_that_it_needs(api: Rest) -> None:
    modules = "windlass.server.main, windlass.agent.main, windlass.control.manager, windlass.cli"
    run(api, "imports", "node-0", images.PYTHON, "-I", "-c", f"import {modules}, numpy, uvloop")
    assert ended(api, "imports")["exitCode"] == 0, api.get(f"{_PODS}/imports/log").body


def test_killed_tests_leave_no_process_mount_cgroup_link_or_folder(
    kubernetes_binaries: Path,
) -> None:
    marker = str(10**6 + os.getpid())
    starter = subprocess.Popen(
        [sys.executable, "-c", _STARTER % marker], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    folder, link = starter.stdout.readline().split()

    def running() -> bool:
        words = ("sleep\0" + marker).encode()
        return any(words in _content(path) for path in Path("/proc").glob("[0-9]*/cmdline"))

    until(running, "the pod runs", 60)
    starter.kill()
    starter.wait()
    until(lambda: not running(), "the pod is gone")
    until(lambda: not Path(folder).exists(), "its folder is gone", 60)
    assert folder not in Path("/proc/mounts").read_text()
    assert not Path(f"/sys/class/net/{link}").exists()
    name = Path(folder).name
    assert not [path for path in Path("/sys/fs/cgroup").glob(f"**/{name}") if path.exists()]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
