"""Quotas of namespaces: what all workloads of a namespace may hold together, whatever their queue.

The cluster itself refuses pods beyond them, so they are limits here: a workload that would exceed
one waits, its reason names the quota, and no workload is preempted for it. Only namespaces that
have a quota are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from windlass.core.model.types import Quota
from windlass.core.quota import quota_tree
from windlass.core.quota.quota_tree import Shortage, Sums

if TYPE_CHECKING:
    from windlass.core.model.types import Running

RULE = "namespace"


class NamespaceQuotas:
    def __init__(
        self,
        quotas: Iterable[Quota] = (),
        running: Iterable[tuple[Running, Mapping[str, int]]] = (),
    ) -> None:
        """`running`: workloads that hold capacity, and their usage."""
        self.quotas = {(quota.namespace, quota.name): quota for quota in quotas}
        self.used: dict[str, Sums] = {namespace: {} for namespace, _ in self.quotas}
        if self.used:
            for each, amounts in running:
                self.add(each.workload.namespace, amounts, len(each.pods))

    def fork(self) -> NamespaceQuotas:
        fork = NamespaceQuotas()
        fork.quotas = self.quotas
        fork.used = {namespace: dict(sums) for namespace, sums in self.used.items()}
        return fork

    def add(self, namespace: str, amounts: Mapping[str, int], members: int, sign: int = 1) -> None:
        used = self.used.get(namespace)
        if used is not None:
            quota_tree.add(used, amounts, sign)
            quota_tree.add(used, {"pods": members}, sign)

    def shortage(self, namespace: str, need: Mapping[str, int], members: int) -> Shortage | None:
        """The first quota that forbids the namespace to hold so much more; None if none does."""
        used = self.used.get(namespace)
        if used is None:
            return None
        asked = {**need, "pods": members}
        for _, quota in sorted(self.quotas.items()):
            for resource, hard in (
                sorted(quota.hard.items()) if quota.namespace == namespace else ()
            ):
                more, in_use = asked.get(resource, 0), used.get(resource, 0)
                if more and in_use + more > hard:
                    left = max(0, hard - in_use)
                    return Shortage(RULE, f"{namespace}/{quota.name}", resource, more, left, hard)
        return None
