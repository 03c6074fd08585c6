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
from typing import TYPE_CHECKING, Any

import numpy as np

from windlass.core import (
    alike,
    bounds,
    freeing,
    models,
    order,
    preemption_plan,
    queues,
    reclaim,
    repair,
    roster,
    verdicts,
    victims,
)
from windlass.core.asked import Asked
from windlass.core.bounds import Hope
from windlass.core.cluster import Cluster
from windlass.core.facts import Eviction, Nomination, Seat, Unit
from windlass.core.freeing import Plan, Trial
from windlass.core.place import Failure, sit_down
from windlass.core.queues import Shortage, Sums, Tree
from windlass.core.roster import Columns, Piece
from windlass.core.shadows import Held
from windlass.core.victims import YIELDING, Claim, Mask, Pool, Standing

if TYPE_CHECKING:
    from windlass.core.cycle import Ask, Cycle
    from windlass.core.departures import Outlook


MOST_ENTITLED, MOST_STARTS = 32, 256
"""Beyond these a decision is not looked at twice: what is not taken back now is by the next."""
NOT_ENOUGH = "stopping all that it may preempt would not make enough room"


@dataclasses.dataclass(slots=True)
class Refusal:
    """Units like this one, with as many members and no better rank, are in vain too."""

    members: int
    rank: order.Key
    why: str
    told: int
    """Evictions until then. Who is told to go since leaves something to count on."""


@dataclasses.dataclass(slots=True)
class Desk:
    """What preemption remembers within one decision."""

    refused: dict[object, Refusal] = dataclasses.field(default_factory=dict)
    why: str = ""
    """Why nobody was stopped for the unit that asked last; empty: there was nobody to stop."""
    standings: dict[tuple[str, order.Key], Standing] = dataclasses.field(default_factory=dict)
    columns: dict[str, Columns] = dataclasses.field(default_factory=dict)
    """Queue -> who runs in it; later on with those who start."""
    starts: dict[str, Mask] = dataclasses.field(default_factory=dict)
    """Queue -> which of its columns are those who start."""
    entitled: dict[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    """Units that were refused although they may take back what others borrow, and the resources
    whose quota was in the way."""
    late: bool = False
    """Everybody had a turn: units that start in this decision are as good as running."""
    withholding: bool = False
    """And only they may make room, also who could not be stopped once it runs."""
    withheld: set[str] = dataclasses.field(default_factory=set)
    """Starts that were withheld for others: they withhold none themselves, or two workloads that
    both have a right would do so in turns."""
    starting: dict[str, list[tuple[Unit, Sums]]] = dataclasses.field(default_factory=dict)
    seen: int = 0
    """Placements that are among the starting already."""
    hopes: dict[object, Cluster] = dataclasses.field(default_factory=dict)
    """Per standing of a claim: the cluster once without everybody who might go for it. In one
    decision room only shrinks, so who does not fit there need not look any further."""
    borrowed: dict[object, tuple[object, Pool | None]] = dataclasses.field(default_factory=dict)
    """What `reclaim` found out about who may go, and after which changes."""
    branches: dict[object, tuple[object, Any]] = dataclasses.field(default_factory=dict)
    """The same of branches of the tree."""
    nobody: Pool | None = None
    """Kept by `victims`."""
    members: dict[int, tuple[int, list[tuple[set[str], int]]]] = dataclasses.field(
        default_factory=dict
    )
    """Shape id -> what `victims` found out about it, and at which version of the cluster."""
    later: tuple[Cluster, Tree] | None = None
    """As it will be without those who were told to go, with the promises that were kept so far."""

    def forget(self) -> None:
        """Room came back: what did not fit may fit now."""
        self.refused, self.standings, self.hopes = {}, {}, {}
        self.columns, self.members, self.starting, self.seen = {}, {}, {}, 0
        self.borrowed, self.branches, self.starts = {}, {}, {}


def within_queue(cycle: Cycle, ask: Ask, shortage: Shortage) -> bool:
    """A quota is in the way: those whom the unit outranks, or who borrow from it, may go."""
    if shortage.rule == "guarantee":
        cycle.desk.why = ""
        return False  # held by units that must not be preempted
    return _attempt(cycle, ask, frozenset((shortage.resource,)), None)


def make_room(cycle: Cycle, ask: Ask, failure: Failure) -> bool:
    """The queue may use more, but there is no room."""
    if not _may_ask(cycle, failure):
        cycle.desk.why = ""
        return False
    return _attempt(cycle, ask, frozenset(), failure)


def second_look(cycle: Cycle) -> None:
    """Units that have the right to room on which others start in this very decision take it back
    before those start: else the next decision would have to stop them, or others of their queue in
    their stead. So they do where room was promised to one that stands before others of its queue:
    these may hold what is borrowed only since. Only where few start and few have a right: the work
    grows with both."""
    desk = cycle.desk
    if len(desk.entitled) > MOST_ENTITLED or len(cycle.placements) > MOST_STARTS:
        return
    desk.late = True
    for withholding in (True, False):  # who runs goes only where withholding does not help
        promised = bool(cycle.evictions) and not withholding
        for _ in range(MOST_ENTITLED):
            if not desk.entitled or not (promised or any(victims.withdrawable(cycle))):
                break
            if not _look_again(cycle, withholding=withholding):
                break


def _look_again(cycle: Cycle, *, withholding: bool) -> bool:
    """Whether anybody found room. If a start was withheld for it, everybody who waits then has
    another turn: that one may fit elsewhere, and others where it would have been."""
    desk, found, before = cycle.desk, False, list(cycle.placements)
    desk.withholding = withholding
    _forget(cycle)
    for key, over in list(desk.entitled.items()):
        asked = cycle.workload(key)
        if asked is None or key in cycle.placements or key in cycle.nominations:
            continue
        if withholding and key in desk.withheld:
            continue
        unit = models.permitted(cycle.scene.cluster, cycle.tree, asked)
        if not isinstance(unit, Unit):
            continue
        if cycle.barred(unit) is not None:
            continue  # its user may hold no more by now
        if _attempt(cycle, cycle.ask(unit), over, None):
            found = True
            _forget(cycle)
    desk.withholding = False
    if any(key not in cycle.placements for key in before):
        _forget(cycle)
        for unit in cycle.turns():
            cycle.consider(unit)
    return found


def _forget(cycle: Cycle) -> None:
    cycle.desk.forget()
    cycle.departures.forget()


def treat_alike(cycle: Cycle, known: str, unit: Unit) -> None:
    """A unit was told what another of its kind had been told: it has the same rights."""
    over = cycle.desk.entitled.get(known)
    if over is not None:
        cycle.desk.entitled[unit.key] = over


def comes_free(cycle: Cycle, unit: Unit, seats: Sequence[Seat]) -> bool:
    """Whether a promised place will be free when all who were told to go before are gone. If not,
    somebody did not go or came between, and the promise is void."""
    if cycle.desk.later is None:
        departures = cycle.departures
        later = freeing.relieved(cycle.scene.cluster, departures.leaving(), None)
        freeing.free_ports(later, departures.told().values())
        cycle.desk.later = (later, departures.tree_without())
    cluster, tree = cycle.desk.later
    firm = not unit.preemptible
    if unit.queue not in tree.queues or tree.shortage(unit.queue, cycle.need(unit), firm=firm):
        return False
    if not sit_down(cluster, unit, seats):
        return False
    cluster.settle()
    tree.add(unit.queue, cycle.need(unit), firm=firm)
    return True


def in_vain(
    cycle: Cycle, told: Asked, failure: Failure, beside: tuple[Held, ...]
) -> tuple[bool, bool]:
    """Whether stopping others surely does not help the unit, as long as nobody else is told to go;
    and whether that holds for all of its kind, or only beside the promises it must keep."""
    desk, unit = cycle.desk, told.unit
    desk.why, without_promises = "", failure.reserved_until is None
    if not unit.preempts or not _may_ask(cycle, failure):
        return True, without_promises
    standing = _standing(cycle, unit, _rank(cycle, unit))
    if cycle.policy.reclaim and _may_be_inside(cycle, unit.queue, told.need, standing):
        return False, False
    if not standing or not (cycle.snapshot.running or desk.late):
        return True, without_promises  # there is nobody
    desk.why = NOT_ENOUGH
    shape, may_gain = cycle.scene.cluster.shape_of(failure.role), cycle.foresight.may_gain
    missing = failure.wanted - failure.room
    if without_promises and not may_gain(cycle, told, shape, missing, ()):
        return True, True
    if beside:
        missing = failure.wanted - cycle.room.outside(shape, failure.wanted, beside)
        if not may_gain(cycle, told, shape, missing, beside):
            return True, False
    if without_promises and not _hope(cycle, unit, standing, failure, ()):
        return True, True
    return bool(beside) and not _hope(cycle, unit, standing, failure, beside), False


def _may_ask(cycle: Cycle, failure: Failure) -> bool:
    """Whether there could be anybody to stop for it at all."""
    if not (cycle.policy.preempt or cycle.policy.reclaim):
        return False
    shape = cycle.scene.cluster.shape_of(failure.role)
    return cycle.most_when_empty(shape) >= failure.wanted  # else not even in an empty cluster


def _standing(cycle: Cycle, unit: Unit, rank: order.Key) -> Standing:
    found = cycle.desk.standings.get((unit.queue, rank))
    if found is None:
        found = cycle.desk.standings[unit.queue, rank] = victims.standing(cycle, unit)
    return found


def _attempt(cycle: Cycle, ask: Ask, over: frozenset[str], failure: Failure | None) -> bool:
    unit, desk = ask.unit, cycle.desk
    desk.why = ""
    if not (cycle.policy.preempt or cycle.policy.reclaim) or not unit.preempts:
        return False
    rank = _rank(cycle, unit)
    standing = _standing(cycle, unit, rank)
    entitled = cycle.policy.reclaim and _may_be_inside(cycle, unit.queue, ask.need, standing)
    if entitled:
        desk.entitled[unit.key] = over
    if not (entitled or standing) or not (cycle.snapshot.running or desk.late):
        return False  # there is nobody
    kind = (unit.queue, unit.preemptible, over, cycle.kind(ask))
    known = desk.refused.get(kind)
    if known is not None and ask.members >= known.members and rank >= known.rank:
        desk.why = known.why
        if len(cycle.evictions) == known.told or cycle.work.exhausted:
            return False
        return _find_left(cycle, ask, over, entitled=entitled)
    if entitled or failure is None or _might_help(cycle, ask, standing, failure):
        if not cycle.work.exhausted and _find_room(cycle, ask, over, entitled=entitled):
            return True
    else:
        desk.why = NOT_ENOUGH
    if known is None or ask.members <= known.members:
        desk.refused[kind] = Refusal(ask.members, rank, desk.why, len(cycle.evictions))
    return False


def _might_help(cycle: Cycle, ask: Ask, standing: Standing, failure: Failure) -> bool:
    """Whether stopping others might make room: by sums, then by a quick look at the nodes."""
    shape, room, beside = cycle.scene.cluster.shape_of(failure.role), cycle.room, ask.beside
    wanted = failure.wanted
    there = room.outside(shape, wanted, beside) if beside else room.in_all(shape, wanted)
    told, missing = cycle.asked(ask.unit), failure.wanted - there
    return cycle.foresight.may_gain(cycle, told, shape, missing, beside) and _hope(
        cycle, ask.unit, standing, failure, beside
    )


def _rank(cycle: Cycle, unit: Unit) -> order.Key:
    """By which units of one queue may stop others; smaller is stronger."""
    queue = cycle.queue_of(unit)
    key: order.Key = (-order.priority(queue, unit),)
    if queue.order == "attained":
        key += (cycle.standing.predictor.index(unit, unit.attained),)
    return key


def _may_be_inside(cycle: Cycle, queue: str, need: Sums, standing: Standing) -> bool:
    """Whether the queue would be inside its guarantee if all were gone that must go, that the unit
    outranks, or that queues below it may have to give back."""
    tree, concerned = cycle.tree, False
    own, used = tree.guarantee[queue], tree.used[queue]
    if not own:
        return False
    left, held = cycle.departures.left().get(queue, {}), standing.held
    for resource, amount in own.items():
        asked = need.get(resource, 0)
        if asked:
            stays = used.get(resource, 0) - held.get(resource, 0) - left.get(resource, 0)
            if stays - tree.preemptible_below(queue, resource) + asked > amount:
                return False
            concerned = True
    return concerned


def _hope(
    cycle: Cycle, unit: Unit, standing: Standing, failure: Failure, beside: tuple[Held, ...]
) -> bool:
    """A quick look, only at nodes where anything could come free: whether what was short of room
    might find enough if all went that may go in its own queue, or if only all went that must."""
    if not failure.resolved:
        return True
    topology = unit.topology
    level = topology.level if topology is not None and topology.required else ""
    cycle.work.spend(standing.count)
    cluster, outlook = cycle.scene.cluster, cycle.departures.outlook()
    shape, own = cluster.shape_of(failure.role), list[Hope]()
    if standing:
        own.append(standing.hope(cluster, cycle.departures.promised()))
    if outlook is not None:
        own.append(outlook.worst_hope)

    if outlook is not None and outlook.most_later(cluster, shape, level, beside) >= failure.wanted:
        return True
    return bounds.most_with(cluster, own, shape, level, beside) >= failure.wanted


def _find_room(cycle: Cycle, ask: Ask, over: frozenset[str], *, entitled: bool) -> bool:
    unit = ask.unit
    claim = claim_of(cycle, ask, over, entitled=entitled)
    key = (unit.queue, _rank(cycle, unit), claim.scarce, claim.contested, claim.inside)
    hope = cycle.desk.hopes.get(key)
    if hope is not None and not freeing.has_hope(cycle, unit, hope):
        cycle.desk.why = NOT_ENOUGH
        return False
    anyway = claim.inside or victims.has_outranked(cycle, claim)
    if anyway and _count_on_others(cycle, claim):
        return True
    pool = reclaim.pool(cycle, claim)
    if not anyway and len(pool) and _count_on_others(cycle, claim):
        return True
    outlook = cycle.departures.outlook()
    base = outlook.worst if outlook is not None else cycle.scene.cluster
    quota = bool(over) or not claim.inside

    def trial_of(part: Pool) -> Trial:
        return Trial(cycle, claim, part, base, quota=quota)

    chances = preemption_plan.Chances(cycle, claim, trial_of, pool)
    found = chances.plan(cycle.now)
    if found is not None:
        _commit(cycle, unit, *found)
        return True
    if len(pool) or len(chances.everybody):
        cycle.desk.why = chances.why_protected() or NOT_ENOUGH
        if entitled:
            cycle.desk.hopes[key] = freeing.without(cycle, base, chances.everybody)
    return False


def _find_left(cycle: Cycle, ask: Ask, over: frozenset[str], *, entitled: bool) -> bool:
    """As `_find_room`, for a unit for which it is in vain to stop anybody else."""
    outlook = cycle.departures.outlook()
    if outlook is None or not _may_suffice(cycle, ask.unit, outlook):
        return False
    claim = claim_of(cycle, ask, over, entitled=entitled)
    anybody = claim.inside or victims.has_outranked(cycle, claim) or reclaim.pool(cycle, claim)
    return bool(anybody) and _count_on_others(cycle, claim)


def _count_on_others(cycle: Cycle, claim: Claim) -> bool:
    """Whether what others leave, beyond what is promised of it, is enough: nobody else must go."""
    outlook = cycle.departures.outlook()
    if outlook is None or not _may_suffice(cycle, claim.unit, outlook):
        return False
    nobody = victims.nobody(cycle, claim)
    if claim.is_bound:
        claim = dataclasses.replace(claim, tree=cycle.departures.tree_without())
    trial = Trial(cycle, claim, nobody, outlook.later, quota=True)
    plan = freeing.plan_with_nobody(trial, models.in_turn(claim.unit))
    if plan is not None:
        _commit(cycle, claim.unit, nobody, plan)
    return plan is not None


def _may_suffice(cycle: Cycle, unit: Unit, outlook: Outlook) -> bool:
    """A quick look, at each role alone: what is free now, with what others leave."""
    cluster, told = cycle.scene.cluster, cycle.asked(unit)
    return not told.exact or all(
        outlook.most_later(cluster, shape, told.level, ()) >= wish.count
        for wish, shape in zip(told.wishes, told.shapes, strict=True)
    )


def claim_of(cycle: Cycle, ask: Ask, over: frozenset[str], *, entitled: bool) -> Claim:
    """What the unit may ask for, by what can be counted on."""
    unit, need, tree = ask.unit, ask.need, cycle.tree
    if entitled or tree.is_bound(unit.queue, firm=not unit.preemptible):
        tree = cycle.departures.tree_at_worst()
    scarce = victims.scarce_resources(cycle, unit, over) if entitled else frozenset[str]()
    contested = victims.contested_resources(tree, unit.queue, need) if scarce else scarce
    inside = entitled and tree.inside(unit.queue, need)
    departed, repaired = _departed(cycle), _repaired(cycle, unit)
    starting = _starting(cycle)
    return Claim(unit, need, scarce, contested, tree, inside, departed, repaired, starting)


def _departed(cycle: Cycle) -> dict[str, list[Piece]]:
    """By queue: who is told to go."""
    found = dict[str, list[Piece]]()
    for piece in cycle.departures.told().values():
        found.setdefault(piece.running.unit.queue, []).append(piece)
    return found


def _repaired(cycle: Cycle, preemptor: Unit) -> dict[str, list[str]]:
    """By queue: gangs that are being completed, or ask for it."""
    found = dict[str, list[str]]()
    for key, unit in cycle.missing.items():
        if key in cycle.placements or key in cycle.nominations or key == preemptor.key:
            found.setdefault(unit.queue, []).append(key)
    return found


def _starting(cycle: Cycle) -> dict[str, list[tuple[Unit, Sums]]]:
    """By queue: units that surely start, since others were stopped for them or are told to go, and
    how much they hold. Who else starts may be withheld yet: nobody goes because of it, until later
    on it is as good as running."""
    desk, snapshot = cycle.desk, cycle.snapshot
    for key in itertools.islice(cycle.placements, desk.seen, None):
        if key in cycle.held and key in snapshot.waiting and key in snapshot.nominations:
            unit = snapshot.waiting[key]
            desk.starting.setdefault(unit.queue, []).append((unit, cycle.held[key]))
    desk.seen = len(cycle.placements)
    found = desk.starting
    if cycle.nominations:
        found = {queue: list(units) for queue, units in found.items()}
        for key in sorted(cycle.nominations):
            gainer = cycle.workload(key)
            if gainer is not None:
                found.setdefault(gainer.queue, []).append((gainer, cycle.need(gainer)))
    return found


# --- what was decided ---------------------------------------------------------------------------


def _commit(cycle: Cycle, unit: Unit, pool: Pool, plan: Plan) -> None:
    freed, before = dict[str, Sums](), len(cycle.evictions)
    right = "entitled to" if cycle.tree.shares_are_owed else "guaranteed"
    reasons = {unit.queue: f"a unit that comes before it in queue {unit.queue} needs the room"}
    surplus = f"its surplus is needed for the minimum of a workload of queue {unit.queue}"
    rightful = np.flatnonzero(plan.gone & (pool.kind != YIELDING)).tolist()
    by_right = {pool.pieces[i].key for i in rightful}
    for piece in _who_goes(cycle, pool, plan):
        if piece.key in cycle.snapshot.waiting:
            cycle.desk.withheld.add(piece.key)
            cycle.withdraw(piece.key)
            continue
        members = tuple([(seat.role, seat.index) for seat in piece.seats])
        queue = piece.running.unit.queue
        reason = reasons.setdefault(queue, f"queue {unit.queue} takes back what it is {right}")
        reason = reason if piece.key in by_right else surplus
        cycle.evictions.append(Eviction(piece.key, members, unit.key, reason))
        queues.add(freed.setdefault(queue, {}), piece.held)
    if len(cycle.evictions) > before:
        alike.somebody_goes(cycle, freed)
        standings = cycle.desk.standings
        cycle.desk.standings = {at: each for at, each in standings.items() if at[0] not in freed}
    may = not cycle.over_space(unit) and not cycle.tree.shortage(
        unit.queue, cycle.need(unit), firm=not unit.preemptible
    )
    seats = repair.numbered(cycle, unit.key, plan.seats)
    if not freed and may and sit_down(cycle.scene.cluster, unit, seats):
        cycle.commit(unit, seats)
        return
    cycle.nominations[unit.key] = Nomination(unit.key, seats)
    cycle.hold(unit, seats)
    cycle.foresight.somebody_counts_on_others()
    cycle.scene.cluster.settle()
    message = _told_from_where(cycle.need(unit), freed)
    cycle.verdicts[unit.key] = dataclasses.replace(verdicts.being_freed(unit), message=message)


def _who_goes(cycle: Cycle, pool: Pool, plan: Plan) -> list[Piece]:
    """The pieces of each victim as one: some of its surplus, or all that is left of it."""
    by_unit: dict[str, list[Piece]] = {}
    for i in np.flatnonzero(plan.gone).tolist():
        piece = pool.pieces[i]
        by_unit.setdefault(piece.key, []).append(piece)
    return [_as_one(cycle, pieces) for pieces in by_unit.values()]


def _as_one(cycle: Cycle, pieces: list[Piece]) -> Piece:
    running = pieces[0].running
    if any(not piece.surplus for piece in pieces):
        told = cycle.departures.told().get(running.unit.key)
        gone = told.seats if told is not None else ()
        seats = tuple([seat for seat in running.seats if seat not in gone])
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
