"""Whether a workload surely waits: found by sums, before it has a turn.

Most workloads that wait for a full cluster cannot be helped by anything that a decision does. There
is too little free capacity for them even where nothing is reserved, and too little if all went that
they may preempt. Both are sums that only shrink while a decision is made, so they are found once
per shape and queue. A workload that is refused here has no turn; one that is not refused is not
said to start: it is considered like any other.
"""

from __future__ import annotations

from typing import NamedTuple

from windlass.core.decision import free_capacity
from windlass.core.decision.shadows import Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Verdict
from windlass.core.placement.placement_context import PlacementFailure
from windlass.core.preemption import batch_bounds, feasibility
from windlass.core.preemption.batch_bounds import BatchRefusal
from windlass.core.queueing.workload_info import WorkloadInfo
from windlass.core.quota import device_models
from windlass.core.reservation import allowance, backfill, quota_forecast
from windlass.core.verdicts import messages


class Refusal(NamedTuple):
    """A verdict on a workload that surely waits, until another workload is evicted."""

    verdict: Verdict
    for_class: bool
    """It holds for all workloads of its equivalence class, not only beside the reservations that
    this one must not delay."""
    why: str
    """Why preemption does not help; empty: there is no workload that it may preempt."""


class _Verdicts(dict[object, Verdict]):
    """What is missing -> the verdict. It names the first workload that missed it, and the free
    capacity that there was then."""


def refusal(state: DecisionState, info: WorkloadInfo) -> Refusal | None:
    """The verdict on a workload that surely waits; None: it must be considered."""
    bounds = batch_bounds.of(state)
    known = bounds.refusal(state, info)
    if known is not None:
        if allowance.may_reserve(state, info.workload) or _is_over_quota(state, info):
            return None
        return Refusal(_verdict_of(state, info, known), for_class=True, why=known.why)
    workload = info.workload
    if workload.queue not in bounds.plain:
        return None
    reservations = backfill.overlapping(state, workload, state.expected_end(workload))
    failure = _missing(state, info, reservations)
    if failure is None or allowance.may_reserve(state, workload) or _is_over_quota(state, info):
        return None
    if quota_forecast.shortage_beside(state, workload, info.need, reservations) is not None:
        return None
    futility = feasibility.in_vain(state, info, failure, reservations)
    if not futility.in_vain:
        return None
    if failure.reserved_until is None:
        bounds.count_missed()
    return Refusal(_verdict(state, info, failure, futility.why), futility.for_class, futility.why)


def _verdict_of(state: DecisionState, info: WorkloadInfo, known: BatchRefusal) -> Verdict:
    request = known.request
    key = _key(info, request.role.name, request.count, known.topology, None, known.why)
    found = state.cache(_Verdicts).get(key)
    if found is not None:  # most workloads miss the same as one before
        return found
    failure = PlacementFailure(request.role, request.count, known.fitting, known.topology)
    return _verdict(state, info, failure, known.why)


def _verdict(
    state: DecisionState, info: WorkloadInfo, failure: PlacementFailure, why: str
) -> Verdict:
    """`messages.no_capacity`, made once for all workloads that miss the same."""
    cache, until = state.cache(_Verdicts), failure.reserved_until
    key = _key(info, failure.role.name, failure.wanted, failure.topology, until, why)
    found = cache.get(key)
    if found is None:
        found = cache[key] = messages.no_capacity(state, info.workload, failure, why)
    return found


def _key(
    info: WorkloadInfo, role: str, wanted: int, near: bool, until: float | None, why: str
) -> object:
    """Everything that the message depends on, but the free capacity."""
    return info.shapes, info.level, role, wanted, near, until, why


def _is_over_quota(state: DecisionState, info: WorkloadInfo) -> bool:
    """Whether a quota is in the way: then that is what the verdict should say."""
    tree, workload = state.tree, info.workload
    if workload.namespace not in state.namespace_quotas.used and not tree.is_restricted(
        workload.queue, workload.preemptible
    ):
        return False
    return (
        device_models.permitted(state.context.cluster, tree, workload) is not workload
        or state.namespace_shortage(workload) is not None
        or tree.shortage(workload.queue, info.need, non_preemptible=not workload.preemptible)
        is not None
    )


def _missing(
    state: DecisionState, info: WorkloadInfo, reservations: tuple[Reservation, ...]
) -> PlacementFailure | None:
    """Too little free capacity, or too little that is not reserved."""
    if not free_capacity.is_counted(state, info):
        return None
    failure = _too_little(state, info)
    if failure is None and reservations:
        failure = _too_little_beside(state, info, reservations)
    return failure


def _too_little(state: DecisionState, info: WorkloadInfo) -> PlacementFailure | None:
    """What is missing even if nothing were reserved."""
    requests = info.requests
    if len(requests) > 1:
        return _short_of_one(state, info)
    (request,), (shape,), free = requests, info.shapes, free_capacity.of(state)
    fitting = free.in_all(shape, request.count)
    if fitting < request.count:
        return PlacementFailure(request.role, request.count, fitting)
    if not info.level:
        return None
    fitting = free.in_one(shape, info.level, request.count)
    return (
        PlacementFailure(request.role, request.count, fitting, topology=True)
        if fitting < request.count
        else None
    )


def _too_little_beside(
    state: DecisionState, info: WorkloadInfo, reservations: tuple[Reservation, ...]
) -> PlacementFailure | None:
    """What is missing beside reservations, for a workload that would fit without them."""
    free, due = free_capacity.of(state), min([each.start for each in reservations])
    for request, shape in zip(info.requests, info.shapes, strict=True):
        levels = ("", info.level) if info.level and len(info.requests) == 1 else ("",)
        if len(levels) == 1 and free.outside(shape, request.count, reservations) >= request.count:
            continue  # on nodes of which nothing is reserved
        for level in levels:
            fitting = free.beside(state.context, shape, level, request, reservations)
            if fitting < request.count:
                near = bool(level)
                return PlacementFailure(
                    request.role, request.count, fitting, topology=near, reserved_until=due
                )
    return None


def _short_of_one(state: DecisionState, info: WorkloadInfo) -> PlacementFailure | None:
    """Of several roles, the one for which there is the least free capacity."""
    short, free = [], free_capacity.of(state)
    for request, shape in zip(info.requests, info.shapes, strict=True):
        fitting = free.in_all(shape, request.count)
        if fitting < request.count:
            short.append((fitting / request.count, request.role.name, fitting, request))
    if not short:
        return None
    _, _, fitting, request = min(short)
    return PlacementFailure(request.role, request.count, fitting)
