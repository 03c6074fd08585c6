"""The scheduler's loop: reflectors, snapshot, decision, assignment into the Run's status.

It sleeps until an object that counts has changed or until the time the decision asked for; there
is no timer of its own. Every write names the resourceVersion it was decided on, so a Run that
changed meanwhile is decided again. Writes assignment, and reason and message while a Run waits;
never a phase.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Callable
from typing import Any

from windlass.control import leader, metrics, snapshots
from windlass.core import decide as core
from windlass.core import snapshot as values
from windlass.kinds import kubernetes, meta, queue, reasons, times
from windlass.kinds.run import Run
from windlass.store import client, errors
from windlass.store.reflector import Reflector

log = logging.getLogger(__name__)

NAME = "scheduler"
_PAUSE_AFTER_FAILURE = 1.0


class Scheduler:
    """One per leader's term."""

    def __init__(
        self,
        store: client.Store,
        *,
        nodes: Reflector[kubernetes.Node],
        pods: Reflector[kubernetes.Pod],
        runs: Reflector[Run],
        queues: Reflector[queue.Queue],
        epoch: int,
        policy: values.Policy | None = None,
        registry: metrics.Registry | None = None,
        now: Callable[[], datetime.datetime] = times.now,
    ) -> None:
        self._store = store
        self._nodes, self._pods, self._runs, self._queues = nodes, pods, runs, queues
        self._epoch = epoch
        self._policy = policy or values.Policy()
        self._now = now
        self._changed = asyncio.Event()
        self._written: dict[str, Run] = {}
        """Our own writes that the reflector may not show yet, by uid: without them the room just
        given away would look free."""
        registry = registry or metrics.Registry()
        self._took = registry.histogram(
            "windlass_scheduler_decide_seconds", "How long one decision took."
        )
        self._waiting = registry.gauge("windlass_scheduler_waiting_runs", "Runs that wait.")

    def wake(self, *_: object) -> None:
        """Something changed; also a reflector's handler."""
        self._changed.set()

    async def run(self) -> None:
        """Decides whenever something changed, until cancelled."""
        self._nodes.add_handler(self.wake)
        self._pods.add_handler(self.wake)
        self._runs.add_handler(self.wake)
        self._queues.add_handler(self.wake)
        wake_at: float | None = None
        while True:
            await self._wait(wake_at)
            self._changed.clear()
            try:
                wake_at = await self.cycle()
            except leader.LeadershipLostError:
                return
            except errors.ApiError as error:
                log.warning("scheduler: a write failed and is decided again: %s", error.message)
                wake_at = self._now().timestamp() + _PAUSE_AFTER_FAILURE

    async def cycle(self) -> float | None:
        """One decision, written down; when to decide again even if nothing changes."""
        # 1. What there is, with what we wrote ourselves.
        objects = self._objects()
        # 2. What an earlier leader assigned and nobody started: keep it or take it back.
        await self._settle_old_epochs(objects)
        objects = self._objects()
        # 3. Decide.
        started = asyncio.get_running_loop().time()
        decision = core.decide(
            snapshots.snapshot(objects), self._now().timestamp(), self._policy
        )  # fmt: skip
        self._took.observe(value=asyncio.get_running_loop().time() - started)
        self._waiting.set(to=len(decision.verdicts))
        # 4. Write who got room, then why the others wait.
        by_uid = {owner.uid: owner for owner in objects.runs}
        for placement in decision.placements:
            await self._assign(by_uid[placement.unit], placement)
        for verdict in decision.verdicts:
            await self._explain(by_uid[verdict.unit], verdict.reason, verdict.message)
        for owner in objects.runs:
            if owner.status.phase == "Queued" and owner.spec.suspend:
                await self._explain(owner, reasons.Reason.SUSPENDED, "held by spec.suspend")
        return decision.wake_at

    async def _wait(self, wake_at: float | None) -> None:
        timeout = None if wake_at is None else max(0.0, wake_at - self._now().timestamp())
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return

    def _objects(self) -> snapshots.Objects:
        runs = []
        for owner in self._runs:
            ours = self._written.get(owner.uid)
            if ours is not None and _is_newer(owner, ours):
                del self._written[owner.uid]
                ours = None
            runs.append(ours or owner)
        alive = {owner.uid for owner in runs}
        self._written = {uid: ours for uid, ours in self._written.items() if uid in alive}
        return snapshots.Objects(list(self._nodes), list(self._pods), runs, list(self._queues))

    async def _settle_old_epochs(self, objects: snapshots.Objects) -> None:
        open_nodes = {node.name for node in objects.nodes if snapshots.is_open(node)}
        for owner in objects.runs:
            held = owner.status.assignment
            if held is None or owner.status.phase != "Queued":
                continue
            if held.epoch == self._epoch or not snapshots.holds_assignment(owner):
                continue
            nodes = {member.node for listed in held.members.values() for member in listed}
            if nodes <= open_nodes and not owner.spec.suspend:
                await self._patch(owner, {"assignment": {"epoch": self._epoch}})
            else:
                await self._patch(owner, {"assignment": None})

    async def _assign(self, owner: Run, placement: values.Placement) -> None:
        members = {
            role: [{"node": node} for node in nodes] for role, nodes in placement.members.items()
        }
        assignment = {"attempt": owner.status.attempt, "epoch": self._epoch, "members": members}
        await self._patch(owner, {"assignment": assignment})
        log.info("run %s/%s: assigned %s", owner.namespace, owner.name, dict(placement.members))

    async def _explain(self, owner: Run, reason: str, message: str) -> None:
        if (owner.status.reason, owner.status.message) != (reason, message):
            await self._patch(owner, {"reason": reason, "message": message})

    async def _patch(self, owner: Run, status: dict[str, Any]) -> None:
        version = {"resourceVersion": owner.metadata.resource_version}
        try:
            written = await self._store.patch(
                Run, owner.name, owner.namespace, subresource="status",
                patch={"metadata": version, "status": status},
            )  # fmt: skip
        except (errors.Conflict, errors.NotFound):
            # It changed since: the change is on its way to us and will wake us.
            self._written.pop(owner.uid, None)
            return
        self._written[owner.uid] = written


def _is_newer(shown: meta.Object, ours: meta.Object) -> bool:
    """Whether the reflector has caught up with our write."""
    return int(shown.metadata.resource_version) >= int(ours.metadata.resource_version)
