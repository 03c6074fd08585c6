"""Workloads that must leave reserved capacity when the window of an advance reservation begins.

What can be stopped and may not use the window is told to leave so early that its grace is over when
the window begins. What says that it ends in time is left alone until it has not. What must not be
stopped stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from windlass.core import alike, calendar, setaside, verdicts
from windlass.core.facts import AdvanceReservation, Eviction, Running

if TYPE_CHECKING:
    from windlass.core.calendar import Windows
    from windlass.core.cycle import Cycle


def clear(cycle: Cycle) -> None:
    """Evicts what must leave now, and notes when others must."""
    windows = cycle.windows
    if windows is None:
        return
    gone: set[str] = set()
    for window in windows.listed:
        if cycle.now < window.start - calendar.LONGEST_LEAD:
            continue
        for running in _in_the_way(windows, window):
            key = running.unit.key
            if key in gone or not _is_due(windows, window, running):
                continue
            gone.add(key)
            cycle.evictions.append(_eviction(windows, window, running))
    if gone:
        alike.somebody_goes(cycle, {cycle.snapshot.running[key].unit.queue for key in gone})


def staying(windows: Windows, window: AdvanceReservation) -> list[Running]:
    """Workloads that may not use the window and cannot be stopped for it."""
    nodes = [windows.snapshot.cluster.nodes[i].name for i in sorted(_nodes(windows, window))]
    return [
        running
        for running in _there(windows, nodes)
        if windows.presence(window, running) == "stays"
    ]


def _in_the_way(windows: Windows, window: AdvanceReservation) -> Iterator[Running]:
    """Running workloads that hold what the window reserves and can be stopped for it."""
    cluster = windows.snapshot.cluster
    whole = [cluster.nodes[i].name for i in sorted(_nodes(windows, window))]
    for running in _there(windows, whole):
        if _may_be_stopped(windows, window, running):
            yield running
    choice = windows.choices.get(window.id)
    if choice is not None:
        yield from _beside_parts(windows, window, choice)


def _beside_parts(
    windows: Windows, window: AdvanceReservation, choice: setaside.Choice
) -> Iterator[Running]:
    """On a node of which only a part is reserved: as few as it takes, the latest started first."""
    snapshot = windows.snapshot
    for (resource, node), needed in sorted(choice.parts.items()):
        name = snapshot.cluster.nodes[node].name
        if resource not in window.amounts:
            continue  # held back beside devices: nobody is stopped for it
        left = setaside.left_at_start(snapshot, window, windows.presence, resource, node)
        found = [r for r in _there(windows, [name]) if _may_be_stopped(windows, window, r)]
        for running in sorted(found, key=lambda r: (-r.started, r.unit.key)):
            if left >= needed:
                break
            freed = setaside.held_on(snapshot, running, resource, node)
            if freed:
                left += freed
                yield running


def _nodes(windows: Windows, window: AdvanceReservation) -> Iterable[int]:
    choice = windows.choices.get(window.id)
    return windows.nodes_of(window) if choice is None else choice.nodes


def _there(windows: Windows, names: Iterable[str]) -> list[Running]:
    snapshot = windows.snapshot
    keys = dict.fromkeys(key for name in names for key in snapshot.there.get(name, ()))
    return [snapshot.running[key] for key in sorted(keys)]


def _may_be_stopped(windows: Windows, window: AdvanceReservation, running: Running) -> bool:
    return (
        calendar.can_be_stopped(window, running)
        and len(running.leaving) < len(running.seats)
        and not windows.admits(window, running.unit)
    )


def _is_due(windows: Windows, window: AdvanceReservation, running: Running) -> bool:
    """Whether the workload must be told to leave now; if later, the moment is noted."""
    now, unit = windows.now, running.unit
    if now >= window.start:
        return True
    told_at = window.start - calendar.lead(unit)
    end = calendar.end_of(unit, running.started)
    if end is not None and now < end <= window.start:
        told_at = max(told_at, end)
    if now < told_at:
        windows.moments.add(told_at)
        return False
    return True


def _eviction(windows: Windows, window: AdvanceReservation, running: Running) -> Eviction:
    """Of the whole workload, or of the members above its least where the rest may stay. Members
    leave from the highest index down."""
    nodes = {windows.snapshot.cluster.nodes[i].name for i in _nodes(windows, window)}
    stay = [s for s in running.seats if (s.role, s.index) not in running.leaving]
    lowest = {
        role.name: min(
            (s.index for s in stay if s.role == role.name and s.node in nodes), default=None
        )
        for role in running.unit.roles
    }
    goes = [s for s in stay if (first := lowest.get(s.role)) is not None and s.index >= first]
    kept = [s for s in stay if s not in goes]
    whole = not goes or any(
        sum(seat.role == role.name for seat in kept) < max(1, role.least)
        for role in running.unit.roles
        if lowest[role.name] is not None or running.unit.gang
    )
    seats = tuple((s.role, s.index) for s in (stay if whole else goes))
    begins = "began" if windows.now >= window.start else "begins"
    reason = f"reservation {window.name} {begins} at {verdicts.moment(window.start)}"
    return Eviction(running.unit.key, seats, "", reason, reservation=window.name)
