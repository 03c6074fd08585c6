"""How many volumes nodes can still attach, by driver, and what who waits adds to that.

A driver may limit how many of its volumes a node attaches at the same time (CSINode). A volume
counts once for a node however many pods mount it there; one that is attached and that no pod there
mounts (VolumeAttachment: it comes, or has not been let go) counts, too. `Attachments` is told who
is where with which volumes, and says what is left. Without limits it costs next to nothing.

To the core volumes are amounts. Those that nobody has attached yet are added up; who mounts one
that is attached somewhere is kept from nodes where it would be one too many (`not_now`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping

from windlass.control.volumes import Handle, Reach, Volumes
from windlass.core import facts
from windlass.kinds import clusterkinds, run
from windlass.store.reflector import Reflector

Fact = facts.Unit | facts.Running
UNLIMITED = 1 << 30
Kind = clusterkinds.CSINode | clusterkinds.VolumeAttachment
Seen = tuple[Reflector[clusterkinds.CSINode], Reflector[clusterkinds.VolumeAttachment]]
Held = Mapping[str, frozenset[Handle]]
"""Node -> the volumes that somebody has there."""


class Attachments:
    def __init__(self, known: Volumes) -> None:
        self._volumes = known
        self._limits: dict[str, dict[str, int]] = {}
        """Node -> driver -> volumes."""
        self.drivers: frozenset[str] = frozenset()
        """Those that have a limit anywhere."""
        self._held: dict[str, Held] = {}
        """Who has which volumes where, by key."""
        self._users: dict[str, Counter[Handle]] = {}
        """Node -> how many have each volume there."""
        self._places: Counter[Handle] = Counter()
        """On how many nodes each volume is."""
        self._attachments: dict[str, tuple[str, str, str]] = {}
        """Of each attachment: node, driver, volume by its name in the cluster."""
        self._attached: dict[str, set[tuple[str, str]]] = {}
        """Node -> what is attached there: driver and volume."""
        self._told: dict[str, Counter[str]] = {}
        """Node -> what the core counts for those who are there, by driver."""
        self.changed: set[str] = set()
        """Nodes of which something changed since somebody looked."""

    def see(self, before: Kind | None, after: Kind | None) -> bool:
        """One of these kinds changed; whether drivers have limits now that had none, or the other
        way round: then all that mount claims are looked at again."""
        changed = after or before
        assert changed is not None, "a change has an object before or after it"  # noqa: S101
        if isinstance(changed, clusterkinds.CSINode):
            return self._see_limits(changed.name, changed if after is not None else None)
        node, driver, volume = self._attachments.pop(changed.name, ("", "", ""))
        if node:
            self._attached[node].discard((driver, volume))
            self.changed.add(node)
        if isinstance(after, clusterkinds.VolumeAttachment):
            spec = after.spec
            where = spec.node_name, spec.attacher, spec.source.persistent_volume_name
            if all(where):
                self._attachments[after.name] = where
                self._attached.setdefault(where[0], set()).add(where[1:])
                self.changed.add(where[0])
        return False

    def _see_limits(self, name: str, node: clusterkinds.CSINode | None) -> bool:
        self._limits.pop(name, None)
        told = (node.spec.drivers or ()) if node is not None else ()
        limits = {
            each.name: max(0, each.allocatable.count)
            for each in told
            if each.allocatable is not None and each.allocatable.count is not None
        }
        if limits:
            self._limits[name] = limits
        self.changed.add(name)
        before, self.drivers = self.drivers, frozenset().union(*self._limits.values())
        return before != self.drivers

    def hold(self, key: str, held: Held | None) -> None:
        """What somebody has attached, wherever; None: nothing any more."""
        before = self._held.get(key, {})
        after = held or {}
        if before == after:
            return
        for node, handles in before.items():
            self._count(node, handles, -1)
        for node, handles in after.items():
            self._count(node, handles, +1)
        if after:
            self._held[key] = after
        else:
            del self._held[key]

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
        """What a driver calls a volume may be another now."""
        self.changed.update(node for node, _, each in self._attachments.values() if each == name)

    def follow(self, key: str, owner: run.Run | None, fact: Fact | None) -> None:
        """Members of a Run have its volumes, from the moment that they have a place."""
        names = self._volumes.mounted(owner.spec) if owner is not None else []
        if not names or owner is None or not isinstance(fact, facts.Running):
            self.hold(key, None)
            return
        handles = self.handles(owner.namespace, names)
        self.hold(key, {seat.node: handles for seat in fact.seats} if handles else None)

    def tell(self, before: Fact | None, after: Fact | None) -> None:
        """What the core is told of somebody: it counts volumes by number."""
        for fact, sign in ((before, -1), (after, +1)):
            if not isinstance(fact, facts.Running):
                continue
            asked = {role.name: role.attach for role in fact.unit.roles if role.attach}
            for seat in fact.seats if asked else ():
                for driver, count in asked.get(seat.role, ()):
                    self._told.setdefault(seat.node, Counter())[driver] += sign * count
                    self.changed.add(seat.node)

    # --- what follows

    def reach(self, owner: run.Run) -> Reach:
        """What the claims of a Run mean for its members."""
        found = self._volumes.reach(owner)
        return self.extend(found, owner.namespace, self._volumes.mounted(owner.spec))

    def extend(self, reach: Reach, namespace: str, names: Iterable[str]) -> Reach:
        """With what the claims add to what their node has attached."""
        if not self.drivers:
            return reach
        handles = self.handles(namespace, names)
        attach, too_many = self._asks(handles)
        return dataclasses.replace(reach, attach=attach, too_many=too_many)

    def alone(self, namespace: str, names: Iterable[str], node: str) -> tuple[tuple[str, int], ...]:
        """Volumes that a node would have no more, by driver, if a pod there that mounts these
        claims were gone."""
        users = self._users.get(node, Counter())
        own = (each for each in self.handles(namespace, names) if users[each] == 1)
        return tuple(sorted(Counter(driver for driver, _ in own).items()))

    def handles(self, namespace: str, names: Iterable[str]) -> frozenset[Handle]:
        """The volumes of claims that are limited anywhere."""
        found = (self._volumes.handle(namespace, name) for name in names)
        return frozenset(each for each in found if each is not None and each[0] in self.drivers)

    def limit(self, node: facts.Node) -> facts.Node:
        """As the core is told: with what is left, and what it counts for those who are there."""
        if not self.drivers:
            return node
        left, held = self._left(node.name), self._told.get(node.name, Counter())
        limits = {
            driver: max(0, left[driver] + held[driver]) if driver in left else UNLIMITED
            for driver in sorted(self.drivers)
        }
        return dataclasses.replace(node, attach_limits=limits)

    def _asks(
        self, handles: frozenset[Handle]
    ) -> tuple[tuple[tuple[str, int], ...], frozenset[str]]:
        """Volumes that a member adds, by driver, if nobody has them attached; and the nodes that
        cannot attach all those which it mounts and which are attached elsewhere."""
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
