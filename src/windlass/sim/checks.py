"""Rules that hold after every decision, checked on the facts by other means than the core's own.

Capacity (I1), gangs whole or absent (I2), required topology (I3), quotas (I4), no eviction without
a gainer that holds the room (I5), promised starts kept (I9), same facts same answer (I10). The
numbers are those of the scheduling notes. Everything is counted again from the facts, so that a
mistake in an index cannot hide itself.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from windlass.core import cycle, state
from windlass.core.facts import (
    WHOLE,
    Decision,
    Device,
    Facts,
    Grant,
    Node,
    Nomination,
    Policy,
    Queue,
    Running,
    Seat,
    Unit,
)
from windlass.core.state import Snapshot
from windlass.sim.live import Record

Members = list[tuple[Unit, Seat]]


class Broken(AssertionError):
    """A rule does not hold; the message names the rule, the moment and the thing."""


class Checker:
    """Given to the engine; `again` says how often the whole decision is made anew (I10)."""

    def __init__(
        self, policy: Policy, *, again: int = 1, promises: bool = False, late: float = 1e-6
    ) -> None:
        self.policy, self.again, self.promises, self.late = policy, again, promises, late
        self.checked = 0
        self._used_before: dict[str, dict[str, int]] = {}

    def before(self, snapshot: Snapshot, decision: Decision, now: float) -> None:
        """The decision against the facts it was made on."""
        self.checked += 1
        if self.again and self.checked % self.again == 0:
            same_answer(snapshot, decision, now, self.policy)
        no_orphan_evictions(snapshot, decision, now)
        self._used_before = used_by_queue(snapshot)

    def after(self, snapshot: Snapshot, decision: Decision, now: float) -> None:
        """The facts once the decision was carried out."""
        facts = snapshot.facts()
        nodes = {node.name: node for node in facts.nodes}
        everybody = [(r.unit, seat) for r in facts.running for seat in r.seats]
        within_capacity(nodes, everybody, now)
        within_capacity(nodes, _as_promised(facts), now, "I5 (nominated room)")
        changed = {placement.unit for placement in decision.placements}
        changed |= {eviction.unit for eviction in decision.evictions}
        whole_gangs((r for r in facts.running if r.unit.key in changed), now)
        in_one_domain(facts, nodes, changed, now)
        within_limits(snapshot, self._used_before, now)
        firm_within_guarantee(snapshot, decision, now)

    def started(self, record: Record, now: float) -> None:
        """I9; only where runtimes are honest and nobody may pass by rank."""
        if not self.promises or record.promised is None or record.failed or record.preempted:
            return
        if now > record.promised + self.late:
            raise Broken(
                f"I9 at {now}: {record.job.unit.key} was promised {record.promised} and starts "
                f"{now - record.promised:.3f} s later"
            )


def same_answer(snapshot: Snapshot, decision: Decision, now: float, policy: Policy) -> None:
    """I10: built fresh from the same facts, in another order, the answer is the same."""
    facts = snapshot.facts()
    turned = dataclasses.replace(
        facts,
        nodes=facts.nodes[::-1],
        running=facts.running[::-1],
        waiting=facts.waiting[::-1],
    )
    fresh = cycle.decide(state.build(turned, snapshot.history), now, policy)
    for field in dataclasses.fields(Decision):
        mine, other = getattr(decision, field.name), getattr(fresh, field.name)
        if mine != other:
            raise Broken(
                f"I10 at {now}: {field.name} of a snapshot built fresh differ: "
                f"{_difference(mine, other)}"
            )


def no_orphan_evictions(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """I5: whoever is evicted goes for somebody who is given the room in the same decision."""
    gainers = {nomination.unit for nomination in decision.nominations}
    gainers |= {placement.unit for placement in decision.placements}
    for eviction in decision.evictions:
        if eviction.gainer not in gainers:
            raise Broken(
                f"I5 at {now}: {eviction.unit} must go for {eviction.gainer}, which gets nothing"
            )
        if eviction.unit not in snapshot.running:
            raise Broken(f"I5 at {now}: {eviction.unit} must go but does not run")


def within_capacity(
    nodes: Mapping[str, Node], members: Members, now: float, rule: str = "I1"
) -> None:
    """I1: on every node and device no more is held than there is."""
    needs: dict[tuple[str, str], int] = collections.defaultdict(int)
    grants: dict[tuple[str, str], list[Grant]] = collections.defaultdict(list)
    for unit, seat in members:
        role = next(role for role in unit.roles if role.name == seat.role)
        for name, amount in role.needs.items():
            needs[seat.node, name] += amount
        for grant in seat.grants:
            grants[seat.node, grant.device].append(grant)
    for (where, name), amount in needs.items():
        node = nodes.get(where)
        if node is not None and amount > node.allocatable.get(name, 0):
            raise Broken(
                f"{rule} at {now}: {where} has {node.allocatable.get(name, 0)} {name}, "
                f"{amount} are held"
            )
    devices = {(n.name, d.id): d for n in nodes.values() for d in n.devices}
    for place, held in grants.items():
        device = devices.get(place)
        problem = None if device is None else overdrawn(device, held)
        if problem:
            raise Broken(f"{rule} at {now}: device {place[1]} of {place[0]}: {problem}")


def overdrawn(device: Device, held: list[Grant]) -> str | None:
    """What is wrong with these grants of one device together; None if nothing is."""
    forms = {(grant.form, grant.ratio) for grant in held}
    if len(forms) > 1:
        return f"forms are mixed: {sorted(forms)}"
    if held[0].form == "whole":
        return f"given out whole {len(held)} times" if len(held) > 1 else None
    if held[0].form == "ratio":
        ratio = held[0].ratio
        return f"{len(held)} parts of 1:{ratio}" if len(held) > ratio else None
    if held[0].form == "partition":
        return _overlap(device, held)
    compute, memory = sum(g.compute for g in held), sum(g.memory for g in held)
    if compute > device.compute or memory > device.memory:
        return f"{compute} of {device.compute} compute, {memory} of {device.memory} MiB are held"
    return None


def whole_gangs(changed: Iterable[Running], now: float) -> None:
    """I2: whoever was started, grown or shrunk has its least in every role, or goes whole."""
    for running in changed:
        unit = running.unit
        stays = [s for s in running.seats if (s.role, s.index) not in running.leaving]
        if not unit.gang or not stays:
            continue
        for role in unit.roles:
            count = sum(seat.role == role.name for seat in stays)
            if not role.least <= count <= role.most:
                raise Broken(
                    f"I2 at {now}: {unit.key} has {count} of {role.name}, "
                    f"{role.least} to {role.most} are a gang"
                )


def in_one_domain(facts: Facts, nodes: Mapping[str, Node], changed: set[str], now: float) -> None:
    """I3: a required level holds for all members together."""
    for running in facts.running:
        topology = running.unit.topology
        if running.unit.key not in changed or topology is None or not topology.required:
            continue
        places = [nodes[seat.node] for seat in running.seats if seat.node in nodes]
        if topology.level in facts.levels:
            depth = facts.levels.index(topology.level) + 1
            domains = {node.path[:depth] for node in places}
        else:
            domains = {(node.name,) for node in places}
        if len(domains) > 1:
            raise Broken(
                f"I3 at {now}: {running.unit.key} must be in one {topology.level}, "
                f"it is in {sorted(domains)}"
            )


def within_limits(snapshot: Snapshot, before: Mapping[str, Mapping[str, int]], now: float) -> None:
    """I4: nobody starts beyond a limit."""
    after = used_by_queue(snapshot)
    for name, queue in snapshot.queues.items():
        for resource, limit in queue.limit.items():
            held = after[name].get(resource, 0)
            if held > limit and held > before.get(name, {}).get(resource, 0):
                raise Broken(
                    f"I4 at {now}: queue {name} holds {held} {resource}, its limit is {limit}"
                )


def firm_within_guarantee(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """I4: who cannot be preempted starts only inside the queue's own guarantee."""
    tree = snapshot.tree
    started = {placement.unit for placement in decision.placements}
    firm = [r.unit for r in snapshot.running.values() if not r.unit.preemptible]
    for name in sorted({unit.queue for unit in firm if unit.key in started}):
        members = [unit.key for unit in firm if name in _upwards(unit.queue, snapshot.queues)]
        for resource in sorted(tree.guaranteed):
            held = sum(snapshot.held[key].get(resource, 0) for key in members)
            own = tree.guarantee[name].get(resource, 0)
            if held > own:
                raise Broken(
                    f"I4 at {now}: units of queue {name} that cannot be preempted hold {held} "
                    f"{resource}, its guarantee is {own}"
                )


def used_by_queue(snapshot: Snapshot) -> dict[str, dict[str, int]]:
    """What each queue and those below it hold, added up from the running units."""
    sums: dict[str, dict[str, int]] = {name: {} for name in snapshot.queues}
    for key, running in snapshot.running.items():
        for name in _upwards(running.unit.queue, snapshot.queues):
            for resource, amount in snapshot.held[key].items():
                sums[name][resource] = sums[name].get(resource, 0) + amount
    return sums


def _upwards(name: str, queues: Mapping[str, Queue]) -> list[str]:
    path: list[str] = []
    while name in queues and name not in path:
        path.append(name)
        name = queues[name].parent
    return path


def _as_promised(facts: Facts) -> Members:
    """Who sits where once all who must go are gone and all who are promised are there."""
    waiting = {unit.key: unit for unit in facts.waiting}
    members: Members = [
        (running.unit, seat)
        for running in facts.running
        for seat in running.seats
        if (seat.role, seat.index) not in running.leaving
    ]
    held: tuple[Nomination, ...] = facts.nominations
    for nomination in held:
        unit = waiting.get(nomination.unit)
        if unit is not None:
            members += [(unit, seat) for seat in nomination.seats]
    return members


def _overlap(device: Device, held: list[Grant]) -> str | None:
    slices = {profile.name: profile.slices for profile in device.profiles}
    taken: set[int] = set()
    for grant in held:
        own = set(range(grant.start, grant.start + slices.get(grant.profile, WHOLE)))
        if own & taken or max(own) >= device.slices:
            return f"slice {grant.profile} at {grant.start} has no room"
        taken |= own
    return None


def _difference(mine: object, other: object) -> str:
    if isinstance(mine, tuple) and isinstance(other, tuple):
        for one, two in zip(mine, other, strict=False):
            if one != two:
                return f"{one} against {two}"
        return f"{len(mine)} against {len(other)}"
    return f"{mine} against {other}"
