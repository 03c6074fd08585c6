"""Reclaiming from placements of the same decision.

A workload that may reclaim its queue's guarantee may be considered after borrowers that were just
placed. Without this step the next decision would have to evict them, or other workloads of their
queues. So after the main pass every refused workload that may reclaim is tried again:

1. Placements of this decision are retracted if that frees enough, also non-preemptible ones, but
   for placements that outrank an evictable workload of their own queue.
2. Otherwise they count as running, and victims are selected as usual.

After a retraction all waiting workloads are considered again. Placements for which workloads were
evicted are never retracted. The work grows with both, so the step is skipped where many workloads
may reclaim or many were placed.
"""

from __future__ import annotations

from collections.abc import Callable

from windlass.core.admission import checks
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Workload
from windlass.core.preemption import preemption
from windlass.core.preemption.evict import RetractedStarts
from windlass.core.preemption.feasibility import LowerPriorityCache
from windlass.core.preemption.preemption import PreemptionCache
from windlass.core.preemption.preemption_request import SureStarts
from windlass.core.preemption.victims import victim_candidates
from windlass.core.preemption.victims.reclaim import ReclaimCache
from windlass.core.preemption.victims.victim_candidates import CandidateCache
from windlass.core.quota import device_models
from windlass.core.reservation import backfill

MOST_RECLAIMING, MOST_STARTS = 32, 256
"""Beyond these the step is skipped: what is not reclaimed now is reclaimed by the next decision."""


def run(state: DecisionState, consider_all: Callable[[], None]) -> None:
    """`consider_all` gives all waiting workloads another turn."""
    rights = preemption.rights(state)
    if len(rights) > MOST_RECLAIMING or len(state.placements) > MOST_STARTS:
        return
    victim_candidates.cache_of(state).late = True
    for retracting in (True, False):  # running workloads go only where retracting does not help
        evicts = bool(state.evictions) and not retracting
        for _ in range(MOST_RECLAIMING):
            if not rights or not (evicts or any(victim_candidates.retractable(state))):
                break
            if not _round(state, consider_all, retracting=retracting):
                break


def _round(state: DecisionState, consider_all: Callable[[], None], *, retracting: bool) -> bool:
    """Whether any workload got a place. If starts were retracted for it, all waiting workloads are
    considered again: the retracted ones may fit elsewhere, and others in their old place."""
    found, before = False, list(state.placements)
    _begin(state, retracting=retracting)
    for key, over in list(preemption.rights(state).items()):
        waiting = state.workload(key)
        if waiting is None or key in state.placements or key in state.nominations:
            continue
        if retracting and key in state.cache(RetractedStarts).keys:
            continue
        workload = device_models.permitted(state.context.cluster, state.tree, waiting)
        if not isinstance(workload, Workload):
            continue
        if checks.barred(state, workload) is not None:
            continue  # its user may hold no more by now
        if preemption.preempt(state, backfill.attempt(state, workload), over, None).found:
            found = True
            _begin(state, retracting=retracting)
    victim_candidates.cache_of(state).retracting = False
    if any(key not in state.placements for key in before):
        _begin(state, retracting=False)
        consider_all()
    return found


def _begin(state: DecisionState, *, retracting: bool) -> None:
    """Starts a round: what earlier ones found out about victims does not hold any more."""
    state.put_cache(CandidateCache(late=True, retracting=retracting))
    state.put_cache(LowerPriorityCache(evictions=len(state.evictions)))
    for kind in (ReclaimCache, PreemptionCache, SureStarts):
        state.put_cache(kind())
