"""Converts API objects to values of the ledger. Pure.

The status of a Run has the intervals in which its replicas used capacity (`status.held`, written by
`control.runs.usage_intervals`) and their nodes (`assignment`, or a copy of it). An external pod
uses what it requests from its binding to its end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from windlass.control.convert import node_facts
from windlass.control.model import array_runs, members
from windlass.core.model import types as corefacts
from windlass.kinds.types import core, run
from windlass.kinds.values import quantity, times
from windlass.ledger.model import MACHINE, WHOLE, Device, Hold, Member, Party

CLASS_LABELS = ("windlass.dev/node-class", "node.kubernetes.io/instance-type")
"""The labels with the class of a node: the first that is set counts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """The capacity of a node."""

    name: str
    cpu: int
    memory: int
    devices: Mapping[str, Device]
    """By name; the machine itself is one of them."""
    device_memory: Mapping[str, int]
    """By kind, bytes of one device, if the node reports them."""


Nodes = Callable[[str], Node | None]


def node(obj: core.Node) -> Node:
    reported = node_facts.read_node(obj)
    labels = obj.metadata.labels or {}
    its_class = next((labels[name] for name in CLASS_LABELS if labels.get(name)), "")
    found = {MACHINE: Device(obj.name, MACHINE, MACHINE, "", its_class)}
    for each in reported.devices:
        found[each.id] = Device(obj.name, each.id, each.kind, each.model, its_class)
    memory = {each.kind: each.memory << 20 for each in reported.devices if each.memory}
    amounts = reported.allocatable
    return Node(obj.name, amounts.get("cpu", 0), amounts.get("memory", 0), found, memory)


# --- Runs -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class RunUsage:
    """The usage that the status of a Run reports."""

    holds: tuple[Hold, ...]
    missing: tuple[tuple[Member, int, int | None], ...] = ()
    """Replicas without a known node: the start and end of their usage."""


def run_usage(
    owner: run.Run, queue: str, nodes: Nodes, pods: Mapping[Member, str] | None = None
) -> RunUsage:
    """The usage of its replicas. `pods`: uids of the pods that exist."""
    part = array_runs.identity(owner)
    # The indices of an array are summed up under its name.
    name = owner.name if part is None else part.array
    party = Party(owner.uid, owner.namespace, owner.spec.user or "", name, queue)
    roles = {role.name: role for role in owner.spec.roles}
    holds: list[Hold] = []
    missing: list[tuple[Member, int, int | None]] = []
    for held in owner.status.held or ():
        places = _places(owner, held)
        since = unix(held.since)
        for offset in range(held.count):
            member = Member(held.attempt, held.role, held.first + offset)
            until = _until(held, since, offset)
            place = places[offset] if offset < len(places) else None
            at = nodes(place.node) if place else None
            if place is None or at is None:
                missing.append((member, since, until))
                continue
            uid = (pods or {}).get(member, "")
            base = Hold(party, member, at.devices[MACHINE], since, until, pod=uid)
            holds += _member_holds(base, roles[held.role], place, at)
    return RunUsage(tuple(holds), tuple(missing))


def filled_in(usage: RunUsage, known: Iterable[Hold]) -> tuple[list[Hold], list[Member]]:
    """Completes the usage with intervals of the ledger for replicas whose node the status no longer
    has; returns also the replicas of which nothing is known."""
    seen: dict[tuple[Member, int], list[Hold]] = {}
    for hold in known:
        seen.setdefault((hold.member, hold.started), []).append(hold)
    holds, unknown = list(usage.holds), []
    for member, since, until in usage.missing:
        found = seen.get((member, since), [])
        holds += [dataclasses.replace(hold, ended=until) for hold in found]
        if not found:
            unknown.append(member)
    return holds, unknown


def has_started(owner: run.Run) -> bool:
    return bool(owner.status.held)


def is_over(owner: run.Run) -> bool:
    """The Run is finished, and all of its intervals have ended."""
    return owner.finished and all(each.until for each in owner.status.held or ())


def remaining(owner: run.Run) -> list[run.Held]:
    """The intervals that the status keeps once the ledger has all: those of the current attempt."""
    attempt = owner.status.attempt
    return [
        each
        for each in owner.status.held or ()
        if each.until is None or (each.attempt == attempt and owner.finished)
    ]


def _places(owner: run.Run, held: run.Held) -> Sequence[run.Member]:
    if held.members is not None:
        return held.members
    assignment = owner.status.assignment
    if assignment is None or assignment.attempt != held.attempt:
        return ()
    return assignment.members.get(held.role, [])[held.first : held.first + held.count]


def _until(held: run.Held, since: int, offset: int) -> int | None:
    if held.until is None:
        return None
    if held.lasted and offset < len(held.lasted):
        return since + held.lasted[offset]
    return unix(held.until)


def _member_holds(base: Hold, role: run.Role, place: run.Member, at: Node) -> list[Hold]:
    """The part of the machine, and each device."""
    needs = members.needs(role)
    found = [_of_machine(base, at, needs["cpu"], needs["memory"])]
    requests = [device for device in role.devices or () for _ in range(device.count or 1)]
    for number, name in enumerate(place.devices or ()):
        plain, milli, *_ = f"{name}:".split(":")
        kind = plain.rpartition("/")[0].rpartition("/")[2]
        device = at.devices.get(plain) or Device(at.name, plain, kind, "", base.device.node_class)
        request = requests[number] if number < len(requests) else None
        found.append(_of_device(base, device, request, milli, at.device_memory.get(kind, 0)))
    return found


def _of_machine(base: Hold, at: Node, cpu: int, memory: int) -> Hold:
    part = max(_part(cpu, at.cpu), _part(memory, at.memory))
    return dataclasses.replace(
        base, form="share", part=part, milli=part // 1000, cpu=cpu, memory=memory
    )


def _of_device(
    base: Hold, device: Device, request: run.Device | None, milli: str, whole_memory: int
) -> Hold:
    """A device or a part of it, by the dominant part: compute, or memory if the node reports its
    size."""
    share = int(milli) if milli.isdecimal() else corefacts.WHOLE
    memory = quantity.whole(request.memory) if request and request.memory else 0
    form = "whole" if not milli else "ratio" if request and request.share else "share"
    part = max(share * WHOLE // corefacts.WHOLE, _part(memory, whole_memory))
    return dataclasses.replace(
        base, device=device, form=form, part=min(WHOLE, part), milli=share, memory=memory
    )


def _part(amount: int, of: int) -> int:
    return min(WHOLE, amount * WHOLE // of) if of > 0 else 0


# --- external pods --------------------------------------------------------------------------------


def is_external(pod: core.Pod) -> bool:
    return not members.owner_uid(pod)


def occupies_capacity(pod: core.Pod) -> bool:
    return bool(pod.spec.node_name) and members.is_active(pod)


def pod_holds(pod: core.Pod, at: Node, taken: Iterable[str], earliest: int, now: int) -> list[Hold]:
    """The usage of an external pod, from its start but not before `earliest`. The names of its
    devices are unknown: it gets names of devices that no other pod uses, so that each is counted
    once."""
    created = pod.status.start_time or pod.metadata.creation_timestamp
    started = min(now, max(earliest, unix(created))) if created else now
    party = Party(pod.uid, pod.namespace, "", "", "")
    base = Hold(party, Member(), at.devices[MACHINE], started, None, pod=pod.uid)
    amounts = members.pod_amounts(pod)
    found = [_of_machine(base, at, amounts.get("cpu", 0), amounts.get("memory", 0))]
    free = [name for name in sorted(at.devices) if name not in set(taken) and name != MACHINE]
    for resource, count in sorted(amounts.items()):
        kind = members.device_kind(resource)
        mine = [name for name in free if kind and at.devices[name].kind == kind][:count]
        found += [dataclasses.replace(base, device=at.devices[name]) for name in mine]
    return found


def pod_ended(pod: core.Pod, now: int) -> int:
    ended = members.ended_at(pod)
    return min(now, unix(ended)) if ended else now


def unix(text: str) -> int:
    return int(times.parse(text).timestamp())
