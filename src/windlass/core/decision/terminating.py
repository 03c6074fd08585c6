"""Workloads that were evicted and still run: what they give back, and to which workloads.

Victims keep their capacity until their pods are gone, and most of it is nominated to a preemptor.
Evictions and nominations only grow during a decision, so each is taken in once.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable

from windlass.core.cluster.cluster import Cluster
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import PodAssignment, Role, Running, Workload
from windlass.core.quota.quota_tree import QuotaTree, Sums
from windlass.core.snapshot import availability_profile, running_index
from windlass.core.snapshot.running_index import EvictionUnit, ResourceRows


class TerminatingWorkloads:
    """The terminating workloads of one decision."""

    def __init__(self, state: DecisionState) -> None:
        self._state: DecisionState = weakref.proxy(state)
        """Does not keep the state alive: the clusters of a decision are freed as soon as it is
        made, without the garbage collector."""
        self._evicted: dict[str, EvictionUnit] = {}
        self.parts: list[EvictionUnit] = []
        """The same, eviction by eviction: a workload may be evicted in parts, one per preemptor."""
        self._seen = -1
        """Evictions that are counted already; -1: not even those of earlier decisions."""
        self._left = state.tree.empty()
        """What they hold, by queue."""
        self._held_for = state.tree.empty()
        """What is nominated to others on top of that."""
        self._nominees: dict[str, Nominee] = {}
        self._nominated = running_index.flatten((), len(state.context.cluster.resources))
        self._worst: tuple[tuple[int, int, int, int], QuotaTree] | None = None
        """The tree by what can be counted on, and after how many changes."""

    def evicted(self) -> dict[str, EvictionUnit]:
        """By key, the pods of workloads that were evicted by earlier decisions and by this one."""
        state = self._state
        if self._seen < 0:
            self._seen = 0
            for key in sorted(state.snapshot.running_index.leaving):
                self._add(key, state.snapshot.running[key].leaving)
        for eviction in state.evictions[self._seen :]:
            self._add(eviction.workload, eviction.pods)
        self._seen = len(state.evictions)
        return self._evicted

    def _add(self, key: str, pods_of: Iterable[tuple[str, int]]) -> None:
        cluster, running = self._state.context.cluster, self._state.snapshot.running[key]
        before, chosen = self._evicted.get(key), set(pods_of)
        pods = [pod for pod in running.pods if (pod.role, pod.index) in chosen]
        part = whole = running_index.part_of(cluster, running, pods)
        if before is not None:
            whole = running_index.part_of(cluster, running, (*before.pods, *pods))
        self._evicted[key] = whole
        self.parts.append(part)
        workload = running.workload
        self._left.add(workload.queue, part.usage, non_preemptible=not workload.preemptible)

    def resources(self) -> ResourceRows:
        """What they hold."""
        columns = len(self._state.context.cluster.resources)
        return running_index.flatten(list(self.evicted().values()), columns)

    def left(self) -> dict[str, Sums]:
        """By queue, with the queues below it: what they give back."""
        self.evicted()
        return self._left.used

    def nominated(self) -> ResourceRows:
        """What is nominated to other workloads on top of those that still hold it."""
        self.nominees()
        return self._nominated

    def exclusive(self) -> list[tuple[Role, PodAssignment]]:
        """Nominated pods with host ports or device partitions: nothing can be shared there."""
        return [each for nominee in self.nominees() for each in nominee.exclusive]

    def nominees(self) -> Iterable[Nominee]:
        """Workloads to which capacity is nominated."""
        new = [
            Nominee(self._state, key)
            for key in itertools.islice(self._state.nominations, len(self._nominees), None)
        ]
        if new:
            size, columns = len(self._nominees), len(self._state.context.cluster.resources)
            more = running_index.flatten([nominee.piece for nominee in new], columns)
            self._nominated = running_index.join([self._nominated, more], [size, len(new)], columns)
            self._nominees |= {nominee.piece.key: nominee for nominee in new}
            for nominee in new:
                workload = nominee.workload
                self._held_for.add(
                    workload.queue, nominee.piece.usage, non_preemptible=not workload.preemptible
                )
        return self._nominees.values()

    def tree_without(self) -> QuotaTree:
        """The quota tree once all of them are gone."""
        self.evicted()
        return self._state.tree.minus(self._left, self._left)

    def tree_at_worst(self) -> QuotaTree:
        """What every queue holds at worst while they terminate. Read only."""
        state = self._state
        if not self.evicted():
            return state.tree
        at = (
            len(state.placements), len(state.nominations), len(state.evictions), state.retractions,
        )  # fmt: skip
        if self._worst is None or self._worst[0] != at:
            self.nominees()
            self._worst = (at, state.tree.minus(self._left, self._held_for))
        return self._worst[1]


def of(state: DecisionState) -> TerminatingWorkloads:
    return state.cache(TerminatingWorkloads, lambda: TerminatingWorkloads(state))


class Nominee:
    """Nominated capacity, as if the workload ran there already."""

    def __init__(self, state: DecisionState, key: str) -> None:
        pods = state.nominations[key].pods
        cluster, self.workload = state.context.cluster, nominated_workload(state, key)
        running = Running(self.workload, pods, state.now)
        self.piece = running_index.part_of(cluster, running, pods)
        self.rows = availability_profile.allocation_rows(cluster, self.workload, pods)
        roles = {role.name: role for role in self.workload.roles}
        self.exclusive = [
            (roles[pod.role], pod)
            for pod in pods
            if roles[pod.role].ports or any(g.form == "partition" for g in pod.grants)
        ]


def nominated_workload(state: DecisionState, key: str) -> Workload:
    found = state.workload(key)
    assert found is not None, f"capacity is nominated to {key}, which wants none"  # noqa: S101
    return found


def free_ports(cluster: Cluster, pieces: Iterable[EvictionUnit]) -> None:
    """Gives the host ports of these pods back."""
    for piece in pieces:
        roles = {role.name: role for role in piece.running.workload.roles}
        for pod in piece.pods:
            role, node = roles.get(pod.role), cluster.index.get(pod.node)
            for port in role.ports if role is not None and node is not None else ():
                cluster.ports[port].discard(node)
