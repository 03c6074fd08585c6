"""Capacity that an earlier decision nominated to a workload: kept, and taken once it is free.

It is nominated to a workload that waits, to the missing members of a gang that runs, or to a
running workload that is being moved: that one starts there once it has left its old place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from windlass.core.admission import checks
from windlass.core.cluster import assignment_checks
from windlass.core.decision import terminating
from windlass.core.decision.state import DecisionState
from windlass.core.model import gangs, pod_sets
from windlass.core.model.types import Nomination, PodAssignment, Workload
from windlass.core.placement import gang_placement
from windlass.core.preemption.victims import simulation
from windlass.core.reservation import commit
from windlass.core.verdicts import messages


def keep(state: DecisionState) -> None:
    for key, nomination in sorted(state.snapshot.nominations.items()):
        workload = state.workload(key)
        if workload is None or not _is_valid(state, workload, nomination):
            continue  # the preemptor or its place is gone
        if not _comes_free(state, workload, nomination.pods):
            continue  # a victim did not terminate, or another pod took the place
        if key in state.moving:
            commit.nominate(state, workload, nomination.pods)
            continue
        waits = state.namespace_shortage(workload) or state.tree.shortage(
            workload.queue, state.need(workload), non_preemptible=not workload.preemptible
        )
        if waits is None and gang_placement.allocate_exact(
            state.context.cluster, workload, nomination.pods
        ):
            commit.start(state, workload, nomination.pods)
        else:
            commit.nominate(state, workload, nomination.pods)
            state.verdicts[key] = messages.being_freed(workload)


def _is_valid(state: DecisionState, workload: Workload, nomination: Nomination) -> bool:
    """Whether the nominated places are still there and the workload still needs them."""
    roles = {role.name: role for role in workload.roles}
    wanted = {request.role.name: request.count for request in pod_sets.minimum(workload)}
    cluster, pods = state.context.cluster, nomination.pods
    running = state.snapshot.running.get(workload.key)
    return (
        workload.hold_reason is None
        and checks.barred(state, workload) is None
        and Counter(pod.role for pod in pods) == wanted
        and (workload.key in state.moving or gangs.are_missing(running, pods))
        and all(assignment_checks.serves(cluster, roles[pod.role], pod) for pod in pods)
    )


class _Later:
    """The cluster and the quota tree without terminating workloads, with nominations that stand."""

    def __init__(self, state: DecisionState) -> None:
        going = terminating.of(state)
        self.cluster = simulation.relieved(state.context.cluster, going.resources(), None)
        terminating.free_ports(self.cluster, going.evicted().values())
        self.tree = going.tree_without()


def _comes_free(state: DecisionState, workload: Workload, pods: Sequence[PodAssignment]) -> bool:
    """Whether a nominated place will be free when all terminating workloads are gone. If not, the
    nomination is void."""
    later = state.cache(_Later, lambda: _Later(state))
    cluster, tree, non_preemptible = later.cluster, later.tree, not workload.preemptible
    if workload.queue not in tree.queues or tree.shortage(
        workload.queue, state.need(workload), non_preemptible=non_preemptible
    ):
        return False
    if not gang_placement.allocate_exact(cluster, workload, pods):
        return False
    cluster.settle()
    tree.add(workload.queue, state.need(workload), non_preemptible=non_preemptible)
    return True
