"""Running workloads that make place for a reservation when it is due.

They were started in front of the reservation on the understanding that they would be gone by then:
workloads without an estimate, where the policy lets preemptible ones in, and backfilled workloads
that ran longer than they said. They are preempted by the checkpoint contract, before any other
workload and only as many as it takes. What lies inside the guarantee of another queue stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from windlass.core import alike, shadows, verdicts
from windlass.core.cluster import Cluster
from windlass.core.facts import Eviction, Nomination, Running, Unit
from windlass.core.queues import Sums, Tree
from windlass.core.shadows import Held

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

UNKNOWN = "promised room is due"
OVERRAN = "it ran longer than it said, and a reservation that it was let in before is due"


def candidates(
    cycle: Cycle, unit: Unit, nodes: set[str], made: float | None, at: float
) -> list[Running]:
    """Workloads on these nodes that yield at a time to the unit's reservation of an earlier
    decision: first those that overran, then those without an estimate; the newest first."""
    on = cycle.snapshot.there
    there = dict.fromkeys(key for name in sorted(nodes) for key in on.get(name, ()))
    found = [
        running
        for key in there
        if (running := cycle.snapshot.running[key]).unit.preemptible
        and not running.leaving
        and running.protected_until <= at
        and (_is_silent_guest(cycle, running) or overran(cycle, running, made))
    ]
    found.sort(key=lambda each: (each.expected_end is None, -each.started, each.unit.key))
    if not found or len(cycle.tree.queues) == 1:
        return found
    tree = cycle.departures.tree_without()
    return [each for each in found if _is_spared(tree, unit.queue, each, cycle.held)]


def _is_spared(tree: Tree, queue: str, guest: Running, held: Mapping[str, Sums]) -> bool:
    """Whether the queues of a guest keep their guarantees without it; it is then taken off the
    tree. A queue above the one that takes stands for its own workloads only."""
    own, amounts = guest.unit.queue, held[guest.unit.key]
    if own in tree.path(queue)[1:]:
        keeps = all(
            tree.direct(tree.used, own, r) - amount >= tree.direct(tree.guarantee, own, r)
            for r, amount in amounts.items()
            if amount
        )
    else:
        keeps = all(
            tree.used[level].get(r, 0) - amount >= tree.guarantee[level].get(r, 0)
            for level in tree.parting(queue, own)[1]
            for r, amount in amounts.items()
            if amount
        )
    if keeps:
        tree.add(own, amounts, firm=False, sign=-1)
    return keeps


def overran(cycle: Cycle, running: Running, made: float | None) -> bool:
    """Whether a workload that was started after the reservation was made should have ended."""
    end = running.expected_end
    return made is not None and end is not None and running.started >= made and end <= cycle.now


def _is_silent_guest(cycle: Cycle, running: Running) -> bool:
    return cycle.policy.unknown_runtime == "preemptible" and running.expected_end is None


def make_place(cycle: Cycle, unit: Unit, promise: Held) -> bool:
    """Preempts as few of them as it takes to free the reserved seats."""
    cluster = cycle.scene.cluster
    gone = {eviction.unit for eviction in cycle.evictions}
    nodes = {seat.node for seat in promise.seats}
    guests = candidates(cycle, unit, nodes, promise.made, cycle.now)
    mark, seats, stopped = cluster.mark(), None, []
    for guest in guests:
        if guest.unit.key in gone:
            continue
        release(cluster, guest)
        stopped.append(guest)
        between = cluster.mark()
        seats = shadows.sit_again(cluster, unit, promise.seats)
        if seats is not None:
            break
        cluster.rollback(between)
    cluster.rollback(mark)
    if seats is None:
        return False
    for guest in stopped:
        members = tuple((seat.role, seat.index) for seat in guest.seats)
        reason = UNKNOWN if guest.expected_end is None else OVERRAN
        cycle.evictions.append(Eviction(guest.unit.key, members, unit.key, reason))
    alike.somebody_goes(cycle, {guest.unit.queue for guest in stopped})
    cycle.nominations[unit.key] = Nomination(unit.key, tuple(seats))
    cycle.hold(unit, seats)
    cycle.verdicts[unit.key] = verdicts.being_freed(unit)
    return True


def release(cluster: Cluster, running: Running) -> None:
    roles = {role.name: role for role in running.unit.roles}
    for seat in running.seats:
        if seat.role in roles:
            cluster.release(roles[seat.role], seat)
