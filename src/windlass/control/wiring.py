"""The two groups of controllers, each with a lease of its own: the scheduler, and the controllers.

`control.manager` runs them, both in one process or each in its own. They communicate only through
objects: the scheduler writes assignments, the controllers start those of its current epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from windlass.control.arrays import controller as array_controller
from windlass.control.cron import controller
from windlass.control.dependencies import controller as dependency_controller
from windlass.control.model import capabilities, dependencies, members, pod_indexes
from windlass.control.pods import refused_pods
from windlass.control.runs import (
    controller as runs_controller,
)
from windlass.control.runs import (
    environment_builds,
    node_lifecycle,
    start_gate,
)
from windlass.control.runtime import epochs, informers, work_report
from windlass.control.runtime.controller import Controller, Key
from windlass.control.scheduler import loop
from windlass.control.scheduler.status import queue_metrics, queue_status, reservation_status
from windlass.control.volumes import topology
from windlass.kinds.types import core, cronrun, meta
from windlass.kinds.types.run import Run, RunSpec
from windlass.store import interface
from windlass.store.informer import Change
from windlass.telemetry import prometheus

T = TypeVar("T", bound=meta.Object)
Loop = Callable[[], Coroutine[Any, Any, None]]
Loops = Mapping[str, Loop]
"""By name, coroutines that run until cancelled."""


class ControllerGroup(Protocol):
    """What one leader runs in one term."""

    name: ClassVar[str]
    lease: ClassVar[str]

    def __init__(
        self,
        store: interface.Store,
        seen: informers.InformerFactory,
        epoch: int,
        registry: prometheus.Registry,
    ) -> None:
        """`store` writes while the term lasts; `epoch` is that of the term."""
        ...

    def connect(self) -> None:
        """Called once, when all informers are in sync: connects changes with controllers."""
        ...

    def loops(self) -> Loops: ...

    def progress(self) -> work_report.Progress:
        """How far its work is, for the report of the leader."""
        ...


class Scheduler(ControllerGroup):
    """Decides, and writes the status of queues."""

    name = "scheduler"
    lease = informers.SCHEDULER_LEASE

    def __init__(
        self,
        store: interface.Store,
        seen: informers.InformerFactory,
        epoch: int,
        registry: prometheus.Registry,
    ) -> None:
        self._scheduler = loop.Scheduler(store, seen, epoch=epoch, registry=registry)
        self._statuses = queue_status.QueueStatuses(
            store, seen.queues,
            read=self._scheduler.read, decided=self._scheduler.decided,
            metrics=queue_metrics.QueueMetrics(registry),
        )  # fmt: skip
        self._reservations = reservation_status.ReservationStatuses(
            store, seen.reservations,
            read=self._scheduler.read, decided=self._scheduler.decided_anew,
        )  # fmt: skip

    def connect(self) -> None:
        return

    def loops(self) -> Loops:
        return {
            loop.NAME: self._scheduler.run,
            queue_status.NAME: self._statuses.run,
            reservation_status.NAME: self._reservations.run,
            "summaries": self._scheduler.summarize_bindings,
        }

    def progress(self) -> work_report.Progress:
        return self._scheduler.meter.progress()


class Controllers(ControllerGroup):
    """Execute decisions: pods of Runs, Runs of CronRuns and arrays, dependencies, silent nodes."""

    name = "controllers"
    lease = "windlass-controllers"

    def __init__(
        self,
        store: interface.Store,
        seen: informers.InformerFactory,
        epoch: int,
        registry: prometheus.Registry,
    ) -> None:
        del epoch  # the run controller uses the epoch of the scheduler
        self._seen_runs, self._seen_pods = seen.runs, seen.pods
        self._seen_crons, self._seen_nodes = seen.crons, seen.nodes
        self._facts = seen.engine
        claims = self._seen_claims = (seen.claims, seen.volumes, seen.storage_classes)
        self._runs = Controller(
            runs_controller.NAME,
            runs_controller.Runs(
                store,
                seen.pods,
                epochs.Epoch(seen.scheduler_lease, self._epoch_began).current,
                nodes=node_lifecycle.NodeStates(seen.nodes),
                engine=self._engine,
                gate=start_gate.StartGate(store, seen.nodes, claims, seen.runtime_classes),
                expires=lambda owner: dependency_controller.all_recorded(seen.runs, owner),
            ).reconcile,
            keys=lambda: [_key(each) for each in self._seen_runs],
            workers=8,
            registry=registry,
        )
        self._array_runs = array_controller.Arrays(store, seen.runs)
        self._arrays = Controller(
            array_controller.NAME,
            self._array_runs.reconcile,
            keys=lambda: [
                key for each in self._seen_runs for key in array_controller.concerns(each)
            ],
            registry=registry,
        )
        self._dependencies = Controller(
            dependency_controller.NAME,
            dependency_controller.Dependencies(store, seen.runs).reconcile,
            keys=lambda: [_key(each) for each in self._seen_runs if dependencies.is_waiting(each)],
            registry=registry,
        )
        self._crons = Controller(
            controller.NAME,
            controller.CronRuns(store).reconcile,
            keys=lambda: [_key(each) for each in self._seen_crons],
            registry=registry,
        )
        self._nodes = Controller(
            node_lifecycle.NAME,
            node_lifecycle.Heartbeats(store, lambda: self._engine().heartbeats).reconcile,
            keys=lambda: [_key(each) for each in self._seen_nodes],
            registry=registry,
        )
        self._refused = Controller(
            refused_pods.NAME,
            refused_pods.RefusedPods(store, seen.pods, self._engine).reconcile,
            keys=lambda: [_key(each) for each in self._seen_pods if refused_pods.concerns(each)],
            registry=registry,
        )

    def connect(self) -> None:
        self._seen_runs.add_handler(self._array_runs.on_run)
        self._seen_runs.add_handler(self._run_changed)
        self._seen_pods.add_handler(self._pod_changed)
        self._seen_crons.add_handler(self._cron_changed)
        self._seen_nodes.add_handler(self._node_changed)
        for informer in self._seen_claims:
            informer.add_handler(self._claim_changed)

    def loops(self) -> Loops:
        return {
            runs_controller.NAME: self._runs.run,
            controller.NAME: self._crons.run,
            array_controller.NAME: self._arrays.run,
            dependency_controller.NAME: self._dependencies.run,
            node_lifecycle.NAME: self._nodes.run,
            refused_pods.NAME: self._refused.run,
        }

    def progress(self) -> work_report.Progress:
        ours = (
            self._runs, self._crons, self._arrays, self._dependencies, self._nodes, self._refused,
        )  # fmt: skip
        return work_report.together(each.progress() for each in ours)

    def _engine(self) -> capabilities.Engine:
        return capabilities.Engine.read(self._facts.get(capabilities.NAME, capabilities.NAMESPACE))

    def _epoch_began(self) -> None:
        """Assignments of an epoch may have been seen before it was known to be valid."""
        for owner in self._seen_runs:
            if owner.status.phase == "Queued" and owner.status.assignment is not None:
                self._runs.enqueue(_key(owner))

    def _cron_changed(
        self, _: Change, before: cronrun.CronRun | None, after: cronrun.CronRun | None
    ) -> None:
        self._crons.enqueue(_key(_either(before, after)))

    def _run_changed(self, _: Change, before: Run | None, after: Run | None) -> None:
        changed = _either(before, after)
        if not runs_controller.only_waits(changed):
            self._runs.enqueue(_key(changed))
        for array in array_controller.concerns(changed):
            self._arrays.enqueue(array)
        if dependencies.is_waiting(changed):
            self._dependencies.enqueue(_key(changed))
        if before is None or after is None or before.status.phase != after.status.phase:
            for each in dependency_controller.dependents(self._seen_runs, changed):
                self._dependencies.enqueue(_key(each))
        made_by = controller.owner_key(changed)
        if made_by is not None:
            self._crons.enqueue(made_by)

    def _pod_changed(self, _: Change, before: core.Pod | None, after: core.Pod | None) -> None:
        changed = _either(before, after)
        if refused_pods.concerns(changed):
            self._refused.enqueue(_key(changed))
        owner = members.owner_key(changed)
        if owner is not None:
            self._runs.enqueue(owner)
        elif any(pod_indexes.environment(changed)):
            self._starting(
                changed.namespace, lambda spec: environment_builds.is_kept(spec, self._engine())
            )

    def _claim_changed(self, *_: object) -> None:
        """Runs whose pods wait for a volume."""
        kept = self._engine().kept_claim
        self._starting("", lambda spec: bool(topology.mounted(spec, kept)))

    def _starting(self, namespace: str, which: Callable[[RunSpec], bool]) -> None:
        """Wakes Runs whose pods may wait for it; of all namespaces if it is ""."""
        for owner in self._seen_runs:
            there = not namespace or owner.namespace == namespace
            if there and owner.status.phase == "Starting" and which(owner.spec):
                self._runs.enqueue(_key(owner))

    def _node_changed(self, _: Change, before: core.Node | None, after: core.Node | None) -> None:
        changed = _either(before, after)
        if not node_lifecycle.matters(before, after):
            return
        self._nodes.enqueue(_key(changed))
        for pod in self._seen_pods.by(pod_indexes.BY_NODE, changed.name):
            owner = members.owner_key(pod)
            if owner is not None:
                self._runs.enqueue(owner)


ALL: tuple[type[ControllerGroup], ...] = (Scheduler, Controllers)


def _either(before: T | None, after: T | None) -> T:
    changed = after or before
    assert changed is not None, "a change has an object before or after it"  # noqa: S101
    return changed


def _key(obj: meta.Object) -> Key:
    return obj.namespace, obj.name
