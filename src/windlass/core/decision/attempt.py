"""A waiting workload at its turn, and which others would get the same answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from windlass.core.decision.shadows import Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import Workload
from windlass.core.placement import pod_affinity
from windlass.core.quota.quota_tree import Sums


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    workload: Workload
    requests: Sequence[PodSetRequest]
    """Its minimum."""
    need: Sums
    """What that counts for in quotas."""
    pods: int
    end: float | None
    """When it is expected to end if it starts now."""
    overlapping: tuple[Reservation, ...]
    """Reservations that it would run into and must not delay."""


def equivalence_key(state: DecisionState, attempt: Attempt, model: str = "") -> object:
    """Everything that the answer to "does it fit" depends on, but the number of pods."""
    workload, requests, pod_index = attempt.workload, attempt.requests, state.context.pod_index
    shapes = tuple([state.context.cluster.shape_of(request.role, model).id for request in requests])
    terms = tuple([(w.role.affinities, w.role.spreads, w.role.labels) for w in requests])
    picky = any(a or s for a, s, _ in terms)
    namespace = workload.namespace if picky or pod_index.has_anti_affinity else ""
    counts = tuple([request.count for request in requests]) if len(requests) > 1 else ()
    pod_terms = (
        tuple([pod_affinity.matching_pods(pod_index, workload, w.role) for w in requests])
        if picky
        else ()
    )
    # The node of one pod decides whether the next one fits.
    preferences = (workload.pack, *(w.role.prefers for w in requests)) if picky or counts else ()
    return (
        shapes,
        counts,
        workload.topology,
        attempt.overlapping,
        terms,
        namespace,
        pod_terms,
        preferences,
    )
