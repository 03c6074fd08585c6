"""External pods while no server runs: what cannot be known is bounded by the list before and
the list after, and reported. Real API server, the server's process with its account's rights; the
node is played."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.objects import ok
from tests.harness import waiting
from tests.harness.control_plane import ControlPlane
from tests.kubernetes.conftest import Cli
from tests.kubernetes.parts import PATIENCE, Installation

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def place(kubernetes_binaries: Path, tmp_path: Path) -> Iterator[Installation]:
    with ControlPlane.start() as plane:
        made = Installation(plane, tmp_path)
        made.install()
        made.add_node()
        try:
            yield made
        finally:
            made.stop()


def run_pod(place: Installation, name: str) -> str:
    """A pod that a user bound, and that runs; its uid."""
    amounts = {"cpu": "500m", "memory": "64Mi"}
    spec = {
        "nodeName": "n1",
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "i", "resources": {"requests": amounts}}],
    }
    made = ok(place.rest.post(PODS, {"metadata": {"name": name}, "spec": spec}), 201)
    tell(place, name, "Running", {"running": {"startedAt": now()}})
    return str(made["metadata"]["uid"])


def tell(place: Installation, name: str, phase: str, state: dict[str, Any]) -> None:
    """What the node says of a pod."""
    container = {"name": "main", "state": state, "ready": phase == "Running",
                 "restartCount": 0, "image": "i", "imageID": ""}  # fmt: skip
    status = {"phase": phase, "containerStatuses": [container]}
    ok(place.rest.strategic(f"{PODS}/{name}/status", {"status": status}))


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_pod_that_ends_between_samples_is_recorded_from_the_samples_before_and_after(
    place: Installation,
) -> None:
    admin = Cli(place.plane.kubeconfig)
    server = place.start_server()
    uids = {name: run_pod(place, name) for name in ("stays", "ends", "goes")}

    def agrees() -> dict[str, Any] | None:
        verdict: dict[str, Any] = admin.json("usage", "--verify")
        return None if verdict.get("missing") or verdict.get("ghosts") else verdict

    verdict = waiting.until(agrees, "all of them are written down", PATIENCE)
    assert not any(gap["subject"] in uids.values() for gap in verdict.get("gaps", ()))
    server.process.kill()
    killed = now()
    ok(place.rest.delete(f"{PODS}/goes", {"gracePeriodSeconds": 0}))
    assert place.rest.get(f"{PODS}/goes").status == 404
    tell(place, "ends", "Succeeded", {"terminated": {"exitCode": 0, "finishedAt": killed}})
    gone = now()
    place.start_server()

    def told() -> dict[str, Any] | None:
        verdict = agrees() or {}
        found = {gap["subject"]: gap for gap in verdict.get("gaps", ())}
        return found if uids["goes"] in found else None

    gaps = waiting.until(told, "the gap is told", PATIENCE)
    gap = gaps[uids["goes"]]
    assert gap["what"] == "pod"
    assert gap["since"] <= killed <= gone <= gap["until"], "by the looks before and after"
    assert not {uids["stays"], uids["ends"]} & gaps.keys(), "of these all is known"
    words = admin("usage", "--verify")
    assert f"pod {uids['goes']} {gap['since']} to {gap['until']}: deleted while" in words.err
    assert "adds up" in words.out + words.err
