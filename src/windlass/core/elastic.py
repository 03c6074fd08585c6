"""Units that can use more than their least grow into what nobody else needed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from windlass.core import amounts, order, place, reserve
from windlass.core.facts import Placement, Role, Running, Seat
from windlass.core.place import Failure, Wish

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle


def grow(cycle: Cycle) -> None:
    """Members one by one, in the order in which the units would start; never at the cost of
    somebody who waits: whoever waits was tried before, and reserved room stays out of reach."""
    if not cycle.policy.grow:
        return
    for running in sorted(_elastic(cycle), key=lambda each: _rank(cycle, each)):
        added: list[Seat] = []
        for role in running.unit.roles:
            added += _add_members(cycle, running, role)
        if added:
            _commit(cycle, running, tuple(added))


def _elastic(cycle: Cycle) -> list[Running]:
    return [
        running
        for key, running in cycle.running.items()
        if running.unit.queue in cycle.tree.queues
        and not running.leaving
        and all(eviction.unit != key for eviction in cycle.evictions)
        and any(_count(running, role) < role.most for role in running.unit.roles)
    ]


def _rank(cycle: Cycle, running: Running) -> tuple[object, ...]:
    unit = running.unit
    queue = cycle.queue_of(unit)
    return cycle.tree.rank(unit.queue, {}), order.rank(queue, unit, cycle.standing)


def _count(running: Running, role: Role) -> int:
    return sum(seat.role == role.name for seat in running.seats)


def _add_members(cycle: Cycle, running: Running, role: Role) -> list[Seat]:
    unit = running.unit
    added: list[Seat] = []
    taken = {seat.index for seat in running.seats if seat.role == role.name}
    for number in (n for n in range(role.most) if n not in taken):
        wishes = [Wish(role, 1, number)]
        need = amounts.of_wishes(cycle.scene.cluster, wishes)
        if cycle.tree.shortage(unit.queue, need, firm=not unit.preemptible):
            break
        late = cycle.runs_into_reservations(unit)
        cycle.scene.ceilings = reserve.ceilings(cycle, wishes) if late else {}
        answer = place.place(cycle.scene, unit, wishes)
        cycle.scene.ceilings = {}
        if isinstance(answer, Failure):
            break
        cycle.scene.cluster.settle()
        cycle.tree.add(unit.queue, need, firm=not unit.preemptible)
        added += answer
    return added


def _commit(cycle: Cycle, running: Running, added: tuple[Seat, ...]) -> None:
    unit = running.unit
    started = cycle.placements.get(unit.key)
    seats = (*started.seats, *added) if started else added
    cycle.placements[unit.key] = Placement(unit.key, seats)
    cycle.running[unit.key] = dataclasses.replace(running, seats=(*running.seats, *added))
    reserve.also_take(cycle, unit, added, running.expected_end)
