"""What placing costs the API server, counted in its own audit log."""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.plugin import CRDS
from tests.harness.processes import Process, free_ports
from tests.kubernetes.external_pods import PATIENCE, Json, World, gang, node
from windlass.control.runtime import informers

pytestmark = pytest.mark.kubernetes

RUNS = "/apis/windlass.dev/v1alpha1/namespaces/default/runs"


@pytest.fixture(scope="module")
def world(kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ControlPlane.start(crds=CRDS, audit=True) as plane:
        made = World(plane, tmp_path_factory.mktemp("writes"))
        made.make("/api/v1/namespaces", {"metadata": {"name": informers.NAMESPACE}})
        made.add_queue()
        made.add_nodes(node("n1", cpu="64", memory="256Gi"))
        (port,) = free_ports(1)
        controllers = Process(
            "controllers",
            [
                sys.executable, "-m", "windlass.control", "controllers",
                "--kubeconfig", plane.kubeconfig, "--listen", f"127.0.0.1:{port}",
            ],
            made.folder / "controllers.log",
        )  # fmt: skip
        parts = [made.start(), controllers]
        controllers.start()
        yield made
        for part in parts:
            part.stop()


def writes(world: World) -> collections.Counter[str]:
    """Verb and resource of every write that was carried out; leases and rehearsals left out."""
    found: collections.Counter[str] = collections.Counter()
    for line in (world.plane.directory / "audit.log").read_text().splitlines():
        event = json.loads(line)
        where = event.get("objectRef") or {}
        if "dryRun=" in event["requestURI"]:
            continue
        if event["responseStatus"]["code"] < 300 and where.get("resource") != "leases":
            parts = (where.get("resource", ""), where.get("subresource", ""))
            found[f"{event['verb']} {'/'.join(part for part in parts if part)}"] += 1
    return found


def rehearsals(world: World) -> int:
    """Pods that the API server was asked about without making them."""
    lines = (world.plane.directory / "audit.log").read_text().splitlines()
    asked = (json.loads(line) for line in lines if "dryRun=" in line)
    return sum((event.get("objectRef") or {}).get("resource") == "pods" for event in asked)


def test_a_plain_run_costs_at_most_four_writes_of_its_object_and_one_create_per_pod(
    world: World,
) -> None:
    before = writes(world)
    role = {"replicas": 3, "command": ["true"], "resources": {"cpu": "1", "memory": "16Mi"}}
    body = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": "plain"},
        "spec": {"roles": [role]},
    }  # fmt: skip
    world.make(RUNS, body)

    def pods() -> list[Json]:
        found: list[Json] = world.rest.get(
            world.pods(), labelSelector="windlass.dev/run=plain"
        ).json["items"]
        return found

    def phase(wanted: str) -> bool:
        return bool(world.rest.get(f"{RUNS}/plain").json["status"]["phase"] == wanted)

    waiting.until(lambda: len(pods()) == 3, "its pods exist", PATIENCE)
    # Only their creator could have set it: no binding is counted below.
    assert {each["spec"].get("nodeName") for each in pods()} == {"n1"}
    for state, reached in (("Running", "Running"), ("Succeeded", "Succeeded")):
        for each in pods():
            path = f"{world.pods()}/{each['metadata']['name']}/status"
            assert world.rest.merge(path, {"status": {"phase": state}}).status == 200
        waiting.until(lambda wanted=reached: phase(wanted), f"it is {reached}", PATIENCE)
    cost = writes(world) - before
    assert cost["create pods/binding"] == 0, "pods of Runs are created where they belong"
    assert cost["patch runs/status"] <= 4, cost
    assert cost["patch runs"] + cost["update runs"] == 0, cost
    assert cost["create pods"] == 3, cost


def test_each_role_of_a_shape_is_rehearsed_once(world: World) -> None:
    def submit(name: str) -> None:
        small = {"cpu": "100m", "memory": "16Mi"}
        roles = [
            {"name": role, "replicas": 2, "command": ["sleep", "7"], "resources": small}
            for role in ("ps", "worker")
        ]
        world.make(RUNS, {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
            "spec": {"roles": roles},
        })  # fmt: skip
        chosen = f"windlass.dev/run={name}"
        made = lambda: world.rest.get(world.pods(), labelSelector=chosen).json["items"]  # noqa: E731
        waiting.until(lambda: len(made()) == 4, "its pods exist", PATIENCE)

    before = rehearsals(world)
    submit("new")
    assert rehearsals(world) - before == 2
    submit("known")
    assert rehearsals(world) - before == 2


def test_a_pod_of_a_gang_costs_one_binding_and_all_of_them_one_event(world: World) -> None:
    world.submit(*gang("cheap", 4, made=3, requests={"cpu": "1"}))
    world.why("cheap-0", "WaitingForMembers")
    world.why("cheap-1", "WaitingForMembers")
    world.why("cheap-2", "WaitingForMembers")
    before = writes(world)
    world.submit(gang("cheap", 4, requests={"cpu": "1"})[3])
    for number in range(4):
        world.is_bound(f"cheap-{number}")
    words = "placed 4 pods of namespace default on n1"
    told = "/api/v1/namespaces/default/events"
    waiting.until(
        lambda: words in [each["message"] for each in world.rest.get(told).json["items"]],
        "one event tells of all",
        PATIENCE,
    )
    cost = writes(world) - before
    assert cost["create pods/binding"] == 4, cost
    assert cost["create events"] == 1, cost
    assert cost["patch pods/status"] == 0, cost
