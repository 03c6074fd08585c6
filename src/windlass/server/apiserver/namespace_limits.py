"""Limits on what a namespace stores: a member's object beyond one is refused.

Controllers, agents and administrators are not limited, so that what runs goes on. Deleting is
always possible. On Kubernetes, ResourceQuotas limit objects.
"""

from __future__ import annotations

from windlass.kinds.types.resource import Resource
from windlass.server.auth.identity import Identity
from windlass.server.fairness import levels
from windlass.server.fairness.settings import DEFAULTS, NAME, NAMESPACE, NamespaceLimits
from windlass.store import errors
from windlass.store.embedded.namespace_usage import NamespaceUsage

_LARGE_CHANGE = 16 << 10
"""Smaller changes, such as one that stops a run, are possible in a full namespace."""


class NamespaceQuota:
    def __init__(self, usage: NamespaceUsage) -> None:
        self._usage = usage
        self.limits: NamespaceLimits = DEFAULTS.namespace

    def admit_create(self, identity: Identity, resource: Resource, namespace: str) -> None:
        """Forbidden if the namespace has as many objects or bytes as it may."""
        if not namespace or levels.of(identity)[0] != "members":
            return
        count = self._usage.objects(resource.key, namespace)
        if count >= self.limits.objects:
            raise _refusal(
                resource, namespace,
                f"has {count} {resource.plural}, of at most {self.limits.objects}", "objects",
            )  # fmt: skip
        self._refuse_bytes(resource, namespace)

    def admit_change(
        self, identity: Identity, resource: Resource, namespace: str, size: int | None
    ) -> None:
        """The same for a change with a body of this size."""
        small = size is not None and size <= _LARGE_CHANGE
        if namespace and not small and levels.of(identity)[0] == "members":
            self._refuse_bytes(resource, namespace)

    def _refuse_bytes(self, resource: Resource, namespace: str) -> None:
        size = self._usage.bytes(namespace)
        if size >= self.limits.bytes:
            has = f"stores {size >> 20} MiB of objects, of at most {self.limits.bytes >> 20} MiB"
            raise _refusal(resource, namespace, has, "bytes")


def _refusal(resource: Resource, namespace: str, has: str, limit: str) -> errors.Forbidden:
    return errors.Forbidden(
        f"{resource.key} is forbidden: namespace {namespace} {has}; delete some, or ask an "
        f"administrator to raise namespace.{limit} in ConfigMap {NAMESPACE}/{NAME}"
    )
