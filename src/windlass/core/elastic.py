"""Units that can use more than their least grow into what nobody else needed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from windlass.core import (
    amounts,
    looks,
    order,
    passing,
    quota_forecast,
    repair,
    reserve,
    userlimits,
)
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
        if _is_pausing(cycle, running):
            continue
        grown = running
        for role in running.unit.roles:
            bound = role if cycle.windows is None else cycle.windows.growing(running, role)
            grown = _add_members(cycle, grown, bound)
        if len(grown.seats) > len(running.seats):
            _commit(cycle, grown, grown.seats[len(running.seats) :])


def _elastic(cycle: Cycle) -> list[Running]:
    told_to_go = {eviction.unit for eviction in cycle.evictions}
    may_grow = dict.fromkeys((*cycle.snapshot.roster.growing, *cycle.placements))
    return [
        running
        for key, running in ((key, cycle.running[key]) for key in may_grow)
        if running.unit.queue in cycle.tree.queues
        and running.unit.queue not in cycle.tree.held
        and not running.leaving
        and not repair.missing_members(running)
        and key not in told_to_go
        and any(_count(running, role) < role.most for role in running.unit.roles)
    ]


def _is_pausing(cycle: Cycle, running: Running) -> bool:
    """Whether it gave surplus back a short while ago; asks for a decision when the pause is over.
    Without a pause each of many short workloads would shrink it, and it would grow again when that
    workload ends: some workloads must start anew for every change of their size."""
    if running.shrunk_at is None:
        return False
    until = running.shrunk_at + cycle.policy.growth_pause
    if until <= cycle.now:
        return False
    cycle.wake.append(until)
    return True


def _rank(cycle: Cycle, running: Running) -> tuple[object, ...]:
    unit = running.unit
    queue = cycle.queue_of(unit)
    return cycle.tree.rank(unit.queue, {}), order.rank(queue, unit, cycle.standing)


def _count(running: Running, role: Role) -> int:
    return sum(seat.role == role.name for seat in running.seats)


def _add_members(cycle: Cycle, running: Running, role: Role) -> Running:
    taken = {seat.index for seat in running.seats if seat.role == role.name}
    for number in (n for n in range(role.most) if n not in taken):
        seats = () if cycle.work.exhausted else _one_more(cycle, running, Wish(role, 1, number))
        if not seats:
            break
        running = dataclasses.replace(running, seats=(*running.seats, *seats))
    return running


def _one_more(cycle: Cycle, running: Running, wish: Wish) -> tuple[Seat, ...]:
    """A seat for one more member where quota, promises and its domain allow one; else none."""
    unit, scene = running.unit, cycle.scene
    end = looks.believed(running.expected_end, cycle.now)
    need = amounts.of_wishes(scene.cluster, [wish])
    if cycle.tree.shortage(unit.queue, need, firm=not unit.preemptible):
        return ()
    if not unit.preemptible and cycle.tree.displaces(unit.queue, need):
        return ()  # what grows cannot be stopped: another of its queue would be, in its stead
    if cycle.spaces.shortage(unit.namespace, need, 1):
        return ()
    if userlimits.shortage(cycle, unit, [wish], need, workloads=0):
        return ()
    beside = passing.crossed(cycle, unit, end)
    if beside and quota_forecast.shortage_beside(cycle, unit, need, beside):
        return ()
    mark, scene.within = scene.cluster.mark(), repair.near(cycle, running)
    answer = reserve.place_beside(cycle, unit, [wish], end, beside)
    scene.within = None
    if isinstance(answer, Failure):
        return ()
    held = amounts.of_seats(scene.cluster, unit.roles, answer)
    if cycle.tree.shortage(unit.queue, held, firm=not unit.preemptible):
        scene.cluster.rollback(mark)  # of the model that was free, its queue may use no more
        return ()
    scene.cluster.settle()
    scene.crowd.seat(unit, answer)
    cycle.tree.add(unit.queue, held, firm=not unit.preemptible)
    cycle.memory.moves += 1
    reserve.also_take(cycle, unit, answer, end)
    cycle.spaces.add(unit.namespace, held, len(answer))
    cycle.user_quotas.add(unit, held, is_member=True)
    return answer


def _commit(cycle: Cycle, grown: Running, added: tuple[Seat, ...]) -> None:
    unit = grown.unit
    started = cycle.placements.get(unit.key)
    seats = (*started.seats, *added) if started else added
    cycle.placements[unit.key] = Placement(unit.key, seats)
    cycle.running[unit.key] = grown
