"""Rules that hold after every decision, checked on the facts by other means than the core's own.

Capacity (I1), gangs whole or absent (I2), required topology (I3), quotas (I4), no eviction without
a gainer that holds the room (I5), no queue taken below its guarantee (I8), promised starts kept
(I9), same facts same answer (I10). The numbers are those of the scheduling notes; rules that the
live scheduler watches, too, are in `core.invariants`. Everything is counted again from the facts,
so that a mistake in an index cannot hide itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from windlass.core import advance_invariants, cycle, state
from windlass.core.facts import Decision, Facts, Nomination, Policy, Queue
from windlass.core.invariants import (
    Broken,
    Members,
    in_one_domain,
    no_orphan_evictions,
    queues_keep_their_guarantees,
    whole_gangs,
    within_capacity,
)
from windlass.core.state import Snapshot
from windlass.sim.live import Record
from windlass.sim.promises import Promises


class Checker:
    """Given to the engine; `again` says how often the whole decision is made anew (I10)."""

    def __init__(
        self, policy: Policy, *, again: int = 1, promises: bool = False, late: float = 1e-6
    ) -> None:
        self.policy, self.again = policy, again
        self.promises = Promises(late) if promises else None
        self.checked = 0
        self._used_before: dict[str, dict[str, int]] = {}
        self._committed_before: dict[str, int] = {}

    def before(self, snapshot: Snapshot, decision: Decision, now: float) -> None:
        """The decision against the facts it was made on."""
        self.checked += 1
        if self.again and self.checked % self.again == 0:
            same_answer(snapshot, decision, now, self.policy)
        no_orphan_evictions(snapshot, decision, now)
        advance_invariants.hold(snapshot, decision, now)
        queues_keep_their_guarantees(snapshot, decision, now)
        if self.promises is not None:
            self.promises.decided(snapshot, decision, now)
        self._used_before = used_by_queue(snapshot)
        self._committed_before = commitments(snapshot)

    def after(self, snapshot: Snapshot, decision: Decision, now: float) -> None:
        """The facts once the decision was carried out."""
        facts = snapshot.facts()
        nodes = {node.name: node for node in facts.nodes}
        everybody = [(r.unit, seat) for r in facts.running for seat in r.seats]
        within_capacity(nodes, everybody, now)
        within_capacity(nodes, _as_promised(facts), now, "I5 (nominated room)")
        changed = {placement.unit for placement in decision.placements}
        changed |= {eviction.unit for eviction in decision.evictions}
        moved = [running for running in facts.running if running.unit.key in changed]
        whole_gangs(moved, now)
        in_one_domain(facts.levels, nodes, moved, now)
        within_limits(snapshot, self._used_before, now)
        firm_within_commitments(snapshot, self._committed_before, now)

    def started(self, record: Record, now: float) -> None:
        """I9; only where runtimes are honest and no node is lost."""
        if self.promises is not None:
            self.promises.started(record.job.unit.key, now)

    def idle(self, decision: Decision, now: float) -> None:
        """Nothing was decided because nothing could change."""
        if decision.placements or decision.evictions:
            raise Broken(f"at {now} a decision was left out that starts or stops somebody")


def same_answer(snapshot: Snapshot, decision: Decision, now: float, policy: Policy) -> None:
    """I10: built fresh from the same facts, in another order, the answer is the same."""
    facts = snapshot.facts()
    turned = dataclasses.replace(
        facts,
        nodes=facts.nodes[::-1],
        running=facts.running[::-1],
        waiting=facts.waiting[::-1],
    )
    fresh = cycle.decide(state.build(turned, snapshot.history), now, policy)
    for field in dataclasses.fields(Decision):
        mine, other = getattr(decision, field.name), getattr(fresh, field.name)
        if mine != other:
            raise Broken(
                f"I10 at {now}: {field.name} of a snapshot built fresh differ: "
                f"{_difference(mine, other)}"
            )


def within_limits(snapshot: Snapshot, before: Mapping[str, Mapping[str, int]], now: float) -> None:
    """I4: nobody starts beyond a limit."""
    after = used_by_queue(snapshot)
    for name, queue in snapshot.queues.items():
        for resource, limit in queue.limit.items():
            held = after[name].get(resource, 0)
            if held > limit and held > before.get(name, {}).get(resource, 0):
                raise Broken(
                    f"I4 at {now}: queue {name} holds {held} {resource}, its limit is {limit}"
                )


def firm_within_commitments(snapshot: Snapshot, before: Mapping[str, int], now: float) -> None:
    """I4: who cannot be preempted starts only where the guarantees of others still fit beside it.
    A queue is committed to its guarantee, or to what its non-preemptible units hold and its
    children are committed to, if that is more; what all roots are committed to fits the cluster,
    or is no more than it was before."""
    for resource, after in commitments(snapshot).items():
        most = max(before.get(resource, 0), snapshot.tree.capacity.get(resource, 0))
        if after > most:
            raise Broken(
                f"I4 at {now}: guarantees and what cannot be preempted come to {after} "
                f"{resource}, there is {snapshot.tree.capacity.get(resource, 0)}"
            )


def commitments(snapshot: Snapshot) -> dict[str, int]:
    """Of all roots, by resource that is guaranteed to anybody."""
    direct: dict[str, dict[str, int]] = {}
    for key, running in snapshot.running.items():
        if not running.unit.preemptible:
            sums = direct.setdefault(running.unit.queue, {})
            for resource, amount in snapshot.held[key].items():
                sums[resource] = sums.get(resource, 0) + amount
    tree = snapshot.tree

    def of(name: str, resource: str) -> int:
        below = sum(of(child, resource) for child in tree.children.get(name, ()))
        load = direct.get(name, {}).get(resource, 0) + below
        return max(tree.guarantee[name].get(resource, 0), load)

    roots = tree.children.get("", ())
    return {r: sum(of(name, r) for name in roots) for r in sorted(tree.guaranteed)}


def used_by_queue(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """What each queue and those below it hold, added up from the running units."""
    sums: dict[str, dict[str, int]] = {name: {} for name in snapshot.queues}
    for key, running in snapshot.running.items():
        for name in _upwards(running.unit.queue, snapshot.queues):
            for resource, amount in snapshot.held[key].items():
                sums[name][resource] = sums[name].get(resource, 0) + amount
    return sums


def _upwards(name: str, queues: Mapping[str, Queue]) -> list[str]:
    path: list[str] = []
    while name in queues and name not in path:
        path.append(name)
        name = queues[name].parent
    return path


def _as_promised(facts: Facts) -> Members:
    """Who sits where once all who must go are gone and all who are promised are there."""
    waiting = {unit.key: unit for unit in facts.waiting}
    members: Members = [
        (running.unit, seat)
        for running in facts.running
        for seat in running.seats
        if (seat.role, seat.index) not in running.leaving
    ]
    held: tuple[Nomination, ...] = facts.nominations
    for nomination in held:
        unit = waiting.get(nomination.unit)
        if unit is not None:
            members += [(unit, seat) for seat in nomination.seats]
    return members


def _difference(mine: object, other: object) -> str:
    if isinstance(mine, tuple) and isinstance(other, tuple):
        for one, two in zip(mine, other, strict=False):
            if one != two:
                return f"{one} against {two}"
        return f"{len(mine)} against {len(other)}"
    return f"{mine} against {other}"
