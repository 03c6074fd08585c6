"""Rules that no decision may break, counted again from the facts by other means than the core's.

`broken` is cheap enough for the live scheduler, which counts what it finds as a metric;
`sim.checks` looks at every decision of a simulation, with more rules. The numbers are those of the
scheduling notes: capacity (I1), gangs whole or absent (I2), required topology (I3), limits (I4), no
eviction without a gainer (I5), no queue taken below its guarantee (I8), advance reservations
(I15).
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from windlass.core import advance_invariants, amounts, reclaim_check
from windlass.core.advance_invariants import Broken as Broken
from windlass.core.facts import WHOLE, Decision, Device, Grant, Node, Running, Seat, Unit
from windlass.core.state import Snapshot

Members = list[tuple[Unit, Seat]]


def broken(snapshot: Snapshot, decision: Decision, now: float) -> list[tuple[str, str]]:
    """(rule, what is wrong) for every rule that a decision breaks; looks at what it touches."""
    found = []
    for rule, check in _LIVE.items():
        try:
            check(snapshot, decision, now)
        except Broken as problem:
            found.append((rule, str(problem)))
    return found


def no_orphan_evictions(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """I5: whoever is evicted goes for somebody who is given the room in the same decision, or
    leaves what an advance reservation holds (`reservations_hold`)."""
    gainers = {nomination.unit for nomination in decision.nominations}
    for eviction in decision.evictions:
        if eviction.move and eviction.unit not in gainers:
            raise Broken(f"I5 at {now}: {eviction.unit} is moved but gets no other place")
    gainers |= {placement.unit for placement in decision.placements}
    for eviction in decision.evictions:
        if eviction.gainer not in gainers and not eviction.reservation:
            raise Broken(
                f"I5 at {now}: {eviction.unit} must go for {eviction.gainer}, which gets nothing"
            )
        if eviction.unit not in snapshot.running:
            raise Broken(f"I5 at {now}: {eviction.unit} must go but does not run")


def within_capacity(
    nodes: Mapping[str, Node],
    members: Members,
    now: float,
    rule: str = "I1",
    given: Members | None = None,
) -> None:
    """I1: on every node and device no more is held than there is. With `given`, these hold room,
    too, and only what they use is looked at: a node may have shrunk under those who are there."""
    needs, grants = _held(members)
    if given is not None:
        used, taken = _held(given)
        needs = {place: amount + needs.get(place, 0) for place, amount in used.items()}
        grants = {place: [*grants.get(place, ()), *held] for place, held in taken.items()}
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
    _within_domains(nodes, members, now, rule, given)


def _within_domains(
    nodes: Mapping[str, Node], members: Members, now: float, rule: str, given: Members | None
) -> None:
    """What bundles hold on a NUMA node is not more than it has; with `given`, where these are."""
    held = _held_in_domains(nodes, members)
    if given is not None:
        used = _held_in_domains(nodes, given)
        held = {place: amount + held.get(place, 0) for place, amount in used.items()}
    for (where, numa, name), amount in held.items():
        has = next(each.allocatable for each in nodes[where].numa if each.id == numa)
        if amount > has.get(name, amount):
            raise Broken(
                f"{rule} at {now}: NUMA node {numa} of {where} has {has[name]} {name}, "
                f"bundles hold {amount}"
            )


def _held_in_domains(
    nodes: Mapping[str, Node], members: Members
) -> dict[tuple[str, int, str], int]:
    """By node, NUMA node and resource: members with a bundle whose devices are all in one place."""
    found: dict[tuple[str, int, str], int] = collections.defaultdict(int)
    for unit, seat in members:
        node = nodes.get(seat.node)
        if node is None or not node.numa:
            continue
        role = next((each for each in unit.roles if each.name == seat.role), None)
        if role is None or not role.bundle:
            continue
        mine = {grant.device for grant in seat.grants}
        places = {device.numa for device in node.devices if device.id in mine}
        for numa in places - {-1} if len(places) == 1 else ():
            for name, amount in role.needs.items():
                found[seat.node, numa, name] += amount
    return found


def _held(
    members: Members,
) -> tuple[dict[tuple[str, str], int], dict[tuple[str, str], list[Grant]]]:
    """By node and resource, and by node and device."""
    needs: dict[tuple[str, str], int] = collections.defaultdict(int)
    grants: dict[tuple[str, str], list[Grant]] = collections.defaultdict(list)
    for unit, seat in members:
        for role in unit.roles:
            if role.name == seat.role:
                for name, amount in role.needs.items():
                    if amount:
                        needs[seat.node, name] += amount
                break
        for grant in seat.grants:
            grants[seat.node, grant.device].append(grant)
    return needs, grants


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


def in_one_domain(
    levels: Sequence[str], nodes: Mapping[str, Node], changed: Iterable[Running], now: float
) -> None:
    """I3: a required level holds for all members together."""
    for running in changed:
        topology = running.unit.topology
        if topology is None or not _needs_one_domain(running.unit):
            continue
        places = [nodes[seat.node] for seat in running.seats if seat.node in nodes]
        if topology.level in levels:
            depth = levels.index(topology.level) + 1
            domains = {node.path[:depth] for node in places}
        else:
            domains = {(node.name,) for node in places}
        if len(domains) > 1:
            raise Broken(
                f"I3 at {now}: {running.unit.key} must be in one {topology.level}, "
                f"it is in {sorted(domains)}"
            )


def _needs_one_domain(unit: Unit) -> bool:
    return unit.topology is not None and unit.topology.required


def _overlap(device: Device, held: list[Grant]) -> str | None:
    slices = {profile.name: profile.slices for profile in device.profiles}
    taken: set[int] = set()
    for grant in held:
        own = set(range(grant.start, grant.start + slices.get(grant.profile, WHOLE)))
        if own & taken or max(own) >= device.slices:
            return f"slice {grant.profile} at {grant.start} has no room"
        taken |= own
    return None


# --- the same for one decision that is not carried out yet ----------------------------------------


def _room_is_there(snapshot: Snapshot, decision: Decision, now: float) -> None:
    given = [(_unit(snapshot, p.unit), seat) for p in decision.placements for seat in p.seats]
    nodes = {
        seat.node: snapshot.cluster.nodes[snapshot.cluster.index[seat.node]] for _, seat in given
    }
    keys = dict.fromkeys(key for node in nodes for key in snapshot.there.get(node, ()))
    there = [
        (running.unit, seat)
        for running in (snapshot.running[key] for key in keys)
        for seat in running.seats
        if seat.node in nodes
    ]
    within_capacity(nodes, there, now, given=given)


def _gangs_are_whole(snapshot: Snapshot, decision: Decision, now: float) -> None:
    whole_gangs(_changed(snapshot, decision), now)


def _domains_hold(snapshot: Snapshot, decision: Decision, now: float) -> None:
    changed = [
        running
        for running in _changed(snapshot, decision, _needs_one_domain)
        if not running.leaving
    ]
    nodes = {
        seat.node: snapshot.cluster.nodes[snapshot.cluster.index[seat.node]]
        for running in changed
        for seat in running.seats
        if seat.node in snapshot.cluster.index
    }
    in_one_domain(snapshot.levels, nodes, changed, now)


def _limits_hold(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """I4, by the tree's own sums and what is given out now."""
    added: dict[str, dict[str, int]] = {}
    tree, limited = snapshot.tree, dict[str, list[str]]()
    for placement in decision.placements:
        unit = _unit(snapshot, placement.unit)
        if unit.queue not in limited:
            above = tree.path(unit.queue)
            limited[unit.queue] = [name for name in above if tree.queues[name].limit]
        if not limited[unit.queue]:
            continue
        held = amounts.of_seats(snapshot.cluster, unit.roles, placement.seats)
        for name in limited[unit.queue]:
            sums = added.setdefault(name, {})
            for resource, amount in held.items():
                sums[resource] = sums.get(resource, 0) + amount
    for name, sums in sorted(added.items()):
        for resource, limit in tree.queues[name].limit.items():
            used = tree.used[name].get(resource, 0) + sums.get(resource, 0)
            if sums.get(resource) and used > limit:
                raise Broken(
                    f"I4 at {now}: queue {name} holds {used} {resource}, its limit is {limit}"
                )


def _spaces_hold(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """I4 for namespaces: no quota is exceeded by what is given out now."""
    spaces = snapshot.spaces.fork()
    given: set[str] = set()
    for placement in decision.placements if spaces.quotas else ():
        unit = _unit(snapshot, placement.unit)
        held = amounts.of_seats(snapshot.cluster, unit.roles, placement.seats)
        spaces.add(unit.namespace, held, len(placement.seats))
        given.add(unit.namespace)
    for quota in spaces.quotas.values():
        used, before = spaces.used[quota.namespace], snapshot.spaces.used[quota.namespace]
        for resource, hard in quota.hard.items() if quota.namespace in given else ():
            if used.get(resource, 0) > max(hard, before.get(resource, 0)):
                raise Broken(
                    f"I4 at {now}: namespace {quota.namespace} holds {used[resource]} {resource}, "
                    f"its quota {quota.name} is {hard}"
                )


def _user_limits_hold(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """I4 for users: no limit of a user is exceeded by what is given out now."""
    quotas, given = snapshot.user_quotas.fork(), set[tuple[str, str]]()
    for placement in decision.placements if quotas else ():
        unit = _unit(snapshot, placement.unit)
        held = amounts.of_seats(snapshot.cluster, unit.roles, placement.seats)
        quotas.add(unit, held, is_member=placement.unit in snapshot.running)
        given.update(quotas.keys(unit))
    for key in sorted(given & quotas.used.keys()):
        queue, user = key
        limit, used, before = (
            quotas.limit(*key),
            quotas.used[key],
            snapshot.user_quotas.used.get(key),
        )
        for resource, bound in limit.resources.items():
            most = max(bound, before.held.get(resource, 0) if before else 0)
            if used.held.get(resource, 0) > most:
                raise Broken(
                    f"I4 at {now}: user {user} holds {used.held[resource]} {resource} in queue "
                    f"{queue}, the limit is {bound}"
                )
        if limit.running is not None:
            most = max(limit.running, before.running if before else 0)
            if used.running > most:
                raise Broken(
                    f"I4 at {now}: user {user} runs {used.running} workloads in queue {queue}, the "
                    f"limit is {limit.running}"
                )


def queues_keep_their_guarantees(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """I8: what queues take from each other."""
    for problem in reclaim_check.problems(snapshot, decision, now):
        raise Broken(problem)


_LIVE: Mapping[str, Callable[[Snapshot, Decision, float], None]] = {
    "I1": _room_is_there,
    "I2": _gangs_are_whole,
    "I3": _domains_hold,
    "I4": _limits_hold,
    "I4 of namespaces": _spaces_hold,
    "I4 of users": _user_limits_hold,
    "I5": no_orphan_evictions,
    "I15": advance_invariants.hold,
    "I8": queues_keep_their_guarantees,
}


def _changed(
    snapshot: Snapshot, decision: Decision, counts: Callable[[Unit], bool] = lambda _: True
) -> list[Running]:
    """Units as they will be: with what they get, and with who must go."""
    found: dict[str, Running] = {}
    for placement in decision.placements:
        known = snapshot.running.get(placement.unit)
        unit = snapshot.waiting[placement.unit] if known is None else known.unit
        if counts(unit):
            found[placement.unit] = (
                Running(unit, placement.seats, 0.0)
                if known is None
                else dataclasses.replace(known, seats=(*known.seats, *placement.seats))
            )
    for eviction in decision.evictions:
        running = found.get(eviction.unit) or snapshot.running.get(eviction.unit)
        if running is not None and counts(running.unit):
            leaving = tuple({*running.leaving, *eviction.seats})
            found[eviction.unit] = dataclasses.replace(running, leaving=leaving)
    return list(found.values())


def _unit(snapshot: Snapshot, key: str) -> Unit:
    running = snapshot.running.get(key)
    return snapshot.waiting[key] if running is None else running.unit
