"""The rule of advance reservations (I15), counted from the facts by other means than the core's.

A workload that a window does not admit is not placed on reserved nodes so that it runs into the
window, and of reserved amounts it leaves free what the beneficiaries do not use. Evictions for a
window are of workloads that can be stopped, may not use it, and hold something that it reserves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.core.model.advance_reservation import AdvanceReservation
from windlass.core.model.types import WHOLE, Decision, Node, PodAssignment, Queue, Running, Workload
from windlass.core.quota import usage
from windlass.core.snapshot.snapshot import Snapshot

LEAD = 3600.0


class Broken(AssertionError):
    """A rule does not hold; the message names the rule, the moment and the thing."""


def hold(snapshot: Snapshot, decision: Decision, now: float) -> None:
    for window in snapshot.calendar.windows:
        if window.end <= now:
            continue
        _placements_keep_out(snapshot, decision, window, now)
        _evictions_are_due(snapshot, decision, window, now)
        others = (w for w in snapshot.calendar.windows if w is not window)
        alone = not any(other.overlaps(window.start, window.end) for other in others)
        if window.amounts and window.start <= now and alone:
            _amounts_stay_free(snapshot, decision, window, now)


def may_use(window: AdvanceReservation, queues: Mapping[str, Queue], workload: Workload) -> bool:
    """By walking up the queues."""
    name, seen = workload.queue, set[str]()
    while name not in seen:
        if name in window.queues:
            return True
        seen.add(name)
        name = queues[name].parent if name in queues else ""
    return workload.namespace in window.namespaces or workload.user in window.users


def covers(window: AdvanceReservation, node: Node) -> bool:
    """Whether a window of nodes reserves this one."""
    if window.amounts or (window.nodes is not None and node.name not in window.nodes):
        return False
    return all(node.labels.get(key) == value for key, value in window.selector)


def runs_into(window: AdvanceReservation, workload: Workload, started: float, now: float) -> bool:
    """Whether a workload runs into the window by its stated runtime. A preemptible workload without
    a stated runtime does so only if its grace period would end too late."""
    if window.start <= now:
        return True
    length = workload.expected if workload.max_runtime is None else workload.max_runtime
    if length is not None:
        return started > window.start - length
    return not workload.preemptible or now >= window.start - min(workload.grace, LEAD)


def _placements_keep_out(
    snapshot: Snapshot, decision: Decision, window: AdvanceReservation, now: float
) -> None:
    cluster = snapshot.cluster
    for placement in decision.placements:
        running = snapshot.running.get(placement.workload)
        workload = snapshot.waiting[placement.workload] if running is None else running.workload
        if may_use(window, snapshot.queues, workload):
            continue
        for pod in placement.pods:
            node = cluster.nodes[cluster.index[pod.node]]
            started = now if running is None else running.started
            if covers(window, node) and runs_into(window, workload, started, now):
                raise Broken(
                    f"I15 at {now}: {workload.key} is placed on {node.name}, which reservation "
                    f"{window.name} holds from {window.start} to {window.end}"
                )


def _evictions_are_due(
    snapshot: Snapshot, decision: Decision, window: AdvanceReservation, now: float
) -> None:
    for eviction in decision.evictions:
        if eviction.reservation != window.name or now < window.start - LEAD:
            continue
        workload = snapshot.running[eviction.workload].workload
        if not workload.preemptible or may_use(window, snapshot.queues, workload):
            raise Broken(
                f"I15 at {now}: {workload.key} must leave reservation {window.name}, "
                "which it may use, or it must not be stopped"
            )


def _amounts_stay_free(
    snapshot: Snapshot, decision: Decision, window: AdvanceReservation, now: float
) -> None:
    """What others take in the window leaves free what beneficiaries do not use yet; what leaves
    counts as free."""
    leaving = {eviction.workload for eviction in decision.evictions}
    leaving |= {key for key, running in snapshot.running.items() if running.leaving}
    for resource, amount in window.amounts.items():
        used = _held(snapshot, window, snapshot.running.values(), resource)
        taken = sum(
            _of(snapshot, workload, placement.pods, resource)
            for placement in decision.placements
            if not may_use(
                window, snapshot.queues, workload := _workload(snapshot, placement.workload)
            )
        )
        if not taken:
            continue
        free = _free(snapshot, resource, leaving) - taken
        kept = (
            -(-(amount - used) // WHOLE) * WHOLE
            if _is_device(snapshot, resource)
            else amount - used
        )
        if free < kept:
            raise Broken(
                f"I15 at {now}: {free} {resource} are left, reservation {window.name} holds {kept}"
            )


def _held(
    snapshot: Snapshot, window: AdvanceReservation, running: Iterable[Running], resource: str
) -> int:
    return sum(
        snapshot.usage[each.workload.key].get(resource, 0)
        for each in running
        if may_use(window, snapshot.queues, each.workload)
    )


def _of(
    snapshot: Snapshot, workload: Workload, pods: tuple[PodAssignment, ...], resource: str
) -> int:
    return usage.of_pods(snapshot.cluster, workload.roles, pods).get(resource, 0)


def _is_device(snapshot: Snapshot, resource: str) -> bool:
    return resource not in snapshot.cluster.resources


def _free(snapshot: Snapshot, resource: str, leaving: set[str]) -> int:
    """The free amount on schedulable nodes, from what is there and what is allocated there."""
    cluster = snapshot.cluster
    if not _is_device(snapshot, resource):
        free = int(cluster.free[cluster.resources[resource]][cluster.open].sum())
        return free + sum(snapshot.usage[key].get(resource, 0) for key in leaving)
    allocated = {
        (pod.node, grant.device)
        for running in snapshot.running.values()
        if running.workload.key not in leaving
        for pod in running.pods
        for grant in pod.grants
    }
    kind, _, model = resource.partition("/")
    return sum(
        WHOLE
        for node in cluster.nodes
        if node.ready and node.ready_in <= 0
        for device in node.devices
        if device.kind == kind
        and (not model or device.model == model)
        and device.healthy
        and (node.name, device.id) not in allocated
    )


def _workload(snapshot: Snapshot, key: str) -> Workload:
    running = snapshot.running.get(key)
    return snapshot.waiting[key] if running is None else running.workload
