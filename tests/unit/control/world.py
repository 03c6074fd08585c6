"""Scheduler and run controller together on the real embedded store; nodes are played.

`World.live` is one life of the leader: it may die at any of its writes. Between lives nodes do
their part, and what must always hold is looked at.
"""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter

from tests.unit.control import build
from tests.unit.control.faults import Crash, Fragile
from windlass.control.model import members
from windlass.control.runs import controller as runs_controller
from windlass.control.runs import node_lifecycle as nodes_of
from windlass.control.runtime.informers import InformerFactory
from windlass.control.scheduler import loop
from windlass.kinds.types import core, run
from windlass.kinds.types.run import Run, RunStatus
from windlass.kinds.values import times
from windlass.store import errors

HORIZON = 10**9


class World:
    def __init__(self, store) -> None:
        self.store = store
        self.epoch = 0
        self.now = times.now()
        self.stubborn = False
        """Evicted members take their time."""
        self.lengths: dict[str, int] = {}
        """How many turns members of a Run work; for ever when not named."""
        self._turns: Counter[str] = Counter()
        self.worked: dict[str, set[str]] = {}
        """By Run, the pods that ran."""
        self.pace = 0
        """Seconds that pass within a life, from cycle to cycle."""
        self.silent: set[str] = set()
        """Nodes that send no status, though processes there run on."""
        self.failing: Counter[str] = Counter()
        """By Run, how many of its members will fail."""
        self.processes: dict[str, tuple[str, str, str]] = {}
        """What really runs: by uid of the pod its Run, attempt and node."""

    async def live(self, cycles: int = 3, writes: int = HORIZON, *, after: bool = False) -> None:
        """One life of a leader."""
        self.epoch += 1
        fragile = Fragile(self.store)
        fragile.writes_left, fragile.after = writes, after
        seen = InformerFactory(self.store)
        made = loop.Scheduler(
            fragile, seen, epoch=self.epoch, now=lambda: self.now, clock=self._clock
        )
        nodes = nodes_of.NodeStates(seen.nodes, self._clock)
        controller = runs_controller.Runs(
            fragile, seen.pods, lambda: self.epoch, nodes=nodes, now=lambda: self.now,
            clock=self._clock,
        )  # fmt: skip
        async with seen:
            with contextlib.suppress(Crash):
                for _ in range(cycles):
                    self.now += datetime.timedelta(seconds=self.pace)
                    await made.cycle()
                    for owner in await self.runs():
                        with contextlib.suppress(errors.Conflict):
                            await controller.reconcile((owner.namespace, owner.name))
                    await self.check()
        await self.check()

    async def turn(self) -> None:
        """Nodes do what they do next, and a minute passes."""
        self.now += datetime.timedelta(seconds=60)
        there = await self.pods()
        for uid, (_, _, node) in list(self.processes.items()):
            if node not in self.silent and uid not in {pod.uid for pod in there}:
                del self.processes[uid]  # a node that hears that its pod is gone ends it
        for pod in there:
            if pod.spec.node_name not in self.silent:
                await self._play(pod)

    async def _play(self, pod: core.Pod) -> None:
        labels = pod.metadata.labels
        owner = labels[run.LABEL_RUN]
        self._turns[pod.uid] += 1
        if pod.metadata.deletion_timestamp:
            if not self.stubborn or self._turns[pod.uid] % 2:
                self.processes.pop(pod.uid, None)
                await self.store.delete(core.Pod, pod.name, pod.namespace, grace_seconds=0)
        elif pod.status.phase == "Pending":
            self.worked.setdefault(owner, set()).add(pod.uid)
            self.processes[pod.uid] = (owner, labels[run.LABEL_ATTEMPT], pod.spec.node_name)
            await self._report(pod, "Running")
        elif pod.status.phase == "Running" and self.failing[owner]:
            self.failing[owner] -= 1
            self.processes.pop(pod.uid)
            await self._report(pod, "Failed", 3)
        elif pod.status.phase == "Running" and self._turns[pod.uid] > self.lengths.get(
            owner, HORIZON
        ):
            self.processes.pop(pod.uid)
            await self._report(pod, "Succeeded", 0)

    async def set_silent(self, node: str, *, silent: bool) -> None:
        (self.silent.add if silent else self.silent.discard)(node)
        ready = {"type": "Ready", "status": "Unknown" if silent else "True",
                 "lastTransitionTime": times.seconds(self.now)}  # fmt: skip
        await self.store.patch(
            core.Node, node, patch={"status": {"conditions": [ready]}}, subresource="status"
        )

    async def go(self, turns: int) -> None:
        """So many turns, or until all Runs have ended."""
        for _ in range(turns):
            await self.live()
            await self.turn()
            if all(owner.finished for owner in await self.runs()):
                return
        await self.live()

    async def check(self) -> None:
        """No node holds more than it has, and no two attempts of a Run overlap."""
        allocatable = {
            node.name: members.read_amounts(node.status.allocatable)["cpu"]
            for node in (await self.store.list(core.Node)).items
        }
        used: Counter[str] = Counter()
        for pod in await self.pods():
            if members.is_active(pod):
                used[pod.spec.node_name or ""] += members.pod_amounts(pod)["cpu"]
        assert all(used[node] <= allocatable[node] for node in used), used
        attempts: dict[str, set[str]] = {}
        for name, attempt, _ in self.processes.values():
            attempts.setdefault(name, set()).add(attempt)
        for name, found in attempts.items():
            if len(found) > 1:
                words = [step.message for step in (await self.status(name)).history or ()]
                assert any("may have run twice" in word for word in words), (name, found)

    def _clock(self) -> float:
        return self.now.timestamp()

    # --- reading and writing

    async def submit(self, name: str, replicas: int = 1, cpu: str = "1", **more) -> None:
        role_fields = {k: more.pop(k) for k in ("min_replicas", "resize") if k in more}
        role = build.role(replicas=replicas, cpu=cpu, **role_fields)
        await self.store.create(build.a_run(name, role, **more))

    async def patch(self, name: str, spec: dict) -> None:
        await self.store.patch(run.Run, name, build.NAMESPACE, patch={"spec": spec})

    async def run(self, name: str) -> Run:
        return await self.store.get(run.Run, name, build.NAMESPACE)

    async def status(self, name: str) -> RunStatus:
        return (await self.run(name)).status

    async def runs(self) -> list[Run]:
        return (await self.store.list(run.Run)).items

    async def pods(self, name: str = "") -> list[core.Pod]:
        found = (await self.store.list(core.Pod, build.NAMESPACE)).items
        return [pod for pod in found if not name or pod.metadata.labels[run.LABEL_RUN] == name]

    async def _report(self, pod: core.Pod, to: str, code: int | None = None) -> None:
        status: dict = {"phase": to}
        if code is not None:
            state = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
            status["containerStatuses"] = [{"name": "worker", "state": state}]
        await self.store.patch(
            core.Pod, pod.name, pod.namespace, patch={"status": status}, subresource="status"
        )
