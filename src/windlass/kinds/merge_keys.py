"""Which lists of Kubernetes' own kinds a strategic merge patch merges, and by which field.

The embedded server merges by this table and publishes it in its OpenAPI document, from which
kubectl computes its patches. Other lists are replaced as a whole.
"""

from __future__ import annotations

from typing import Final

LIST_KEYS: Final[dict[str, str]] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "conditions": "type",
    "addresses": "type",
    "ownerReferences": "uid",
    "secrets": "name",
}
UNION_LISTS: Final = frozenset({"finalizers", "podCIDRs"})
"""Lists of plain values that are merged as sets."""


def list_key(kind: str, field: str) -> str:
    """The field that identifies elements of a list; "" if the list is replaced."""
    if kind == "Service" and field == "ports":
        return "port"
    return LIST_KEYS.get(field, "")
