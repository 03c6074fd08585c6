"""From objects to what the core decides on: who holds what, who waits.

Used = the union, by member key, of assignments and pods; a pod that is being stopped counts until
it is gone. So a new leader knows everything after listing nodes, pods, Runs and Queues.

Pure; `control.scheduler` calls it with what its reflectors show.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from windlass.control import members, runmachine
from windlass.core import snapshot as core
from windlass.kinds import kubernetes, queue, run, times

DEFAULT_QUEUE = "default"


@dataclasses.dataclass(frozen=True, slots=True)
class Objects:
    """All that counts, as it was at one moment."""

    nodes: list[kubernetes.Node]
    pods: list[kubernetes.Pod]
    runs: list[run.Run]
    queues: list[queue.Queue]


def snapshot(objects: Objects) -> core.Snapshot:
    homes = _homes(objects.queues)
    used: dict[str, dict[str, int]] = {}
    by_queue: dict[str, dict[str, int]] = {}
    for node, name, amounts in _holdings(objects, homes):
        _add(used.setdefault(node, {}), amounts)
        if name:
            _add(by_queue.setdefault(name, {}), amounts)
    return core.Snapshot(
        nodes=tuple(_node(node, used.get(node.name, {})) for node in objects.nodes),
        units=tuple(_unit(owner, queue_of(owner, homes)) for owner in objects.runs if waits(owner)),
        queues=tuple(_queue(each, by_queue.get(each.name, {})) for each in objects.queues),
    )


def waits(owner: run.Run) -> bool:
    """Wants to be placed: queued, not held, not going away, without room of its own."""
    return (
        owner.status.phase == "Queued"
        and not owner.spec.suspend
        and not owner.metadata.deletion_timestamp
        and not holds_assignment(owner)
    )


def holds_assignment(owner: run.Run) -> bool:
    """Its assignment is for the attempt that is current, and it has not ended."""
    assignment = owner.status.assignment
    return (
        assignment is not None and assignment.attempt == owner.status.attempt and not owner.finished
    )


def queue_of(owner: run.Run, homes: Mapping[str, str]) -> str:
    return owner.spec.queue or homes.get(owner.namespace, DEFAULT_QUEUE)


def is_open(node: kubernetes.Node) -> bool:
    """Ready and not cordoned."""
    return node.is_ready and not node.spec.unschedulable and not node.metadata.deletion_timestamp


def _homes(queues: Iterable[queue.Queue]) -> dict[str, str]:
    """Namespace -> the queue that owns it; the first by name if several claim it."""
    homes: dict[str, str] = {}
    for each in sorted(queues, key=lambda q: q.name):
        for namespace in each.spec.namespaces or ():
            homes.setdefault(namespace, each.name)
    return homes


def _holdings(
    objects: Objects, homes: Mapping[str, str]
) -> Iterable[tuple[str, str, dict[str, int]]]:
    """(node, queue or "", amounts) of every member and every other pod."""
    counted: set[run.MemberKey] = set()
    owners = {owner.uid: owner for owner in objects.runs}
    for owner in objects.runs:
        assignment = owner.status.assignment
        if assignment is None or not holds_assignment(owner):
            continue
        roles = {role.name: members.needs(role) for role in owner.spec.roles}
        for role, listed in assignment.members.items():
            for index, member in enumerate(listed):
                counted.add(run.MemberKey(owner.uid, assignment.attempt, role, index))
                yield member.node, queue_of(owner, homes), roles.get(role, {})
    for pod in objects.pods:
        if not pod.spec.node_name or not members.is_active(pod):
            continue
        if members.key_of(pod) in counted:
            continue
        holder = owners.get(members.owner_uid(pod))
        name = queue_of(holder, homes) if holder is not None else ""
        yield pod.spec.node_name, name, members.pod_amounts(pod)


def _node(node: kubernetes.Node, used: Mapping[str, int]) -> core.Node:
    capacity = members.read_amounts(node.status.allocatable or node.status.capacity)
    return core.Node(
        name=node.name,
        capacity=capacity,
        free={name: amount - used.get(name, 0) for name, amount in capacity.items()},
        open=is_open(node),
        labels=node.metadata.labels or {},
        taints=tuple(core.Taint(t.key, t.value, t.effect) for t in node.spec.taints or ()),
    )


def _unit(owner: run.Run, queue_name: str) -> core.Unit:
    nodes = owner.spec.placement.nodes or run.NodeChoice()
    created = owner.metadata.creation_timestamp
    return core.Unit(
        key=owner.uid,
        queue=queue_name,
        priority=owner.spec.priority,
        submitted=times.parse(created).timestamp() if created else 0.0,
        groups=tuple(
            core.Group(
                name=role.name,
                least=role.min_replicas or role.replicas,
                most=role.replicas,
                needs=members.needs(role),
            )
            for role in owner.spec.roles
        ),
        selector=nodes.selector or {},
        tolerations=tuple(
            core.Toleration(t.key, t.operator, t.value, t.effect) for t in nodes.tolerations or ()
        ),
        not_before=runmachine.retry_at(owner),
        unsupported=members.unsupported(owner.spec),
    )


def _queue(each: queue.Queue, used: Mapping[str, int]) -> core.Queue:
    limit = {
        name: members.read_amounts({name: value}).get(name)
        if name in ("cpu", "memory")
        else members.read_amounts({members.DEVICE_PREFIX + name: value}).get(name)
        for name, value in (each.spec.limit or {}).items()
    }
    return core.Queue(
        name=each.name,
        parent=each.spec.parent or "",
        limit={name: amount for name, amount in limit.items() if amount is not None},
        used=used,
        strict=each.spec.strict,
        max_priority=each.spec.max_priority,
    )


def _add(sums: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        sums[name] = sums.get(name, 0) + amount
