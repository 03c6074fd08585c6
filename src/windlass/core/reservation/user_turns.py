"""Which user's workloads get a reservation first, in queues where users take turns."""

from __future__ import annotations

import dataclasses

from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Workload
from windlass.core.queueing import queue_order


@dataclasses.dataclass(slots=True)
class LeastShares:
    by_queue: dict[str, int] = dataclasses.field(default_factory=dict)
    """Queue in which users take turns -> the smallest share of a user with waiting workloads."""


def comes_later(state: DecisionState, other: Workload, workload: Workload) -> bool:
    """Whether a workload with a reservation comes after another of its queue because its user has
    more. It keeps its reservation and does not use up that of the other: else one user, whose next
    workload gets a reservation whenever one has started, would keep them all."""
    queue = state.queue_of(workload)
    if other.user == workload.user or not queue_order.is_fair(queue):
        return False
    if queue_order.priority(queue, other) > queue_order.priority(queue, workload):
        return False
    shares = state.ordering.share_by_user
    return shares.get((other.queue, other.user), 0) > shares.get((workload.queue, workload.user), 0)


def may_reserve(state: DecisionState, workload: Workload) -> bool:
    """Whether a user of the workload's queue with less than its own user may still reserve."""
    queue = state.queue_of(workload)
    if not queue_order.is_fair(queue) or not queue.max_reservations:
        return False
    least = state.cache(LeastShares).by_queue.get(queue.name)
    shares = state.ordering.share_by_user
    if least is None:
        users = {other.user for other in state.snapshot.pending_in(queue.name)}
        least = min((shares.get((queue.name, user), 0) for user in users), default=0)
        state.cache(LeastShares).by_queue[queue.name] = least
    before = [
        reservation
        for reservation in state.reservations
        if reservation.workload.queue == queue.name
        and shares.get((queue.name, reservation.workload.user), 0) <= least
    ]
    return len(before) < queue.max_reservations
