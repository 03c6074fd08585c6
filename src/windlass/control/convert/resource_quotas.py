"""ResourceQuotas of namespaces as limits that the core knows. Pure.

The API server refuses a pod that exceeds one; by then room was given and half a gang may exist. So
what a quota says of pods like those of Runs is a fact for the decision. What is not read here (a
scope for one PriorityClass, the count of ended pods) is still enforced by the cluster, and found
when a pod is refused.
"""

from __future__ import annotations

from windlass.control import factparts, members
from windlass.core import facts, state
from windlass.kinds import clusterkinds, quantity
from windlass.store.reflector import Change

_ORDINARY = frozenset({"NotTerminating", "NotBestEffort"})
"""Scopes that the pods of all Runs are in: they have no deadline of their own, and requests."""


class Quotas:
    """Those of all namespaces."""

    def __init__(self) -> None:
        self._quotas: dict[tuple[str, str], clusterkinds.ResourceQuota] = {}
        self.told: tuple[facts.Quota, ...] = ()
        """What the snapshot knows."""

    def see(
        self,
        _: Change,
        before: clusterkinds.ResourceQuota | None,
        after: clusterkinds.ResourceQuota | None,
    ) -> None:
        factparts.put(self._quotas, before, after, lambda each: (each.namespace, each.name))

    def events(self) -> list[state.Event]:
        """What the snapshot does not know yet."""
        each_read = (read(each) for _, each in sorted(self._quotas.items()))
        limits = tuple(each for each in each_read if each is not None)
        if limits == self.told:
            return []
        self.told = limits
        return [state.QuotasPut(limits)]


def read(quota: clusterkinds.ResourceQuota) -> facts.Quota | None:
    """None: it says nothing of pods of Runs."""
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
    return facts.Quota(quota.namespace, quota.name, hard) if hard else None


def _resource(name: str) -> str | None:
    """`requests.cpu`, `limits.cpu`, `cpu` -> cpu, as members' requests and limits are the same;
    `requests.nvidia.com/gpu` -> the kind gpu."""
    plain = name.removeprefix("requests.").removeprefix("limits.")
    if plain in ("cpu", "memory", "pods"):
        return plain
    if plain == name:
        return None
    return members.device_kind(plain) or None


def _is_ordinary(spec: clusterkinds.ResourceQuotaSpec) -> bool:
    selector = spec.scope_selector or clusterkinds.ScopeSelector()
    asked = {*(spec.scopes or ()), *(each.scope_name for each in selector.match_expressions or ())}
    return asked <= _ORDINARY
