"""From a node's object to what the core knows of it: what it has, where it stands, what it offers.

Pure. `control.picture` and whoever looks at a single node call it.
"""

from __future__ import annotations

import decimal
import fractions
import functools
from collections.abc import Collection, Mapping

from windlass.control import foreign, members
from windlass.core import facts
from windlass.kinds import kubernetes, quantity

MOST_DEVICES = 1024
"""Of one resource on one node that are counted."""
Levels = Mapping[str, str]
LEVELS: Levels = {"zone": "topology.kubernetes.io/zone", "rack": "windlass.dev/rack"}
"""Levels of the topology, widest first, and the label in which a node says where it is."""
PRICE, CAPABILITIES = "windlass.dev/price-per-hour", "windlass.dev/capabilities"
"""Annotations (or labels) of a node: `2.50`, and names joined by commas: `shares,partitions`."""
SHARES = "shares"
"""What a node offers on which somebody grants shares of devices, as the annotation of its pods
`windlass.dev/devices` names them."""
MEMORY = "-memory"
"""How the label ends in which a node says how much memory one of its devices has:
`windlass.dev/gpu-memory: 80Gi`."""
_VENDOR_MEMORY = {"gpu": "nvidia.com/gpu.memory"}
"""Labels in which NVIDIA's feature discovery says the same, in MiB."""
ISOLATION = "isolation:"
"""What a node offers on which whoever grants shares keeps them apart: `isolation:hard`."""
Counts = tuple[tuple[str, str, str, int, int], ...]
_FORMS: tuple[facts.Form, ...] = ("whole", "share", "ratio")
_HOUR, _BILLIONTHS, _MOST_DIGITS = 3600, 10**9, 12


def read_node(node: kubernetes.Node, levels: Levels = LEVELS) -> facts.Node:
    labels = node.metadata.labels or {}
    amounts = members.read_amounts(node.status.allocatable or node.status.capacity)
    capabilities = frozenset(name for name in _told(node, CAPABILITIES).split(",") if name)
    return facts.Node(
        name=node.name,
        allocatable={name: n for name, n in amounts.items() if not members.device_kind(name)},
        devices=_devices(amounts, labels, capabilities),
        labels=labels,
        taints=tuple(facts.Taint(t.key, t.value, t.effect) for t in node.spec.taints or ()),
        ready=is_open(node),
        path=_path(labels, levels),
        price=_price(_told(node, PRICE)),
        capabilities=capabilities
        | {foreign.RESOURCE + name for name in amounts if members.device_kind(name)},
    )


def is_open(node: kubernetes.Node) -> bool:
    """Ready and not cordoned."""
    closed = node.spec.unschedulable or node.metadata.deletion_timestamp
    return node.is_ready and not closed


# --- parts ----------------------------------------------------------------------------------------


def _devices(
    amounts: Mapping[str, int], labels: Mapping[str, str], capabilities: Collection[str]
) -> tuple[facts.Device, ...]:
    """As many as a node counts, whole ones, and shares of them where it says that somebody there
    grants them. What it counts twice, under our name and under its plug-in's, is there once."""
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
    counts: Counts, forms: frozenset[facts.Form], isolation: facts.Isolation
) -> tuple[facts.Device, ...]:
    """By how their names begin, kind, model, memory and number; nodes that have the same share
    them."""
    return tuple(
        facts.Device(
            f"{stem}/{number}", kind, model, memory=memory, forms=forms, isolation=isolation
        )
        for stem, kind, model, memory, count in counts
        for number in range(count)
    )


def _memory(kind: str, labels: Mapping[str, str]) -> int:
    """MiB of one device; 0, not known, where nobody says or it is no amount."""
    told = labels.get(f"{members.DEVICE_PREFIX}{kind}{MEMORY}", "")
    if not told:
        vendors = labels.get(_VENDOR_MEMORY.get(kind, ""), "")
        told = f"{vendors}Mi" if vendors.isdecimal() else ""
    try:
        return min(members.MOST, quantity.whole(told) >> 20) if told else 0
    except quantity.Malformed:
        return 0


def _isolation(capabilities: Collection[str]) -> facts.Isolation:
    """The strongest that is offered."""
    offered: tuple[facts.Isolation, ...] = ("hard", "soft")
    return next((each for each in offered if ISOLATION + each in capabilities), "none")


def _told(node: kubernetes.Node, key: str) -> str:
    """What an annotation, else a label says, without blanks."""
    said = (node.metadata.annotations or {}).get(key, (node.metadata.labels or {}).get(key, ""))
    return "".join(said.split())


@functools.lru_cache(maxsize=1024)
def _price(text: str) -> int:
    """Billionths a second from a price per hour; 0, not known, where it is no such price."""
    try:
        price = decimal.Decimal(text)
    except decimal.InvalidOperation:
        return 0
    if not price.is_finite() or price < 0 or price.adjusted() > _MOST_DIGITS:
        return 0
    return min(round(fractions.Fraction(price) * _BILLIONTHS / _HOUR), facts.MOST_PRICE)


def _path(labels: Mapping[str, str], levels: Levels) -> tuple[str, ...]:
    """Where a node stands, as far down as its labels say; a level left out in between is ""."""
    places = [labels.get(label, "") for label in levels.values()]
    while places and not places[-1]:
        places.pop()
    return tuple(places)
