"""What waiting workloads ask for, summed by queue: the demand that entitlements are computed from.

Kept event by event. A workload that could not start in an empty cluster asks for nothing: capacity
that is kept for it in its queue's entitlement would never be used. Neither does one that is held.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from windlass.core.cluster.cluster import Cluster
from windlass.core.queueing.workload_info import WorkloadInfo
from windlass.core.quota import quota_tree
from windlass.core.quota.quota_tree import Sums

if TYPE_CHECKING:
    from windlass.core.quota.user_limits import UserQuotas


class Demand:
    def __init__(self) -> None:
        self._sums: dict[str, Sums] = {}
        self._by_user: dict[str, dict[str, Sums]] = {}
        """Queue -> user -> the same."""
        self._counted: dict[str, tuple[str, str, Sums]] = {}
        """Workload -> its queue, its user and what it asks for."""
        self._largest: dict[int, int] = {}
        """Shape id -> pods of it that an empty cluster takes."""
        self.generation = 0
        """Another number whenever the demand may have changed."""

    def put(self, cluster: Cluster, known: WorkloadInfo) -> None:
        self.drop(known.key)
        if known.workload.hold_reason is None and self._is_feasible(cluster, known):
            queue, user = known.workload.queue, known.workload.user
            quota_tree.add(self._sums.setdefault(queue, {}), known.need)
            users = self._by_user.setdefault(queue, {})
            quota_tree.add(users.setdefault(user, {}), known.need)
            self._counted[known.key] = (queue, user, known.need)
            self.generation += 1

    def drop(self, key: str) -> None:
        counted = self._counted.pop(key, None)
        if counted is None:
            return
        queue, user, need = counted
        quota_tree.add(self._sums[queue], need, -1)
        users = self._by_user[queue]
        sums = users.setdefault(user, {})
        quota_tree.add(sums, need, -1)
        if not any(sums.values()):
            del users[user]
        self.generation += 1

    def of(self, key: str) -> Sums | None:
        """What a waiting workload asks for; None: it is held, or could never start."""
        counted = self._counted.get(key)
        return None if counted is None else counted[2]

    def copy(self) -> Demand:
        copy = Demand()
        copy._sums = {name: dict(sums) for name, sums in self._sums.items()}
        copy._by_user = {
            name: {user: dict(sums) for user, sums in users.items()}
            for name, users in self._by_user.items()
        }
        copy._counted, copy._largest = dict(self._counted), dict(self._largest)
        return copy

    def by_queue(
        self, paused: Collection[str], quotas: UserQuotas | None = None
    ) -> Mapping[str, Sums]:
        """Of queues in which workloads may start; no more than the limits of users leave."""
        if not paused and not quotas:
            return self._sums
        found: dict[str, Sums] = {}
        for name, sums in self._sums.items():
            if name not in paused:
                found[name] = sums
                if quotas and quotas.bind(name):
                    found[name] = self._permitted(name, quotas)
        return found

    def by_user(self, queue: str) -> Mapping[str, Sums]:
        """What the users of a queue ask for."""
        return self._by_user.get(queue, {})

    def _permitted(self, queue: str, quotas: UserQuotas) -> Sums:
        found: Sums = {}
        for user, sums in self.by_user(queue).items():
            quota_tree.add(found, quotas.permitted(queue, user, sums))
        return found

    def _is_feasible(self, cluster: Cluster, known: WorkloadInfo) -> bool:
        for request, shape in zip(known.requests, known.shapes, strict=True):
            largest = self._largest.get(shape.id)
            if largest is None:
                largest = self._largest[shape.id] = int(cluster.empty_pod_capacity(shape).sum())
            if largest < request.count:
                return False
        return True
