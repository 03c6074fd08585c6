"""The rule of advance reservations (I15), counted from the facts by other means than the core's.

A workload that a window does not admit is not placed on reserved nodes so that it runs into the
window, and of reserved amounts it leaves free what the beneficiaries do not use. Evictions for a
window are of workloads that can be stopped, may not use it, and hold something that it reserves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.core import amounts
from windlass.core.advance import AdvanceReservation
from windlass.core.facts import WHOLE, Decision, Node, Queue, Running, Seat, Unit
from windlass.core.state import Snapshot

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


def may_use(window: AdvanceReservation, queues: Mapping[str, Queue], unit: Unit) -> bool:
    """By walking up the queues."""
    name, seen = unit.queue, set[str]()
    while name not in seen:
        if name in window.queues:
            return True
        seen.add(name)
        name = queues[name].parent if name in queues else ""
    return unit.namespace in window.namespaces or unit.user in window.users


def covers(window: AdvanceReservation, node: Node) -> bool:
    """Whether a window of nodes reserves this one."""
    if window.amounts or (window.nodes is not None and node.name not in window.nodes):
        return False
    return all(node.labels.get(key) == value for key, value in window.selector)


def runs_into(window: AdvanceReservation, unit: Unit, started: float, now: float) -> bool:
    """Whether a workload runs in the window by its own word. What does not say how long it runs and
    can be stopped does so only if its grace would be over too late."""
    if window.start <= now:
        return True
    length = unit.expected if unit.max_runtime is None else unit.max_runtime
    if length is not None:
        return started > window.start - length
    return not unit.preemptible or now >= window.start - min(unit.grace, LEAD)


def _placements_keep_out(
    snapshot: Snapshot, decision: Decision, window: AdvanceReservation, now: float
) -> None:
    cluster = snapshot.cluster
    for placement in decision.placements:
        running = snapshot.running.get(placement.unit)
        unit = snapshot.waiting[placement.unit] if running is None else running.unit
        if may_use(window, snapshot.queues, unit):
            continue
        for seat in placement.seats:
            node = cluster.nodes[cluster.index[seat.node]]
            started = now if running is None else running.started
            if covers(window, node) and runs_into(window, unit, started, now):
                raise Broken(
                    f"I15 at {now}: {unit.key} is placed on {node.name}, which reservation "
                    f"{window.name} holds from {window.start} to {window.end}"
                )


def _evictions_are_due(
    snapshot: Snapshot, decision: Decision, window: AdvanceReservation, now: float
) -> None:
    for eviction in decision.evictions:
        if eviction.reservation != window.name or now < window.start - LEAD:
            continue
        unit = snapshot.running[eviction.unit].unit
        if not unit.preemptible or may_use(window, snapshot.queues, unit):
            raise Broken(
                f"I15 at {now}: {unit.key} must leave reservation {window.name}, which it may use, "
                "or it must not be stopped"
            )


def _amounts_stay_free(
    snapshot: Snapshot, decision: Decision, window: AdvanceReservation, now: float
) -> None:
    """What others take in the window leaves free what beneficiaries do not use yet; what leaves
    counts as free."""
    leaving = {eviction.unit for eviction in decision.evictions}
    leaving |= {key for key, running in snapshot.running.items() if running.leaving}
    for resource, amount in window.amounts.items():
        used = _held(snapshot, window, snapshot.running.values(), resource)
        taken = sum(
            _of(snapshot, unit, placement.seats, resource)
            for placement in decision.placements
            if not may_use(window, snapshot.queues, unit := _unit(snapshot, placement.unit))
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
        snapshot.held[each.unit.key].get(resource, 0)
        for each in running
        if may_use(window, snapshot.queues, each.unit)
    )


def _of(snapshot: Snapshot, unit: Unit, seats: tuple[Seat, ...], resource: str) -> int:
    return amounts.of_seats(snapshot.cluster, unit.roles, seats).get(resource, 0)


def _is_device(snapshot: Snapshot, resource: str) -> bool:
    return resource not in snapshot.cluster.resources


def _free(snapshot: Snapshot, resource: str, leaving: set[str]) -> int:
    """On nodes that take anybody, by what is there and what is held there."""
    cluster = snapshot.cluster
    if not _is_device(snapshot, resource):
        free = int(cluster.free[cluster.resources[resource]][cluster.open].sum())
        return free + sum(snapshot.held[key].get(resource, 0) for key in leaving)
    held = {
        (seat.node, grant.device)
        for running in snapshot.running.values()
        if running.unit.key not in leaving
        for seat in running.seats
        for grant in seat.grants
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
        and (node.name, device.id) not in held
    )


def _unit(snapshot: Snapshot, key: str) -> Unit:
    running = snapshot.running.get(key)
    return snapshot.waiting[key] if running is None else running.unit
