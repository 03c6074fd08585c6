"""What a decision does to its state when a workload gets pods, or loses those it was to get."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Nomination, Placement, PodAssignment, Running, Workload
from windlass.core.quota import usage
from windlass.core.quota.quota_tree import Sums
from windlass.core.reservation import overlap, reservations, withdrawals


def start(state: DecisionState, workload: Workload, pods: tuple[PodAssignment, ...]) -> None:
    """The workload starts on pods whose capacity is already taken from the cluster."""
    state.context.cluster.settle()
    held = usage.of_pods(state.context.cluster, workload.roles, pods)
    end = state.expected_end(workload)
    gang = state.snapshot.running.get(workload.key)
    state.placements[workload.key] = Placement(workload.key, pods)
    if gang is None:
        state.usage[workload.key] = held
        state.running[workload.key] = Running(workload, pods, state.now, end, state.now)
    else:  # a gang that lost pods is completed
        state.running[workload.key] = dataclasses.replace(gang, pods=(*gang.pods, *pods))
    _commit(state, workload, pods, held, end, is_member=gang is not None)


def nominate(state: DecisionState, workload: Workload, pods: tuple[PodAssignment, ...]) -> None:
    """Keeps capacity for the workload until the pods of victims that still hold it are gone."""
    state.nominations[workload.key] = Nomination(workload.key, pods)
    roles = {role.name: role for role in workload.roles}
    for pod in pods:
        state.context.cluster.occupy(roles[pod.role], pod)
    held = usage.of_pods(state.context.cluster, workload.roles, pods)
    end, is_member = state.expected_end(workload), workload.key in state.snapshot.running
    _commit(state, workload, pods, held, end, is_member=is_member)


def grow(
    state: DecisionState,
    running: Running,
    pods: tuple[PodAssignment, ...],
    held: Sums,
    end: float | None,
) -> Running:
    """A workload that runs or starts gets more pods, whose capacity is already taken. `held`: what
    they count for in quotas. Returns the workload with these pods."""
    state.context.cluster.settle()
    workload = running.workload
    started = state.placements.get(workload.key)
    added = (*started.pods, *pods) if started else pods
    state.placements[workload.key] = Placement(workload.key, added)
    grown = dataclasses.replace(running, pods=(*running.pods, *pods))
    state.running[workload.key] = grown
    _commit(state, workload, pods, held, end, is_member=True)
    return grown


def _commit(
    state: DecisionState,
    workload: Workload,
    pods: Sequence[PodAssignment],
    held: Sums,
    end: float | None,
    *,
    is_member: bool,
) -> None:
    """Counts pods of a workload: in quotas, in the index of pods, and beside reservations.
    `is_member`: the workload itself is counted already."""
    state.generation += 1
    state.tree.add(workload.queue, held, non_preemptible=not workload.preemptible)
    state.namespace_quotas.add(workload.namespace, held, len(pods))
    state.user_quotas.add(workload, held, is_member=is_member)
    state.context.pod_index.add_placed(workload, pods)
    overlap.release(state, workload)
    overlap.take(state, workload, pods, end)


def retract(state: DecisionState, key: str) -> None:
    """A start of this decision is taken back: another workload has a better right to its place."""
    del state.placements[key]
    running, held = state.running.pop(key), state.usage.pop(key)
    workload, roles = running.workload, {role.name: role for role in running.workload.roles}
    for pod in running.pods:
        state.context.cluster.release(roles[pod.role], pod)
    state.context.cluster.settle()
    state.tree.add(workload.queue, held, non_preemptible=not workload.preemptible, sign=-1)
    state.namespace_quotas.add(workload.namespace, held, len(running.pods), sign=-1)
    state.user_quotas.add(workload, held, sign=-1)
    state.context.pod_index.remove(running)
    overlap.give_back(state, running)
    withdrawals.note(state, key, "another queue reclaims its guarantee")
    state.retracted()
    reservations.restore(state, workload)
