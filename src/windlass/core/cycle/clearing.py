"""Workloads that must leave reserved capacity when the window of an advance reservation begins.

A workload that can be stopped and may not use the window is evicted so early that its grace is over
when the window begins. One that states that it ends in time is left alone until it has not. One
that must not be stopped stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from windlass.core.calendar import advance_windows, node_selection
from windlass.core.calendar.advance_windows import Windows
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import AdvanceReservation, Eviction, Running
from windlass.core.verdicts import formatting


def clear(state: DecisionState) -> None:
    """Evicts what must leave now, and notes when others must."""
    windows = state.windows
    if windows is None:
        return
    gone: set[str] = set()
    for window in windows.listed:
        if state.now < window.start - advance_windows.LONGEST_LEAD:
            continue
        for running in _in_the_way(windows, window):
            key = running.workload.key
            if key in gone or not _is_due(windows, window, running):
                continue
            gone.add(key)
            state.evictions.append(_eviction(windows, window, running))


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
    windows: Windows, window: AdvanceReservation, choice: node_selection.Choice
) -> Iterator[Running]:
    """On a node of which only a part is reserved: as few as it takes, the latest started first."""
    snapshot = windows.snapshot
    for (resource, node), needed in sorted(choice.parts.items()):
        name = snapshot.cluster.nodes[node].name
        if resource not in window.amounts:
            continue  # held back beside devices: no workload is stopped for it
        left = node_selection.left_at_start(snapshot, window, windows.presence, resource, node)
        found = [r for r in _there(windows, [name]) if _may_be_stopped(windows, window, r)]
        for running in sorted(found, key=lambda r: (-r.started, r.workload.key)):
            if left >= needed:
                break
            freed = node_selection.held_on(snapshot, running, resource, node)
            if freed:
                left += freed
                yield running


def _nodes(windows: Windows, window: AdvanceReservation) -> Iterable[int]:
    choice = windows.choices.get(window.id)
    return windows.nodes_of(window) if choice is None else choice.nodes


def _there(windows: Windows, names: Iterable[str]) -> list[Running]:
    snapshot = windows.snapshot
    keys = dict.fromkeys(key for name in names for key in snapshot.workloads_on.get(name, ()))
    return [snapshot.running[key] for key in sorted(keys)]


def _may_be_stopped(windows: Windows, window: AdvanceReservation, running: Running) -> bool:
    return (
        advance_windows.can_be_stopped(window, running)
        and len(running.leaving) < len(running.pods)
        and not windows.admits(window, running.workload)
    )


def _is_due(windows: Windows, window: AdvanceReservation, running: Running) -> bool:
    """Whether the workload must be evicted now; if later, the moment is noted."""
    now, workload = windows.now, running.workload
    if now >= window.start:
        return True
    notice_at = window.start - advance_windows.lead(workload)
    end = advance_windows.end_of(workload, running.started)
    if end is not None and now < end <= window.start:
        notice_at = max(notice_at, end)
    if now < notice_at:
        windows.moments.add(notice_at)
        return False
    return True


def _eviction(windows: Windows, window: AdvanceReservation, running: Running) -> Eviction:
    """Of the whole workload, or of the members above its least where the rest may stay. Members
    leave from the highest index down."""
    nodes = {windows.snapshot.cluster.nodes[i].name for i in _nodes(windows, window)}
    stay = [s for s in running.pods if (s.role, s.index) not in running.leaving]
    lowest = {
        role.name: min(
            (s.index for s in stay if s.role == role.name and s.node in nodes), default=None
        )
        for role in running.workload.roles
    }
    goes = [s for s in stay if (first := lowest.get(s.role)) is not None and s.index >= first]
    kept = [s for s in stay if s not in goes]
    whole = not goes or any(
        sum(pod.role == role.name for pod in kept) < max(1, role.min_count)
        for role in running.workload.roles
        if lowest[role.name] is not None or running.workload.gang
    )
    pods = tuple((s.role, s.index) for s in (stay if whole else goes))
    begins = "began" if windows.now >= window.start else "begins"
    reason = f"reservation {window.name} {begins} at {formatting.moment(window.start)}"
    return Eviction(running.workload.key, pods, "", reason, reservation=window.name)
