"""Disruption budgets: which pods may be evicted now, as part of the plan.

Of the pods that a budget covers, as many may go as it allows at the moment: the least important and
youngest. All others count as protected, so that no decision plans on room that pods/eviction would
refuse to give. What it refuses all the same is waited out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from windlass.control import foreign, members
from windlass.core import facts
from windlass.kinds import clusterkinds, kubernetes


@dataclasses.dataclass(slots=True)
class Budget:
    namespace: str
    match: tuple[facts.Requirement, ...]
    allowed: int
    may_go: set[str] = dataclasses.field(default_factory=set)
    """Uids of pods that may be evicted under it."""

    def covers(self, pod: kubernetes.Pod) -> bool:
        labels = pod.metadata.labels or {}
        return pod.namespace == self.namespace and all(
            foreign.holds(each, labels) for each in self.match
        )


class Budgets:
    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Budget] = {}

    def put(
        self, key: tuple[str, str], found: clusterkinds.PodDisruptionBudget | None,
        pods: Iterable[kubernetes.Pod],
    ) -> set[str]:  # fmt: skip
        """A budget as it is now; the uids of the pods that it is, or was, about."""
        before = self._known.pop(key, None)
        listed = [pod for pod in pods if pod.namespace == key[0] and is_evictable(pod)]
        touched = {pod.uid for pod in listed if before is not None and before.covers(pod)}
        if found is None:
            return touched
        match = foreign.selected(found.spec.selector)
        made = self._known[key] = Budget(key[0], match, found.status.disruptions_allowed)
        covered = [pod for pod in listed if made.covers(pod)]
        covered.sort(key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)
        covered.sort(key=foreign.priority)
        made.may_go = {pod.uid for pod in covered[: made.allowed]}
        return touched | {pod.uid for pod in covered}

    def protects(self, pod: kubernetes.Pod) -> bool:
        """Whether a budget would refuse to let the pod go now."""
        for budget in self._known.values():
            if budget.covers(pod) and pod.uid not in budget.may_go:
                if len(budget.may_go) >= budget.allowed:
                    return True
                budget.may_go.add(pod.uid)
        return False


def is_evictable(pod: kubernetes.Pod) -> bool:
    """Ours, and there: what decisions may ask to go."""
    return foreign.is_ours(pod) and bool(pod.spec.node_name) and members.is_active(pod)
