"""A gang that lost members is completed before anybody new starts.

Until it is whole again it wastes what it holds. Its missing members are a workload of their own,
with the rights that the gang had when it waited: they may preempt, get a nomination, stay out of
capacity that is reserved for others, and get a verdict where they cannot be placed. They go near
the rest: inside the domain that the topology of the gang requires.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from windlass.core import models, preempt, quota_forecast, reserve, userlimits, verdicts
from windlass.core.facts import Running, Seat, Unit, Verdict
from windlass.core.place import Failure, Mask
from windlass.core.queues import Shortage

if TYPE_CHECKING:
    from windlass.core.cycle import Ask, Cycle


def repair(cycle: Cycle) -> None:
    evicted = {eviction.unit for eviction in cycle.evictions}
    for key, missing in cycle.missing.items():
        if key in cycle.placements or key in cycle.nominations or key in evicted:
            continue  # capacity was nominated to it before, or it must leave a reservation
        verdict = _complete(cycle, cycle.running[key], missing)
        if verdict is not None:
            cycle.verdicts[key] = _incomplete(cycle.running[key], verdict)
            cycle.unresolved |= not verdict.resolved


def missing_members(running: Running) -> dict[str, list[int]]:
    """Role -> the lowest numbers that must be filled for the gang to have its least."""
    unit = running.unit
    if not unit.gang or running.leaving:
        return {}
    found: dict[str, list[int]] = {}
    for role in unit.roles:
        present = {seat.index for seat in running.seats if seat.role == role.name}
        if len(present) < role.least:
            free = (number for number in range(role.most) if number not in present)
            found[role.name] = [next(free) for _ in range(role.least - len(present))]
    return found


def incomplete(cycle: Cycle) -> dict[str, Unit]:
    """By key, the missing members of gangs that run, as workloads that wait."""
    found: dict[str, Unit] = {}
    for key in sorted(cycle.snapshot.roster.growing):
        running = cycle.snapshot.running[key]
        missing = missing_members(running)
        if missing:
            found[key] = _rest(cycle, running, missing)
    return found


def numbered(cycle: Cycle, key: str, seats: Iterable[Seat]) -> tuple[Seat, ...]:
    """Seats of a workload by the indexes that its members have: those of a gang that is completed
    take the indexes of the members it lost."""
    running = cycle.snapshot.running.get(key)
    if running is None:
        return tuple(seats)
    numbers = {name: iter(indexes) for name, indexes in missing_members(running).items()}
    return tuple(Seat(s.role, next(numbers[s.role]), s.node, s.grants) for s in seats)


def are_missing(cycle: Cycle, key: str, seats: Iterable[Seat]) -> bool:
    """Whether none of these members runs already."""
    running = cycle.snapshot.running.get(key)
    there = {(seat.role, seat.index) for seat in running.seats} if running is not None else set()
    return there.isdisjoint((seat.role, seat.index) for seat in seats)


def _rest(cycle: Cycle, running: Running, missing: dict[str, list[int]]) -> Unit:
    names, roles = _names_near(cycle, running), []
    for role in running.unit.roles:
        count = len(missing.get(role.name, ()))
        if count:
            rest = role if cycle.windows is None else cycle.windows.growing(running, role)
            constraint = rest.constraint
            if names is not None:
                known = constraint.names
                both = names if known is None else names & known
                constraint = dataclasses.replace(constraint, names=both)
            roles.append(dataclasses.replace(rest, least=count, most=count, constraint=constraint))
    return dataclasses.replace(running.unit, roles=tuple(roles), topology=None)


def _complete(cycle: Cycle, running: Running, missing: Unit) -> Verdict | None:
    """Why the members cannot be placed; None: they are, or capacity is being freed for them."""
    tree, unit = cycle.tree, missing
    if unit.queue not in tree.queues:
        failure = _place(cycle, running, cycle.ask(unit))
        return verdicts.no_room(cycle, unit, failure) if failure is not None else None
    may_preempt = cycle.barred(unit) is None
    over = cycle.over_space(unit)
    if over is not None:
        return verdicts.over_space(unit, over)
    narrowed = models.permitted(cycle.scene.cluster, tree, unit)
    if isinstance(narrowed, Shortage):
        return verdicts.over_quota(unit, narrowed)
    ask = cycle.ask(narrowed)
    short = tree.shortage(unit.queue, ask.need, firm=not unit.preemptible)
    if short is not None:
        if may_preempt and preempt.within_queue(cycle, ask, short):
            return None
        return verdicts.over_quota(unit, short)
    user_short = userlimits.shortage(cycle, unit, ask.wishes, ask.need, workloads=0)
    if user_short is not None:
        return verdicts.over_quota(unit, user_short)
    kept = quota_forecast.shortage_beside(cycle, unit, ask.need, ask.beside) if ask.beside else None
    if kept is not None:
        return verdicts.over_quota(unit, kept)
    failure = _place(cycle, running, ask)
    if failure is None or (may_preempt and preempt.make_room(cycle, ask, failure)):
        return None
    return verdicts.no_room(cycle, narrowed, failure, cycle.desk.why if may_preempt else "")


def _place(cycle: Cycle, running: Running, ask: Ask) -> Failure | None:
    """Starts the members in the domain where the others are; elsewhere only if that was merely
    preferred."""
    scene = cycle.scene
    domain = _domain(cycle, running)
    failure: Failure | None = None
    for near_others in dict.fromkeys((domain is not None, False)):
        scene.within = domain if near_others else None
        answer = reserve.place_beside(cycle, ask.unit, ask.wishes, ask.end, ask.beside)
        scene.within = None
        if not isinstance(answer, Failure):
            cycle.commit(ask.unit, numbered(cycle, ask.unit.key, answer))
            return None
        failure = answer
    return failure


def _incomplete(running: Running, verdict: Verdict) -> Verdict:
    least = sum(role.least for role in running.unit.roles)
    count = sum(len(indexes) for indexes in missing_members(running).values())
    members = f"{count} of {least} members " + ("are" if count > 1 else "is")
    return dataclasses.replace(verdict, message=f"{members} missing: {verdict.message}")


def near(cycle: Cycle, running: Running) -> Mask | None:
    """The domain that the unit is bound to by those of its members that are there."""
    topology = running.unit.topology
    required = topology is not None and topology.required
    return _domain(cycle, running) if required else None


def _names_near(cycle: Cycle, running: Running) -> frozenset[str] | None:
    mask = near(cycle, running)
    if mask is None:
        return None
    nodes = cycle.scene.cluster.nodes
    return frozenset(nodes[i].name for i in np.flatnonzero(mask).tolist())


def _domain(cycle: Cycle, running: Running) -> Mask | None:
    """Where its members are, by the level that it asks for; None: it asks for none."""
    topology = running.unit.topology
    if topology is None:
        return None
    return cycle.scene.cluster.domain_of(topology.level, (seat.node for seat in running.seats))
