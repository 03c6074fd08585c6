"""Running workloads that make place for a reservation when it is due.

They were started in front of the reservation on the understanding that they would be gone by then:
workloads without an estimate, where the policy lets preemptible ones in, and backfilled workloads
that ran longer than they said. They are preempted by the checkpoint contract, before any other
workload and only as many as it takes. What lies inside the guarantee of another queue stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from windlass.core.cluster.cluster import Cluster
from windlass.core.decision import terminating
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Running, Workload
from windlass.core.quota.quota_tree import QuotaTree, Sums

UNKNOWN = "reservation start time reached"
OVERRAN = "it ran longer than expected, and a reservation on its nodes is due"


def candidates(
    state: DecisionState, workload: Workload, nodes: set[str], made: float | None, at: float
) -> list[Running]:
    """Workloads on these nodes that yield at a time to the workload's reservation of an earlier
    decision: first those that overran, then those without an estimate; the newest first."""
    on = state.snapshot.workloads_on
    there = dict.fromkeys(key for name in sorted(nodes) for key in on.get(name, ()))
    found = [
        running
        for key in there
        if (running := state.snapshot.running[key]).workload.preemptible
        and not running.leaving
        and running.protected_until <= at
        and (_is_silent_guest(state, running) or overran(state, running, made))
    ]
    found.sort(key=lambda each: (each.expected_end is None, -each.started, each.workload.key))
    if not found or len(state.tree.queues) == 1:
        return found
    tree = terminating.of(state).tree_without()
    return [each for each in found if _is_spared(tree, workload.queue, each, state.usage)]


def _is_spared(tree: QuotaTree, queue: str, guest: Running, held: Mapping[str, Sums]) -> bool:
    """Whether the queues of a guest keep their guarantees without it; it is then taken off the
    tree. A queue above the one that takes stands for its own workloads only."""
    own, amounts = guest.workload.queue, held[guest.workload.key]
    if own in tree.path(queue)[1:]:
        keeps = all(
            tree.direct(tree.used, own, r) - amount >= tree.direct(tree.guarantee, own, r)
            for r, amount in amounts.items()
            if amount
        )
    else:
        keeps = all(
            tree.used[level].get(r, 0) - amount >= tree.guarantee[level].get(r, 0)
            for level in tree.diverging_paths(queue, own)[1]
            for r, amount in amounts.items()
            if amount
        )
    if keeps:
        tree.add(own, amounts, non_preemptible=False, sign=-1)
    return keeps


def overran(state: DecisionState, running: Running, made: float | None) -> bool:
    """Whether a workload that was started after the reservation was made should have ended."""
    end = running.expected_end
    return made is not None and end is not None and running.started >= made and end <= state.now


def _is_silent_guest(state: DecisionState, running: Running) -> bool:
    return state.policy.unknown_runtime == "preemptible" and running.expected_end is None


def free(cluster: Cluster, running: Running) -> None:
    roles = {role.name: role for role in running.workload.roles}
    for pod in running.pods:
        if pod.role in roles:
            cluster.release(roles[pod.role], pod)
