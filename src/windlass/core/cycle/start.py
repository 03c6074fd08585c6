"""Starting a waiting workload in what is free now."""

from __future__ import annotations

import dataclasses

from windlass.core.decision import attempt as attempts
from windlass.core.decision.attempt import Attempt
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import PodAssignment
from windlass.core.placement import placement_context
from windlass.core.placement.placement_context import PlacementFailure
from windlass.core.quota import device_models
from windlass.core.reservation import commit, overlap


@dataclasses.dataclass(slots=True)
class _Stuck:
    """Why workloads like this one, with as many pods, do not fit."""

    pods: int
    failure: PlacementFailure


class _StuckCache(dict[object, _Stuck]):
    """Equivalence key -> what did not fit; free capacity only shrinks."""


def start(state: DecisionState, attempt: Attempt) -> PlacementFailure | None:
    """Places the minimum of a workload with the best acceptable model, or returns what is
    missing."""
    failures: list[PlacementFailure] = []
    for model in device_models.in_turn(attempt.workload):
        pods = _place(state, attempt, model)
        if not isinstance(pods, PlacementFailure):
            commit.start(state, attempt.workload, pods)
            return None
        failures.append(pods)
    if len(failures) == 1:
        return failures[0]
    best = max(failures, key=lambda failure: failure.fitting)
    return dataclasses.replace(best, resolved=all(f.resolved for f in failures))


def _place(
    state: DecisionState, attempt: Attempt, model: str
) -> tuple[PodAssignment, ...] | PlacementFailure:
    """As `overlap.place`, but what is known to be stuck is not tried again."""
    requests, stuck = attempt.requests, state.shrinking_cache(_StuckCache)
    known = stuck.get(attempts.equivalence_key(state, attempt, model)) if stuck else None
    if known is not None and attempt.pods >= known.pods:
        return placement_context.restate(known.failure, requests)
    if state.work.exhausted:
        return PlacementFailure(requests[0].role, requests[0].count, 0, resolved=False)
    context = state.context.limited(model=model) if model else state.context
    answer = overlap.place(state, attempt, context)
    if isinstance(answer, PlacementFailure):
        stuck[attempts.equivalence_key(state, attempt, model)] = _Stuck(attempt.pods, answer)
    return answer
