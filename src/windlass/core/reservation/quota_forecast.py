"""Use of the queues at a later time: whether a reserved start has its quota then.

A reservation needs capacity and quota. Quota comes back as running workloads end, and reservations
of the same queues take theirs at their start. The forecast is the quota tree of that time: what is
used now, less what ends by then, with the reservations that are under way then. Queues below other
roots matter only where queues lend a part of their guarantee, and to non-preemptible workloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from windlass.core.decision import terminating
from windlass.core.decision.shadows import Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Workload
from windlass.core.quota import quota_tree
from windlass.core.quota.quota_tree import QuotaTree, Shortage

_ALL = ""
"""The scope of queues whose use depends on that of all queues."""


class QuotaForecast:
    """Of one decision. It keeps what was computed as long as the decision did not move."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, float], _Ended] = {}
        self._evicted = 0
        """Evictions that are in `_ended`."""
        self._trees: dict[tuple[str, float], QuotaTree] = {}
        self._generation = -1
        """The state of the decision that `_trees` is about."""
        self._silent: dict[str, list[str]] | None = None
        """Queue -> running workloads that say nothing about their end."""

    def tree_at(self, state: DecisionState, workload: Workload, time: float) -> QuotaTree:
        """The tree as the workload's queue will see it then. Read only."""
        if len(state.evictions) != self._evicted:
            self._evicted, self._generation = len(state.evictions), -1
            self._ended.clear()
        if self._generation != state.generation:
            self._generation = state.generation
            self._trees.clear()
        key = (_scope(state.tree, workload), time)
        found = self._trees.get(key)
        if found is None:
            found = self._trees[key] = self._made(state, *key)
        return found

    def _made(self, state: DecisionState, scope: str, time: float) -> QuotaTree:
        ended = self._ended.get((scope, time))
        if ended is None:
            ended = self._ended[scope, time] = _Ended(state.tree.empty())
            for key in self._ending(state, scope, time):
                ended.add(state, key)
        ended.follow(state, scope, time)
        tree = terminating.of(state).tree_without().minus(ended.tree, ended.tree)
        for key in state.nominations:
            nominee = state.workload(key)
            end = state.expected_end(nominee) if nominee is not None else None
            if nominee is None or end is None or end > time:
                continue
            if _is_in(state.tree, nominee.queue, scope):
                firm = not nominee.preemptible
                tree.add(nominee.queue, state.need(nominee), non_preemptible=firm, sign=-1)
        for reservation in state.reservations:
            if reservation.start <= time < reservation.end and _is_in(
                state.tree, reservation.workload.queue, scope
            ):
                workload = reservation.workload
                tree.add(
                    workload.queue, state.need(workload), non_preemptible=not workload.preemptible
                )
        return tree

    def _ending(self, state: DecisionState, scope: str, time: float) -> Iterator[str]:
        """Workloads that run since before this decision and are expected to end by then."""
        for name in _queues_of(state.tree, scope):
            yield from state.snapshot.profile.ending(name, state.now, time)
            for key in self._silent_of(state, name):
                end = state.running_end(state.snapshot.running[key])
                if end is not None and end <= time:
                    yield key

    def _silent_of(self, state: DecisionState, name: str) -> Iterable[str]:
        if self._silent is None:
            self._silent = {}
            for key, running in state.snapshot.availability.unknown.items():
                self._silent.setdefault(running.workload.queue, []).append(key)
        return self._silent.get(name, ())


def of(state: DecisionState) -> QuotaForecast:
    return state.shrinking_cache(QuotaForecast)


class _Ended:
    """What the queues of a scope give back by one time."""

    def __init__(self, tree: QuotaTree) -> None:
        self.tree = tree
        self._placed = 0
        """Starts of this decision that were looked at."""

    def add(self, state: DecisionState, key: str) -> None:
        """A workload has ended; what its preempted replicas hold is counted elsewhere."""
        workload, amounts = state.running[key].workload, state.usage.get(key, {})
        leaving = terminating.of(state).evicted().get(key)
        if leaving is not None:
            amounts = dict(amounts)
            quota_tree.add(amounts, leaving.usage, -1)
        self.tree.add(workload.queue, amounts, non_preemptible=not workload.preemptible)

    def follow(self, state: DecisionState, scope: str, time: float) -> None:
        """Takes in the starts of this decision since the last time."""
        if self._placed == len(state.placements):
            return
        for key in list(state.placements)[self._placed :]:
            running = state.running[key]
            end = running.expected_end
            ends = key not in state.snapshot.running and end is not None and end <= time
            if ends and _is_in(state.tree, running.workload.queue, scope):
                self.add(state, key)
        self._placed = len(state.placements)


def shortage_at(
    state: DecisionState, workload: Workload, need: Mapping[str, int], time: float
) -> Shortage | None:
    """The rule that forbids the workload to use so much at a later time."""
    if not state.tree.is_bound(workload.queue, non_preemptible=not workload.preemptible):
        return None
    tree = of(state).tree_at(state, workload, time)
    return tree.shortage(workload.queue, need, non_preemptible=not workload.preemptible)


def shortage_beside(
    state: DecisionState,
    workload: Workload,
    need: Mapping[str, int],
    reservations: Iterable[Reservation],
) -> Shortage | None:
    """The rule that would be broken, for the workload or for these reservations, at the start of
    one of them, if the workload still runs then."""
    tree, non_preemptible = state.tree, not workload.preemptible
    if not tree.is_bound(workload.queue, non_preemptible=non_preemptible):
        return None
    concerned = _concerned(tree, workload, non_preemptible, reservations)
    for time in sorted({reservation.start for reservation in concerned}):
        then = of(state).tree_at(state, workload, time)
        found = then.shortage(workload.queue, need, non_preemptible=non_preemptible)
        if found is None and tree.withholding:
            starting = [reservation for reservation in concerned if reservation.start == time]
            found = _short_of_loans(state, then, workload, need, starting)
        if found is not None:
            return found
    return None


def _concerned(
    tree: QuotaTree, workload: Workload, non_preemptible: bool, reservations: Iterable[Reservation]
) -> Sequence[Reservation]:
    """Those that share a rule with the workload."""
    if tree.withholding:
        return list(reservations)
    shared = {name for name in tree.path(workload.queue) if tree.queues[name].limit}
    fixed = non_preemptible and bool(tree.guaranteed)  # then it counts what all such workloads hold
    return [
        reservation
        for reservation in reservations
        if not shared.isdisjoint(tree.path(reservation.workload.queue))
        or (fixed and not reservation.workload.preemptible)
    ]


def _short_of_loans(
    state: DecisionState,
    then: QuotaTree,
    workload: Workload,
    need: Mapping[str, int],
    starting: Iterable[Reservation],
) -> Shortage | None:
    """What one of the reserved workloads could not borrow if this one ran, where queues lend a part
    of their guarantee."""
    tree = then.fork()
    tree.add(workload.queue, need, non_preemptible=not workload.preemptible)
    for reservation in starting:
        reserved, non_preemptible = reservation.workload, not reservation.workload.preemptible
        asked = state.need(reserved)
        tree.add(reserved.queue, asked, non_preemptible=non_preemptible, sign=-1)
        found = tree.shortage(reserved.queue, asked, non_preemptible=non_preemptible)
        tree.add(reserved.queue, asked, non_preemptible=non_preemptible)
        if found is not None:
            return found
    return None


def _scope(tree: QuotaTree, workload: Workload) -> str:
    everywhere = tree.withholding or (tree.guaranteed and not workload.preemptible)
    return _ALL if everywhere else tree.path(workload.queue)[-1]


def _is_in(tree: QuotaTree, queue: str, scope: str) -> bool:
    return scope == _ALL or scope in tree.path(queue)


def _queues_of(tree: QuotaTree, scope: str) -> Iterable[str]:
    if scope == _ALL:
        return tree.queues
    found = [scope]
    for name in found:
        found += tree.children.get(name, ())
    return found
