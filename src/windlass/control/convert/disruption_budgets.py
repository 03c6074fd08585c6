"""Disruption budgets: the pods that may be evicted now, as input of a decision.

Of the pods that a budget covers, as many may be evicted as it allows at the moment: the lowest
priority and the youngest. All others count as protected, so that no decision plans with capacity
that pods/eviction would refuse to free. If it refuses nevertheless, the scheduler waits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from windlass.control.convert import external_pods
from windlass.control.model import members, selectors
from windlass.core.model import types
from windlass.kinds.types import cluster, core


@dataclasses.dataclass(slots=True)
class Budget:
    namespace: str
    match: tuple[types.Requirement, ...]
    allowed: int
    may_go: set[str] = dataclasses.field(default_factory=set)
    """Uids of pods that may be evicted under it."""

    def covers(self, pod: core.Pod) -> bool:
        labels = pod.metadata.labels or {}
        return pod.namespace == self.namespace and all(
            external_pods.holds(each, labels) for each in self.match
        )


class Budgets:
    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Budget] = {}

    def put(
        self, key: tuple[str, str], found: cluster.PodDisruptionBudget | None,
        pods: Iterable[core.Pod],
    ) -> set[str]:  # fmt: skip
        """Updates a budget; returns the uids of the pods that it covers or covered."""
        before = self._known.pop(key, None)
        listed = [pod for pod in pods if pod.namespace == key[0] and is_evictable(pod)]
        touched = {pod.uid for pod in listed if before is not None and before.covers(pod)}
        if found is None:
            return touched
        match = selectors.requirements(found.spec.selector)
        made = self._known[key] = Budget(key[0], match, found.status.disruptions_allowed)
        covered = [pod for pod in listed if made.covers(pod)]
        covered.sort(key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)
        covered.sort(key=external_pods.priority)
        made.may_go = {pod.uid for pod in covered[: made.allowed]}
        return touched | {pod.uid for pod in covered}

    def protects(self, pod: core.Pod) -> bool:
        """Whether a budget would refuse the eviction of the pod now."""
        for budget in self._known.values():
            if budget.covers(pod) and pod.uid not in budget.may_go:
                if len(budget.may_go) >= budget.allowed:
                    return True
                budget.may_go.add(pod.uid)
        return False


def is_evictable(pod: core.Pod) -> bool:
    """A bound external pod of this scheduler: decisions may evict it."""
    return external_pods.is_ours(pod) and bool(pod.spec.node_name) and members.is_active(pod)
