"""Other people's pods as the core sees them: one pod is a member, with all it asks of its node.

A pod with `schedulerName: windlass` that nobody has bound yet waits like a Run does; a bound pod
holds its room, whoever bound it. What kube-scheduler's filters read of a pod is read here into
`facts.Role`; a differential test holds the two together. Pure. `control.podunits` makes units of
them, `control.binding` carries out what is decided.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Callable, Iterable, Mapping

import msgspec

from windlass.control import members
from windlass.core import facts
from windlass.core.constraints import NAME_FIELD
from windlass.core.constraints import holds as holds
from windlass.core.ports import host_port
from windlass.kinds import kubernetes, placing
from windlass.kinds.reasons import Reason

LABEL_QUEUE = "windlass.dev/queue"
MOST_DEVICES = 1024
"""Of one kind that a pod is counted for at most."""
RESOURCE = "resource:"
"""What the capability begins with by which a node says that it counts an extended resource."""
NOBODY = ""
"""Stands in a set of namespaces when a selector finds none: no pod is in it."""
_NEVER = facts.Requirement("", "In", ())
_PROTOCOLS = ("TCP", "UDP", "SCTP")

Namespaces = Callable[[placing.LabelSelector], frozenset[str]]
"""Which namespaces a selector finds."""


def is_ours(pod: kubernetes.Pod) -> bool:
    """Ours to place: it asks for us, and it is no member of a Run."""
    return pod.spec.scheduler_name == members.SCHEDULER and not members.owner_uid(pod)


def waits(pod: kubernetes.Pod) -> bool:
    """Ours, without a node, and nothing says that it must not be considered."""
    return (
        is_ours(pod)
        and not pod.spec.node_name
        and not pod.spec.scheduling_gates
        and not pod.metadata.deletion_timestamp
        and members.is_active(pod)
    )


def held(pod: kubernetes.Pod) -> tuple[Reason, str] | None:
    """Why it may not start whatever is free."""
    if pod.spec.resource_claims:
        return (
            Reason.UNSUPPORTED,
            "spec.resourceClaims: devices are not claimed here yet; ask for them in "
            "resources.limits, or leave the pod to another scheduler with spec.schedulerName",
        )
    return None


def selects_namespaces(pod: kubernetes.Pod) -> bool:
    """Whether what it asks for depends on labels of namespaces."""
    wanted = pod.spec.affinity
    if wanted is None:
        return False
    sides = (wanted.pod_affinity, wanted.pod_anti_affinity)
    terms = [term for side in sides if side for term in side.required or ()]
    terms += [each.pod_affinity_term for side in sides if side for each in side.preferred or ()]
    return any(term.namespace_selector is not None for term in terms)


def claims(pod: kubernetes.Pod) -> list[str]:
    """Names of the claims that it mounts, those that are made for it alone included."""
    found = []
    for volume in pod.spec.volumes or ():
        named = volume.get("persistentVolumeClaim")
        if isinstance(named, dict):
            found.append(str(named.get("claimName", "")))
        elif volume.get("ephemeral"):
            found.append(f"{pod.name}-{volume.get('name', '')}")
    return found


def priority(pod: kubernetes.Pod) -> int:
    return pod.spec.priority or 0


def role(pod: kubernetes.Pod, name: str, namespaces: Namespaces) -> facts.Role:
    """One member: what it needs, where it may be, and whom it wants near."""
    amounts = members.pod_amounts(pod)
    requests, needs = devices(amounts)
    return facts.Role(
        name=name,
        least=1,
        most=1,
        needs=needs,
        devices=requests,
        constraint=constraint(pod, amounts),
        prefers=preferences(pod),
        ports=ports(pod),
        labels=labels(pod),
        affinities=affinities(pod, namespaces),
        spreads=spreads(pod),
    )


def asks(pod: kubernetes.Pod) -> bytes:
    """All that `role` reads of a pod: pods of which it is the same get the same role. Thousands of
    pods are made from one template, and this is a tenth of the work of reading each."""
    spec = pod.spec
    parts = (
        pod.namespace, pod.metadata.labels, spec.resources, spec.overhead,
        spec.node_selector, spec.affinity, spec.tolerations, spec.topology_spread_constraints,
        [(each.resources, each.ports) for each in spec.containers],
        [(each.resources, each.ports, each.restart_policy) for each in spec.init_containers or ()],
    )  # fmt: skip
    return msgspec.msgpack.encode(parts)


def devices(
    amounts: Mapping[str, int],
) -> tuple[tuple[facts.DeviceRequest, ...], dict[str, int]]:
    """Of what a pod asks for: whole devices by kind, and everything else by name."""
    counts: dict[str, int] = {}
    needs: dict[str, int] = {}
    for resource, amount in amounts.items():
        kind = members.device_kind(resource)
        if not kind:
            needs[resource] = amount
        elif amount:
            counts[kind] = min(MOST_DEVICES, counts.get(kind, 0) + amount)
    return tuple(facts.DeviceRequest(kind, n) for kind, n in sorted(counts.items())), needs


def labels(pod: kubernetes.Pod) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((pod.metadata.labels or {}).items()))


# --- which nodes ----------------------------------------------------------------------------------


def constraint(pod: kubernetes.Pod, amounts: Mapping[str, int]) -> facts.Constraint:
    spec = pod.spec
    near = spec.affinity.node_affinity if spec.affinity else None
    required = near.required if near else None
    terms = () if required is None else tuple(_term(t) for t in required.node_selector_terms or ())
    wanted = frozenset(
        RESOURCE + name for name, amount in amounts.items() if amount and members.device_kind(name)
    )
    return facts.Constraint(
        selector=tuple(sorted((spec.node_selector or {}).items())),
        # Terms that are there and select nothing are not the same as no terms.
        affinity=terms if required is None else terms or ((),),
        tolerations=tuple(
            facts.Toleration(t.key, t.operator or "Equal", t.value, t.effect)
            for t in spec.tolerations or ()
        ),
        capabilities=wanted,
    )


def preferences(pod: kubernetes.Pod) -> tuple[facts.Preference, ...]:
    near = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    liked = ((_term(each.preference), each.weight) for each in (near and near.preferred) or ())
    return tuple(facts.Preference(match, weight) for match, weight in liked if match)


def _term(term: placing.NodeSelectorTerm) -> tuple[facts.Requirement, ...]:
    """All of its conditions; the only field that can be selected by is the node's name."""
    return (
        *(_requirement(each) for each in term.match_expressions or ()),
        *(
            facts.Requirement(NAME_FIELD, each.operator, tuple(each.values or ()))
            for each in term.match_fields or ()
        ),
    )


def _requirement(each: placing.SelectorRequirement) -> facts.Requirement:
    return facts.Requirement(each.key, each.operator, tuple(each.values or ()))


def ports(pod: kubernetes.Pod) -> tuple[int, ...]:
    """Host ports of what runs as long as the pod does."""
    beside = (c for c in pod.spec.init_containers or () if c.restart_policy == "Always")
    found = {
        host_port(port.host_port, _PROTOCOLS.index(port.protocol or "TCP"), _address(port.host_ip))
        for container in (*beside, *pod.spec.containers)
        for port in container.ports or ()
        if port.host_port and (port.protocol or "TCP") in _PROTOCOLS
    }
    return tuple(sorted(found))


def _address(text: str) -> int:
    """A number for an address of a node; 0: all of them."""
    if not text or text == "0.0.0.0":  # noqa: S104 (read, not bound)
        return 0
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return 0
    return int(address) + (1 if address.version == 4 else 1 << 33)


# --- near which pods ------------------------------------------------------------------------------


def affinities(pod: kubernetes.Pod, namespaces: Namespaces) -> tuple[facts.Affinity, ...]:
    wanted = pod.spec.affinity
    if wanted is None:
        return ()
    found: list[facts.Affinity] = []
    for anti, side in ((False, wanted.pod_affinity), (True, wanted.pod_anti_affinity)):
        must, liked = (side and side.required) or (), (side and side.preferred) or ()
        found += [_affinity(pod, term, namespaces, anti=anti) for term in must]
        for each in liked:
            term = _affinity(pod, each.pod_affinity_term, namespaces, anti=anti)
            found.append(dataclasses.replace(term, required=False, weight=each.weight))
    return tuple(found)


def keeps_away(pod: kubernetes.Pod, namespaces: Namespaces) -> tuple[facts.Affinity, ...]:
    """Of a pod that is placed, only whom it must not have near still counts."""
    return tuple(term for term in affinities(pod, namespaces) if term.anti and term.required)


def _affinity(
    pod: kubernetes.Pod, term: placing.PodAffinityTerm, namespaces: Namespaces, *, anti: bool
) -> facts.Affinity:
    where = frozenset(term.namespaces or ())
    if term.namespace_selector is not None:
        where |= namespaces(term.namespace_selector)
        where = where or frozenset((NOBODY,))
    return facts.Affinity(
        key=term.topology_key,
        match=(
            *selected(term.label_selector),
            *_same(pod, term.match_label_keys, "In"),
            *_same(pod, term.mismatch_label_keys, "NotIn"),
        ),
        anti=anti,
        namespaces=where or frozenset((pod.namespace,)),
    )


def spreads(pod: kubernetes.Pod) -> tuple[facts.Spread, ...]:
    return tuple(
        facts.Spread(
            key=each.topology_key,
            match=(*selected(each.label_selector), *_same(pod, each.match_label_keys, "In")),
            skew=each.max_skew,
            required=each.when_unsatisfiable == "DoNotSchedule",
            min_domains=each.min_domains or 0,
            by_affinity=each.node_affinity_policy != "Ignore",
            by_taints=each.node_taints_policy == "Honor",
        )
        for each in pod.spec.topology_spread_constraints or ()
    )


def selected(selector: placing.LabelSelector | None) -> tuple[facts.Requirement, ...]:
    """The conditions of a selector; one that is absent selects nothing."""
    if selector is None:
        return (_NEVER,)
    return (
        *(
            facts.Requirement(k, "In", (v,))
            for k, v in sorted((selector.match_labels or {}).items())
        ),
        *(_requirement(each) for each in selector.match_expressions or ()),
    )


def _same(
    pod: kubernetes.Pod, keys: Iterable[str] | None, operator: str
) -> tuple[facts.Requirement, ...]:
    own: Mapping[str, str] = pod.metadata.labels or {}
    return tuple(facts.Requirement(key, operator, (own[key],)) for key in keys or () if key in own)
