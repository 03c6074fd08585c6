"""Scheduler and controllers as processes of their own on a real control plane.

The node's part is played by the test, as in tests/contract/test_controllers.py.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.parts import Part
from tests.harness.plugin import CRDS
from windlass.control import wiring
from windlass.control.runtime import informers

pytestmark = pytest.mark.kubernetes

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{informers.NAMESPACE}/leases"
RUNS = "/apis/windlass.dev/v1alpha1/namespaces/default/runs"
PODS = "/api/v1/namespaces/default/pods"
TAKEOVER = 60
"""Patience for a lease that was not given back; not a figure."""


class Cluster:
    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.rest = plane.rest
        self.parts: list[Part] = []

    def start(self, name: str) -> Part:
        self.parts.append(Part(self.plane.kubeconfig, self.folder, name))
        return self.parts[-1]

    def submit(self, name: str) -> None:
        role = {"command": ["true"], "resources": {"cpu": "100m", "memory": "16Mi"}}
        body = {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
            "spec": {"roles": [role]},
        }  # fmt: skip
        answer = self.rest.post(RUNS, body)
        assert answer.status == 201, answer.summary

    def run(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.rest.get(f"{RUNS}/{name}").json
        return found

    def pods(self, run: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.rest.get(
            PODS, labelSelector=f"windlass.dev/run={run}"
        ).json["items"]
        return found

    def reaches(self, name: str, phase: str) -> dict[str, Any]:
        return waiting.until(
            lambda: self.run(name)["status"]["phase"] == phase and self.run(name),
            f"{name} is {phase}: {self.run(name)['status']}",
            TAKEOVER,
        )

    def end_pods(self, run: str) -> None:
        """What a node reports of pods whose work is done."""
        pods = waiting.until(lambda: self.pods(run), "its pod exists", TAKEOVER)
        for pod in pods:
            path = f"{PODS}/{pod['metadata']['name']}/status"
            assert self.rest.merge(path, {"status": {"phase": "Succeeded"}}).status == 200

    def holder(self, name: str) -> str:
        return str(self.rest.get(f"{LEASES}/{name}").json["spec"].get("holderIdentity", ""))


@pytest.fixture(scope="module")
def plane(kubernetes_binaries: Path) -> Iterator[ControlPlane]:
    """One of its own: these processes decide over every node and run they find."""
    with ControlPlane.start(crds=CRDS) as started:
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "20"}
        ready = {"type": "Ready", "status": "True"}
        for path, body in {
            "/api/v1/namespaces": {"metadata": {"name": informers.NAMESPACE}},
            "/apis/windlass.dev/v1alpha1/queues": {
                "apiVersion": "windlass.dev/v1alpha1", "kind": "Queue",
                "metadata": {"name": "default"}, "spec": {},
            },
            "/api/v1/nodes": {
                "metadata": {"name": "n1"},
                "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
            },
        }.items():  # fmt: skip
            assert started.rest.post(path, body).status == 201
        yield started


@pytest.fixture
def cluster(plane: ControlPlane, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(plane, tmp_path)
    yield made
    for part in made.parts:
        part.process.stop()
    for name in (wiring.Scheduler.lease, wiring.Controllers.lease):
        plane.rest.delete(f"{LEASES}/{name}")


def test_a_run_goes_through_two_processes_that_meet_only_in_objects(cluster: Cluster) -> None:
    cluster.start("scheduler")
    cluster.start("controllers")
    cluster.submit("plain")
    cluster.end_pods("plain")
    ended = cluster.reaches("plain", "Succeeded")
    assert ended["status"]["assignment"]["members"]["worker"][0]["node"] == "n1"


def test_nothing_is_started_while_no_leader_is_known(cluster: Cluster) -> None:
    """An assignment of a leader that is gone may be capacity that the next one gave to others."""
    deciding = cluster.start("scheduler")
    cluster.submit("early")
    waiting.until(lambda: cluster.run("early")["status"].get("assignment"), "it has room")
    deciding.process.kill()
    path = f"{LEASES}/{wiring.Scheduler.lease}"
    assert cluster.rest.delete(path).status == 200
    carrying = cluster.start("controllers")
    waiting.until(carrying.leads, "it carries out what counts")
    cluster.submit("other")
    assert cluster.run("early")["status"]["phase"] == "Queued"
    assert cluster.pods("early") == []
    cluster.start("scheduler")
    cluster.end_pods("early")
    cluster.reaches("early", "Succeeded")


@pytest.mark.parametrize("name", ["scheduler", "controllers"])
def test_one_that_is_asked_to_stop_gives_its_lease_back(cluster: Cluster, name: str) -> None:
    part = cluster.start(name)
    lease = next(each.lease for each in wiring.ALL if each.name == name)
    waiting.until(part.leads, "it leads")
    assert cluster.holder(lease)
    part.process.send(signal.SIGTERM)
    assert part.process.wait(TAKEOVER) == 0
    assert cluster.holder(lease) == ""


def test_of_two_replicas_the_other_goes_on_when_the_leader_is_killed(cluster: Cluster) -> None:
    pairs = {
        name: [cluster.start(name), cluster.start(name)] for name in ("scheduler", "controllers")
    }
    for name, pair in pairs.items():
        leading = waiting.until(lambda p=pair: [e for e in p if e.leads()], f"a {name} leads")
        assert len(leading) == 1
        leading[0].process.kill()
    cluster.submit("after-the-kill")
    cluster.end_pods("after-the-kill")
    cluster.reaches("after-the-kill", "Succeeded")
    assert len(cluster.pods("after-the-kill")) == 1


def test_one_that_cannot_reach_the_cluster_is_alive_but_not_ready(
    cluster: Cluster, plane: ControlPlane
) -> None:
    part = cluster.start("scheduler")
    # One that has never reached it says so otherwise: it is not ready yet, or ends.
    waiting.until(lambda: part.says("/readyz") == "ok", "it is ready", TAKEOVER)
    plane.stop_apiserver()
    with contextlib.closing(plane.rest):
        waiting.until(lambda: "503" in part.says("/readyz"), "it is not ready", TAKEOVER)
        assert part.says("/healthz") == "ok"
    plane.restart_apiserver()
    waiting.until(lambda: part.says("/readyz") == "ok", "it is ready again", TAKEOVER)
