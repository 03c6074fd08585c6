"""Which moves of running workloads would let a waiting workload start now.

A gang may wait although enough capacity is free in sum: it is free in the wrong places. Here are
the fewest workloads found that leave its place and fit elsewhere, in what is free now, so that
nobody waits longer for it: neither they nor a reservation. They are stopped by the checkpoint
contract and start again on capacity that is nominated to them.

`look` carries that out with workloads whose owners allow it, that lose little work by it and were
not moved lately. `propose` tells what would help with any workload, for explanations.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from windlass.core import (
    alike,
    freeing,
    models,
    passing,
    place,
    preempt,
    quota_forecast,
    repair,
    reserve,
    verdicts,
    victims,
)
from windlass.core.choosing import UNLOCKED
from windlass.core.facts import Eviction, Nomination, Running, Seat, Unit
from windlass.core.freeing import Trial
from windlass.core.place import Failure
from windlass.core.victims import Claim, Mask, Pool
from windlass.kinds.reasons import Reason

if TYPE_CHECKING:
    from windlass.core.cycle import Ask, Cycle

HEADS = 2
"""Blocked workloads for which moves are looked for in one decision, the first in turn."""
LOOKED_AT = 64
"""Blocked workloads of which it is asked whether enough is free in sum."""
CANDIDATES, PAIRED = 48, 16
"""Workloads that are tried alone and in pairs, those that lose the least work first."""
_PLACE = (Reason.WAITING_FOR_CAPACITY, Reason.WAITING_FOR_TOPOLOGY, Reason.RESERVED_UNTIL)


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A running workload that goes elsewhere."""

    running: Running
    seats: tuple[Seat, ...]
    """Where its minimum starts again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Moves:
    """What lets a waiting workload start."""

    seats: tuple[Seat, ...]
    """Where it starts."""
    moves: tuple[Move, ...]


def look(cycle: Cycle) -> None:
    """Moves workloads for the first that wait for place. Costs nothing where none is movable."""
    if not cycle.policy.defragment or not cycle.snapshot.roster.movable:
        return
    tried = 0
    for unit in _blocked(cycle):
        if tried >= HEADS or cycle.work.exhausted:
            return
        if _is_free_in_sum(cycle, unit):
            tried += 1
            found = _find(cycle, unit, _movable(cycle, unit))
            if found is not None:
                _commit(cycle, unit, found)


def propose(cycle: Cycle, unit: Unit) -> Moves | None:
    """What would let the workload start, whoever allows it. Leaves the cycle unfit for more."""
    verdict = cycle.verdicts.get(unit.key)
    if verdict is None or verdict.reason not in _PLACE or not _is_free_in_sum(cycle, unit):
        return None
    return _find(cycle, unit, _stoppable(cycle))


def allows(running: Running) -> bool:
    """Whether the owner of a workload allows that it is moved."""
    return running.unit.movable and running.unit.preemptible


# --- for whom, and who ----------------------------------------------------------------------------


def _blocked(cycle: Cycle) -> Iterator[Unit]:
    """Workloads that wait for place, in the order of their turns."""
    for key in itertools.islice(dict.fromkeys(cycle.turn), LOOKED_AT):
        verdict, unit = cycle.verdicts.get(key), cycle.snapshot.waiting.get(key)
        if verdict is None or unit is None or verdict.reason not in _PLACE:
            continue
        if key not in cycle.placements and key not in cycle.nominations:
            yield unit


def _is_free_in_sum(cycle: Cycle, unit: Unit) -> bool:
    """Whether all nodes together have what the workload needs: else no move can help."""
    cluster = cycle.scene.cluster
    for wish in place.least_of(unit):
        role, usable = wish.role, cluster.mask(wish.role.constraint)
        usable = usable & cluster.takes(role.constraint)
        for name, need in role.needs.items():
            column = cluster.resources.get(name)
            if need and column is not None:
                free = int(np.maximum(cluster.free[column, usable], 0).sum())
                if free < need * wish.count:
                    return False
        for request in role.devices:
            if request.form != "whole":
                continue
            free_devices = cluster.bank.eligible(request) & (cluster.bank.mode == UNLOCKED)
            if int(free_devices[usable].sum()) < request.count * wish.count:
                return False
    return True


def _movable(cycle: Cycle, unit: Unit) -> dict[str, list[Running]]:
    """By queue, workloads that may be moved for this one now."""
    found: dict[str, list[Running]] = {}
    for queue, keys in sorted(cycle.snapshot.roster.movable.items()):
        for key in sorted(keys):
            running = cycle.snapshot.running[key]
            if _is_free_to_go(cycle, running) and _may_move(cycle, running, unit):
                found.setdefault(queue, []).append(running)
    return found


def _may_move(cycle: Cycle, running: Running, unit: Unit) -> bool:
    """Whether it loses little work and was not moved lately, nor for the same workload. Asks for a
    decision when time alone makes it movable again."""
    policy, now = cycle.policy, cycle.now
    saved = running.started if running.checkpoint_at is None else running.checkpoint_at
    if now - max(running.started, saved) > policy.move_loses:
        return False
    if any(gang == unit.key for _, gang in running.unit.moved):
        return False
    rested = max((at + policy.move_every for at, _ in running.unit.moved), default=now)
    due = max(rested, running.protected_until)
    if due > now:
        cycle.wake.append(due)
    return due <= now


def _stoppable(cycle: Cycle) -> dict[str, list[Running]]:
    """By queue, workloads that could be stopped and started again, allowed or not."""
    found: dict[str, list[Running]] = {}
    for key in sorted(cycle.snapshot.running):
        running = cycle.snapshot.running[key]
        if running.unit.preemptible and _is_free_to_go(cycle, running):
            found.setdefault(running.unit.queue, []).append(running)
    return found


def _is_free_to_go(cycle: Cycle, running: Running) -> bool:
    """Whether nothing else is being done with it."""
    unit = running.unit
    return (
        unit.queue in cycle.tree.queues
        and unit.queue not in cycle.tree.held
        and not running.leaving
        and unit.key not in cycle.departures.told()
        and unit.key not in cycle.placements
        and not repair.missing_members(running)
        and not any(cycle.scene.crowd.concerns(unit, role) for role in unit.roles)
    )


# --- the search -----------------------------------------------------------------------------------


def _find(cycle: Cycle, unit: Unit, candidates: Mapping[str, list[Running]]) -> Moves | None:
    """The fewest moves that let the workload start, of these the ones that lose the least work."""
    if not candidates or any(cycle.scene.crowd.concerns(unit, role) for role in unit.roles):
        return None
    promise = reserve.lift(cycle, unit)  # it would start now, and need it no more
    found = None
    narrowed = models.permitted(cycle.scene.cluster, cycle.tree, unit)
    if isinstance(narrowed, Unit):
        ask = cycle.ask(narrowed)
        if _quota_allows(cycle, ask):
            claim = preempt.claim_of(cycle, ask, frozenset(), entitled=False)
            found = _Search(cycle, claim, candidates).run()
    if promise is not None and found is None:
        reserve.put_back(cycle, promise)
    return found


def _quota_allows(cycle: Cycle, ask: Ask) -> bool:
    unit = ask.unit
    return (
        cycle.over_space(unit) is None
        and cycle.tree.shortage(unit.queue, ask.need, firm=not unit.preemptible) is None
        and (
            not ask.beside
            or quota_forecast.shortage_beside(cycle, unit, ask.need, ask.beside) is None
        )
    )


class _Search:
    """One workload that waits, and the workloads that may be moved for it."""

    def __init__(self, cycle: Cycle, claim: Claim, candidates: Mapping[str, list[Running]]) -> None:
        self._cycle, self._claim, self._unit = cycle, claim, claim.unit
        outlook = cycle.departures.outlook()
        self._base = outlook.worst if outlook is not None else cycle.scene.cluster
        self._pool = _pool(cycle, claim, candidates)
        self._trial = self._trial_of(self._pool)
        self._workloads = self._worth_trying() if len(self._pool) else []
        """Pieces of workloads that could help, those that lose the least work first."""

    def run(self) -> Moves | None:
        everybody = np.ones(len(self._pool), np.bool_)
        if not self._workloads or not self._trial.suffices(everybody):
            return None
        for gone in self._sets():
            if self._cycle.work.exhausted:
                return None
            found = self._arranged(gone) if self._trial.suffices(gone) else None
            if found is not None:
                return found
        return None

    def _trial_of(self, part: Pool) -> Trial:
        return Trial(self._cycle, self._claim, part, self._base, quota=False)

    def _worth_trying(self) -> list[Mask]:
        """Workloads on nodes with room for more members of the waiting one once all are gone, that
        find room elsewhere now."""
        pool, trial = self._pool, self._trial
        touching = np.ones(len(pool), np.bool_)
        if trial.alike:
            all_gone = np.ones(len(pool), np.bool_)
            more = trial.caps(all_gone, trial.shape) > trial.caps(~all_gone, trial.shape)
            flat = trial.pool.flat
            touching[:] = False
            touching[flat.seat_of[more[flat.members[0]]]] = True
        numbers = np.unique(pool.least[touching])
        elsewhere = [n for n in numbers.tolist() if self._fits_elsewhere(pool.pieces[n].running)]
        workloads = [np.asarray(pool.least == n) for n in elsewhere]
        cost = pool.lost * pool.size
        workloads.sort(key=lambda rows: (float(cost[rows].sum()), int(pool.size[rows].sum())))
        return workloads

    def _fits_elsewhere(self, running: Running) -> bool:
        """Whether its minimum finds room now, looking at each role alone."""
        cluster, room = self._cycle.scene.cluster, self._cycle.room
        return all(
            room.in_all(cluster.shape_of(wish.role), wish.count) >= wish.count
            for wish in place.least_of(running.unit)
        )

    def _sets(self) -> Iterator[Mask]:
        """One workload, two, then those that suffice with the least work lost."""
        most = self._cycle.policy.moves
        yield from self._workloads[:CANDIDATES]
        if most >= 2:
            for one, other in itertools.combinations(self._workloads[:PAIRED], 2):
                yield one | other
        if most > 2:
            chosen = np.logical_or.reduce(self._workloads)
            plan = freeing.plan(self._trial_of, self._pool, chosen, models.in_turn(self._unit))
            if plan is not None and 2 < len(self._victims(plan.gone)) <= most:
                yield plan.gone

    def _victims(self, gone: Mask) -> list[Running]:
        """The workloads of some pieces, the largest first: they are the hardest to place."""
        rows = np.unique(self._pool.least[gone]).tolist()
        found = [self._pool.pieces[row].running for row in rows]
        return sorted(found, key=lambda each: (-len(each.seats), each.unit.key))

    def _arranged(self, gone: Mask) -> Moves | None:
        """Where the waiting workload starts and where these go; None: not all find a place. The
        first place of the one may leave none for the others, so several are tried."""
        victims_gone = self._victims(gone)
        seats = self._seats(gone)
        if seats is None:
            return None
        for avoid in ("", *dict.fromkeys(seat.node for seat in seats)):
            chosen = seats if not avoid else self._seats(gone, avoid)
            moves = self._relocated(victims_gone, chosen) if chosen is not None else None
            if chosen is not None and moves is not None:
                return Moves(chosen, moves)
        for avoid in ("", *sorted({seat.node for each in victims_gone for seat in each.seats})):
            moves = self._relocated(victims_gone, (), avoid)
            chosen = self._seats(gone, beside=moves) if moves is not None else None
            if chosen is not None and moves is not None:
                return Moves(chosen, moves)
        return None

    def _seats(
        self, gone: Mask, avoid: str = "", beside: Sequence[Move] = ()
    ) -> tuple[Seat, ...] | None:
        """Where the waiting workload would be once these are gone: away from one node, beside
        workloads that moved."""
        trial, cluster = self._trial, self._trial.cluster(gone)
        for move in beside:
            roles = {role.name: role for role in move.running.unit.roles}
            for seat in move.seats:
                if seat.node in cluster.index:
                    cluster.occupy(roles[seat.role], seat)
        within = trial.within
        if avoid:
            within = np.ones(len(cluster), np.bool_) if within is None else within.copy()
            within[cluster.index[avoid]] = False
        answer = trial.place(cluster, gone, within, models.in_turn(self._unit))
        return None if isinstance(answer, Failure) else answer

    def _relocated(
        self, gone: list[Running], beside: tuple[Seat, ...], avoid: str = ""
    ) -> tuple[Move, ...] | None:
        """Places for these in what is free now, away from one node, beside the waiting workload on
        its seats and without delaying a reservation. Takes nothing."""
        cycle, scene, cluster = self._cycle, self._cycle.scene, self._cycle.scene.cluster
        roles, mark = {role.name: role for role in self._unit.roles}, cluster.mark()
        for seat in beside:
            cluster.occupy(roles[seat.role], seat)
        if avoid:
            scene.within = np.ones(len(cluster), np.bool_)
            scene.within[cluster.index[avoid]] = False
        moves: list[Move] = []
        for running in gone:
            unit, end = running.unit, cycle.expected_end(running.unit)
            met = passing.crossed(cycle, unit, end)
            answer = reserve.place_beside(cycle, unit, place.least_of(unit), end, met)
            if isinstance(answer, Failure):
                break
            moves.append(Move(running, answer))
        scene.within = None
        cluster.rollback(mark)
        return tuple(moves) if len(moves) == len(gone) else None


def _pool(cycle: Cycle, claim: Claim, candidates: Mapping[str, list[Running]]) -> Pool:
    """Their pieces; the minimum of a workload and its surplus go together."""
    parts: list[Pool] = []
    for queue, runs in sorted(candidates.items()):
        columns = victims.columns_of(cycle, queue)
        rows = [
            np.arange(*columns.rows(each.unit.key).indices(len(columns.pieces))) for each in runs
        ]
        chosen = np.sort(np.concatenate(rows))
        kinds = np.full_like(columns.size, victims.FIRST)
        parts.append(victims.part_of(cycle, queue, columns, chosen, kinds))
    return victims.joined(cycle, claim, parts)


# --- what was decided -----------------------------------------------------------------------------


def _commit(cycle: Cycle, unit: Unit, found: Moves) -> None:
    for move in found.moves:
        members = tuple((seat.role, seat.index) for seat in move.running.seats)
        nodes = ", ".join(sorted({seat.node for seat in move.seats}))
        reason = f"moved to {nodes} so that a waiting workload of queue {unit.queue} can start"
        key = move.running.unit.key
        cycle.evictions.append(Eviction(key, members, unit.key, reason, move=True))
        cycle.moving[key] = move.running.unit
    alike.somebody_goes(cycle, {move.running.unit.queue for move in found.moves})
    for each, seats in ((unit, found.seats), *((m.running.unit, m.seats) for m in found.moves)):
        cycle.nominations[each.key] = Nomination(each.key, seats)
        cycle.hold(each, seats)
    cycle.foresight.somebody_counts_on_others()
    cycle.scene.cluster.settle()
    count = len(found.moves)
    message = f"{count} running workload{'s are' if count > 1 else ' is'} being moved to make place"
    verdict = verdicts.being_freed(unit)
    cycle.verdicts[unit.key] = dataclasses.replace(verdict, message=message)
