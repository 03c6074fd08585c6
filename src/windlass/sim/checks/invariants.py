"""Rules that hold after every decision, checked on the facts by other means than the core's own.

Capacity (I1), gangs whole or absent (I2), required topology (I3), quotas (I4), no eviction without
a preemptor that holds the capacity (I5), no queue taken below its guarantee (I8), reserved starts
kept (I9), same facts same answer (I10). The numbers are those of the scheduling notes; rules that
the live scheduler checks, too, are in `core.invariants.invariants`. Everything is counted again
from the facts, so that a mistake in an index cannot hide itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from windlass.core.cycle import cycle
from windlass.core.invariants import advance_reservations
from windlass.core.invariants.invariants import (
    Broken,
    Members,
    in_one_domain,
    no_orphan_evictions,
    queues_keep_their_guarantees,
    whole_gangs,
    within_capacity,
)
from windlass.core.model.types import ClusterFacts, Decision, Nomination, Policy, Queue
from windlass.core.snapshot.snapshot import Snapshot, build
from windlass.sim.checks.reservations import ReservationCheck
from windlass.sim.job_progress import Record


class Checker:
    """Given to the engine; every `again`-th decision is made anew and compared (I10)."""

    def __init__(
        self,
        policy: Policy,
        *,
        again: int = 1,
        check_reservations: bool = False,
        late: float = 1e-6,
    ) -> None:
        self.policy, self.again = policy, again
        self.reservation_check = ReservationCheck(late) if check_reservations else None
        self.checked = 0
        self._used_before: dict[str, dict[str, int]] = {}
        self._committed_before: dict[str, int] = {}

    def before(self, snapshot: Snapshot, decision: Decision, now: float) -> None:
        """The decision against the facts it was made on."""
        self.checked += 1
        if self.again and self.checked % self.again == 0:
            same_answer(snapshot, decision, now, self.policy)
        no_orphan_evictions(snapshot, decision, now)
        advance_reservations.hold(snapshot, decision, now)
        queues_keep_their_guarantees(snapshot, decision, now)
        if self.reservation_check is not None:
            self.reservation_check.decided(snapshot, decision, now)
        self._used_before = used_by_queue(snapshot)
        self._committed_before = commitments(snapshot)

    def after(self, snapshot: Snapshot, decision: Decision, now: float) -> None:
        """The facts once the decision was carried out."""
        facts = snapshot.facts()
        nodes = {node.name: node for node in facts.nodes}
        all_pods = [(r.workload, pod) for r in facts.running for pod in r.pods]
        within_capacity(nodes, all_pods, now)
        within_capacity(nodes, _with_nominations(facts), now, "I5 (nominated capacity)")
        changed = {placement.workload for placement in decision.placements}
        changed |= {eviction.workload for eviction in decision.evictions}
        moved = [running for running in facts.running if running.workload.key in changed]
        whole_gangs(moved, now)
        in_one_domain(facts.levels, nodes, moved, now)
        within_limits(snapshot, self._used_before, now)
        firm_within_commitments(snapshot, self._committed_before, now)

    def started(self, record: Record, now: float) -> None:
        """I9; only where runtimes are honest and no node is lost."""
        if self.reservation_check is not None:
            self.reservation_check.started(record.job.workload.key, now)

    def idle(self, decision: Decision, now: float) -> None:
        """Nothing was decided because nothing could change."""
        if decision.placements or decision.evictions:
            raise Broken(f"at {now} a decision was left out that starts or stops a workload")


def same_answer(snapshot: Snapshot, decision: Decision, now: float, policy: Policy) -> None:
    """I10: built fresh from the same facts, in another order, the answer is the same."""
    facts = snapshot.facts()
    turned = dataclasses.replace(
        facts,
        nodes=facts.nodes[::-1],
        running=facts.running[::-1],
        waiting=facts.waiting[::-1],
    )
    fresh = cycle.decide(build(turned, snapshot.history), now, policy)
    for field in dataclasses.fields(Decision):
        mine, other = getattr(decision, field.name), getattr(fresh, field.name)
        if mine != other:
            raise Broken(
                f"I10 at {now}: {field.name} of a snapshot built fresh differ: "
                f"{_difference(mine, other)}"
            )


def within_limits(snapshot: Snapshot, before: Mapping[str, Mapping[str, int]], now: float) -> None:
    """I4: no workload starts beyond a limit."""
    after = used_by_queue(snapshot)
    for name, queue in snapshot.queues.items():
        for resource, limit in queue.limit.items():
            used = after[name].get(resource, 0)
            if used > limit and used > before.get(name, {}).get(resource, 0):
                raise Broken(
                    f"I4 at {now}: queue {name} holds {used} {resource}, its limit is {limit}"
                )


def firm_within_commitments(snapshot: Snapshot, before: Mapping[str, int], now: float) -> None:
    """I4: a non-preemptible workload starts only where the guarantees of other queues still fit
    beside it. A queue is committed to its guarantee, or to what its non-preemptible workloads hold
    and its children are committed to, if that is more; what all roots are committed to fits the
    cluster, or is no more than it was before."""
    for resource, after in commitments(snapshot).items():
        most = max(before.get(resource, 0), snapshot.tree.capacity.get(resource, 0))
        if after > most:
            raise Broken(
                f"I4 at {now}: guarantees and what cannot be preempted come to {after} "
                f"{resource}, there is {snapshot.tree.capacity.get(resource, 0)}"
            )


def commitments(snapshot: Snapshot) -> dict[str, int]:
    """Of all roots, by resource with a guarantee in any queue."""
    direct: dict[str, dict[str, int]] = {}
    for key, running in snapshot.running.items():
        if not running.workload.preemptible:
            sums = direct.setdefault(running.workload.queue, {})
            for resource, amount in snapshot.usage[key].items():
                sums[resource] = sums.get(resource, 0) + amount
    tree = snapshot.tree

    def of(name: str, resource: str) -> int:
        below = sum(of(child, resource) for child in tree.children.get(name, ()))
        load = direct.get(name, {}).get(resource, 0) + below
        return max(tree.guarantee[name].get(resource, 0), load)

    roots = tree.children.get("", ())
    return {r: sum(of(name, r) for name in roots) for r in sorted(tree.guaranteed)}


def used_by_queue(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """What each queue and those below it hold, added up from the running workloads."""
    sums: dict[str, dict[str, int]] = {name: {} for name in snapshot.queues}
    for key, running in snapshot.running.items():
        for name in _upwards(running.workload.queue, snapshot.queues):
            for resource, amount in snapshot.usage[key].items():
                sums[name][resource] = sums[name].get(resource, 0) + amount
    return sums


def _upwards(name: str, queues: Mapping[str, Queue]) -> list[str]:
    path: list[str] = []
    while name in queues and name not in path:
        path.append(name)
        name = queues[name].parent
    return path


def _with_nominations(facts: ClusterFacts) -> Members:
    """Assignments once all evicted pods are gone and all nominated workloads are placed."""
    waiting = {workload.key: workload for workload in facts.waiting}
    members: Members = [
        (running.workload, pod)
        for running in facts.running
        for pod in running.pods
        if (pod.role, pod.index) not in running.leaving
    ]
    nominations: tuple[Nomination, ...] = facts.nominations
    for nomination in nominations:
        workload = waiting.get(nomination.workload)
        if workload is not None:
            members += [(workload, pod) for pod in nomination.pods]
    return members


def _difference(mine: object, other: object) -> str:
    if isinstance(mine, tuple) and isinstance(other, tuple):
        for one, two in zip(mine, other, strict=False):
            if one != two:
                return f"{one} against {two}"
        return f"{len(mine)} against {len(other)}"
    return f"{mine} against {other}"
