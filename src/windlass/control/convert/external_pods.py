"""External pods in the model of the core: one pod is one replica, with all its constraints.

A pod with `schedulerName: windlass` that is not bound waits like a Run; a bound pod uses its
capacity, whichever scheduler bound it. The fields that kube-scheduler's filters read are converted
here to `types.Role`; a differential test compares the two. Pure. `control.convert.pod_workloads`
builds workloads of them, `control.scheduler.pod_binder` executes decisions.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Callable, Iterable, Mapping

import msgspec

from windlass.control.model import members, selectors
from windlass.core.cluster.constraints import NAME_FIELD
from windlass.core.cluster.constraints import holds as holds
from windlass.core.cluster.host_ports import host_port
from windlass.core.model import types
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core, pod_placement

LABEL_QUEUE = "windlass.dev/queue"
MOST_DEVICES = 1024
"""The most devices of one kind that are counted for a pod."""
RESOURCE = "resource:"
"""The prefix of the capability of a node that counts an extended resource."""
NO_NAMESPACE = ""
"""In a set of namespaces when a selector matches none: no pod is in it."""
_PROTOCOLS = ("TCP", "UDP", "SCTP")

Namespaces = Callable[[pod_placement.LabelSelector], frozenset[str]]
"""The namespaces that a selector matches."""


def is_ours(pod: core.Pod) -> bool:
    """Whether this scheduler places it: its schedulerName, and no replica of a Run."""
    return pod.spec.scheduler_name == members.SCHEDULER and not members.owner_uid(pod)


def waits(pod: core.Pod) -> bool:
    """Of this scheduler, without a node, and without a scheduling gate."""
    return (
        is_ours(pod)
        and not pod.spec.node_name
        and not pod.spec.scheduling_gates
        and not pod.metadata.deletion_timestamp
        and members.is_active(pod)
    )


def unsupported(pod: core.Pod) -> tuple[Reason, str] | None:
    """Why it may not start, whatever the free capacity."""
    if pod.spec.resource_claims:
        return (
            Reason.UNSUPPORTED,
            "spec.resourceClaims: devices are not claimed here yet; ask for them in "
            "resources.limits, or leave the pod to another scheduler with spec.schedulerName",
        )
    return None


def selects_namespaces(pod: core.Pod) -> bool:
    """Whether its requirements depend on labels of namespaces."""
    wanted = pod.spec.affinity
    if wanted is None:
        return False
    sides = (wanted.pod_affinity, wanted.pod_anti_affinity)
    terms = [term for side in sides if side for term in side.required or ()]
    terms += [each.pod_affinity_term for side in sides if side for each in side.preferred or ()]
    return any(term.namespace_selector is not None for term in terms)


def claims(pod: core.Pod) -> list[str]:
    """Names of the claims that it mounts, including its ephemeral ones."""
    found = []
    for volume in pod.spec.volumes or ():
        named = volume.get("persistentVolumeClaim")
        if isinstance(named, dict):
            found.append(str(named.get("claimName", "")))
        elif volume.get("ephemeral"):
            found.append(f"{pod.name}-{volume.get('name', '')}")
    return found


def priority(pod: core.Pod) -> int:
    return pod.spec.priority or 0


def role(pod: core.Pod, name: str, namespaces: Namespaces) -> types.Role:
    """One replica: its requests, its constraints and its affinities."""
    amounts = members.pod_amounts(pod)
    requests, needs = devices(amounts)
    return types.Role(
        name=name,
        min_count=1,
        max_count=1,
        needs=needs,
        devices=requests,
        constraint=constraint(pod, amounts),
        prefers=preferences(pod),
        ports=ports(pod),
        labels=labels(pod),
        affinities=affinities(pod, namespaces),
        spreads=spreads(pod),
    )


def asks(pod: core.Pod) -> bytes:
    """All that `role` reads of a pod: pods with equal values get the same role. Thousands of pods
    come from one template, and this costs a tenth of reading each."""
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
) -> tuple[tuple[types.DeviceRequest, ...], dict[str, int]]:
    """From the requests of a pod: whole devices by kind, and everything else by name."""
    counts: dict[str, int] = {}
    needs: dict[str, int] = {}
    for resource, amount in amounts.items():
        kind = members.device_kind(resource)
        if not kind:
            needs[resource] = amount
        elif amount:
            counts[kind] = min(MOST_DEVICES, counts.get(kind, 0) + amount)
    return tuple(types.DeviceRequest(kind, n) for kind, n in sorted(counts.items())), needs


def labels(pod: core.Pod) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((pod.metadata.labels or {}).items()))


# --- constraints on nodes -------------------------------------------------------------------------


def constraint(pod: core.Pod, amounts: Mapping[str, int]) -> types.Constraint:
    spec = pod.spec
    near = spec.affinity.node_affinity if spec.affinity else None
    required = near.required if near else None
    terms = () if required is None else tuple(_term(t) for t in required.node_selector_terms or ())
    wanted = frozenset(
        RESOURCE + name for name, amount in amounts.items() if amount and members.device_kind(name)
    )
    return types.Constraint(
        selector=tuple(sorted((spec.node_selector or {}).items())),
        # Terms that select nothing differ from no terms.
        affinity=terms if required is None else terms or ((),),
        tolerations=tuple(
            types.Toleration(t.key, t.operator or "Equal", t.value, t.effect)
            for t in spec.tolerations or ()
        ),
        capabilities=wanted,
    )


def preferences(pod: core.Pod) -> tuple[types.Preference, ...]:
    near = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = ((_term(each.preference), each.weight) for each in (near and near.preferred) or ())
    return tuple(types.Preference(match, weight) for match, weight in terms if match)


def _term(term: pod_placement.NodeSelectorTerm) -> tuple[types.Requirement, ...]:
    """All of its conditions; the only field that can be selected is the name of the node."""
    return (
        *(selectors.requirement(each) for each in term.match_expressions or ()),
        *(
            types.Requirement(NAME_FIELD, each.operator, tuple(each.values or ()))
            for each in term.match_fields or ()
        ),
    )


def ports(pod: core.Pod) -> tuple[int, ...]:
    """Host ports of the containers that run as long as the pod."""
    beside = (c for c in pod.spec.init_containers or () if c.restart_policy == "Always")
    found = {
        host_port(port.host_port, _PROTOCOLS.index(port.protocol or "TCP"), _address(port.host_ip))
        for container in (*beside, *pod.spec.containers)
        for port in container.ports or ()
        if port.host_port and (port.protocol or "TCP") in _PROTOCOLS
    }
    return tuple(sorted(found))


def _address(text: str) -> int:
    """A number for the address of a node; 0: all addresses."""
    if not text or text == "0.0.0.0":  # noqa: S104 (read, not bound)
        return 0
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return 0
    return int(address) + (1 if address.version == 4 else 1 << 33)


# --- affinities between pods ----------------------------------------------------------------------


def affinities(pod: core.Pod, namespaces: Namespaces) -> tuple[types.Affinity, ...]:
    wanted = pod.spec.affinity
    if wanted is None:
        return ()
    found: list[types.Affinity] = []
    for anti, side in ((False, wanted.pod_affinity), (True, wanted.pod_anti_affinity)):
        must, preferred_pods = (side and side.required) or (), (side and side.preferred) or ()
        found += [_affinity(pod, term, namespaces, anti=anti) for term in must]
        for each in preferred_pods:
            term = _affinity(pod, each.pod_affinity_term, namespaces, anti=anti)
            found.append(dataclasses.replace(term, required=False, weight=each.weight))
    return tuple(found)


def keeps_away(pod: core.Pod, namespaces: Namespaces) -> tuple[types.Affinity, ...]:
    """Of a bound pod only the anti-affinities still matter."""
    return tuple(term for term in affinities(pod, namespaces) if term.anti and term.required)


def _affinity(
    pod: core.Pod, term: pod_placement.PodAffinityTerm, namespaces: Namespaces, *, anti: bool
) -> types.Affinity:
    where = frozenset(term.namespaces or ())
    if term.namespace_selector is not None:
        where |= namespaces(term.namespace_selector)
        where = where or frozenset((NO_NAMESPACE,))
    return types.Affinity(
        key=term.topology_key,
        match=(
            *selectors.requirements(term.label_selector),
            *_same(pod, term.match_label_keys, "In"),
            *_same(pod, term.mismatch_label_keys, "NotIn"),
        ),
        anti=anti,
        namespaces=where or frozenset((pod.namespace,)),
    )


def spreads(pod: core.Pod) -> tuple[types.Spread, ...]:
    return tuple(
        types.Spread(
            key=each.topology_key,
            match=(
                *selectors.requirements(each.label_selector),
                *_same(pod, each.match_label_keys, "In"),
            ),
            skew=each.max_skew,
            required=each.when_unsatisfiable == "DoNotSchedule",
            min_domains=each.min_domains or 0,
            by_affinity=each.node_affinity_policy != "Ignore",
            by_taints=each.node_taints_policy == "Honor",
        )
        for each in pod.spec.topology_spread_constraints or ()
    )


def _same(
    pod: core.Pod, keys: Iterable[str] | None, operator: str
) -> tuple[types.Requirement, ...]:
    own: Mapping[str, str] = pod.metadata.labels or {}
    return tuple(types.Requirement(key, operator, (own[key],)) for key in keys or () if key in own)
