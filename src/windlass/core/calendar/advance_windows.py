"""Advance reservations in a decision: which windows bind which workload, and what they hold back.

A workload that a window does not admit must not run into it on reserved capacity. So before a
decision every waiting workload is examined as if it started now: the windows that it would run into
are named in the constraint of its roles, and from then on those nodes count as closed for it,
wherever free capacity is searched. A start at a later time is examined the same way, as of that
time (`core.reservation.earliest_start`). How long a workload runs is what it says itself: its
maximum, else what it expects. Learned estimates do not count here: an administrator's window is no
guess.

Without advance reservations nothing of this happens.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import numpy as np

from windlass.core.calendar import node_selection
from windlass.core.cluster.reserved_capacity import Hold, Table
from windlass.core.model.types import (
    AdvanceReservation,
    Constraint,
    Role,
    Running,
    Toleration,
    Workload,
)
from windlass.core.snapshot.snapshot import Snapshot

LONGEST_LEAD = 3600.0
"""Seconds before a window at which the first workloads are evicted: a longer grace ends in
the window."""
_ANY_TAINT = (Toleration(operator="Exists"),)
_LATER = "~"
"""Marks what a window holds back from starts later than now."""


def end_of(workload: Workload, start: float) -> float | None:
    """When a workload that starts then ends, by its own word; None: it does not say."""
    length = workload.expected if workload.max_runtime is None else workload.max_runtime
    return None if length is None else start + length


def lead(workload: Workload) -> float:
    """Seconds before a window at which a workload must be evicted."""
    return min(workload.grace, LONGEST_LEAD)


def can_be_stopped(window: AdvanceReservation, running: Running) -> bool:
    """Not if it must not be preempted at all, or not as long as the window lasts: pods that a
    disruption budget protects."""
    return running.workload.preemptible and running.protected_until < window.end


def open_at(snapshot: Snapshot, now: float) -> Windows | None:
    """The windows that have not ended; None: there are none, and nothing is held back."""
    if not snapshot.calendar.windows and not snapshot.cluster.reserved.holds:
        return None
    found = Windows(snapshot, now)
    found.hold_back()
    return found if found.listed else None


class Windows:
    """The windows of one decision."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self.snapshot, self.now = snapshot, now
        self.listed = [each for each in snapshot.calendar.windows if each.end > now]
        self.choices: dict[str, node_selection.Choice] = {}
        """Window of amounts -> what stands for it."""
        self._names: dict[str, frozenset[str]] = {}
        self.moments: set[float] = set()
        """When time alone changes which windows bind which workloads."""
        self._binding: dict[
            tuple[str, str, str], tuple[list[AdvanceReservation], frozenset[str]]
        ] = {}
        self._series: dict[str, int] = {}
        """Window -> the same number for all windows of a reservation that recurs."""
        series: dict[object, int] = {}
        for window in self.listed:
            self.moments |= {window.start, window.end, window.start - LONGEST_LEAD}
            what = (window.name, window.nodes, window.selector, *sorted(window.amounts.items()))
            self._series[window.id] = series.setdefault(what, len(series))

    # --- which windows bind which workloads

    def binding(self, workload: Workload) -> list[AdvanceReservation]:
        """Windows that do not admit the workload, by their start."""
        return self._bind(workload)[0]

    def admits(self, window: AdvanceReservation, workload: Workload) -> bool:
        """Whether the workload may use what the window reserves."""
        return window.id not in self._bind(workload)[1]

    def _bind(self, workload: Workload) -> tuple[list[AdvanceReservation], frozenset[str]]:
        key = (workload.queue, workload.namespace, workload.user)
        found = self._binding.get(key)
        if found is None:
            path = self.snapshot.tree.path(workload.queue) or (workload.queue,)
            windows = [
                w for w in self.listed if not w.admits(path, workload.namespace, workload.user)
            ]
            found = self._binding[key] = (windows, frozenset(each.id for each in windows))
        return found

    def starting(self, workload: Workload, at: float) -> Workload:
        """The workload as it would be if it started then."""
        denied = self._denied(workload, at) if self.binding(workload) else ()
        if at > self.now:
            denied = tuple([name + _LATER if name in self.choices else name for name in denied])
        return self.snapshot.calendar.bound(workload, denied)

    def growing(self, running: Running, role: Role) -> Role:
        """A role of a running workload that might get more members now."""
        workload, denied = running.workload, list[str]()
        end = end_of(workload, running.started)
        for window in self.binding(workload):
            latest = -math.inf
            if end is not None and end <= window.start:
                latest = math.inf
            elif end is None and workload.preemptible:
                latest = window.start - self._stay(workload)
                self.moments.add(latest)
            if self.now >= min(latest, window.start):
                denied.append(window.id)
        return self.snapshot.calendar.bound_role(role, tuple(denied))

    def may_pass(
        self, workload: Workload, head: Workload, start: float, nodes: frozenset[str]
    ) -> bool:
        """Whether the reservation of a blocked head, for a start on these nodes, must not keep a
        waiting workload out of what an open window reserves for it: the head gets those nodes only
        after the window."""
        if workload.key not in self.snapshot.waiting:
            return False
        return any(
            window.start <= self.now < window.end <= start
            and self.admits(window, workload)
            and not self.admits(window, head)
            and not self._names_of(window).isdisjoint(nodes)
            for window in self.listed
        )

    def _names_of(self, window: AdvanceReservation) -> frozenset[str]:
        """Nodes of which the window holds anything."""
        found = self._names.get(window.id)
        if found is None:
            hold = self.snapshot.cluster.reserved.holds[window.id]
            there = {*hold.nodes, *(node for _, node in hold.parts)}
            found = frozenset(self.snapshot.cluster.nodes[i].name for i in there)
            self._names[window.id] = found
        return found

    def points(self, workload: Workload) -> Iterator[float]:
        """Moments at which what the workload may use changes."""
        for window in self.binding(workload):
            yield window.end
            yield self._latest(workload, window)[0]

    def _denied(self, workload: Workload, at: float) -> tuple[str, ...]:
        """Windows that the workload would run into. Of a reservation that recurs only the first:
        the others hold the same nodes, and every set of windows is counted for by itself."""
        found: dict[int, str] = {}
        for window in self.binding(workload):
            latest, inclusive = self._latest(workload, window)
            if window.start > at and (at <= latest if inclusive else at < latest):
                break  # and in time for all that start later
            if window.end > at:
                found.setdefault(self._series[window.id], window.id)
        return tuple(found.values())

    def _latest(self, workload: Workload, window: AdvanceReservation) -> tuple[float, bool]:
        """The last moment at which the workload may start on what the window reserves, and whether
        that moment is still in time. One that can be stopped and does not say how long it runs may
        start if it can run for its queue's minimum run time before it is evicted."""
        length = workload.expected if workload.max_runtime is None else workload.max_runtime
        if length is not None:
            return window.start - length, True
        if workload.preemptible:
            return window.start - self._stay(workload), False
        return -math.inf, False

    def _stay(self, workload: Workload) -> float:
        queue = self.snapshot.queues.get(workload.queue)
        return lead(workload) + (queue.min_runtime if queue is not None else 0.0)

    def view(self) -> Snapshot:
        """The snapshot with every waiting workload bound as it would be if it started now."""
        bound: dict[str, Workload] = {}
        for key, workload in self.snapshot.waiting.items():
            if not self.binding(workload):
                continue
            self._note_moments(workload)
            denied = self._denied(workload, self.now)
            if denied:
                bound[key] = self.snapshot.calendar.bound(workload, denied)
        if not bound:
            return self.snapshot
        view, lines = copy.copy(self.snapshot), self.snapshot._pending
        view.waiting, view._pending = {**view.waiting, **bound}, dict(lines)
        view._class_counts = dict(view._class_counts)
        for name in {workload.queue for workload in bound.values()}:
            view._pending[name] = [(rank, bound.get(each.key, each)) for rank, each in lines[name]]
        return view

    def _note_moments(self, workload: Workload) -> None:
        for window in self.binding(workload):
            latest, inclusive = self._latest(workload, window)
            if latest >= self.now:
                self.moments.add(math.nextafter(latest, math.inf) if inclusive else latest)
                break  # those of windows that start later come later

    # --- what is held back

    def hold_back(self) -> None:
        """Passes them to the cluster, which counts again only where they changed."""
        holds: dict[str, Hold] = {}
        for window in sorted(self.listed, key=lambda each: (bool(each.amounts), each.start)):
            if not window.amounts:
                nodes = frozenset(self.nodes_of(window))
                holds[window.id] = Hold(window.start, window.end, nodes)
                continue
            others = [holds[each.id] for each in self.listed if self._before(each, window, holds)]
            choice = self._choose(window, others)
            self.choices[window.id] = choice
            holds[window.id] = choice.hold(window, now=False)
        for name, choice in self.choices.items():
            window = next(each for each in self.listed if each.id == name)
            holds[name + _LATER] = holds[name]
            holds[name] = choice.hold(window, now=True)
        cluster = self.snapshot.cluster
        changed = cluster.reserved.changed(holds)
        if changed or holds.keys() != cluster.reserved.holds.keys():
            cluster.reserved = Table(holds)
            cluster.touch(np.array(sorted(changed), np.int64))

    def nodes_of(self, window: AdvanceReservation) -> list[int]:
        """The nodes of a window of nodes."""
        constraint = Constraint(window.selector, names=window.nodes, tolerations=_ANY_TAINT)
        found: list[int] = np.flatnonzero(self.snapshot.cluster.mask(constraint)).tolist()
        return found

    def _before(
        self, other: AdvanceReservation, window: AdvanceReservation, holds: dict[str, Hold]
    ) -> bool:
        return other.id in holds and other.overlaps(window.start, window.end)

    def _choose(self, window: AdvanceReservation, others: list[Hold]) -> node_selection.Choice:
        running = self.snapshot.running.items()
        may_use = [key for key, each in running if self.admits(window, each.workload)]
        return node_selection.choose(
            self.snapshot, window, lambda each: self.presence(window, each), may_use, others
        )

    def presence(self, window: AdvanceReservation, running: Running) -> node_selection.Presence:
        """What becomes of a running workload by the start of a window; in the window, of now."""
        workload = running.workload
        if len(running.leaving) == len(running.pods):
            return "gone"
        end = end_of(workload, running.started)
        ends = end is not None and self.now < window.start and end <= window.start
        if self.admits(window, workload):
            return "ends" if ends else "beneficiary"
        if ends:
            return "ends"
        return "evictable" if can_be_stopped(window, running) else "stays"
