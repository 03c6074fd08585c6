"""kill -9 of the agent, its zygote, shims and workers at random moments: what the jobs' own
journal says afterwards. Pods are made by hand, so nothing is started again by anyone."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.embedded.test_agent_sessions import NODE, Engine
from tests.harness.waiting import until
from windlass.agent.runtime import cgroups, procfs

SEEDS = range(100 if os.environ.get("WINDLASS_SOAK") else 3)
PODS = 12
JOB = """
journal=$WINDLASS_ROOT/journal/all
echo "start $POD $$" >> $journal
(setsid sleep 300 &) ; i=0; while [ $i -lt {steps} ]; do i=$((i+1)); echo line $i; sleep 0.01; done
echo "end $POD $$" >> $journal
"""


NAMESPACES = ("default", "team")
"""As root: the owner's own, and one whose pods run under a user id of their own."""


def make(engine: Engine, namespace: str, name: str, steps: int) -> None:
    """Shared memory of its own and a memory limit: mounts and cgroups are part of the game."""
    prepare = {"name": "prepare", "image": "windlass.dev/host", "command": ["sleep", "0.05"]}
    container = {
        "name": "c", "image": "windlass.dev/host",
        "command": ["sh", "-c", JOB.format(steps=steps)],
        "env": [{"name": "POD", "value": name}],
        "resources": {"limits": {"memory": "64Mi"}},
        "volumeMounts": [
            {"name": "s", "mountPath": "/dev/shm"}, {"name": "j", "mountPath": "/windlass/journal"}
        ],
    }  # fmt: skip
    body = {
        "metadata": {"name": name},
        "spec": {
            "nodeName": NODE, "restartPolicy": "Never",
            "initContainers": [prepare], "containers": [container],
            "volumes": [
                {"name": "s", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
                {"name": "j", "hostPath": {"path": "/windlass/team/journal"}},
            ],
        },
    }  # fmt: skip
    client = engine.server.rest()
    try:
        assert client.post(f"/api/v1/namespaces/{namespace}/pods", body).status == 201
    finally:
        client.close()


def shims(engine: Engine) -> dict[str, int]:
    """Pod uid -> the shim that runs for it."""
    found = {}
    for record in engine.folder.glob("state/agent/pods/*/containers/*/0/shim.json"):
        with contextlib.suppress(FileNotFoundError):
            process = procfs.ProcessIdentity(**json.loads(record.read_text()))
            if procfs.is_alive(process):
                found[record.parents[3].name] = process.pid
    return found


def strike(engine: Engine, rng: random.Random) -> str:
    """Kills one thing; the uid of the pod whose shim it was, or ""."""
    choice = rng.choice(("agent", "zygote", "shim", "worker"))
    running = shims(engine)
    if choice == "agent":
        engine.restart_agent()
    elif choice == "zygote":
        procfs.kill(pid for pid in procfs.descendants(engine.agent.pid) if _is_zygote(pid, engine))
    elif running:
        uid, pid = rng.choice(sorted(running.items()))
        if choice == "shim":
            procfs.kill([pid])
            return uid
        procfs.kill(procfs.descendants(pid)[:1])
    return ""


def mounts() -> list[str]:
    """Of this machine; other tests on it make and remove mounts of their own."""
    return Path("/proc/mounts").read_text().splitlines()


def _is_zygote(pid: int, engine: Engine) -> bool:
    """The agent's own child: shims that it is just forking have the same command line."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        named = b"zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return named and int(stat[1]) == engine.agent.pid
    return False


@pytest.mark.parametrize("seed", SEEDS)
def test_every_pod_runs_at_most_once_and_nothing_is_left(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    engine = Engine(tmp_path)
    engine.start()
    client = engine.server.rest()
    client.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    client.close()
    try:
        lost = set()
        for number in range(PODS):
            make(engine, rng.choice(NAMESPACES), f"p{number}", rng.randrange(1, 60))
            time.sleep(rng.uniform(0, 0.1))
            lost.add(strike(engine, rng))
        pods = ended(engine)
        check(pods, lost, engine)
        client = engine.server.rest()
        for namespace in NAMESPACES:
            client.delete(f"/api/v1/namespaces/{namespace}/pods")
        client.close()
        until(lambda: not list((engine.folder / "state/agent/pods").iterdir()))
        left = [p for p in procfs.descendants(1) if _of(p, engine.folder)]
        assert not left
        assert not [line for line in mounts() if str(engine.folder) in line]
    finally:
        engine.stop()
    assert not groups(engine)


def ended(engine: Engine) -> list[dict[str, Any]]:
    path = "/api/v1/pods"

    def all_ended() -> bool:
        phases = [pod["status"]["phase"] for pod in engine.get(path)["items"]]
        return len(phases) == PODS and set(phases) <= {"Succeeded", "Failed"}

    until(all_ended)
    found: list[dict[str, Any]] = engine.get(path)["items"]
    return found


def check(pods: list[dict[str, Any]], lost: set[str], engine: Engine) -> None:
    journals = engine.folder.glob("state/agent/teams/*/journal/all")
    entries = [line.split() for file in journals for line in file.read_text().splitlines()]
    for pod in pods:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        starts = [entry for entry in entries if entry[:2] == ["start", name]]
        assert len(starts) <= 1, f"{name} was started {len(starts)} times"
        ends = [entry for entry in entries if entry[:2] == ["end", name]]
        status = pod["status"]
        if status["phase"] == "Succeeded":
            assert ends, f"{name} succeeded without its end"
            text = (engine.folder / "state/agent/pods" / uid / "containers/c/0/log.0").read_text()
            numbers = [int(line.split()[-1]) for line in text.splitlines()]
            assert numbers == list(range(1, len(numbers) + 1))
        else:
            states = [*status["initContainerStatuses"], *status["containerStatuses"]]
            ends = [s["state"]["terminated"] for s in states if "terminated" in s["state"]]
            reason = next(end["reason"] for end in ends if end["exitCode"])
            assert reason in ("ShimLost", "Error"), status
            assert (reason == "ShimLost") <= (uid in lost)


def _of(pid: int, folder: Path) -> bool:
    """A process of a pod of this engine that no agent looks after any more."""
    with contextlib.suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        return f"WINDLASS_CONTAINER={folder}".encode() in environment
    return False


def groups(engine: Engine) -> list[Path]:

    try:
        found = cgroups.find(engine.folder / "state/agent")
    except OSError:
        return []
    left = [base / name for base in found.bases.values() for name in found.names()]
    found.close()
    return left
