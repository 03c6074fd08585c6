"""A gang that lost members is completed before anybody new starts.

Until it is whole again it wastes what it holds. Missing members go near the rest: inside the
domain that the unit's topology requires.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from windlass.core import amounts, models, place
from windlass.core.facts import Placement, Running, Seat, Unit
from windlass.core.place import Failure, Mask, Wish

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle


def repair(cycle: Cycle) -> None:
    for key in sorted(cycle.snapshot.roster.growing):
        running = cycle.running[key]
        missing = missing_members(running)
        if missing:
            _complete(cycle, running, missing)


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


def _complete(cycle: Cycle, running: Running, missing: dict[str, list[int]]) -> None:
    unit = running.unit
    wishes = _permitted(cycle, unit, missing)
    need = amounts.of_wishes(cycle.scene.cluster, wishes)
    if not wishes or (
        unit.queue in cycle.tree.queues
        and cycle.tree.shortage(unit.queue, need, firm=not unit.preemptible)
    ):
        return  # others used its quota meanwhile
    if cycle.spaces.shortage(unit.namespace, need, sum(wish.count for wish in wishes)):
        return
    answer = _beside_the_rest(cycle, running, wishes)
    if isinstance(answer, Failure):
        return
    numbers = {name: iter(indexes) for name, indexes in missing.items()}
    seats = tuple(Seat(s.role, next(numbers[s.role]), s.node, s.grants) for s in answer)
    cycle.scene.cluster.settle()
    cycle.scene.crowd.seat(unit, seats)
    held = amounts.of_seats(cycle.scene.cluster, unit.roles, seats)
    cycle.tree.add(unit.queue, held, firm=not unit.preemptible)
    cycle.spaces.add(unit.namespace, held, len(seats))
    cycle.placements[unit.key] = Placement(unit.key, seats)
    cycle.running[unit.key] = dataclasses.replace(running, seats=(*running.seats, *seats))


def _permitted(cycle: Cycle, unit: Unit, missing: dict[str, list[int]]) -> list[Wish]:
    """The missing members, with only those models of which its queue may use so many more; nothing
    if there is none."""
    roles = tuple(
        dataclasses.replace(role, least=len(missing[role.name]))
        for role in unit.roles
        if role.name in missing
    )
    rest = dataclasses.replace(unit, roles=roles)
    if unit.queue not in cycle.tree.queues:
        return place.least_of(rest)
    narrowed = models.permitted(cycle.scene.cluster, cycle.tree, rest)
    return place.least_of(narrowed) if isinstance(narrowed, Unit) else []


def _beside_the_rest(
    cycle: Cycle, running: Running, wishes: list[Wish]
) -> tuple[Seat, ...] | Failure:
    """Seats in the domain where the others are; elsewhere only if that was merely preferred."""
    unit, scene = running.unit, cycle.scene
    anywhere = dataclasses.replace(unit, topology=None)
    scene.within = _domain(cycle, running)
    answer = place.place(scene, anywhere, wishes)
    if isinstance(answer, Failure) and near(cycle, running) is None:
        scene.within = None
        answer = place.place(scene, anywhere, wishes)
    scene.within = None
    return answer


def near(cycle: Cycle, running: Running) -> Mask | None:
    """The domain that the unit is bound to by those of its members that are there."""
    topology = running.unit.topology
    required = topology is not None and topology.required
    return _domain(cycle, running) if required else None


def _domain(cycle: Cycle, running: Running) -> Mask | None:
    """Where its members are, by the level that it asks for; None: it asks for none."""
    topology = running.unit.topology
    if topology is None:
        return None
    return cycle.scene.cluster.domain_of(topology.level, (seat.node for seat in running.seats))
