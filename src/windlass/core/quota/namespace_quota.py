"""Quotas of namespaces: what all units of a namespace may hold together, whatever their queue.

The cluster itself refuses pods beyond them, so they are limits here: a unit that would exceed one
waits, is told which, and nobody is stopped for it. Only namespaces that have a quota are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from windlass.core import queues
from windlass.core.facts import Quota
from windlass.core.queues import Shortage, Sums

if TYPE_CHECKING:
    from windlass.core.facts import Running

RULE = "namespace"


class Spaces:
    def __init__(
        self,
        quotas: Iterable[Quota] = (),
        running: Iterable[tuple[Running, Mapping[str, int]]] = (),
    ) -> None:
        """`running`: who holds room, and what that counts for."""
        self.quotas = {(quota.namespace, quota.name): quota for quota in quotas}
        self.used: dict[str, Sums] = {namespace: {} for namespace, _ in self.quotas}
        if self.used:
            for each, held in running:
                self.add(each.unit.namespace, held, len(each.seats))

    def fork(self) -> Spaces:
        twin = Spaces()
        twin.quotas = self.quotas
        twin.used = {namespace: dict(sums) for namespace, sums in self.used.items()}
        return twin

    def add(self, namespace: str, amounts: Mapping[str, int], members: int, sign: int = 1) -> None:
        used = self.used.get(namespace)
        if used is not None:
            queues.add(used, amounts, sign)
            queues.add(used, {"pods": members}, sign)

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
                more, held = asked.get(resource, 0), used.get(resource, 0)
                if more and held + more > hard:
                    left = max(0, hard - held)
                    return Shortage(RULE, f"{namespace}/{quota.name}", resource, more, left, hard)
        return None
