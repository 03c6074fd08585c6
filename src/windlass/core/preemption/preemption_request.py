"""What a waiting workload may ask of running ones, by what can be counted on."""

from __future__ import annotations

import dataclasses
import itertools

from windlass.core.decision import terminating
from windlass.core.decision.attempt import Attempt
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Workload
from windlass.core.preemption.victims import victim_candidates
from windlass.core.preemption.victims.candidates import PreemptionRequest
from windlass.core.quota.quota_tree import Sums
from windlass.core.snapshot.running_index import EvictionUnit


@dataclasses.dataclass(slots=True)
class SureStarts:
    """Workloads that surely start, as of one round of preemption."""

    by_queue: dict[str, list[tuple[Workload, Sums]]] = dataclasses.field(default_factory=dict)
    seen: int = 0
    """Placements that are counted already."""


def make(
    state: DecisionState, attempt: Attempt, over: frozenset[str], *, may_reclaim: bool
) -> PreemptionRequest:
    """What the workload may preempt, judged by usage that is certain."""
    workload, need, tree = attempt.workload, attempt.need, state.tree
    if may_reclaim or tree.is_bound(workload.queue, non_preemptible=not workload.preemptible):
        tree = terminating.of(state).tree_at_worst()
    scarce = (
        victim_candidates.scarce_resources(state, workload, over)
        if may_reclaim
        else frozenset[str]()
    )
    borrowed = (
        victim_candidates.borrowed_resources(tree, workload.queue, need) if scarce else scarce
    )
    contested = victim_candidates.contested_resources(tree, borrowed, need)
    inside = may_reclaim and tree.within_guarantee(workload.queue, need)
    departed, repaired = _departed(state), _repaired(state, workload)
    starting = _starting(state)
    return PreemptionRequest(
        workload, need, scarce, contested, borrowed, tree, inside, departed, repaired, starting
    )


def _departed(state: DecisionState) -> dict[str, list[EvictionUnit]]:
    """By queue: eviction units that are evicted."""
    found = dict[str, list[EvictionUnit]]()
    for piece in terminating.of(state).evicted().values():
        found.setdefault(piece.running.workload.queue, []).append(piece)
    return found


def _repaired(state: DecisionState, preemptor: Workload) -> dict[str, list[str]]:
    """By queue: gangs that are being completed, and the preemptor if it is one."""
    found = dict[str, list[str]]()
    for key, workload in state.missing.items():
        if key in state.placements or key in state.nominations or key == preemptor.key:
            found.setdefault(workload.queue, []).append(key)
    return found


def _starting(state: DecisionState) -> dict[str, list[tuple[Workload, Sums]]]:
    """By queue: workloads that certainly start, because others were evicted for them, and their
    usage. Other starts of this decision may still be retracted, so no workload is evicted because
    of them until step 5 of the cycle."""
    cache, snapshot = state.cache(SureStarts), state.snapshot
    for key in itertools.islice(state.placements, cache.seen, None):
        if key in state.usage and key in snapshot.waiting and key in snapshot.nominations:
            workload = snapshot.waiting[key]
            cache.by_queue.setdefault(workload.queue, []).append((workload, state.usage[key]))
    cache.seen = len(state.placements)
    found = cache.by_queue
    if state.nominations:
        found = {queue: list(workloads) for queue, workloads in found.items()}
        for key in sorted(state.nominations):
            preemptor = state.workload(key)
            if preemptor is not None:
                found.setdefault(preemptor.queue, []).append((preemptor, state.need(preemptor)))
    return found
