"""Capacity that an earlier decision nominated to a workload: kept, and taken once it is free.

It is nominated to a workload that waits, to the missing members of a gang that runs, or to a
running workload that is being moved: that one starts there once it has left its old place.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from windlass.core import place, preempt, repair, verdicts
from windlass.core.facts import Nomination, Running, Unit

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle


def keep(cycle: Cycle) -> None:
    for key, nomination in sorted(cycle.snapshot.nominations.items()):
        unit = cycle.workload(key)
        if unit is None or not _still_stands(cycle, unit, nomination):
            continue  # the gainer or its place went away; the promise with it
        if not preempt.comes_free(cycle, unit, nomination.seats):
            continue  # who was told to go did not, or somebody came between: think again
        if key in cycle.moving:
            cycle.hold(unit, nomination.seats)
            cycle.nominations[key] = nomination
            continue
        waits = cycle.over_space(unit) or cycle.tree.shortage(
            unit.queue, cycle.need(unit), firm=not unit.preemptible
        )
        if waits is None and place.sit_down(cycle.scene.cluster, unit, nomination.seats):
            cycle.commit(unit, nomination.seats)
        else:
            cycle.hold(unit, nomination.seats)
            cycle.nominations[key] = nomination
            cycle.verdicts[key] = verdicts.being_freed(unit)


def moving(cycle: Cycle) -> dict[str, Unit]:
    """Running workloads that were told to leave as a whole and have another place."""
    running = cycle.snapshot.running
    return {
        key: running[key].unit
        for key in cycle.snapshot.nominations
        if key in running and leaves_whole(running[key])
    }


def outlives(running: Running) -> bool:
    """Whether a nomination stays when a workload holds capacity: it lacks members, or leaves."""
    return bool(repair.missing_members(running)) or leaves_whole(running)


def leaves_whole(running: Running) -> bool:
    """Whether all of its members were told to go."""
    return bool(running.leaving) and len(running.leaving) == len(running.seats)


def _still_stands(cycle: Cycle, unit: Unit, nomination: Nomination) -> bool:
    """Whether the nominated places are still there and the unit still wants them."""
    roles = {role.name: role for role in unit.roles}
    wanted = {wish.role.name: wish.count for wish in place.least_of(unit)}
    cluster, seats = cycle.scene.cluster, nomination.seats
    return (
        unit.held is None
        and cycle.barred(unit) is None
        and Counter(seat.role for seat in seats) == wanted
        and (unit.key in cycle.moving or repair.are_missing(cycle, unit.key, seats))
        and all(cluster.serves(roles[seat.role], seat) for seat in seats)
    )
