"""Converts a Node object for the core: capacity, topology, capabilities.

Pure. Called by `control.scheduler.cache` and by readers of single nodes.
"""

from __future__ import annotations

import decimal
import fractions
import functools
from collections.abc import Collection, Mapping

from windlass.control.convert import external_pods
from windlass.control.model import members
from windlass.core.model import types
from windlass.kinds.types import core
from windlass.kinds.values import quantity

MOST_DEVICES = 1024
"""The most devices of one resource on one node that are counted."""
Levels = Mapping[str, str]
LEVELS: Levels = {"zone": "topology.kubernetes.io/zone", "rack": "windlass.dev/rack"}
"""Levels of the topology, widest first, and the label with the value of a node."""
PRICE, CAPABILITIES = "windlass.dev/price-per-hour", "windlass.dev/capabilities"
"""Annotations (or labels) of a node: `2.50`, and names joined by commas: `shares,partitions`."""
SHARES = "shares"
"""The capability of a node on which an agent grants shares of devices, as the annotation
`windlass.dev/devices` of its pods names them."""
MEMORY = "-memory"
"""The suffix of the label with the memory of one device of a node: `windlass.dev/gpu-memory:
80Gi`."""
_VENDOR_MEMORY = {"gpu": "nvidia.com/gpu.memory"}
"""Labels with the same value from NVIDIA's feature discovery, in MiB."""
ISOLATION = "isolation:"
"""The capability of a node whose agent isolates shares: `isolation:hard`."""
Counts = tuple[tuple[str, str, str, int, int], ...]
_FORMS: tuple[types.Form, ...] = ("whole", "share", "ratio")
_HOUR, _BILLIONTHS, _MOST_DIGITS = 3600, 10**9, 12


def read_node(node: core.Node, levels: Levels = LEVELS) -> types.Node:
    labels = node.metadata.labels or {}
    amounts = members.read_amounts(node.status.allocatable or node.status.capacity)
    capabilities = frozenset(name for name in _value(node, CAPABILITIES).split(",") if name)
    return types.Node(
        name=node.name,
        allocatable={name: n for name, n in amounts.items() if not members.device_kind(name)},
        devices=_devices(amounts, labels, capabilities),
        labels=labels,
        taints=tuple(types.Taint(t.key, t.value, t.effect) for t in node.spec.taints or ()),
        ready=is_open(node),
        cordoned=bool(node.spec.unschedulable),
        path=_path(labels, levels),
        price=_price(_value(node, PRICE)),
        capabilities=capabilities
        | {external_pods.RESOURCE + name for name in amounts if members.device_kind(name)},
    )


def is_open(node: core.Node) -> bool:
    """Ready and not cordoned."""
    closed = node.spec.unschedulable or node.metadata.deletion_timestamp
    return node.is_ready and not closed


# --- parts ----------------------------------------------------------------------------------------


def _devices(
    amounts: Mapping[str, int], labels: Mapping[str, str], capabilities: Collection[str]
) -> tuple[types.Device, ...]:
    """As many as a node counts: whole ones, and shares if it has the capability. A device that is
    counted twice, under `windlass.dev` and under the resource of its plug-in, exists once."""
    found = []
    forms = frozenset(_FORMS if SHARES in capabilities else _FORMS[:1])
    for resource, count in sorted(amounts.items()):
        kind = members.device_kind(resource)
        ours = f"{members.DEVICE_PREFIX}{kind}"
        if not kind or (resource != ours and amounts.get(ours)):
            continue
        model = labels.get(f"{members.DEVICE_PREFIX}{kind}-model", "").lower()
        stem = kind if resource == ours else resource
        memory = _memory(kind, labels)
        found.append((stem, kind, model, memory, min(count, MOST_DEVICES)))
    return _made(tuple(found), forms, _isolation(capabilities))


@functools.lru_cache(maxsize=1024)
def _made(
    counts: Counts, forms: frozenset[types.Form], isolation: types.Isolation
) -> tuple[types.Device, ...]:
    """Devices by name prefix, kind, model, memory and count; equal nodes share the result."""
    return tuple(
        types.Device(
            f"{stem}/{number}", kind, model, memory=memory, forms=forms, isolation=isolation
        )
        for stem, kind, model, memory, count in counts
        for number in range(count)
    )


def _memory(kind: str, labels: Mapping[str, str]) -> int:
    """MiB of one device; 0 if the label is missing or no amount."""
    size = labels.get(f"{members.DEVICE_PREFIX}{kind}{MEMORY}", "")
    if not size:
        vendors = labels.get(_VENDOR_MEMORY.get(kind, ""), "")
        size = f"{vendors}Mi" if vendors.isdecimal() else ""
    try:
        return min(members.MOST, quantity.whole(size) >> 20) if size else 0
    except quantity.Malformed:
        return 0


def _isolation(capabilities: Collection[str]) -> types.Isolation:
    """The strongest isolation that is offered."""
    offered: tuple[types.Isolation, ...] = ("hard", "soft")
    return next((each for each in offered if ISOLATION + each in capabilities), "none")


def _value(node: core.Node, key: str) -> str:
    """The value of an annotation, else of a label, without blanks."""
    text = (node.metadata.annotations or {}).get(key, (node.metadata.labels or {}).get(key, ""))
    return "".join(text.split())


@functools.lru_cache(maxsize=1024)
def _price(text: str) -> int:
    """Billionths per second from a price per hour; 0 if it is unknown or no price."""
    try:
        price = decimal.Decimal(text)
    except decimal.InvalidOperation:
        return 0
    if not price.is_finite() or price < 0 or price.adjusted() > _MOST_DIGITS:
        return 0
    return min(round(fractions.Fraction(price) * _BILLIONTHS / _HOUR), types.MOST_PRICE)


def _path(labels: Mapping[str, str], levels: Levels) -> tuple[str, ...]:
    """The topology domains of a node, as deep as its labels go; a missing level in between is
    ""."""
    places = [labels.get(label, "") for label in levels.values()]
    while places and not places[-1]:
        places.pop()
    return tuple(places)
