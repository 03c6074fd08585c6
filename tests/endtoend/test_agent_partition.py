"""A node agent that is parted from the API server and the server, for longer than it waits for an
answer: its pods go on, and what they logged and reported arrives when it is back.

The agent is the installed DaemonSet's on a real node; packets to and from its address are dropped
by the machine that routes them. Kubelet, scheduler and controllers are not cut off.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.embedded.test_first_log_line import PODS, RUNS
from tests.endtoend.engines import Cluster
from tests.harness.platform import Platform
from tests.harness.waiting import until

pytestmark = pytest.mark.kubelet
AGENTS = "/api/v1/namespaces/windlass-nodes/pods"
PATIENCE = 240
WAIT = "while [ ! -e {here}/%s ]; do sleep 0.05; done; "
REPORT = "echo '{\"fraction\": %s}' > $WINDLASS_PROGRESS.new; "
REPORT += "mv $WINDLASS_PROGRESS.new $WINDLASS_PROGRESS; "


@pytest.fixture
def engine(platform: Platform, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(platform).at(tmp_path)
    yield made
    made.clear()


def agent_of(engine: Cluster) -> dict[str, Any]:
    (found,) = (
        pod
        for pod in engine.get(AGENTS)["items"]
        if pod["spec"]["nodeName"] == engine.node()["metadata"]["name"]
    )
    return dict(found)


@contextlib.contextmanager
def parted(address: str) -> Iterator[None]:
    """Packets to an address and from it are dropped without an error."""
    rules = [["to", address, "blackhole"], ["from", address, "blackhole"]]
    for rule in rules:
        subprocess.run(["ip", "rule", "add", *rule], check=True)
    try:
        yield
    finally:
        for rule in rules:
            subprocess.run(["ip", "rule", "del", *rule], check=True)


def fraction(engine: Cluster, name: str) -> float | None:
    return (engine.status(name).get("progress") or {}).get("fraction")


def test_an_agent_that_was_cut_off_loses_nothing_and_harms_no_pod(
    engine: Cluster, tmp_path: Path
) -> None:
    stay = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
    said = "echo before; " + WAIT % "cut" + "echo while cut off; touch {here}/%s; "
    engine.submit(
        "reports",
        REPORT % 0.25 + WAIT % "cut" + REPORT % 0.75 + "touch {here}/wrote; " + WAIT % "end"
        + REPORT % 1.0 + "echo done",
    )  # fmt: skip
    engine.submit("stopped", said % "spoke" + stay)
    until(lambda: fraction(engine, "reports") == 0.25, "the agent carries progress")
    engine.wait_phase("stopped", "Running")
    agent = agent_of(engine)
    with parted(agent["status"]["podIP"]):
        (tmp_path / "cut").touch()
        for name in ("wrote", "spoke"):
            until((tmp_path / name).exists, f"{name}: jobs go on")
        engine.submit("late", "echo started while cut off")
        engine.wait_phase("late", "Succeeded")
        # Its pod goes, and kubelet takes the log along.
        engine.write("PATCH", f"{RUNS}/stopped", {"spec": {"stop": True}})
        engine.wait_phase("stopped", "Stopped")
        until(lambda: not pods(engine, "stopped"), "its pod is gone")
        until(
            lambda: "is not written, it is tried again" in its_log(engine, agent),
            "a failed write",
            PATIENCE,
        )
        # While it tries again the job reports for the last time, and kubelet removes the file.
        (reports,) = pods(engine, "reports")
        (tmp_path / "end").touch()
        engine.wait_phase("reports", "Succeeded")
        file = progress_of(engine, reports["metadata"]["uid"])
        until(lambda: not file.exists(), "what it wrote is gone", PATIENCE)
        assert fraction(engine, "reports") == 0.25
    until(lambda: fraction(engine, "reports") == 1.0, "the last of its progress arrives", PATIENCE)
    with windlass.Client(**engine.way) as client:

        def lines(name: str) -> list[str]:
            return [line.text for line in client.runs.get(name).logs(attempt="all")]

        wanted = ["before", "while cut off"]
        until(lambda: lines("stopped") == wanted, "the log of the pod that is gone", PATIENCE)
        assert lines("late") == ["started while cut off"]
        assert lines("reports") == ["done"]
    for name in ("reports", "stopped", "late"):
        assert engine.status(name).get("attempt", 0) == 0, "nobody was started again"
    after = agent_of(engine)
    assert after["metadata"]["uid"] == agent["metadata"]["uid"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0, "nor was the agent"


def pods(engine: Cluster, run: str) -> list[Any]:
    found = engine.get(PODS)["items"]
    labels = ((pod, pod["metadata"].get("labels") or {}) for pod in found)
    return [pod for pod, told in labels if told.get("windlass.dev/run") == run]


def progress_of(engine: Cluster, uid: str) -> Path:
    inside = f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/run/progress.json"
    return engine.platform.cluster.nodes[0].path(inside)


def its_log(engine: Cluster, agent: dict[str, Any]) -> str:
    """What the agent says, from the disk of its node: the API cannot reach it now."""
    about = agent["metadata"]
    folder = f"/var/log/pods/{about['namespace']}_{about['name']}_{about['uid']}/agent"
    node = engine.platform.cluster.nodes[0]
    return "".join(path.read_text() for path in sorted(node.path(folder).glob("*.log")))
