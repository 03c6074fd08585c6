"""By brute force, on tiny clusters: does any assignment of a unit's least exist, and how good.

Tries every node for every member and every choice of devices. Slow and plain on purpose: it shares
nothing with the core but the facts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from windlass.core.cluster import constraints
from windlass.core.model.types import ClusterFacts, Device, DeviceRequest, Node, Role, Workload

Choice = tuple[tuple[Device, DeviceRequest, int], ...]


class Room:
    """What is left of an empty cluster."""

    def __init__(self, facts: ClusterFacts, *, closed_too: bool = True) -> None:
        self.closed_too = closed_too
        self.amounts = {
            node.name: {
                **node.allocatable,
                **{f"attach:{driver}": most for driver, most in node.attach_limits.items()},
            }
            for node in facts.nodes
        }
        self.local = {
            (node.name, domain.id): dict(domain.allocatable)
            for node in facts.nodes
            for domain in node.numa
        }
        self.ports: dict[str, set[int]] = {node.name: set() for node in facts.nodes}
        self.held: dict[tuple[str, str], list[tuple[DeviceRequest, int]]] = {}

    def takes(self, node: Node, role: Role) -> bool:
        left = self.amounts[node.name]
        return (
            constraints.feasible(role.constraint, node)
            and (self.closed_too or node.name not in role.constraint.not_now)
            and all(left.get(name, 0) >= amount for name, amount in _needs(node, role) if amount)
            and not self.ports[node.name] & set(role.ports)
        )

    def move(self, node: Node, role: Role, sign: int) -> None:
        for name, amount in _needs(node, role):
            self.amounts[node.name][name] = self.amounts[node.name].get(name, 0) + sign * amount
        for port in role.ports:
            (self.ports[node.name].add if sign < 0 else self.ports[node.name].discard)(port)

    def takes_beside(self, node: Node, role: Role, choice: Choice) -> bool:
        """Whether the NUMA node of a bundle's devices has its CPU and memory, too."""
        left = self._beside(node, role, choice)
        return all(left.get(name, amount) >= amount for name, amount in role.needs.items())

    def move_beside(self, node: Node, role: Role, choice: Choice, sign: int) -> None:
        left = self._beside(node, role, choice)
        for name in left:
            left[name] += sign * role.needs.get(name, 0)

    def _beside(self, node: Node, role: Role, choice: Choice) -> dict[str, int]:
        places = {device.numa for device, _, _ in choice} if role.bundle else set()
        return self.local.get((node.name, places.pop()), {}) if len(places) == 1 else {}


def can_start(facts: ClusterFacts, workload: Workload, *, closed_too: bool) -> bool:
    """Whether the least of the unit fits in the empty cluster; `closed_too`: also on nodes that
    take no pod now or are not there yet."""
    room = Room(facts, closed_too=closed_too)
    nodes = [n for n in facts.nodes if closed_too or (n.ready and n.ready_in <= 0)]
    if workload.gang:
        members = [role for role in workload.roles for _ in range(role.min_count)]
    else:
        members = list(workload.roles[:1])
    return any(_fits(room, members, domain) for domain in _domains(facts, workload, nodes))


def _domains(facts: ClusterFacts, workload: Workload, nodes: list[Node]) -> Iterator[list[Node]]:
    topology = workload.topology
    if topology is None or not topology.required:
        yield nodes
        return
    if topology.level not in ("node", *facts.levels):
        return
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        depth = facts.levels.index(topology.level) if topology.level != "node" else 99
        inside = len(node.path) > depth
        groups.setdefault(node.path[: depth + 1] if inside else node.name, []).append(node)
    yield from groups.values()


def _fits(room: Room, members: list[Role], nodes: list[Node]) -> bool:
    if not members:
        return True
    role, rest = members[0], members[1:]
    for node in nodes:
        if not room.takes(node, role):
            continue
        for grants in _grants(room, node, role):
            room.move(node, role, -1)
            room.move_beside(node, role, grants, -1)
            for device, request, start in grants:
                room.held.setdefault((node.name, device.id), []).append((request, start))
            done = _fits(room, rest, nodes)
            for device, _, _ in grants:
                room.held[node.name, device.id].pop()
            room.move(node, role, +1)
            room.move_beside(node, role, grants, +1)
            if done:
                return True
    return False


def _grants(room: Room, node: Node, role: Role) -> Iterator[Choice]:
    """Every way to give one member its devices on a node."""
    parts = []
    for request in role.devices:
        able = [d for d in node.devices if _serves(d, request)]
        parts.append(
            [
                tuple(
                    (device, request, start) for device, start in zip(chosen, starts, strict=True)
                )
                for chosen in itertools.combinations(able, request.count)
                for starts in itertools.product(*(_starts(d, request) for d in chosen))
                if not request.models or len({device.model for device in chosen}) == 1
            ]
        )
    for choice in itertools.product(*parts):
        flat = tuple(each for part in choice for each in part)
        if not _in_one_domain(role, node, flat) or not room.takes_beside(node, role, flat):
            continue
        if _free(room, node, flat):
            yield flat


def _starts(device: Device, request: DeviceRequest) -> tuple[int, ...]:
    if request.form != "partition":
        return (0,)
    return next(p.starts for p in device.profiles if p.name == request.profile)


def _in_one_domain(role: Role, node: Node, choice: Choice) -> bool:
    if role.bundle == "pcie" and any(device.switch for device in node.devices):
        switches = {device.switch for device, _, _ in choice}
        return len(switches) == 1 and "" not in switches
    if role.bundle and any(device.numa != -1 for device in node.devices):
        places = {device.numa for device, _, _ in choice}
        return len(places) == 1 and -1 not in places
    return True  # where a node does not say where its devices are, the choice is its own


def _free(room: Room, node: Node, choice: Choice) -> bool:
    asked: dict[str, list[tuple[DeviceRequest, int]]] = {}
    for device, request, start in choice:
        held = room.held.get((node.name, device.id), [])
        asked.setdefault(device.id, list(held)).append((request, start))
    devices = {device.id: device for device in node.devices}
    return all(_sound(devices[name], grants) for name, grants in asked.items())


def _sound(device: Device, grants: list[tuple[DeviceRequest, int]]) -> bool:
    if len({request.form for request, _ in grants}) > 1:
        return False
    first = grants[0][0]
    if first.form == "whole":
        return len(grants) == 1
    if first.form == "ratio":
        return len({r.ratio for r, _ in grants}) == 1 and len(grants) <= first.ratio
    if first.form == "share":
        return (
            sum(r.compute for r, _ in grants) <= device.compute
            and sum(r.memory for r, _ in grants) <= device.memory
        )
    sizes = {profile.name: profile.slices for profile in device.profiles}
    taken = [s for r, start in grants for s in range(start, start + sizes[r.profile])]
    return len(taken) == len(set(taken))


def _serves(device: Device, request: DeviceRequest) -> bool:
    strength = ("none", "soft", "hard").index
    return (
        device.healthy
        and device.kind == request.kind
        and request.form in device.forms
        and (not request.models or device.model in request.models)
        and (request.form == "whole" or strength(device.isolation) >= strength(request.isolation))
        and (not request.profile or any(p.name == request.profile for p in device.profiles))
    )


def _needs(node: Node, role: Role) -> list[tuple[str, int]]:
    needs = list(role.needs.items())
    if "pods" in node.allocatable and "pods" not in role.needs:
        needs.append(("pods", 1))
    return needs + [(f"attach:{driver}", count) for driver, count in role.attach]
