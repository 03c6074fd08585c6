"""Which objects the agent of a node may read: those that pods on its node name.

As Kubernetes' node authorizer: with the token of one node an attacker reads the Secrets and
ConfigMaps of the pods there, and no others. `auth.authenticator` asks after the role tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from windlass.kinds.types import core
from windlass.server.auth.identity import Attributes
from windlass.store.embedded.api import Api
from windlass.store.embedded.options import ListQuery

_ENDED = ("Succeeded", "Failed")


async def named_by_pod(api: Api, node: str, wanted: Attributes) -> bool:
    """Whether a pod of this node that has not ended names the Secret or ConfigMap."""
    query = ListQuery(field_selector=f"spec.nodeName={node}")
    page = await api.list(core.Pod.resource, wanted.namespace, query)
    return any(
        wanted.name in names(msgspec.json.decode(data), wanted.resource) for data in page.items
    )


def names(pod: Mapping[str, Any], resource: str) -> set[str]:
    """The Secrets or ConfigMaps that a pod names; none if it has ended."""
    if (pod.get("status") or {}).get("phase") in _ENDED:
        return set()
    spec = pod.get("spec") or {}
    return {*_in_environment(spec, resource), *_in_volumes(spec, resource)} - {""}


def _in_environment(spec: Mapping[str, Any], resource: str) -> Iterator[str]:
    source, key = ("secretRef", "secretKeyRef")
    if resource == "configmaps":
        source, key = ("configMapRef", "configMapKeyRef")
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for each in container.get("envFrom") or ():
            yield _name(each.get(source))
        for each in container.get("env") or ():
            yield _name((each.get("valueFrom") or {}).get(key))


def _in_volumes(spec: Mapping[str, Any], resource: str) -> Iterator[str]:
    part = "secret" if resource == "secrets" else "configMap"
    for volume in spec.get("volumes") or ():
        for each in (volume, *((volume.get("projected") or {}).get("sources") or ())):
            yield _name(each.get(part))


def _name(reference: Mapping[str, Any] | None) -> str:
    given = reference or {}
    return str(given.get("secretName") or given.get("name") or "")
