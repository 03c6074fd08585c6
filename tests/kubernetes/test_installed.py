"""`windlass install` on a cluster whose nodes really run pods: our own parts from the local image,
then a person's jobs, an upgrade under way, and the way out.

There is no service network here and no DNS, so the addresses are given to `install`; the test
stands in for the load balancer before the server's pod.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.objects import ok
from tests.harness import images, kubelet, rest, waiting
from tests.harness.balancer import Balancer
from tests.kubernetes.conftest import Cli
from windlass.install import names

pytestmark = [pytest.mark.kubernetes, pytest.mark.kubelet, pytest.mark.timeout(600)]

CLASS = "of-the-test"


def balancer_of(cluster: kubelet.Cluster) -> Balancer:
    """From an address that pods know to the server's pod, wherever that is."""

    def pods() -> list[tuple[str, int]]:
        pod = f"/api/v1/namespaces/{names.SYSTEM}/pods/{names.SERVER}-0"
        client = rest.from_kubeconfig(cluster.plane.kubeconfig)
        address = client.get(pod).json["status"]["podIP"]
        client.close()
        return [(address, 8443)]

    return Balancer(cluster.address, pods)


class Installed:
    def __init__(
        self, cluster: kubelet.Cluster, balancer: Balancer, image: str = images.PLATFORM
    ) -> None:
        self.cluster = cluster
        self.rest = cluster.plane.rest
        self.admin = Cli(cluster.plane.kubeconfig)
        port = cluster.plane.url.rpartition(":")[2]
        self.options = (
            "--image", image, "--storage-class", CLASS, "--storage-size", "1Gi",
            "--api-address", f"{cluster.address}:{port}",
            "--server-address", f"https://{cluster.address}:{balancer.port}",
        )  # fmt: skip

    def pods(self) -> dict[str, list[dict[str, Any]]]:
        """Our own, by part."""
        found: dict[str, list[dict[str, Any]]] = {}
        for namespace in (names.SYSTEM, names.NODES):
            for pod in ok(self.rest.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]:
                part = pod["metadata"]["labels"]["app.kubernetes.io/component"]
                found.setdefault(part, []).append(pod)
        return found


def add_volume(cluster: kubelet.Cluster) -> None:
    node = cluster.nodes[0]
    node.path("/var/lib/windlass-volume").mkdir(parents=True)
    storage = "/apis/storage.k8s.io/v1/storageclasses"
    waits = {"metadata": {"name": CLASS}, "provisioner": "kubernetes.io/no-provisioner",
             "volumeBindingMode": "WaitForFirstConsumer"}  # fmt: skip
    ok(cluster.plane.rest.post(storage, waits), 201)
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node.name]}
    spec = {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "storageClassName": CLASS, "local": {"path": "/var/lib/windlass-volume"},
        "persistentVolumeReclaimPolicy": "Retain",
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    }  # fmt: skip
    volume = {"metadata": {"name": "state"}, "spec": spec}
    ok(cluster.plane.rest.post("/api/v1/persistentvolumes", volume), 201)


@pytest.fixture(scope="module")
def installed(kubernetes_binaries: Path) -> Iterator[Installed]:
    try:
        cluster = kubelet.Cluster.start(nodes=2, users={"alice": []})
    except kubelet.NoNodesError as problem:
        pytest.skip(str(problem))
    with cluster:
        cluster.plane.start_scheduler()
        add_volume(cluster)
        balancer = balancer_of(cluster)
        balancer.start()
        made = Installed(cluster, balancer)
        try:
            made.admin("install", *made.options, "--timeout", "4m", seconds=300)
            yield made
        finally:
            balancer.stop()


@pytest.fixture(scope="module")
def alice(installed: Installed) -> Cli:
    """A member of one team, with one kubeconfig and no other right."""
    group = "rbac.authorization.k8s.io"
    api = installed.rest
    ok(api.post("/api/v1/namespaces", {"metadata": {"name": "red"}}), 201)
    body = {
        "metadata": {"name": "members"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "windlass-member"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "alice"}],
    }
    ok(api.post(f"/apis/{group}/v1/namespaces/red/rolebindings", body), 201)
    return Cli(installed.cluster.plane.token_kubeconfig("alice"))


def test_all_parts_run_as_pods_and_none_was_restarted(installed: Installed) -> None:
    pods = installed.pods()
    assert {part: len(listed) for part, listed in pods.items()} == {
        "scheduler": 2, "controllers": 2, "server": 1, "agent": 2,
    }  # fmt: skip
    for listed in pods.values():
        for pod in listed:
            (status,) = pod["status"]["containerStatuses"]
            assert (status["ready"], status["restartCount"]) == (True, 0), pod["metadata"]["name"]


def test_a_member_runs_a_job_with_sent_code_and_sees_its_output(
    installed: Installed, alice: Cli, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('trained by', 6 * 7)\n")
    done = alice(
        "run", "-N", "red", "-n", "train", "--workdir", str(tmp_path), "--cpus", "0.1",
        "--", "python3", "train.py",
    )  # fmt: skip
    assert "trained by 42" in done.out
    assert alice.json("ps", "-N", "red")["finished"] == 1


def test_logs_outlive_the_pod(installed: Installed, alice: Cli) -> None:
    alice("run", "-N", "red", "-n", "talks", "--cpus", "0.1", "--", "echo", "still here")
    chosen = {"labelSelector": "windlass.dev/run=talks"}
    pods = "/api/v1/namespaces/red/pods"

    def held() -> bool:
        path = "/apis/platform.windlass.dev/v1alpha1/namespaces/red/runs/talks/logs"
        return bool(ok(installed.rest.get(path))["items"])

    for pod in ok(installed.rest.get(pods, **chosen))["items"]:
        installed.rest.delete(f"{pods}/{pod['metadata']['name']}")
    waiting.until(lambda: not ok(installed.rest.get(pods, **chosen))["items"], "its pod is gone")
    waiting.until(held, "its log is with the server", 120)
    assert "still here" in alice("logs", "-N", "red", "talks").out


def test_the_second_time_changes_nothing_and_an_upgrade_replaces_every_pod(
    installed: Installed, alice: Cli
) -> None:
    again = installed.admin.json("install", *installed.options)
    outcomes = {key for part in again["parts"] for key in part if key != "part"}
    assert outcomes == {"unchanged"}
    before = {pod["metadata"]["uid"] for pod in installed.pods()["server"]}
    alice("submit", "-N", "red", "-n", "meanwhile", "--cpus", "0.1", "--", "sleep", "2")
    installed.admin("upgrade", "--rotate-authority", "--timeout", "4m", seconds=300)
    after = {pod["metadata"]["uid"] for pod in installed.pods()["server"]}
    assert before.isdisjoint(after), "it took up its new certificate"
    alice("wait", "-N", "red", "meanwhile", seconds=120)
    assert "hello" in alice("run", "-N", "red", "--cpus", "0.1", "--", "echo", "hello").out


def test_the_doctor_finds_it_well(installed: Installed) -> None:
    told = json.loads(installed.admin("doctor", "--json").out)
    wrong = [check for check in told["cluster"] if check["state"] == "missing"]
    assert wrong == []


def test_the_status_names_parts_and_leaders_and_a_debug_dump_has_their_logs(
    installed: Installed, alice: Cli, tmp_path: Path
) -> None:
    def told() -> Any:
        return installed.admin.json("status")

    waiting.until(lambda: all(each["work"] for each in told()["leaders"]), "all have reported")
    found = told()
    ready = {part["name"]: part["ready"] for part in found["installed"]["parts"]}
    assert ready == {
        "scheduler": "2 of 2", "controllers": "2 of 2", "server": "1 of 1", "agents": "2 of 2",
    }  # fmt: skip
    pods = {pod["metadata"]["name"] for pod in installed.pods()["scheduler"]}
    assert any(found["leaders"][0]["holder"].startswith(pod) for pod in pods)
    assert found["problems"] == []
    file = tmp_path / "dump.tar.gz"
    done = installed.admin.json("debug-dump", str(file))
    assert done["missing"] == {}
    listed = set(done["files"])
    assert {f"logs/{pod}.log" for pod in pods} <= listed
    assert {"cluster/windlass-system/pods.json", "settings/installation.json"} <= listed
    denied = alice.json("status", "-N", "red")
    assert "the installation" in denied["unreadable"]


def test_out_again_leaves_runs_and_takes_no_running_pod_with_it(
    installed: Installed, alice: Cli
) -> None:
    installed.admin("uninstall", "--yes")
    waiting.until(lambda: installed.pods() == {}, "our pods are gone", 120)
    runs = ok(installed.rest.get("/apis/windlass.dev/v1alpha1/namespaces/red/runs"))["items"]
    assert {each["metadata"]["name"] for each in runs} >= {"train", "talks", "meanwhile"}
