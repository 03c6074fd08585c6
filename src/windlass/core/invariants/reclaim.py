"""The contract of reclaim (I8), counted again from the facts by other means than the core's.

No queue is left below its guarantee by what other queues take from it, or below what it held before
if that was less. The one exception is a workload that can be evicted only as a whole and reaches
into the guarantee, after it ran long enough. And the reclaiming queue is within its own guarantee
afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from windlass.core.decision import fair_share
from windlass.core.model import pod_sets
from windlass.core.model.types import (
    Decision,
    Eviction,
    Nomination,
    Placement,
    PodAssignment,
    Running,
    Workload,
)
from windlass.core.quota import usage
from windlass.core.snapshot.snapshot import Snapshot

Sums = Counter[str]
LEAST_RUN = 600.0


def problems(snapshot: Snapshot, decision: Decision, now: float) -> Iterator[str]:
    """What is wrong with what queues take from each other, in sentences."""
    check = _Check(snapshot, decision, now)
    if check.taken:
        yield from check.left_below()
        yield from check.not_entitled()


class _Check:
    def __init__(self, snapshot: Snapshot, decision: Decision, now: float) -> None:
        self.snapshot, self.decision, self.now = snapshot, decision, now
        self.tree = fair_share.tree_with_owed_shares(snapshot)
        self.taken = [
            each
            for each in decision.evictions
            if not each.move
            and each.preemptor in snapshot.waiting
            and snapshot.waiting[each.preemptor].queue != self._victim(each).workload.queue
        ]
        self.moved = {each.workload for each in decision.evictions if each.move}

    def _victim(self, eviction: Eviction) -> Running:
        return self.snapshot.running[eviction.workload]

    # --- the queues that give

    def left_below(self) -> Iterator[str]:
        """Judged where preemptor and victim part, and at every level below that."""
        by_level: dict[tuple[str, bool], list[Eviction]] = {}
        for eviction in self.taken:
            for level in self._levels(eviction):
                by_level.setdefault(level, []).append(eviction)
        for (name, direct), evictions in sorted(by_level.items()):
            problem = self._below(name, direct, evictions)
            if problem:
                yield problem

    def _levels(self, eviction: Eviction) -> list[tuple[str, bool]]:
        """Queues of the victim's side; a queue above the preemptor's stands only for its own
        workloads."""
        mine = self.snapshot.waiting[eviction.preemptor].queue
        theirs = self._victim(eviction).workload.queue
        if theirs in self.tree.path(mine):
            return [(theirs, True)]
        return [(name, False) for name in self.tree.diverging_paths(mine, theirs)[1]]

    def _below(self, name: str, direct: bool, evictions: list[Eviction]) -> str:
        """Of the resources that preemptors may have reclaimed, at least one must be in order: which
        of them were scarce is not derived here."""
        wanted = set[str]()
        for each in evictions:
            own = self._reclaimable(self.snapshot.waiting[each.preemptor])
            wanted |= own or self.tree.guaranteed  # surplus yields also without a guarantee
        gone = [self._held(self._victim(each).workload, self._pods(each)) for each in evictions]
        total = sum(gone, Counter[str]())
        taken = sorted(resource for resource in wanted if total[resource])
        if not taken and all(self._is_surplus(each) for each in evictions):
            return ""  # nothing of it is guaranteed to any queue
        before, more = self._before(name, direct), self._coming(name, direct)
        for resource in taken:
            kept = min(self._guarantee(name, direct, resource), before[resource])
            left = before[resource] + more[resource] - total[resource]
            if left >= kept:
                return ""
            reach = [
                amount[resource]
                for amount, each in zip(gone, evictions, strict=True)
                if self._ran_long_enough(each)
            ]
            if left + max(reach, default=0) > kept:
                return ""
        return (
            f"I8 at {self.now}: queue {name} is left below its guarantee by "
            f"{', '.join(sorted({each.workload for each in evictions}))}"
        )

    def _ran_long_enough(self, eviction: Eviction) -> bool:
        victim = self._victim(eviction)
        queue = self.snapshot.queues[victim.workload.queue]
        base = max(queue.min_runtime, LEAST_RUN)
        return victim.started + base * 2.0**victim.workload.preemptions <= self.now

    def _before(self, name: str, direct: bool) -> Sums:
        """What the queue held, without terminating workloads."""
        found: Sums = Counter()
        for running in self.snapshot.running.values():
            if self._counts(running.workload, name, direct):
                stay = [s for s in running.pods if (s.role, s.index) not in running.leaving]
                found.update(self._held(running.workload, stay))
        return found

    def _coming(self, name: str, direct: bool) -> Sums:
        """What starts there in this decision or is nominated, beyond what is evicted for it in the
        queue itself."""
        found: Sums = Counter()
        coming: list[Placement | Nomination] = [*self.decision.placements]
        coming += [each for each in self.decision.nominations if each.workload not in self.moved]
        for each in coming:
            waiting = self.snapshot.waiting.get(each.workload)
            workload = waiting or self.snapshot.running[each.workload].workload
            if self._counts(workload, name, direct):
                own = self._held(workload, each.pods)
                for eviction in self.decision.evictions:
                    victim = self._victim(eviction).workload
                    if eviction.preemptor == each.workload and self._counts(victim, name, direct):
                        own.subtract(self._held(victim, self._pods(eviction)))
                found.update(+own)
        return found

    def _counts(self, workload: Workload, name: str, direct: bool) -> bool:
        return workload.queue == name if direct else name in self.tree.path(workload.queue)

    def _guarantee(self, name: str, direct: bool, resource: str) -> int:
        own = self.tree.guarantee[name].get(resource, 0)
        children = self.tree.children.get(name, ()) if direct else ()
        return max(0, own - sum(self.tree.guarantee[c].get(resource, 0) for c in children))

    # --- the queue that takes

    def not_entitled(self) -> Iterator[str]:
        """Its own queue is inside its guarantee with all that was decided, unless it takes only
        surplus, which yields to any waiting minimum."""
        for key in sorted({each.preemptor for each in self.taken if not self._is_surplus(each)}):
            workload = self.snapshot.waiting[key]
            used = self._before(workload.queue, direct=False)
            for each in self.decision.evictions:
                if self._counts(self._victim(each).workload, workload.queue, direct=False):
                    used.subtract(self._held(self._victim(each).workload, self._pods(each)))
            need = usage.of_requests(self.snapshot.cluster, pod_sets.minimum(workload))
            for resource, own in self.tree.guarantee[workload.queue].items():
                if need.get(resource) and used[resource] + need[resource] > own:
                    yield (
                        f"I8 at {self.now}: {key} takes from other queues, and queue "
                        f"{workload.queue} would use {used[resource] + need[resource]} of {own} "
                        f"{resource}"
                    )

    def _is_surplus(self, eviction: Eviction) -> bool:
        """Whether the victim keeps its minimum."""
        running = self._victim(eviction)
        gone = {*eviction.pods, *running.leaving}
        left = Counter(s.role for s in running.pods if (s.role, s.index) not in gone)
        return all(left[role.name] >= max(1, role.min_count) for role in running.workload.roles)

    def _reclaimable(self, workload: Workload) -> set[str]:
        need = usage.of_requests(self.snapshot.cluster, pod_sets.minimum(workload))
        return {r for r in self.tree.guarantee[workload.queue] if need.get(r)}

    def _pods(self, eviction: Eviction) -> list[PodAssignment]:
        gone = set(eviction.pods)
        return [s for s in self._victim(eviction).pods if (s.role, s.index) in gone]

    def _held(
        self, workload: Workload, pods: list[PodAssignment] | tuple[PodAssignment, ...]
    ) -> Sums:
        return Counter(usage.of_pods(self.snapshot.cluster, workload.roles, pods))
