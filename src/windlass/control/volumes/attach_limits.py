"""The number of volumes that nodes can still attach, by driver, and the demand of workloads.

A driver may limit how many of its volumes a node attaches at the same time (CSINode). A volume
counts once for a node however many pods mount it there; an attached volume without a pod
(VolumeAttachment: it is being attached or detached) counts, too. `Attachments` gets the volumes of
workloads by node, and computes what is left. Without limits it costs almost nothing.

For the core, volumes are amounts. Volumes that are attached nowhere are added up; a workload with a
volume that is attached elsewhere is kept from nodes where it would exceed the limit (`not_now`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

from windlass.control.volumes.topology import Handle, Reach, Volumes
from windlass.core.model import types
from windlass.kinds.types import cluster, run
from windlass.store.informer import Informer

Fact = types.Workload | types.Running
UNLIMITED = 1 << 30
Kind = cluster.CSINode | cluster.VolumeAttachment
Seen = tuple[Informer[cluster.CSINode], Informer[cluster.VolumeAttachment]]
VolumesByNode = Mapping[str, frozenset[Handle]]
"""Node -> the volumes of a workload there."""


class Attachments:
    def __init__(self, known: Volumes) -> None:
        self._volumes = known
        self._limits: dict[str, dict[str, int]] = {}
        """Node -> driver -> volumes."""
        self.drivers: frozenset[str] = frozenset()
        """Drivers with a limit on any node."""
        self._by_workload: dict[str, VolumesByNode] = {}
        """The volumes of workloads by node, by key."""
        self._users: dict[str, Counter[Handle]] = {}
        """Node -> the number of users of each volume there."""
        self._places: Counter[Handle] = Counter()
        """The number of nodes of each volume."""
        self._attachments: dict[str, tuple[str, str, str]] = {}
        """Of each attachment: node, driver, name of the volume in the cluster."""
        self._attached: dict[str, set[tuple[str, str]]] = {}
        """Node -> what is attached there: driver and volume."""
        self._counted: dict[str, Counter[str]] = {}
        """Node -> what the core counts for the workloads there, by driver."""
        self.changed: set[str] = set()
        """Nodes that changed since the last read."""

    def on_change(self, before: Kind | None, after: Kind | None) -> bool:
        """One of these kinds changed. Returns whether a driver got its first limit or lost its
        last: then all workloads with claims are converted again."""
        changed = after or before
        assert changed is not None, "a change has an object before or after it"  # noqa: S101
        if isinstance(changed, cluster.CSINode):
            return self._see_limits(changed.name, changed if after is not None else None)
        node, driver, volume = self._attachments.pop(changed.name, ("", "", ""))
        if node:
            self._attached[node].discard((driver, volume))
            self.changed.add(node)
        if isinstance(after, cluster.VolumeAttachment):
            spec = after.spec
            where = spec.node_name, spec.attacher, spec.source.persistent_volume_name
            if all(where):
                self._attachments[after.name] = where
                self._attached.setdefault(where[0], set()).add(where[1:])
                self.changed.add(where[0])
        return False

    def _see_limits(self, name: str, node: cluster.CSINode | None) -> bool:
        self._limits.pop(name, None)
        limited = (node.spec.drivers or ()) if node is not None else ()
        limits = {
            each.name: max(0, each.allocatable.count)
            for each in limited
            if each.allocatable is not None and each.allocatable.count is not None
        }
        if limits:
            self._limits[name] = limits
        self.changed.add(name)
        before, self.drivers = self.drivers, frozenset().union(*self._limits.values())
        return before != self.drivers

    def hold(self, key: str, volumes: VolumesByNode | None) -> None:
        """Sets the attached volumes of a workload; None: none any more."""
        before = self._by_workload.get(key, {})
        after = volumes or {}
        if before == after:
            return
        for node, handles in before.items():
            self._count(node, handles, -1)
        for node, handles in after.items():
            self._count(node, handles, +1)
        if after:
            self._by_workload[key] = after
        else:
            del self._by_workload[key]

    def _count(self, node: str, handles: Iterable[Handle], sign: int) -> None:
        users = self._users.setdefault(node, Counter())
        for handle in handles:
            was = users[handle] > 0
            users[handle] += sign
            if (users[handle] > 0) != was:
                self._places[handle] += sign
                self.changed.add(node)
            if not users[handle]:
                del users[handle]
            if not self._places[handle]:
                del self._places[handle]

    def volume_changed(self, name: str) -> None:
        """The driver's name of a volume may have changed."""
        self.changed.update(node for node, _, each in self._attachments.values() if each == name)

    def follow(self, key: str, owner: run.Run | None, fact: Fact | None) -> None:
        """Replicas of a Run use its volumes from their placement on."""
        names = self._volumes.mounted(owner.spec) if owner is not None else []
        if not names or owner is None or not isinstance(fact, types.Running):
            self.hold(key, None)
            return
        handles = self.handles(owner.namespace, names)
        self.hold(key, {pod.node: handles for pod in fact.pods} if handles else None)

    def replace(self, before: Fact | None, after: Fact | None) -> None:
        """Updates what the core counts for a workload: it counts volumes by number."""
        for fact, sign in ((before, -1), (after, +1)):
            if not isinstance(fact, types.Running):
                continue
            per_role = {role.name: role.attach for role in fact.workload.roles if role.attach}
            for pod in fact.pods if per_role else ():
                for driver, count in per_role.get(pod.role, ()):
                    self._counted.setdefault(pod.node, Counter())[driver] += sign * count
                    self.changed.add(pod.node)

    # --- results

    def reach(self, owner: run.Run) -> Reach:
        """The constraints of the claims of a Run."""
        found = self._volumes.reach(owner)
        return self.extend(found, owner.namespace, self._volumes.mounted(owner.spec))

    def extend(self, reach: Reach, namespace: str, names: Iterable[str]) -> Reach:
        """Adds the volumes of the claims to what their node has attached."""
        if not self.drivers:
            return reach
        handles = self.handles(namespace, names)
        attach, too_many = self._asks(handles)
        return dataclasses.replace(reach, attach=attach, too_many=too_many)

    def alone(self, namespace: str, names: Iterable[str], node: str) -> tuple[tuple[str, int], ...]:
        """Volumes that a node would release, by driver, if a pod there with these claims ended."""
        users = self._users.get(node, Counter())
        own = (each for each in self.handles(namespace, names) if users[each] == 1)
        return tuple(sorted(Counter(driver for driver, _ in own).items()))

    def handles(self, namespace: str, names: Iterable[str]) -> frozenset[Handle]:
        """The volumes of claims whose driver has a limit."""
        found = (self._volumes.handle(namespace, name) for name in names)
        return frozenset(each for each in found if each is not None and each[0] in self.drivers)

    def limit(self, node: types.Node) -> types.Node:
        """The node for the core: with what is left, plus what it counts for the workloads there."""
        if not self.drivers:
            return node
        left, counted = self._left(node.name), self._counted.get(node.name, Counter())
        limits = {
            driver: max(0, left[driver] + counted[driver]) if driver in left else UNLIMITED
            for driver in sorted(self.drivers)
        }
        return dataclasses.replace(node, attach_limits=limits)

    def _asks(
        self, handles: frozenset[Handle]
    ) -> tuple[tuple[tuple[str, int], ...], frozenset[str]]:
        """Volumes that a replica adds, by driver, if they are attached nowhere; and the nodes that
        cannot attach all its volumes which are attached elsewhere."""
        fresh = Counter(driver for driver, _ in (h for h in handles if not self._places[h]))
        attach = tuple(sorted(fresh.items()))
        if fresh.total() == len(handles):
            return attach, frozenset()
        too_many = frozenset(node for node in self._limits if self._lacks(node, handles))
        return attach, too_many

    def _lacks(self, node: str, handles: frozenset[Handle]) -> bool:
        there, left = self._users.get(node, Counter()), self._left(node)
        adds = Counter(handle[0] for handle in handles if handle not in there)
        return any(driver in left and count > left[driver] for driver, count in adds.items())

    def _left(self, node: str) -> dict[str, int]:
        """Volumes that a node can still attach; below 0: it has too many."""
        mounted = self._users.get(node, Counter())
        used = Counter(driver for driver, _ in mounted)
        for driver, name in self._attached.get(node, ()):
            handle = self._volumes.handle_of(name)
            if handle is not None and (driver, handle[1]) not in mounted:
                used[driver] += 1
        return {driver: most - used[driver] for driver, most in self._limits.get(node, {}).items()}
