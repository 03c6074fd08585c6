"""Limits per user and past use on a real control plane, with the scheduler as its own process.

An admission policy cannot count, so a Run beyond the limit of submitted Runs is accepted here and
waits; the embedded engine refuses it (tests/embedded/test_cli_users.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import rest, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.parts import Part
from tests.harness.plugin import CRDS
from windlass.control.runtime import informers

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]
WINDLASS = "/apis/windlass.dev/v1alpha1"
RUNS = f"{WINDLASS}/namespaces/default/runs"


@pytest.fixture(scope="module")
def plane(kubernetes_binaries: Path) -> Iterator[ControlPlane]:
    with ControlPlane.start(crds=CRDS) as started:
        api = started.rest
        assert (
            api.post("/api/v1/namespaces", {"metadata": {"name": informers.NAMESPACE}}).status
            == 201
        )
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        assert api.post("/api/v1/nodes", node).status == 201
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "110"}
        ready = [{"type": "Ready", "status": "True", "reason": "Up", "message": ""}]
        status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
        assert api.merge("/api/v1/nodes/n1/status", {"status": status}).status == 200
        untainted = {"spec": {"taints": None}}
        assert api.merge("/api/v1/nodes/n1", untainted).status == 200
        yield started


@pytest.fixture(scope="module")
def scheduler(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    part = Part(plane.kubeconfig, tmp_path_factory.mktemp("scheduler"), "scheduler")
    yield part
    part.process.stop()


def queue(api: rest.Rest, name: str, **spec: Any) -> None:
    value = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name},
        "spec": spec,
    }  # fmt: skip
    waiting.until(lambda: api.post(f"{WINDLASS}/queues", value).status == 201, f"queue {name}")


def submit(api: rest.Rest, name: str, queue: str, user: str, cpu: str) -> None:
    role = {"name": "worker", "command": ["true"], "resources": {"cpu": cpu, "memory": "64Mi"}}
    value = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
        "spec": {"queue": queue, "user": user, "roles": [role]},
    }  # fmt: skip
    answer = api.post(RUNS, value)
    assert answer.status == 201, answer.summary


def status(api: rest.Rest, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{RUNS}/{name}").json.get("status", {})
    return found


def account(api: rest.Rest, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get(f"{WINDLASS}/queues/{name}").json.get("status", {})
    return found.get("account") or {"excess": 0.0, "at": ""}


def test_limits_bind_one_user_and_past_use_survives_a_killed_scheduler(
    plane: ControlPlane, scheduler: Part
) -> None:
    api = plane.rest
    queue(api, "limited", userLimits={"resources": {"cpu": 3}, "submitted": 2}, userFair=True)
    queue(api, "other", halfLife="0s")
    for number in range(3):
        submit(api, f"ada-{number}", "limited", "ada", "2")
    submit(api, "bob-0", "limited", "bob", "3")
    waiting.until(lambda: status(api, "bob-0").get("assignment"), "bob starts")
    # Times of creation are in seconds: which of ada's Runs is the oldest is open.
    amount = "needs 2 cpu; user ada may hold 1 cpu more of at most 3 cpu in queue limited"
    count = "user ada may have 2 workloads submitted in queue limited"

    def told() -> bool:
        found = [status(api, f"ada-{number}") for number in range(3)]
        messages = [each.get("message", "") for each in found if not each.get("assignment")]
        return len(messages) == 2 and all(
            any(words in each for each in messages) for words in (amount, count)
        )

    waiting.until(told, "one of ada's starts and the others are told why")
    reasons = {status(api, f"ada-{number}").get("reason") for number in range(3)}
    assert "WaitingForQuota" in reasons

    submit(api, "waits-0", "other", "cleo", "8")
    numbers = iter(range(1, 1000))

    def behind() -> bool:
        submit(api, f"waits-{next(numbers)}", "other", "cleo", "8")
        time.sleep(1.0)
        return bool(account(api, "limited")["excess"] > 3.0)

    # Each of them changes a status only in `other`; `limited` is written after 30 seconds.
    waiting.until(behind, "past use is written", seconds=180)
    before = account(api, "limited")
    assert set(before["users"]) == {"ada", "bob"}
    scheduler.process.kill()
    scheduler.start()
    waiting.until(scheduler.leads, "it leads again", seconds=120)
    submit(api, "ada-3", "limited", "ada", "2")  # the status of `limited` changes at once
    waiting.until(lambda: account(api, "limited")["at"] != before["at"], "it goes on", seconds=120)
    assert account(api, "limited")["excess"] > 0.9 * before["excess"]
