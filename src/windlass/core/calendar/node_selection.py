"""Which nodes stand for a reservation of amounts ("16 GPUs anywhere"), as of one decision.

The choice is made anew at every decision until the window ends, so it is made as late as it can be.
Whole nodes come first, so that gangs of the beneficiaries fit; among them those from which the
fewest devices must be evicted. What is left over is held back on one more node by number. What the
beneficiaries hold already counts towards the amount.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.devices.device_allocation import UNLOCKED
from windlass.core.cluster.reserved_capacity import Hold, request_for
from windlass.core.model.types import WHOLE, AdvanceReservation, PodAssignment, Role, Running

if TYPE_CHECKING:
    from windlass.core.snapshot.snapshot import Snapshot

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Presence = Literal["stays", "beneficiary", "evictable", "ends", "gone"]
"""What becomes of a running workload by the start of a window, the strongest claim first."""

_FIRST_NODES = 64
"""Nodes that are examined in detail before more are."""
_CHOICE = 4
"""Enough nodes are examined when they have so many times what is needed."""
_IN_PROPORTION = ("cpu", "memory")
"""Held back beside devices of a node, in proportion to them: devices alone run nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """What stands for the amounts of a window."""

    nodes: frozenset[int]
    """Held back whole."""
    parts: Mapping[tuple[str, int], int]
    """(resource, node) -> what must be free there when the window starts."""
    parts_now: Mapping[tuple[str, int], int]
    """The same, less what workloads give back by then."""
    missing: Mapping[str, int]
    """By resource, how much could not be set aside; in the unit of the amounts."""

    def hold(self, window: AdvanceReservation, *, now: bool) -> Hold:
        parts = self.parts_now if now else self.parts
        return Hold(window.start, window.end, self.nodes, {k: n for k, n in parts.items() if n})


@dataclasses.dataclass(slots=True)
class _Node:
    """One node, and what is held there of one resource by the start of the window."""

    index: int
    capacity: int
    stays: int = 0
    beneficiary: int = 0
    evictable: int = 0
    ends: int = 0

    @property
    def available(self) -> int:
        return max(0, self.capacity - self.stays - self.beneficiary)

    @property
    def rank(self) -> tuple[int, int, int, int]:
        return int(self.stays > 0), self.evictable, -self.beneficiary, self.index


def choose(
    snapshot: Snapshot,
    window: AdvanceReservation,
    presence: Callable[[Running], Presence],
    beneficiaries: Iterable[str],
    others: Iterable[Hold],
) -> Choice:
    """`beneficiaries`: keys of running workloads that may use the window; `others`: what windows
    that overlap it hold back."""
    chooser = _Chooser(snapshot, presence, list(beneficiaries), list(others))
    for resource in sorted(window.amounts, key=lambda r: (r in snapshot.cluster.resources, r)):
        chooser.set_aside(resource, window.amounts[resource], explicit=window.amounts)
    return Choice(frozenset(chooser.nodes), chooser.parts, chooser.parts_now(), chooser.missing)


def left_at_start(
    snapshot: Snapshot,
    window: AdvanceReservation,
    presence: Callable[[AdvanceReservation, Running], Presence],
    resource: str,
    node: int,
) -> int:
    """What is free of a resource on a node when the window starts, if no workload is evicted."""
    chooser = _Chooser(snapshot, lambda running: presence(window, running), [], [])
    there = chooser.examine(resource, node)
    return there.available - there.evictable


def held_on(snapshot: Snapshot, running: Running, resource: str, node: int) -> int:
    """What a workload holds of a resource on a node."""
    chooser = _Chooser(snapshot, lambda _: "gone", [], [])
    name = snapshot.cluster.nodes[node].name
    roles = {role.name: role for role in running.workload.roles}
    return sum(
        chooser.amount(resource, roles[pod.role], pod)
        for pod in running.pods
        if pod.node == name and pod.role in roles
    )


class _Chooser:
    def __init__(
        self,
        snapshot: Snapshot,
        presence: Callable[[Running], Presence],
        beneficiaries: list[str],
        others: list[Hold],
    ) -> None:
        self.snapshot, self.cluster = snapshot, snapshot.cluster
        self._presence, self._beneficiaries, self._others = presence, beneficiaries, others
        self.nodes: set[int] = set()
        self.parts: dict[tuple[str, int], int] = {}
        self.missing: dict[str, int] = {}
        self._known: dict[str, tuple[Ints, Ints]] = {}
        self._shut = set[int]().union(*(hold.nodes for hold in others))

    def set_aside(self, resource: str, amount: int, explicit: Mapping[str, int]) -> None:
        """So much of a resource, less what beneficiaries hold and what was chosen already."""
        is_device = resource not in self.cluster.resources
        needed = amount - self._used(resource)
        needed = -(-needed // WHOLE) if is_device else needed
        needed -= sum(self.examine(resource, node).available for node in sorted(self.nodes))
        if needed <= 0:
            return
        looked = self._nodes_for(resource, needed)
        rest = []
        for node in sorted(looked, key=lambda each: each.rank):
            if node.available and node.available <= needed:
                self.nodes.add(node.index)
                needed -= node.available
            elif node.available:
                rest.append(node)
        if needed and rest:
            node = min(rest, key=lambda each: _fit_of(each, needed))
            self.parts[resource, node.index] = needed
            for name in _IN_PROPORTION if is_device else ():
                if name in self.cluster.resources and name not in explicit:
                    whole = int(self.cluster.allocatable[self.cluster.resources[name], node.index])
                    self.parts[name, node.index] = whole * needed // node.capacity
            needed = 0
        if needed:
            self.missing[resource] = needed * (WHOLE if is_device else 1)

    def parts_now(self) -> dict[tuple[str, int], int]:
        return {
            (resource, node): max(0, held - self.examine(resource, node).ends)
            for (resource, node), held in self.parts.items()
        }

    def _used(self, resource: str) -> int:
        """What beneficiaries hold that still run when the window starts."""
        held, running = self.snapshot.usage, self.snapshot.running
        return sum(
            held[key].get(resource, 0)
            for key in self._beneficiaries
            if self._presence(running[key]) == "beneficiary"
        )

    def _nodes_for(self, resource: str, needed: int) -> list[_Node]:
        """Nodes to choose among: the least used first, and no more than give enough choice."""
        capacity, free = self._amounts(resource)
        usable = self.cluster.open & (capacity > 0)
        usable[sorted(self._shut | self.nodes)] = False
        where = np.flatnonzero(usable)
        where = where[np.argsort((capacity - free)[where], kind="stable")]
        near = {
            self.cluster.index[pod.node]
            for key in self._beneficiaries
            for pod in self.snapshot.running[key].pods
            if pod.node in self.cluster.index
        }
        found = {node: self.examine(resource, node) for node in sorted(near) if usable[node]}
        count = _FIRST_NODES
        while True:
            for node in where[:count].tolist():
                if node not in found:
                    found[node] = self.examine(resource, node)
            if count >= len(where) or self._is_choice(found.values(), needed):
                return list(found.values())
            count *= 2

    @staticmethod
    def _is_choice(nodes: Iterable[_Node], needed: int) -> bool:
        whole = [node for node in nodes if not node.stays]
        idle = sum(node.available for node in whole if not node.evictable)
        return idle >= needed or sum(node.available for node in whole) >= _CHOICE * needed

    def _amounts(self, resource: str) -> tuple[Ints, Ints]:
        """By node: how much there is of it, and how much is free."""
        found, cluster = self._known.get(resource), self.cluster
        if found is None and resource in cluster.resources:
            column = cluster.resources[resource]
            found = cluster.allocatable[column], cluster.free[column]
        elif found is None:
            eligible = cluster.device_table.eligible(request_for(resource))
            free = eligible & (cluster.device_table.mode == UNLOCKED)
            found = eligible.sum(axis=1), free.sum(axis=1)
        self._known[resource] = found
        return found

    def examine(self, resource: str, index: int) -> _Node:
        """One node in detail: how much each workload holds there, and what happens to it."""
        capacity, _ = self._amounts(resource)
        node = _Node(index, int(capacity[index]))
        node.stays += self._held_by_others(resource, index)
        name = self.cluster.nodes[index].name
        devices: dict[str, Presence] = {}
        strongest: list[Presence] = ["gone", "ends", "evictable", "beneficiary", "stays"]
        for key in self.snapshot.workloads_on.get(name, ()):
            running = self.snapshot.running[key]
            presence = self._presence(running)
            roles = {role.name: role for role in running.workload.roles}
            for pod in running.pods:
                if pod.node != name or presence == "gone" or pod.role not in roles:
                    continue
                if resource in self.cluster.resources:
                    _add(node, presence, self._needs(resource, roles[pod.role], pod))
                    continue
                for device in self._devices(resource, index, pod):
                    known = devices.get(device, "gone")
                    devices[device] = max(known, presence, key=strongest.index)
        for presence in devices.values():
            _add(node, presence, 1)
        return node

    def amount(self, resource: str, role: Role, pod: PodAssignment) -> int:
        """What one member holds of a resource: devices by number."""
        if resource in self.cluster.resources:
            return self._needs(resource, role, pod)
        return len(self._devices(resource, self.cluster.index[pod.node], pod))

    def _held_by_others(self, resource: str, index: int) -> int:
        kind = resource.partition("/")[0]
        return sum(
            held
            for hold in self._others
            for (name, node), held in hold.parts.items()
            if node == index and name.partition("/")[0] == kind
        )

    def _needs(self, resource: str, role: Role, pod: PodAssignment) -> int:
        node = self.cluster.index[pod.node]
        column = self.cluster.resources[resource]
        needs = self.cluster.needs_of(self.cluster.shape_of(role), node, pod.grants)
        return sum(need for at, need in needs if at == column)

    def _devices(self, resource: str, index: int, pod: PodAssignment) -> list[str]:
        bank = self.cluster.device_table
        eligible, place = bank.eligible(request_for(resource))[index], bank.place[index]
        held = ((grant.device, place.get(grant.device)) for grant in pod.grants)
        return [device for device, at in held if at is not None and eligible[at]]


def _fit_of(node: _Node, needed: int) -> tuple[int, int, int]:
    """For what is left over: the fewest evictions, then the least capacity that still fits."""
    evicted = max(0, needed - (node.available - node.evictable))
    return evicted, node.available, node.index


def _add(node: _Node, presence: Presence, amount: int) -> None:
    match presence:
        case "stays":
            node.stays += amount
        case "beneficiary":
            node.beneficiary += amount
        case "evictable":
            node.evictable += amount
        case "ends":
            node.ends += amount
