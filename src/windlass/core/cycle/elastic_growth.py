"""Elastic workloads grow beyond their minimum into what no waiting workload could use."""

from __future__ import annotations

from windlass.core.admission import user_limits
from windlass.core.decision import incomplete_gangs
from windlass.core.decision.state import DecisionState
from windlass.core.model import gangs
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import Role, Running, Workload
from windlass.core.placement.placement_context import PlacementFailure
from windlass.core.prediction import aging
from windlass.core.queueing import queue_order
from windlass.core.quota import usage
from windlass.core.quota.quota_tree import Sums
from windlass.core.reservation import commit, overlap, quota_forecast


def grow(state: DecisionState) -> None:
    """Adds pods one by one, in the order in which the workloads would start. Waiting workloads were
    tried before, and reserved capacity stays free, so growth delays none of them."""
    if not state.policy.grow:
        return
    for running in sorted(_elastic(state), key=lambda each: _rank(state, each)):
        if _is_pausing(state, running):
            continue
        grown = running
        for role in running.workload.roles:
            bound = role if state.windows is None else state.windows.growing(running, role)
            grown = _add_pods(state, grown, bound)


def _elastic(state: DecisionState) -> list[Running]:
    evicted = {eviction.workload for eviction in state.evictions}
    may_grow = dict.fromkeys((*state.snapshot.running_index.growing, *state.placements))
    return [
        running
        for key, running in ((key, state.running[key]) for key in may_grow)
        if running.workload.queue in state.tree.queues
        and running.workload.queue not in state.tree.paused
        and not running.leaving
        and not gangs.missing_pods(running)
        and key not in evicted
        and any(_count(running, role) < role.max_count for role in running.workload.roles)
    ]


def _is_pausing(state: DecisionState, running: Running) -> bool:
    """Whether it gave surplus back a short while ago; asks for a decision when the pause is over.
    Without a pause each of many short workloads would shrink it, and it would grow again when that
    workload ends: some workloads must start anew for every change of their size."""
    if running.shrunk_at is None:
        return False
    until = running.shrunk_at + state.policy.growth_pause
    if until <= state.now:
        return False
    state.wakeups.append(until)
    return True


def _rank(state: DecisionState, running: Running) -> tuple[object, ...]:
    workload = running.workload
    queue = state.queue_of(workload)
    return state.tree.rank(workload.queue, {}), queue_order.rank(queue, workload, state.ordering)


def _count(running: Running, role: Role) -> int:
    return sum(pod.role == role.name for pod in running.pods)


def _add_pods(state: DecisionState, running: Running, role: Role) -> Running:
    taken = {pod.index for pod in running.pods if pod.role == role.name}
    for number in (n for n in range(role.max_count) if n not in taken):
        if state.work.exhausted:
            break
        grown = _one_more(state, running, PodSetRequest(role, 1, number))
        if grown is None:
            break
        running = grown
    return running


def _one_more(state: DecisionState, running: Running, request: PodSetRequest) -> Running | None:
    """The workload with one more pod, where quotas, reservations and its domain allow it."""
    workload, context = running.workload, state.context
    end = aging.estimated_end(running.expected_end, state.now)
    need = usage.of_requests(context.cluster, [request])
    if not _quotas_allow(state, workload, request, need):
        return None
    attempt = overlap.one_pod(state, workload, request, end)
    reservations = attempt.overlapping
    if reservations and quota_forecast.shortage_beside(state, workload, need, reservations):
        return None
    mark, within = (
        context.cluster.mark(),
        incomplete_gangs.required_domain(context.cluster, running),
    )
    pods = overlap.place(state, attempt, context.limited(within=within))
    if isinstance(pods, PlacementFailure):
        return None
    held = usage.of_pods(context.cluster, workload.roles, pods)
    if state.tree.shortage(workload.queue, held, non_preemptible=not workload.preemptible):
        context.cluster.rollback(mark)  # of the model that was free, its queue may use no more
        return None
    return commit.grow(state, running, pods, held, end)


def _quotas_allow(
    state: DecisionState, workload: Workload, request: PodSetRequest, need: Sums
) -> bool:
    if state.tree.shortage(workload.queue, need, non_preemptible=not workload.preemptible):
        return False
    if not workload.preemptible and state.tree.displaces(workload.queue, need):
        return False  # it could not be preempted: another workload of its queue would be instead
    if state.namespace_quotas.shortage(workload.namespace, need, 1):
        return False
    return not user_limits.shortage(state, workload, [request], need, workloads=0)
