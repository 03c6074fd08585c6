"""ResourceQuotas of namespaces as limits of the core. Pure.

The API server refuses a pod that exceeds one; by then its workload is placed and half a gang may
exist. So the limits for pods like those of Runs are input of the decision. Limits that are not read
here (a scope for one PriorityClass, the count of ended pods) are still enforced by the cluster, and
found when a pod is refused.
"""

from __future__ import annotations

from windlass.control.convert import quantities
from windlass.control.model import members
from windlass.core.model import types
from windlass.core.snapshot import snapshot
from windlass.kinds.types import cluster
from windlass.kinds.values import quantity
from windlass.store.informer import Change

_ORDINARY = frozenset({"NotTerminating", "NotBestEffort"})
"""Scopes of the pods of all Runs: they have no deadline of their own, and requests."""


class Quotas:
    """The quotas of all namespaces."""

    def __init__(self) -> None:
        self._quotas: dict[tuple[str, str], cluster.ResourceQuota] = {}
        self.known: tuple[types.Quota, ...] = ()
        """The quotas in the snapshot."""

    def on_change(
        self,
        _: Change,
        before: cluster.ResourceQuota | None,
        after: cluster.ResourceQuota | None,
    ) -> None:
        quantities.put(self._quotas, before, after, lambda each: (each.namespace, each.name))

    def events(self) -> list[snapshot.Event]:
        """The changes that the snapshot does not have yet."""
        each_read = (read(each) for _, each in sorted(self._quotas.items()))
        limits = tuple(each for each in each_read if each is not None)
        if limits == self.known:
            return []
        self.known = limits
        return [snapshot.QuotasPut(limits)]


def read(quota: cluster.ResourceQuota) -> types.Quota | None:
    """None: it does not limit pods of Runs."""
    if not _is_ordinary(quota.spec):
        return None
    hard: dict[str, int] = {}
    for name, value in (quota.spec.hard or {}).items():
        resource = _resource(name)
        if resource is None:
            continue
        whole = resource in ("memory", "pods")
        amount = min(members.MOST, quantity.whole(value) if whole else quantity.milli(value))
        hard[resource] = min(amount, hard.get(resource, amount))
    return types.Quota(quota.namespace, quota.name, hard) if hard else None


def _resource(name: str) -> str | None:
    """`requests.cpu`, `limits.cpu`, `cpu` -> cpu, because requests and limits of replicas are
    equal; `requests.nvidia.com/gpu` -> the kind gpu."""
    plain = name.removeprefix("requests.").removeprefix("limits.")
    if plain in ("cpu", "memory", "pods"):
        return plain
    if plain == name:
        return None
    return members.device_kind(plain) or None


def _is_ordinary(spec: cluster.ResourceQuotaSpec) -> bool:
    selector = spec.scope_selector or cluster.ScopeSelector()
    scopes = {*(spec.scopes or ()), *(each.scope_name for each in selector.match_expressions or ())}
    return scopes <= _ORDINARY
