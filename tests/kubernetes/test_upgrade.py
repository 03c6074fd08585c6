"""An upgrade from an earlier commit with runs in flight, on a real control plane. The parts of the
new version stand by while those of the earlier one lead, and take over when these stop."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harness import waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.earlier_commit import Earlier
from tests.harness.processes import free_ports
from tests.kubernetes.parts import API, PATIENCE, Installation

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("WINDLASS_SOAK") != "1", reason="make soak runs it"),
]


def test_a_cluster_is_upgraded_while_a_run_runs_and_another_waits(
    kubernetes_binaries: Path, tmp_path: Path
) -> None:
    earlier = Earlier(tmp_path / "earlier")
    with ControlPlane.start(users={"alice": []}) as plane:
        place = Installation(plane, tmp_path)
        earlier("install", "--no-wait", "--kubeconfig", str(plane.kubeconfig))
        place.add_node()
        place.add_team("red", "alice")
        old = []
        for part in ("scheduler", "controllers"):
            (port,) = free_ports(1)
            old.append(
                earlier.process(
                    part, "windlass.control", part,
                    f"--kubeconfig={place.kubeconfig(f'windlass-{part}')}",
                    f"--listen=127.0.0.1:{port}",
                )
            )  # fmt: skip
        try:
            for process in old:
                process.start()
            submit(place, "running")
            place.report("red", "running", phase="Running", podIP="10.0.0.5")
            place.reaches("red", "running", "Running")
            before = [pod["metadata"]["uid"] for pod in place.pods("red", "running")]
            submit(place, "waiting")
            waiting.until(
                lambda: place.run("red", "waiting")["status"].get("reason"), "it waits", PATIENCE
            )
            place.install()  # the new kinds and rights; the pods of the earlier version go on
            place.start("scheduler")
            place.start("controllers")
            for process in old:
                process.stop()
            place.report("red", "running", phase="Succeeded")
            place.reaches("red", "running", "Succeeded")
            assert [pod["metadata"]["uid"] for pod in place.pods("red", "running")] == before
            place.report("red", "waiting", phase="Running", podIP="10.0.0.6")
            place.report("red", "waiting", phase="Succeeded")
            status = place.reaches("red", "waiting", "Succeeded")["status"]
            assert status.get("attempt", 0) == 0
        finally:
            for process in old:
                process.stop()
            place.stop()


def submit(place: Installation, name: str) -> None:
    """It takes the whole node."""
    role = {"command": ["true"], "resources": {"cpu": "3", "memory": "16Mi"}}
    body = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
        "spec": {"roles": [role]},
    }  # fmt: skip
    path = f"{API}/namespaces/red/runs"
    # The API server serves a new kind a moment after it was installed.
    waiting.until(lambda: place.rest.post(path, body).status in (201, 409), f"{name} exists")
