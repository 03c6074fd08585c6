"""What a decision is based on: a `SchedulerCache` fed by informers, and the policy.

The scheduler decides on it and `control.explain` answers from it. Both take it from here, so that
an explanation has the same informers and the same snapshot as the decision that it explains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windlass.control.convert import node_facts
from windlass.control.model import policy as policies
from windlass.control.runtime.informers import InformerFactory
from windlass.control.scheduler.cache import cache, pod_group_sizes
from windlass.core.model import types
from windlass.kinds.types import core
from windlass.store import interface
from windlass.store.informer import Change, Informer

POLICY = types.Policy()


class ClusterState:
    """Requests its informers from the factory when it is created; enter the factory afterwards."""

    def __init__(
        self,
        store: interface.Store,
        informers: InformerFactory,
        changed: Callable[..., None],
        *,
        policy: types.Policy = POLICY,
        levels: node_facts.Levels = node_facts.LEVELS,
        follow_accounts: bool = False,
    ) -> None:
        """`changed` is called after every change that the cache has recorded. `follow_accounts`:
        see `SchedulerCache`."""
        self.cache = cache.SchedulerCache(levels, follow_accounts=follow_accounts)
        self.policy = policy
        self.policy_changed = False
        """Set when the policy changes; the reader resets it."""
        self._changed = changed
        self._sizes = pod_group_sizes.Sizes(store)
        self._feed_objects(informers)
        self._feed_limits(informers)
        self._feed_volumes(informers)

    async def learn_gang_sizes(self) -> tuple[bool, bool]:
        """Reads the sizes of gangs whose pods do not name them from their Jobs, JobSets and so on.
        Returns whether a size became known, and whether one is still unknown."""
        unsized = self.cache.pod_cache.unsized()
        sizes = await self._sizes.ask(unsized)
        if sizes:
            self.cache.pod_cache.learn(sizes)
            self._changed()
        return bool(sizes), len(sizes) < len(unsized)

    def _feed_objects(self, informers: InformerFactory) -> None:
        self._feed(informers.nodes, self.cache.on_node)
        self._feed(informers.pods, self.cache.on_pod)
        self._feed(informers.runs, self.cache.on_run)
        self._feed(informers.queues, self.cache.on_queue)
        self._feed(informers.reservations, self.cache.reservations.on_change)
        self._feed(informers.engine, self.cache.on_engine)
        self._feed(informers.scheduling, self._on_policy)

    def _feed_limits(self, informers: InformerFactory) -> None:
        self._feed(informers.resource_quotas, self.cache.quotas.on_change)
        self.cache.runtimes.watched = True
        self._feed(informers.runtime_classes, self.cache.on_runtime_class)
        # Only external pods select namespaces and are protected by disruption budgets.
        self._feed(informers.namespaces, self.cache.pod_cache.on_namespace)
        self._feed(informers.disruption_budgets, self.cache.pod_cache.on_disruption_budget)

    def _feed_volumes(self, informers: InformerFactory) -> None:
        self._feed(informers.claims, self.cache.on_volume)
        self._feed(informers.volumes, self.cache.on_volume)
        self._feed(informers.storage_classes, self.cache.on_volume)
        self._feed(informers.csi_drivers, self.cache.on_volume)
        self._feed(informers.storage_capacities, self.cache.on_volume)
        self._feed(informers.csi_nodes, self.cache.on_attachment)
        self._feed(informers.volume_attachments, self.cache.on_attachment)

    def _feed(self, informer: Informer[Any], handler: Callable[[Any, Any, Any], None]) -> None:
        informer.add_handler(handler)
        informer.add_handler(self._changed)

    def _on_policy(
        self, _: Change, __: core.ConfigMap | None, after: core.ConfigMap | None
    ) -> None:
        self.policy = policies.read_or_keep(after, self.policy)
        self.policy_changed = True
