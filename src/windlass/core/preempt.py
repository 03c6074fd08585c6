"""Making room: shrinking and stopping running units so that one who has the right can start.

`cycle.consider` calls `make_room` when a unit finds no room, and `within_queue` when a quota is in
the way. Nothing is stopped unless the gainer then surely fits: the room, with what is free of it
now, is nominated to it and held from others until it starts there. Victims keep their room until
they are gone; who is already told to go is never told again, and what they leave is counted on
before anybody else is asked.

`victims` knows who may go for whom, `freeing` finds the cheapest who suffice.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from windlass.core import amounts, freeing, models, order, place, reserve, roster, verdicts, victims
from windlass.core.cluster import Cluster
from windlass.core.facts import Eviction, Nomination, Running, Seat, Unit, Verdict
from windlass.core.freeing import Plan, Trial
from windlass.core.place import Failure
from windlass.core.queues import Shortage, Sums, Tree
from windlass.core.roster import Flat, Piece
from windlass.core.victims import Claim, Pool
from windlass.kinds.reasons import Reason

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle


_NOT_ENOUGH = "stopping all that it may preempt would not make enough room"
_PROTECTED = "those that it may preempt must first run for their queue's minimum runtime"


@dataclasses.dataclass(slots=True)
class Refusal:
    """Units like this one, with as many members and no better rank, are in vain too."""

    members: int
    rank: order.Key
    why: str


@dataclasses.dataclass(slots=True)
class Desk:
    """What preemption remembers within one decision."""

    refused: dict[object, Refusal] = dataclasses.field(default_factory=dict)
    why: str = ""
    """Why nobody was stopped for the unit that asked last; empty: there was nobody to stop."""
    told: dict[str, Piece] | None = None
    """Units told to go, now or before, and those of their members that do; None: not asked yet."""
    leaving: Flat | None = None
    """What they hold, once it was laid out."""
    repaired: list[str] | None = None
    starting: dict[str, list[tuple[Unit, Sums]]] = dataclasses.field(default_factory=dict)
    seen: int = 0
    """Placements that are among the starting already."""
    hopes: dict[object, Cluster] = dataclasses.field(default_factory=dict)
    """Per standing of a claim: the cluster once without everybody who might go for it. In one
    decision room only shrinks, so who does not fit there need not look any further."""
    members: dict[int, tuple[int, list[tuple[set[str], int]]]] = dataclasses.field(
        default_factory=dict
    )
    """Shape id -> what `victims` found out about it, and at which version of the cluster."""
    later: tuple[Cluster, Tree] | None = None
    """As it will be without them, with the promises that were kept so far."""


def within_queue(cycle: Cycle, unit: Unit, shortage: Shortage) -> bool:
    """A quota is in the way: those whom the unit outranks, or who borrow from it, may go."""
    if shortage.rule == "guarantee":
        return False  # held by units that must not be preempted
    return _attempt(cycle, unit, frozenset((shortage.resource,)))


def make_room(cycle: Cycle, unit: Unit, failure: Failure) -> bool:
    """The queue may use more, but there is no room."""
    shape = cycle.scene.cluster.shape_of(failure.role)
    if cycle.most_when_empty(shape) < failure.wanted:
        return False  # not even in an empty cluster
    return _attempt(cycle, unit, frozenset())


def comes_free(cycle: Cycle, unit: Unit, seats: Sequence[Seat]) -> bool:
    """Whether a promised place will be free when all who were told to go before are gone. If not,
    somebody did not go or came between, and the promise is void."""
    from windlass.core.cycle import sit_down

    if cycle.desk.later is None:
        later = freeing.relieved(cycle.scene.cluster, _leaving(cycle), None)
        freeing.free_ports(later, _told(cycle).values())
        cycle.desk.later = (later, _tree_without_told(cycle))
    cluster, tree = cycle.desk.later
    firm = not unit.preemptible
    if unit.queue not in tree.queues or tree.shortage(unit.queue, cycle.need(unit), firm=firm):
        return False
    if not sit_down(cluster, unit, seats):
        return False
    cluster.settle()
    tree.add(unit.queue, cycle.need(unit), firm=firm)
    return True


def with_remark(cycle: Cycle, verdict: Verdict) -> Verdict:
    """The verdict on the unit that asked last, with why nobody was stopped for it."""
    if not cycle.desk.why or verdict.reason == Reason.IMPOSSIBLE:
        return verdict
    return dataclasses.replace(verdict, message=f"{verdict.message}; {cycle.desk.why}")


def _attempt(cycle: Cycle, unit: Unit, over: frozenset[str]) -> bool:
    cycle.desk.why = ""
    if not (cycle.policy.preempt or cycle.policy.reclaim) or not cycle.snapshot.running:
        return False
    wishes, beside = place.least_of(unit), reserve.crossed(cycle, unit, cycle.expected_end(unit))
    kind = (unit.queue, unit.preemptible, over, cycle._kind(unit, wishes, beside, ""))
    rank, members = _rank(cycle, unit), sum(wish.count for wish in wishes)
    known = cycle.desk.refused.get(kind)
    if known is not None and members >= known.members and rank >= known.rank:
        cycle.desk.why = known.why
        return False
    if not cycle.work.exhausted and _find_room(cycle, unit, over):
        return True
    if known is None or members <= known.members:
        cycle.desk.refused[kind] = Refusal(members, rank, cycle.desk.why)
    return False


def _rank(cycle: Cycle, unit: Unit) -> order.Key:
    """By which units of one queue may stop others; smaller is stronger."""
    queue = cycle.queue_of(unit)
    key: order.Key = (-order.priority(queue, unit),)
    if queue.order == "attained":
        key += (cycle.standing.predictor.index(unit, unit.attained),)
    return key


def _find_room(cycle: Cycle, unit: Unit, over: frozenset[str]) -> bool:
    claim = _claim(cycle, unit, over)
    standing = (unit.queue, _rank(cycle, unit), claim.scarce, claim.inside)
    hope = cycle.desk.hopes.get(standing)
    if hope is not None and not freeing.has_hope(cycle, unit, hope):
        cycle.desk.why = _NOT_ENOUGH
        return False
    pool = victims.pool(cycle, claim)
    if (len(pool) or claim.inside) and _count_on_others(cycle, claim):
        return True
    if not len(pool):
        return False
    trial = Trial(
        cycle, claim, pool, _cluster_at_worst(cycle), quota=bool(over) or not claim.inside
    )
    everybody = np.ones(len(pool), np.bool_)
    cycle.desk.hopes.setdefault(standing, trial.cluster(everybody))
    allowed = pool.protected <= cycle.now
    if not trial.suffices(allowed):
        cycle.desk.why = _PROTECTED if _wake_when_unprotected(trial) else _NOT_ENOUGH
        return False
    plan = freeing.plan(trial, allowed, models.in_turn(unit))
    if plan is None:
        cycle.desk.why = _NOT_ENOUGH
        return False
    _commit(cycle, unit, pool, plan)
    return True


def _count_on_others(cycle: Cycle, claim: Claim) -> bool:
    """Whether what others leave, beyond what is promised of it, is enough: nobody else must go."""
    if not _told(cycle):
        return False
    claim = dataclasses.replace(claim, tree=_tree_without_told(cycle))
    nobody = victims.nobody(cycle)
    later = freeing.relieved(cycle.scene.cluster, _leaving(cycle), None)
    freeing.free_ports(later, _told(cycle).values())
    trial = Trial(cycle, claim, nobody, later, quota=True)
    none = np.zeros(0, np.bool_)
    plan = freeing.plan(trial, none, models.in_turn(claim.unit)) if trial.suffices(none) else None
    if plan is not None:
        _commit(cycle, claim.unit, nobody, plan)
    return plan is not None


def _cluster_at_worst(cycle: Cycle) -> Cluster:
    """What can be counted on beside new victims. What others will have left counts only once they
    are gone: else a decision about the same facts could go further than the one before it."""
    cluster = cycle.scene.cluster
    if not _told(cycle):
        return cluster.fork(())
    return freeing.at_worst(cluster, _leaving(cycle), _promised(cycle))


def _promised(cycle: Cycle) -> Flat:
    cluster, waiting = cycle.scene.cluster, cycle.snapshot.waiting
    pieces = [
        roster.part_of(cluster, Running(waiting[key], each.seats, cycle.now), each.seats)
        for key, each in cycle.nominations.items()
    ]
    return roster.flatten(pieces, len(cluster.resources))


def _claim(cycle: Cycle, unit: Unit, over: frozenset[str]) -> Claim:
    """The unit's standing, by what can be counted on."""
    tree, need = _tree_at_worst(cycle), cycle.need(unit)
    scarce = over | victims.scarce_resources(cycle, unit)
    return Claim(
        unit, need, scarce, tree, tree.inside(unit.queue, need), _departed(cycle), _starting(cycle)
    )


def _departed(cycle: Cycle) -> dict[str, list[str]]:
    """By queue: who is told to go, and who was just repaired."""
    desk, found = cycle.desk, dict[str, list[str]]()
    if desk.repaired is None:
        desk.repaired = [key for key in cycle.placements if key in cycle.snapshot.running]
    for key in (*_told(cycle), *desk.repaired):
        found.setdefault(cycle.snapshot.running[key].unit.queue, []).append(key)
    return found


def _starting(cycle: Cycle) -> dict[str, list[tuple[Unit, Sums]]]:
    """By queue: units that got room in this decision, or are promised some, and how much."""
    desk = cycle.desk
    for key in itertools.islice(cycle.placements, desk.seen, None):
        if key in cycle.held and key in cycle.snapshot.waiting:
            unit = cycle.snapshot.waiting[key]
            desk.starting.setdefault(unit.queue, []).append((unit, cycle.held[key]))
    desk.seen = len(cycle.placements)
    found = desk.starting
    if cycle.nominations:
        found = {queue: list(units) for queue, units in found.items()}
        for key in sorted(cycle.nominations):
            unit = cycle.snapshot.waiting[key]
            found.setdefault(unit.queue, []).append((unit, cycle.need(unit)))
    return found


def _tree_at_worst(cycle: Cycle) -> Tree:
    if not _told(cycle):
        return cycle.tree.fork()
    now = cycle.tree.fork()
    for key in cycle.nominations:
        unit = cycle.snapshot.waiting[key]
        held = amounts.of_seats(cycle.scene.cluster, unit.roles, cycle.nominations[key].seats)
        now.add(unit.queue, held, firm=not unit.preemptible, sign=-1)
    return _tree_without_told(cycle).at_worst(now)


def _tree_without_told(cycle: Cycle) -> Tree:
    tree = cycle.tree.fork()
    for piece in _told(cycle).values():
        left = piece.running.unit
        tree.add(left.queue, piece.held, firm=not left.preemptible, sign=-1)
    return tree


def _told(cycle: Cycle) -> dict[str, Piece]:
    """Everybody who was told to go, by earlier decisions and by this one."""
    if cycle.desk.told is None:
        cycle.desk.told = {}
        for key in sorted(cycle.snapshot.roster.leaving):
            running = cycle.snapshot.running[key]
            seats = [s for s in running.seats if (s.role, s.index) in running.leaving]
            cycle.desk.told[key] = roster.part_of(cycle.scene.cluster, running, seats)
    return cycle.desk.told


def _leaving(cycle: Cycle) -> Flat:
    if cycle.desk.leaving is None:
        pieces = list(_told(cycle).values())
        cycle.desk.leaving = roster.flatten(pieces, len(cycle.scene.cluster.resources))
    return cycle.desk.leaving


def _wake_when_unprotected(trial: Trial) -> bool:
    """If only minimum runtimes are in the way, says when enough of them are over."""
    protected, now = trial.pool.protected, trial.cycle.now
    moments = np.unique(protected[protected > now])
    last = len(moments) - 1
    if last < 0 or not trial.suffices(protected <= moments[last]):
        return False
    first = freeing.first_that(lambda n: trial.suffices(protected <= moments[n]), 0, last)
    trial.cycle.wake.append(float(moments[first]))
    return True


# --- what was decided ---------------------------------------------------------------------------


def _commit(cycle: Cycle, unit: Unit, pool: Pool, plan: Plan) -> None:
    told, freed = _told(cycle), dict[str, Sums]()
    reasons = {unit.queue: f"a unit that comes before it in queue {unit.queue} needs the room"}
    for piece in _who_goes(cycle, pool, plan):
        members = tuple([(seat.role, seat.index) for seat in piece.seats])
        queue = piece.running.unit.queue
        reason = reasons.setdefault(queue, f"queue {unit.queue} takes back what it is guaranteed")
        cycle.evictions.append(Eviction(piece.key, members, unit.key, reason))
        told[piece.key] = piece
        sums = freed.setdefault(queue, {})
        for resource, amount in piece.held.items():
            sums[resource] = sums.get(resource, 0) + amount
    cycle.desk.leaving = None
    cycle.nominations[unit.key] = Nomination(unit.key, plan.seats)
    cycle.hold(unit, plan.seats)
    cycle.scene.cluster.settle()
    message = _told_from_where(cycle.need(unit), freed)
    cycle.verdicts[unit.key] = dataclasses.replace(verdicts.being_freed(unit), message=message)


def _who_goes(cycle: Cycle, pool: Pool, plan: Plan) -> list[Piece]:
    """The pieces of each victim as one: some of its surplus, or all of it."""
    by_unit: dict[str, list[Piece]] = {}
    for i in np.flatnonzero(plan.gone):
        piece = pool.pieces[i]
        by_unit.setdefault(piece.key, []).append(piece)
    return [_as_one(cycle, pieces) for pieces in by_unit.values()]


def _as_one(cycle: Cycle, pieces: list[Piece]) -> Piece:
    running = pieces[0].running
    if any(not piece.surplus for piece in pieces):
        seats = running.seats
    else:
        seats = tuple(seat for piece in pieces for seat in piece.seats)
    if len(pieces) == 1 and len(seats) == len(pieces[0].seats):
        return pieces[0]
    return roster.part_of(cycle.scene.cluster, running, seats)


def _told_from_where(need: Sums, freed: dict[str, Sums]) -> str:
    parts = []
    for queue, sums in sorted(freed.items()):
        shown = [verdicts.told(r, n) for r, n in sorted(sums.items()) if n and need.get(r)]
        parts.append(f"{', '.join(shown)} in queue {queue}" if shown else f"queue {queue}")
    if not parts:
        return "its room is being freed by units that were stopped before"
    return f"its room is being freed: {'; '.join(parts)}"
