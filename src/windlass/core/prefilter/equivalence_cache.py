"""Verdicts that hold for other workloads too, so that these need not be considered.

Thousands of workloads wait, in tens of equivalence classes. In one decision free capacity and quota
only shrink, so what did not fit once does not fit again, and as long as nothing changes workloads
of one class get the same verdict. Nothing is carried over from one decision to the next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from windlass.core.admission import checks
from windlass.core.decision.shadows import Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.equivalence import UNIQUE
from windlass.core.model.types import Verdict, Workload
from windlass.core.preemption import preemption
from windlass.core.prefilter import prefilter
from windlass.core.queueing import queue_order
from windlass.core.reservation import allowance, backfill
from windlass.core.verdicts import messages
from windlass.kinds.reasons import Reason

_FOR_CLASS = (Reason.WAITING_FOR_CAPACITY, Reason.WAITING_FOR_TOPOLOGY, Reason.IMPOSSIBLE)
"""Reasons that can hold for all workloads of a class until the decision ends."""


@dataclasses.dataclass(slots=True)
class EquivalenceCache:
    """Verdicts by equivalence class."""

    unschedulable: dict[int, Verdict] = dataclasses.field(default_factory=dict)
    """Classes of which no workload starts any more in this decision."""
    until_eviction: dict[int, Verdict] = dataclasses.field(default_factory=dict)
    """Classes of which no workload starts until another workload is evicted."""
    over_quota: dict[object, Verdict] = dataclasses.field(default_factory=dict)
    """(class, reservations that it must not delay) that a quota keeps waiting until another
    workload is evicted."""
    this_step: dict[object, Verdict] = dataclasses.field(default_factory=dict)
    """(class, reservations that it must not delay, ...) -> the verdict since `generation`."""
    generation: int = 0
    rest: list[tuple[Iterator[Workload], dict[int, Verdict]]] = dataclasses.field(
        default_factory=list
    )
    """Lines of which all other workloads surely wait, and the verdicts by class. They are given
    when they are asked for."""
    heads: dict[str, int] = dataclasses.field(default_factory=dict)
    """Strict queue -> priority of the last head that waits there: a workload with a higher one does
    not stand behind it."""
    releases: int = 0
    evictions: int = 0
    """As of which changes of the decision."""

    def follow(self, state: DecisionState) -> None:
        """Drops the verdicts that changes of the decision made invalid."""
        self.until_eviction.clear()
        self.over_quota.clear()
        self.evictions = len(state.evictions)
        if self.releases != state.releases:
            self.releases = state.releases
            self.unschedulable.clear()
            self._finish(state)

    def finish(self, state: DecisionState) -> None:
        """Gives the verdicts of workloads that were not considered one by one."""
        if self.rest:
            self._finish(state)

    def _finish(self, state: DecisionState) -> None:
        lines, self.rest = self.rest, []
        cluster = state.context.cluster
        for line, verdicts in lines:
            for workload in line:
                state.considered.append(workload.key)
                if workload.key not in state.nominations and workload.key not in state.placements:
                    kind = cluster.shapes.equivalence_class(workload, cluster.resources)
                    state.verdicts.setdefault(workload.key, verdicts[kind])


def of(state: DecisionState) -> EquivalenceCache:
    """The cache, without what the last changes of the decision made invalid."""
    found = state.cache(EquivalenceCache)
    if found.releases != state.releases or found.evictions != len(state.evictions):
        found.follow(state)
    return found


def finish(state: DecisionState) -> None:
    """Gives the verdicts of workloads that were not considered one by one."""
    of(state).finish(state)


def pass_over(state: DecisionState, workload: Workload) -> bool:
    """Whether the workload surely waits; then it gets its verdict and has no turn."""
    cache, key = of(state), workload.key
    if key in state.reserved_for or key in state.placements or key in state.nominations:
        return False
    if checks.barred(state, workload) is not None:
        return False
    info = state.info(workload)
    kind = info.equivalence_class
    verdict = cache.unschedulable.get(kind)
    if verdict is None and cache.over_quota and kind != UNIQUE:
        verdict = cache.over_quota.get((kind, _overlapping(state, workload)))
        if verdict is not None:
            preemption.same_rights(state, verdict.workload, workload)
    if verdict is None:
        verdict = cache.until_eviction.get(kind)
        if verdict is None:
            refusal = prefilter.refusal(state, info) if kind != UNIQUE else None
            if refusal is None:
                return False
            verdict = refusal.verdict
            if refusal.for_class:
                for_good = _for_good(state, workload, refusal.why)
                (cache.unschedulable if for_good else cache.until_eviction)[kind] = verdict
        elif allowance.may_reserve(state, workload):
            return False
    state.considered.append(key)
    state.verdicts[key] = verdict
    return True


def known(state: DecisionState, workload: Workload) -> Verdict | None:
    """The verdict on the workload if it is known already; it names another workload."""
    cache, kind = of(state), state.info(workload).equivalence_class
    found = cache.unschedulable.get(kind)
    if (
        found is None
        and cache.this_step
        and cache.generation == state.generation
        and kind != UNIQUE
    ):
        found = cache.this_step.get(_key(state, workload, kind))
    if found is None or workload.key in state.reserved_for:
        return None  # not known, or its reservation must be looked at
    return found


def remember(state: DecisionState, workload: Workload, verdict: Verdict, why: str) -> None:
    """The workload got this verdict, and nothing changed for it. `why`: why no workload was evicted
    for it."""
    kind = state.info(workload).equivalence_class
    if kind == UNIQUE or workload.queue not in state.tree.queues:
        return
    if state.queue_of(workload).strict or allowance.may_reserve(state, workload):
        return  # the next of its class is behind it, or may get a reservation
    cache = of(state)
    if verdict.reason in _FOR_CLASS and verdict.resolved and _for_good(state, workload, why):
        cache.unschedulable[kind] = verdict
        return
    if cache.generation != state.generation:
        cache.generation, cache.this_step = state.generation, {}
    cache.this_step[_key(state, workload, kind)] = verdict


def unschedulable(state: DecisionState, workload: Workload, verdict: Verdict) -> None:
    """No workload of its class starts in this decision."""
    kind = state.info(workload).equivalence_class
    if kind != UNIQUE:
        of(state).unschedulable.setdefault(kind, verdict)


def over_quota(state: DecisionState, workload: Workload, verdict: Verdict) -> None:
    """A quota keeps the workload waiting, and no workload can be evicted for it."""
    queue = state.queue_of(workload)
    kind = state.context.cluster.shapes.equivalence_class(workload, state.context.cluster.resources)
    if kind != UNIQUE and not queue.strict and queue.order != "attained":
        of(state).over_quota[kind, _overlapping(state, workload)] = verdict


def block(state: DecisionState, head: Workload) -> None:
    """The head of a strict queue waits: so do all behind it that need the same resources."""
    cache, shapes = of(state), state.context.cluster.shapes
    resource_class = state.info(head).resource_class
    cache.heads[head.queue] = queue_order.priority(state.queue_of(head), head)
    for kind in state.snapshot.equivalence_classes(head.queue):
        if kind != UNIQUE and shapes.resource_classes[kind] == resource_class:
            cache.unschedulable.setdefault(kind, messages.behind(shapes.examples[kind]))


def joins(state: DecisionState, workload: Workload, now: float) -> bool:
    """Whether a workload that is submitted after a decision, to the end of its queue, waits as
    others of its class do, so that nothing need be decided for it."""
    queue = state.tree.queues.get(workload.queue)
    if queue is None or queue.order not in ("fifo", "priority") or not queue_order.is_steady(queue):
        return False
    if workload.submitted != now or state.evictions or state.nominations:
        return False
    cache, cluster = of(state), state.context.cluster
    head = cache.heads.get(workload.queue)
    if head is not None and queue_order.priority(queue, workload) > head:
        return False
    return cluster.shapes.equivalence_class(workload, cluster.resources) in cache.unschedulable


def is_over(state: DecisionState, queue: str, line: Iterator[Workload]) -> bool:
    """Whether all workloads of a queue surely wait: no other one of its line need be considered. As
    long as a reservation of an earlier decision has not had its turn, it may be withdrawn."""
    if state.user_quotas.bind(queue):
        return False  # the verdict depends on the user, which is not part of the class
    cache, kinds = of(state), state.snapshot.equivalence_classes(queue)
    if len(kinds) > len(cache.unschedulable) + len(cache.over_quota):
        return False
    if not all(reservation.fresh for reservation in state.reservations):
        return False
    verdicts: dict[int, Verdict] = {}
    for kind in kinds:
        found = cache.unschedulable.get(kind)
        if found is None and not state.reservations:
            found = cache.over_quota.get((kind, ()))
            if found is not None and found.workload in preemption.rights(state):
                return False  # each of them may be tried again
        if found is None:
            return False
        verdicts[kind] = found
    cache.rest.append((line, verdicts))
    return True


def _for_good(state: DecisionState, workload: Workload, why: str) -> bool:
    """Whether "no capacity" holds for its class until the decision ends: there is no workload that
    it could preempt if it did not have to stay out of reserved places, and no workload of its class
    that waits for longer gets a reservation either."""
    return (
        not why
        and workload.key not in preemption.rights(state)
        and state.queue_of(workload).order != "attained"
        and not state.evictions
        and not state.snapshot.running_index.leaving
        and not allowance.may_reserve_others(state, workload)
    )


def _key(state: DecisionState, workload: Workload, kind: int) -> object:
    """Everything that the verdict may depend on."""
    index = 0.0
    if state.queue_of(workload).order == "attained":
        index = state.ordering.predictor.index(workload, workload.attained)
    return kind, _overlapping(state, workload), index, allowance.may_reserve(state, workload)


def _overlapping(state: DecisionState, workload: Workload) -> tuple[Reservation, ...]:
    """The reservations that it must not delay; its runtime matters only if there are any."""
    if not state.reservations:
        return ()
    return backfill.overlapping(state, workload, state.expected_end(workload))
