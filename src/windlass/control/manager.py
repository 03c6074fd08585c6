"""Puts the controllers together: leader election, reflectors, controllers, the scheduler.

The server runs what `build` returns, on both engines. Inside a leader's term it starts reflectors
first, then, when all are in sync, the controllers; it stops them in the opposite order, and gives
the lease back last, so that the next leader begins when this one has really ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Protocol

from windlass.control import (
    cronruns,
    engine,
    leader,
    members,
    metrics,
    nodes,
    queuestatus,
    runs,
    runtime,
    scheduler,
)
from windlass.kinds import cronrun, kubernetes, meta, queue
from windlass.kinds.run import Run
from windlass.store import client, errors
from windlass.store.reflector import Change, Reflector

log = logging.getLogger(__name__)

NAMESPACE = "windlass-system"
LEASE = "windlass-controllers"
_PAUSE = 1.0
_BY_NODE = "node"
"""Name of the pod reflector's index by node."""


class Runnable(Protocol):
    """Something the server keeps running until it stops."""

    name: str

    async def run(self) -> None: ...


def build(
    store: client.Store,
    *,
    identity: str,
    registry: metrics.Registry | None = None,
    timing: leader.Timing | None = None,
) -> list[Runnable]:
    """All controllers of an engine. `identity` is unique among the live servers; one that keeps
    it over a restart leads again at once."""
    return [Manager(store, identity, registry or metrics.Registry(), timing)]


class Manager:
    """Runs the controllers while it leads."""

    name = "controllers"

    def __init__(
        self,
        store: client.Store,
        identity: str,
        registry: metrics.Registry,
        timing: leader.Timing | None,
    ) -> None:
        self._store = store
        self._registry = registry
        self._election = leader.Election(store, LEASE, NAMESPACE, identity, timing=timing)
        self._leading = registry.gauge("windlass_leading", "1 while this process leads.")

    async def run(self) -> None:
        """Until cancelled. A defect in a controller ends the term, not the process."""
        while True:
            try:
                await _ensure_namespace(self._store)
                await self._election.run(self._lead)
            except Exception:
                log.exception("the controllers stopped and are started again")
            await asyncio.sleep(_PAUSE)

    async def _lead(self, term: leader.Term) -> None:
        room = _Room(leader.Guarded(self._store, term), term.epoch, self._registry)
        self._leading.set(to=1)
        try:
            await room.run()
        finally:
            self._leading.set(to=0)


class _Room:
    """The reflectors and controllers of one term."""

    def __init__(self, store: client.Store, epoch: int, registry: metrics.Registry) -> None:
        self._nodes = Reflector(store, kubernetes.Node)
        self._pods = Reflector(
            store,
            kubernetes.Pod,
            indexes={runs.POD_INDEX: runs.pod_index, _BY_NODE: _node_index},
        )
        self._runs = Reflector(store, Run)
        self._queues = Reflector(store, queue.Queue)
        self._crons = Reflector(store, cronrun.CronRun)
        self._facts = Reflector(
            store, kubernetes.ConfigMap, NAMESPACE, field_selector=f"metadata.name={engine.NAME}"
        )
        self._run_controller = runtime.Controller(
            runs.NAME,
            runs.Runs(
                store,
                self._pods,
                epoch,
                silence=nodes.Silence(self._nodes),
                engine=self._engine,
                address=self._address,
            ).reconcile,
            keys=lambda: [_key(each) for each in self._runs],
            workers=8,
            registry=registry,
        )
        self._cron_controller = runtime.Controller(
            cronruns.NAME,
            cronruns.CronRuns(store).reconcile,
            keys=lambda: [_key(each) for each in self._crons],
            registry=registry,
        )
        self._node_controller = runtime.Controller(
            nodes.NAME,
            nodes.Heartbeats(store, lambda: self._engine().heartbeats).reconcile,
            keys=lambda: [_key(each) for each in self._nodes],
            registry=registry,
        )
        self._scheduler = scheduler.Scheduler(
            store,
            nodes=self._nodes,
            pods=self._pods,
            runs=self._runs,
            queues=self._queues,
            engine=self._facts,
            epoch=epoch,
            registry=registry,
        )
        self._queue_statuses = queuestatus.QueueStatuses(
            store, self._queues, look=self._scheduler.look, decided=self._scheduler.decided
        )

    async def run(self) -> None:
        """Until cancelled, or until one of them fails."""
        reflectors: list[Reflector[Any]] = [
            self._nodes, self._pods, self._runs, self._queues, self._crons, self._facts,
        ]  # fmt: skip
        try:
            for reflector in reflectors:
                reflector.start()
            for reflector in reflectors:
                await reflector.synced()
            self._connect()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._run_controller.run(), name=runs.NAME)
                group.create_task(self._cron_controller.run(), name=cronruns.NAME)
                group.create_task(self._scheduler.run(), name=scheduler.NAME)
                group.create_task(self._queue_statuses.run(), name=queuestatus.NAME)
                group.create_task(self._node_controller.run(), name=nodes.NAME)
        finally:
            for reflector in reflectors:
                await reflector.stop()

    def _engine(self) -> engine.Engine:
        return engine.Engine.read(self._facts.get(engine.NAME, NAMESPACE))

    def _address(self, name: str) -> str:
        node = self._nodes.get(name)
        listed = (node.status.addresses if node else None) or ()
        return next((each.address for each in listed if each.type == "InternalIP"), "")

    def _connect(self) -> None:
        """Which change wakes which controller."""
        self._runs.add_handler(self._run_changed)
        self._pods.add_handler(self._pod_changed)
        self._crons.add_handler(self._cron_changed)
        self._nodes.add_handler(self._node_changed)

    def _cron_changed(
        self, _: Change, before: cronrun.CronRun | None, after: cronrun.CronRun | None
    ) -> None:
        changed = after or before
        assert changed is not None, "a change has an object before or after it"  # noqa: S101
        self._cron_controller.enqueue(_key(changed))

    def _run_changed(self, _: Change, before: Run | None, after: Run | None) -> None:
        changed = after or before
        assert changed is not None, "a change has an object before or after it"  # noqa: S101
        if not runs.only_waits(changed):
            self._run_controller.enqueue(_key(changed))
        made_by = cronruns.owner_key(changed)
        if made_by is not None:
            self._cron_controller.enqueue(made_by)

    def _pod_changed(
        self, _: Change, before: kubernetes.Pod | None, after: kubernetes.Pod | None
    ) -> None:
        changed = after or before
        assert changed is not None, "a change has an object before or after it"  # noqa: S101
        owner = members.owner_key(changed)
        if owner is not None:
            self._run_controller.enqueue(owner)

    def _node_changed(
        self, _: Change, before: kubernetes.Node | None, after: kubernetes.Node | None
    ) -> None:
        changed = after or before
        assert changed is not None, "a change has an object before or after it"  # noqa: S101
        if not nodes.matters(before, after):
            return
        self._node_controller.enqueue(_key(changed))
        for pod in self._pods.by(_BY_NODE, changed.name):
            owner = members.owner_key(pod)
            if owner is not None:
                self._run_controller.enqueue(owner)


def _node_index(pod: kubernetes.Pod) -> Iterable[str]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def _key(obj: meta.Object) -> runtime.Key:
    return obj.namespace, obj.name


async def _ensure_namespace(store: client.Store) -> None:
    try:
        await store.create(kubernetes.Namespace(metadata=meta.ObjectMeta(name=NAMESPACE)))
    except errors.AlreadyExists:
        return
