"""The capacity drill on a live platform of either engine: plain nodes, played pods.

Team `home` idles while `guest` borrows everything; then `home` wants its guarantee back. The tree
has three levels. Told by objects over REST alone; shares no code with what it watches.
"""

from __future__ import annotations

import time
from typing import Any

from tests.harness import rest
from tests.harness.players import Players

Json = dict[str, Any]
QUEUES = "/apis/windlass.dev/v1alpha1/queues"
RUNS = "/apis/windlass.dev/v1alpha1/namespaces/{}/runs"
PATIENCE = 180
"""Seconds until something must have happened on a busy machine; not a figure."""
HELD = ("Starting", "Running")
ROUNDS = 50


class Drill:
    """Two nodes of 8 gpus; `home` and `guest` are guaranteed 8 each."""

    def __init__(self, api: rest.Rest, players: Players) -> None:
        self.api, self.players = api, players
        for name in ("home", "guest"):
            self._made("/api/v1/namespaces", {"metadata": {"name": name}})
        self.queue("company", guarantee={"gpu": 16})
        self.queue("division", parent="company", guarantee={"gpu": 16})
        for name in ("home", "guest"):
            self.queue(name, parent="division", namespaces=[name], guarantee={"gpu": 8})
        for name in ("n1", "n2"):
            self.node(name)

    # --- the world

    def node(self, name: str) -> None:
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "windlass.dev/gpu": "8"}
        ready = {"type": "Ready", "status": "True"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        self._made("/api/v1/nodes", {"metadata": {"name": name}, "status": status})
        self.api.merge(f"/api/v1/nodes/{name}/status", {"status": status})

    def queue(self, name: str, **spec: Any) -> None:
        head = {"apiVersion": "windlass.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}}
        answer = self.api.post(QUEUES, {**head, "spec": spec})
        if answer.status == 409:
            answer = self.api.merge(f"{QUEUES}/{name}", {"spec": spec})
        assert answer.status in (200, 201), answer.summary

    def submit(self, team: str, name: str, members: int = 1, least: int | None = None) -> None:
        role = {
            "name": "worker", "replicas": members, "command": ["true"], "resize": "live",
            "resources": {"cpu": "100m", "memory": "16Mi"},
            "devices": [{"kind": "gpu", "count": 1}],
        }  # fmt: skip
        if least is not None:
            role["minReplicas"] = least
        body = {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
            "spec": {"roles": [role], "checkpoint": {"grace": "1s"}},
        }  # fmt: skip
        self._made(RUNS.format(team), body)

    # --- what is there

    def runs(self, team: str) -> dict[str, Json]:
        items = self.api.get(RUNS.format(team)).json["items"]
        return {each["metadata"]["name"]: each for each in items}

    def members(self, team: str) -> dict[str, int]:
        """Run -> how many members it has that count, of runs that hold room."""
        found = {}
        for name, run in self.runs(team).items():
            status = run.get("status", {})
            if status.get("phase") in HELD and not status.get("eviction"):
                listed = (status.get("assignment") or {}).get("members", {})
                found[name] = len(listed.get("worker", ()))
        return found

    def playing(self, team: str) -> int:
        """How many pods of a team really run now."""
        mine = set(self.runs(team))
        return sum(each.run in mine for each in self.players.running())

    def has(self, team: str, gpus: int) -> None:
        rest.eventually(
            f"{team} holds {gpus}: {self.members(team)}",
            lambda: sum(self.members(team).values()) == gpus and self.playing(team) == gpus,
            PATIENCE,
        )

    def calm(self) -> None:
        """Fifty further decisions move nobody: each is asked for by a queue that comes or goes."""
        rest.eventually("all that starts has started", self._settled, PATIENCE)
        before = self._standing()
        for number in range(ROUNDS // 2):
            self.queue(f"poke-{number}", weight=1 + number)
            assert self.api.delete(f"{QUEUES}/poke-{number}").status == 200
        self.queue("poke", guarantee={})
        rest.eventually("the last queue was seen", self._seen, PATIENCE)
        assert self._standing() == before

    def _seen(self) -> bool:
        """The scheduler writes a queue's status from the snapshot that it decides on."""
        found = self.api.get(f"{QUEUES}/poke").json
        status = found.get("status") or {}
        return bool(status.get("observedGeneration") == found["metadata"]["generation"])

    def is_older(self, team: str, name: str) -> None:
        """Waits until whatever starts from now on is younger than a run, by the second: of what a
        queue holds the oldest is inside its guarantee."""

        def is_past() -> bool:
            status = self.runs(team)[name]["status"]
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            return bool(status["phase"] == "Running" and status["history"][-1]["at"] < now)

        rest.eventually(f"{name} runs since more than a second", is_past, PATIENCE)

    def _settled(self) -> bool:
        """Whether no run is on its way up or down: pods run a little before their run says so."""
        return all(
            phase == "Queued" or (phase == "Running" and not leaving)
            for phase, _, _, leaving in self._standing().values()
        )

    def _standing(self) -> dict[str, tuple[Any, ...]]:
        """What must not change while nothing happens."""
        return {
            f"{team}/{name}": (
                run["status"].get("phase"), run["status"].get("attempt", 0),
                run["status"].get("assignment"), run["status"].get("eviction"),
            )
            for team in ("home", "guest")
            for name, run in self.runs(team).items()
        }  # fmt: skip

    def _made(self, path: str, body: Json) -> None:
        answer = self.api.post(path, body)
        assert answer.status in (201, 409), answer.summary


def rehearse(drill: Drill) -> None:
    """The whole drill, act by act."""
    # The guest borrows all: one elastic run, and eight single ones.
    drill.submit("guest", "wide", members=8, least=2)
    drill.has("guest", 8)
    drill.is_older("guest", "wide")
    for number in range(8):
        drill.submit("guest", f"single-{number}")
    drill.has("guest", 16)
    # Home comes back for its guarantee and has it; the guest shrinks before it is stopped.
    for number in range(8):
        drill.submit("home", f"mine-{number}")
    drill.has("home", 8)
    drill.has("guest", 8)
    kept = drill.members("guest")
    assert kept.get("wide") == 2, (kept, drill.runs("guest")["wide"]["status"])
    assert len(kept) == 7, kept
    drill.calm()
    # Other guarantees, without a restart.
    drill.queue("guest", guarantee={"gpu": 4})
    drill.queue("home", guarantee={"gpu": 12})
    for number in range(8, 12):
        drill.submit("home", f"mine-{number}")
    drill.has("home", 12)
    drill.has("guest", 4)
    drill.calm()
    # Half of the cluster is lost: guarantees count half, and each has its half.
    drill.players.power_off("n2")
    assert drill.api.delete("/api/v1/nodes/n2").status == 200
    for team in ("home", "guest"):
        for pod in drill.api.get(f"/api/v1/namespaces/{team}/pods").json["items"]:
            if pod["spec"].get("nodeName") == "n2":
                body = {"gracePeriodSeconds": 0}
                drill.api.delete(f"/api/v1/namespaces/{team}/pods/{pod['metadata']['name']}", body)
    drill.has("home", 6)
    drill.has("guest", 2)
    drill.calm()
    assert not drill.players.refused
    lost = [f"{team}/{name}" for team in ("home", "guest") for name, run in drill.runs(team).items()
            if run["status"]["phase"] not in ("Queued", *HELD)]  # fmt: skip
    assert not lost, "every run still waits or runs"
