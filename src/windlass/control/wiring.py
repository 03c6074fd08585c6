"""The two sets of controllers, each with a lease of its own: who decides, and who carries out.

`control.manager` runs them, both in one process or each in its own. They meet only in objects:
the scheduler writes assignments, the controllers start those of the scheduler's current epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from windlass.control import (
    builds,
    cronruns,
    engine,
    epochs,
    members,
    metrics,
    nodes,
    queuestatus,
    reservationstatus,
    runs,
    runtime,
    scheduler,
    starting,
    views,
    volumes,
)
from windlass.kinds import cronrun, kubernetes, meta
from windlass.kinds.run import Run, RunSpec
from windlass.store import client
from windlass.store.reflector import Change

T = TypeVar("T", bound=meta.Object)
Loop = Callable[[], Coroutine[Any, Any, None]]
Loops = Mapping[str, Loop]
"""By name, what runs until it is cancelled."""


class Set(Protocol):
    """What one leader runs in one term."""

    name: ClassVar[str]
    lease: ClassVar[str]

    def __init__(
        self, store: client.Store, seen: views.Views, epoch: int, registry: metrics.Registry
    ) -> None:
        """`store` writes while the term lasts; `epoch` is the term's."""
        ...

    def connect(self) -> None:
        """Called once, when all that is seen is there: which change wakes which controller."""
        ...

    def loops(self) -> Loops: ...


class Scheduler(Set):
    """Decides, and tells what queues hold."""

    name = "scheduler"
    lease = views.SCHEDULER_LEASE

    def __init__(
        self, store: client.Store, seen: views.Views, epoch: int, registry: metrics.Registry
    ) -> None:
        self._scheduler = scheduler.Scheduler(
            store,
            nodes=seen.nodes,
            pods=seen.pods,
            runs=seen.runs,
            queues=seen.queues,
            engine=seen.engine,
            scheduling=seen.scheduling,
            claims=(seen.claims, seen.volumes, seen.classes),
            room=seen.room_for_volumes,
            attachments=seen.attachments,
            quotas=seen.quotas,
            reservations=seen.reservations,
            runtimes=seen.runtimes,
            beside=(seen.namespaces, seen.budgets),
            epoch=epoch,
            registry=registry,
        )
        self._statuses = queuestatus.QueueStatuses(
            store, seen.queues, look=self._scheduler.look, decided=self._scheduler.decided
        )

        self._reservations = reservationstatus.ReservationStatuses(
            store, seen.reservations,
            look=self._scheduler.look, decided=self._scheduler.decided_anew,
        )  # fmt: skip

    def connect(self) -> None:
        return

    def loops(self) -> Loops:
        return {
            scheduler.NAME: self._scheduler.run,
            queuestatus.NAME: self._statuses.run,
            reservationstatus.NAME: self._reservations.run,
            "summaries": self._scheduler.tell_placed,
        }


class Controllers(Set):
    """Carry out: pods of Runs, Runs of CronRuns, nodes that fall silent."""

    name = "controllers"
    lease = "windlass-controllers"

    def __init__(
        self, store: client.Store, seen: views.Views, epoch: int, registry: metrics.Registry
    ) -> None:
        del epoch  # they only carry out; what counts is the scheduler's
        self._seen_runs, self._seen_pods = seen.runs, seen.pods
        self._seen_crons, self._seen_nodes = seen.crons, seen.nodes
        self._facts = seen.engine
        claims = self._seen_claims = (seen.claims, seen.volumes, seen.classes)
        self._runs = runtime.Controller(
            runs.NAME,
            runs.Runs(
                store,
                seen.pods,
                epochs.Epoch(seen.scheduler_lease, self._epoch_began).current,
                silence=nodes.Silence(seen.nodes),
                engine=self._engine,
                address=self._address,
                gate=starting.Gate(store, seen.nodes, claims, seen.runtimes),
            ).reconcile,
            keys=lambda: [_key(each) for each in self._seen_runs],
            workers=8,
            registry=registry,
        )
        self._crons = runtime.Controller(
            cronruns.NAME,
            cronruns.CronRuns(store).reconcile,
            keys=lambda: [_key(each) for each in self._seen_crons],
            registry=registry,
        )
        self._nodes = runtime.Controller(
            nodes.NAME,
            nodes.Heartbeats(store, lambda: self._engine().heartbeats).reconcile,
            keys=lambda: [_key(each) for each in self._seen_nodes],
            registry=registry,
        )

    def connect(self) -> None:
        self._seen_runs.add_handler(self._run_changed)
        self._seen_pods.add_handler(self._pod_changed)
        self._seen_crons.add_handler(self._cron_changed)
        self._seen_nodes.add_handler(self._node_changed)
        for reflector in self._seen_claims:
            reflector.add_handler(self._claim_changed)

    def loops(self) -> Loops:
        return {
            runs.NAME: self._runs.run,
            cronruns.NAME: self._crons.run,
            nodes.NAME: self._nodes.run,
        }

    def _engine(self) -> engine.Engine:
        return engine.Engine.read(self._facts.get(engine.NAME, engine.NAMESPACE))

    def _address(self, name: str) -> str:
        node = self._seen_nodes.get(name)
        listed = (node.status.addresses if node else None) or ()
        return next((each.address for each in listed if each.type == "InternalIP"), "")

    def _epoch_began(self) -> None:
        """What was decided in it may have been seen before it was known to count."""
        for owner in self._seen_runs:
            if owner.status.phase == "Queued" and owner.status.assignment is not None:
                self._runs.enqueue(_key(owner))

    def _cron_changed(
        self, _: Change, before: cronrun.CronRun | None, after: cronrun.CronRun | None
    ) -> None:
        self._crons.enqueue(_key(_either(before, after)))

    def _run_changed(self, _: Change, before: Run | None, after: Run | None) -> None:
        changed = _either(before, after)
        if not runs.only_waits(changed):
            self._runs.enqueue(_key(changed))
        made_by = cronruns.owner_key(changed)
        if made_by is not None:
            self._crons.enqueue(made_by)

    def _pod_changed(
        self, _: Change, before: kubernetes.Pod | None, after: kubernetes.Pod | None
    ) -> None:
        changed = _either(before, after)
        owner = members.owner_key(changed)
        if owner is not None:
            self._runs.enqueue(owner)
        elif any(builds.pod_index(changed)):
            self._starting(changed.namespace, lambda spec: builds.is_kept(spec, self._engine()))

    def _claim_changed(self, *_: object) -> None:
        """Runs whose pods wait for a volume."""
        kept = self._engine().kept_claim
        self._starting("", lambda spec: bool(volumes.mounted(spec, kept)))

    def _starting(self, namespace: str, which: Callable[[RunSpec], bool]) -> None:
        """Wakes Runs whose pods may be waited with; of all namespaces if it is ""."""
        for owner in self._seen_runs:
            there = not namespace or owner.namespace == namespace
            if there and owner.status.phase == "Starting" and which(owner.spec):
                self._runs.enqueue(_key(owner))

    def _node_changed(
        self, _: Change, before: kubernetes.Node | None, after: kubernetes.Node | None
    ) -> None:
        changed = _either(before, after)
        if not nodes.matters(before, after):
            return
        self._nodes.enqueue(_key(changed))
        for pod in self._seen_pods.by(views.BY_NODE, changed.name):
            owner = members.owner_key(pod)
            if owner is not None:
                self._runs.enqueue(owner)


ALL: tuple[type[Set], ...] = (Scheduler, Controllers)


def _either(before: T | None, after: T | None) -> T:
    changed = after or before
    assert changed is not None, "a change has an object before or after it"  # noqa: S101
    return changed


def _key(obj: meta.Object) -> runtime.Key:
    return obj.namespace, obj.name
