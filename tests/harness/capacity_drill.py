"""The capacity drill on a live platform of either engine: plain nodes, played pods.

Team `home` idles while `guest` borrows everything; then `home` wants its guarantee back. The tree
has three levels. Seen in objects over REST alone, and by how many decisions the scheduler says it
has made; shares no code with what it watches.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

from tests.harness import rest, waiting
from tests.harness.players import Players
from tests.harness.trail import Step, Trail

Json = dict[str, Any]
QUEUES = "/apis/windlass.dev/v1alpha1/queues"
RUNS = "/apis/windlass.dev/v1alpha1/namespaces/{}/runs"
PATIENCE = 180
"""Seconds until something must have happened on a busy machine; not a figure."""
HELD = ("Starting", "Running")
ROUNDS = 50
GRACE = datetime.timedelta(seconds=1)
_DECISIONS = re.compile(
    r"^windlass_scheduler_decide_seconds_count(?:\{[^}]*\})? ([0-9.e+]+)$", re.M
)


class Drill:
    """Two nodes of 8 gpus; `home` and `guest` are guaranteed 8 each."""

    def __init__(self, api: rest.Rest, players: Players, metrics: Callable[[], str]) -> None:
        """`metrics`: what the process that decides says at /metrics."""
        self.api, self.players, self._metrics = api, players, metrics
        self._pokes = 0
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
            "spec": {"roles": [role], "checkpoint": {"grace": f"{GRACE.seconds}s"}},
        }  # fmt: skip
        self._made(RUNS.format(team), body)

    # --- what is there

    def runs(self, team: str) -> dict[str, Json]:
        items = self.api.get(RUNS.format(team)).json["items"]
        return {each["metadata"]["name"]: each for each in items}

    def members(self, team: str) -> dict[str, int]:
        """Run -> how many members it has that count, of runs that hold capacity."""
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

    def started(self, team: str) -> list[datetime.datetime]:
        """When the runs that hold capacity began."""
        return [
            max(moment(step["at"]) for step in run["status"]["history"])
            for run in self.runs(team).values()
            if run["status"]["phase"] == "Running"
        ]

    def told(self, team: str, reason: str) -> None:
        """Until all waiting runs of a team show this."""
        waiting.until(
            lambda: {
                run.get("status", {}).get("reason")
                for run in self.runs(team).values()
                if run.get("status", {}).get("phase", "Queued") == "Queued"
            } == {reason},
            f"{team} is told {reason}",
            PATIENCE,
        )  # fmt: skip

    def is_older(self, team: str, name: str) -> None:
        """Waits until whatever starts from now on is younger than a run, by the second: of what a
        queue holds the oldest is inside its guarantee."""

        def is_past() -> bool:
            status = self.runs(team)[name]["status"]
            began = moment(status["history"][-1]["at"]) + datetime.timedelta(seconds=1)
            return bool(
                status["phase"] == "Running" and began <= datetime.datetime.now(datetime.UTC)
            )

        waiting.until(is_past, f"{name} runs since more than a second", PATIENCE)

    def promised(self, team: str, name: str, when: datetime.datetime) -> None:
        """Until a waiting run shows when others may be evicted for it."""
        words = f"not over for enough of them before {when:%Y-%m-%dT%H:%M:%SZ}"
        waiting.until(
            lambda: words in self.runs(team)[name].get("status", {}).get("message", ""),
            f"{name} is told {words}",
            PATIENCE,
        )

    def has(self, team: str, gpus: int) -> None:
        waiting.until(
            lambda: sum(self.members(team).values()) == gpus and self.playing(team) == gpus,
            f"{team} holds {gpus}: {self.members(team)}",
            PATIENCE,
        )

    def calm(self) -> None:
        """Fifty further decisions move no run."""
        self.settle()
        before, first = self._standing(), self.decisions()
        for _ in range(ROUNDS):
            self.poke()
        assert self.decisions() - first >= ROUNDS
        assert self._standing() == before

    def poke(self) -> None:
        """Something that decisions depend on has changed, and one was made."""
        before = self.decisions()
        self._pokes += 1
        self.queue("poke", weight=1 + self._pokes)
        waiting.until(lambda: self.decisions() > before, "one more decision", PATIENCE)

    def decisions(self) -> int:
        """How many were made so far."""
        found = _DECISIONS.search(self._metrics())
        return int(float(found[1])) if found else 0

    def settle(self) -> None:
        """Until all runs with capacity are Running, and one more decision leads to no write at
        all."""

        def settled() -> bool:
            before = self._versions()
            self.poke()
            return before is not None and before == self._versions()

        waiting.until(settled, "nobody moves any more", PATIENCE)

    def _versions(self) -> dict[str, str] | None:
        found = {}
        for team in ("home", "guest"):
            for name, run in self.runs(team).items():
                status = run.get("status", {})
                phase = status.get("phase")
                leaves = phase == "Running" and status.get("eviction")
                if leaves or status.get("nomination") or phase not in ("Queued", "Running"):
                    return None
                found[f"{team}/{name}"] = run["metadata"]["resourceVersion"]
        return found

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


def moment(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


def rehearse(drill: Drill) -> None:
    """The whole drill, act by act."""
    borrow_all(drill)
    take_back_in_one_decision(drill)
    change_guarantees(drill)
    lose_a_node(drill)
    assert not drill.players.refused
    lost = [f"{team}/{name}" for team in ("home", "guest") for name, run in drill.runs(team).items()
            if run["status"]["phase"] not in ("Queued", *HELD)]  # fmt: skip
    assert not lost, "every run still waits or runs"


def borrow_all(drill: Drill) -> None:
    """One elastic run, and eight single ones."""
    drill.submit("guest", "wide", members=8, least=2)
    drill.has("guest", 8)
    drill.is_older("guest", "wide")
    for number in range(8):
        drill.submit("guest", f"single-{number}")
    drill.has("guest", 16)
    drill.settle()


def take_back_in_one_decision(drill: Drill) -> None:
    """Home comes back for its guarantee with eight runs at once: its queue is closed until all of
    them wait in it. The guest shrinks before it is stopped, and loses not one member more."""
    drill.queue("home", stop="hold")
    for number in range(8):
        drill.submit("home", f"mine-{number}")
    drill.told("home", "QueuePaused")
    drill.settle()
    trail = Trail(drill.api, PATIENCE)
    drill.queue("home", stop=None)
    drill.has("home", 8)
    drill.has("guest", 8)
    steps = trail.steps()
    _is_one_decision(steps, {f"home/mine-{number}" for number in range(8)})
    assert _given_up(steps) == 8, steps
    kept = drill.members("guest")
    assert kept.get("wide") == 2, (kept, drill.runs("guest")["wide"]["status"])
    assert len(kept) == 7, kept
    drill.calm()


def _is_one_decision(steps: list[Step], preemptors: set[str]) -> None:
    """Capacity for all of them is nominated first, then victims, and neither ever again; then each
    starts in the capacity that was freed for it."""
    first = [step for step in steps if step.what in ("nominated", "evicted")]
    nominated = {step.run: step.told.get("members") for step in first[: len(preemptors)]}
    assert nominated.keys() == preemptors, first
    assert {step.what for step in first[len(preemptors) :]} == {"evicted"}, first
    assigned = [step for step in steps if step.what == "assigned" and step.run in preemptors]
    assert {step.run: step.told["members"] for step in assigned} == nominated
    assert len(assigned) == len(preemptors), "each was given room once"


def _given_up(steps: list[Step]) -> int:
    evicted = [step for step in steps if step.what == "evicted"]
    assert len({step.run for step in evicted}) == len(evicted), "nobody is asked twice"
    assert all(step.run.startswith("guest/") for step in evicted), evicted
    return sum(step.given_up for step in evicted)


def change_guarantees(drill: Drill) -> None:
    """Without a restart."""
    trail = Trail(drill.api, PATIENCE)
    drill.queue("guest", guarantee={"gpu": 4})
    drill.queue("home", guarantee={"gpu": 12})
    for number in range(8, 12):
        drill.submit("home", f"mine-{number}")
    drill.has("home", 12)
    drill.has("guest", 4)
    assert _given_up(trail.steps()) == 4
    drill.calm()


def lose_a_node(drill: Drill) -> None:
    """Half of the cluster: guarantees count half, and each has its half."""
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


def wait_for_minimal_runtimes(drill: Drill) -> None:
    """No run is evicted before its queue's minimal runtime is over; a waiting run shows when that
    is, and then it happens by itself."""
    drill.queue("guest", minRuntime="1h")
    borrow_all(drill)
    drill.submit("home", "early")
    hour = datetime.timedelta(hours=1)
    drill.promised("home", "early", min(drill.started("guest")) + hour)
    trail = Trail(drill.api, PATIENCE)
    for _ in range(5):
        drill.poke()
    assert drill.playing("guest") == 16
    # A runtime that is over some seconds from now, or, on a slow machine, already.
    least = datetime.datetime.now(datetime.UTC) - min(drill.started("guest"))
    seconds = int(least.total_seconds()) + 8
    drill.queue("guest", minRuntime=f"{seconds}s")
    drill.has("home", 1)
    drill.has("guest", 15)
    steps = trail.steps()
    _is_one_decision(steps, {"home/early"})
    assert _given_up(steps) == 1, steps
    (evicted,) = (step for step in steps if step.what == "evicted")
    assert evicted.run == "guest/wide", "shrinking comes first"
    due = min(drill.started("guest")) + datetime.timedelta(seconds=seconds)
    assert moment(evicted.told["deadline"]) - GRACE >= due
    drill.calm()
