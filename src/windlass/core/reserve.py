"""Promises to blocked heads: when and where they start, and room that others leave free.

`cycle.consider` asks for a promise for the first blocked heads of a queue. From then on a *shadow*
of the cluster at the promised start is kept, with the promised seats taken. Whoever would still run
at that time may sit only where the shadow has room as well; whoever ends before is free to use the
room until then. So others pass a head only if they cannot delay it.

A promise never gets later while units end when they said, or before. The last decision's promises
come back with the facts and bind everybody of no higher rank from the start of this decision on;
each is made again at its unit's turn, at the same time or an earlier one.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from windlass.core import (
    alike,
    allowance,
    earliest,
    looks,
    overruns,
    passing,
    place,
    quota_forecast,
    releases,
    shadows,
    usage_profile,
    withdrawals,
)
from windlass.core.cluster import Cluster
from windlass.core.facts import Reservation, Role, Running, Seat, Unit
from windlass.core.place import Failure, Scene, Wish
from windlass.core.shadows import Held, Stay

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

FOREVER = passing.FOREVER
TRIES = 5
"""Arrangements tried beside promises before the answer is "unresolved"."""


# --- who stays out of whose room ----------------------------------------------------------------


def place_beside(
    cycle: Cycle, unit: Unit, wishes: Sequence[Wish], end: float | None, beside: tuple[Held, ...]
) -> tuple[Seat, ...] | Failure:
    """As `place.place`, in the cycle's scene, without delaying any of these promises."""
    scene = cycle.scene
    if not beside:
        return place.place(scene, unit, wishes)
    limits, clashes = shadows.ceilings(scene, beside, wishes), list[int]()
    until = passing.stays_until(cycle, unit, end)
    for number in range(TRIES):
        mark, apart = scene.cluster.mark(), number == 1
        scene.ceilings = limits
        if apart:
            answer = _place_apart(scene, unit, wishes, beside, clashes)
        else:
            answer = place.place(scene, unit, wishes)
        scene.ceilings = {}
        if not isinstance(answer, Failure):
            stay = Stay(unit, cycle.now, until, answer)
            found = _clashing(cycle, stay)
            if not found:
                return answer
            scene.cluster.rollback(mark)
            clashes += found
        elif not apart:
            if earliest.fits_by_count(scene, unit, wishes):
                due = min(held.start for held in beside)
                answer = dataclasses.replace(answer, reserved_until=due)
            return answer
        if number:
            limits = {shape: limit.copy() for shape, limit in limits.items()}
            for limit in limits.values():
                limit[clashes] = 0
    return Failure(wishes[0].role, wishes[0].count, 0, resolved=False)


def _clashing(cycle: Cycle, stay: Stay) -> list[int]:
    """Nodes on which a promise that counts for the unit would not hold beside its stay."""
    near = shadows.near(cycle.reservations, stay)  # nobody, mostly
    return shadows.clashing(passing.binding(cycle, stay.unit, near), stay) if near else []


def _place_apart(
    scene: Scene, unit: Unit, wishes: Sequence[Wish], beside: Sequence[Held], nodes: Sequence[int]
) -> tuple[Seat, ...] | Failure:
    """As `place.place`, on devices of these nodes of which nothing is promised: promised members
    cannot always move to others."""
    mark = scene.cluster.mark()
    for held in beside:
        for seat in (seat for node in sorted({*nodes}) for seat in held.on(node)):
            scene.cluster.bar(seat)
    answer = place.place(scene, unit, wishes)
    scene.cluster.rollback(mark)
    if not isinstance(answer, Failure):
        place.sit_down(scene.cluster, unit, answer)
    return answer


def also_take(cycle: Cycle, unit: Unit, seats: Sequence[Seat], end: float | None) -> None:
    """What starts now is taken from every shadow that it runs into. A promise that does not hold
    beside it is gone: one that does not bind the unit, for the others were left their room."""
    if not cycle.reservations:
        return
    _also_take_quota(cycle, unit)
    stay = Stay(unit, cycle.now, passing.stays_until(cycle, unit, end), seats)
    met = shadows.affected(cycle.reservations, stay)
    if not met:
        return
    passed = [held for held in met if not passing.binds(cycle, unit, held)]
    while (refused := shadows.admit(met, stay, keep=True)) is not None:
        # Who has no room left and is passed; else one that is passed moved to where it would be.
        gone = refused if refused in passed or not passed else passed[-1]
        passed = [held for held in passed if held is not gone]
        met.remove(gone)
        lift(cycle, gone.unit)
        withdrawals.note(cycle, gone.unit.key, withdrawals.passed_by(cycle, unit, gone.unit))
        alike.forget(cycle)


def _also_take_quota(cycle: Cycle, unit: Unit) -> None:
    """A reservation that the workload may pass and that has no quota left beside it is gone."""
    shared = set(cycle.tree.path(unit.queue))
    for held in list(cycle.reservations):
        queue, firm = held.unit.queue, not held.unit.preemptible
        if not cycle.tree.is_bound(queue, firm=firm) or passing.binds(cycle, unit, held):
            continue
        if not cycle.tree.withholding and shared.isdisjoint(cycle.tree.path(queue)):
            continue
        fresh = held.fresh
        lift(cycle, held.unit)
        need = cycle.need(held.unit)
        if quota_forecast.shortage_at(cycle, held.unit, need, held.start) is None:
            put_back(cycle, held)
            held.fresh = fresh
        else:
            withdrawals.note(cycle, held.unit.key, withdrawals.passed_by(cycle, unit, held.unit))
            alike.forget(cycle)


def give_back(cycle: Cycle, running: Running) -> None:
    """What was about to start does not: the shadows it would run into have its room again."""
    until = passing.stays_until(cycle, running.unit, running.expected_end)
    stay = Stay(running.unit, cycle.now, until, running.seats)
    for held in shadows.affected(cycle.reservations, stay):
        shadows.leave(held, stay)


# --- making promises ----------------------------------------------------------------------------


def recall(cycle: Cycle) -> None:
    """What the last decision promised binds from the start of this one, where it still holds."""
    due = [
        (unit, old, max(old.start, cycle.now))
        for old in cycle.snapshot.reservations
        if (unit := cycle.snapshot.waiting.get(old.unit)) is not None
        and unit.key not in cycle.placements
        and unit.key not in cycle.nominations
        and unit.queue in cycle.tree.queues
        and unit.queue not in cycle.tree.held
        and not _has_terms(cycle, unit)
    ]
    left, moment = Counter(start for _, _, start in due), None
    for unit, old, start in due:
        left[start] -= 1
        refusal = _not_recalled(cycle, unit, old, start)
        if refusal:
            withdrawals.note(cycle, unit.key, refusal)
            continue
        _make_way(cycle, unit.queue)
        moment = _Moment.of(cycle, start, moment)
        shadow = moment.cluster.fork(()) if left[start] else moment.cluster
        bound = unit if cycle.windows is None else cycle.windows.starting(unit, start)
        held = _hold_again(cycle, bound, old, start, shadow)
        if held is None or not _add(cycle, held):
            withdrawals.note(cycle, unit.key, withdrawals.why_lost(cycle, old))


def _not_recalled(cycle: Cycle, unit: Unit, old: Reservation, start: float) -> str:
    """What keeps a reservation of the last decision from holding, besides capacity."""
    if not _asks_for(unit, old):
        return "the workload asks for something else now"
    if not allowance.has_one_left(cycle, unit.queue):
        return _too_many(cycle)
    short = quota_forecast.shortage_at(cycle, unit, cycle.need(unit), start)
    if short is not None and start > cycle.now:
        return f"queue {short.queue} will not have the quota by then"
    return ""


def _too_many(cycle: Cycle) -> str:
    most = allowance.most(cycle)
    return f"there are {most} reservations at most, and queues with a smaller share come first"


def _make_way(cycle: Cycle, queue: str) -> None:
    """Where there are as many reservations as may be, the first one of a queue takes the place of
    another."""
    while sum(cycle.memory.reserved.values()) >= allowance.most(cycle):
        gone = allowance.gives_way(cycle, queue)
        if gone is None:
            return
        lift(cycle, gone.unit)
        withdrawals.note(cycle, gone.unit.key, _too_many(cycle))
        alike.forget(cycle)


def restore(cycle: Cycle, unit: Unit) -> None:
    """A workload that was about to start does not: it has its reservation again, if it had one and
    the place is still there."""
    for old in cycle.snapshot.reservations:
        if old.unit == unit.key and old.start > cycle.now and not _has_terms(cycle, unit):
            shadow = _Moment.of(cycle, old.start, None).cluster
            bound = unit if cycle.windows is None else cycle.windows.starting(unit, old.start)
            held = _hold_again(cycle, bound, old, old.start, shadow)
            if held is not None:
                _add(cycle, held)


class _Moment:
    """The cluster at a time, with the promises that are under way then. Many start together, so
    it is kept from one to the next."""

    def __init__(self, cycle: Cycle, time: float) -> None:
        self.time = time
        self.cluster = cycle.scene.cluster.fork(())
        self.seated = list[releases.Rows]()
        cycle.ledger.refresh(cycle)
        cycle.ledger.move(self.cluster, releases.AT_ONCE, time)

    @staticmethod
    def of(cycle: Cycle, time: float, last: _Moment | None) -> _Moment:
        rows = [held.rows for held in cycle.reservations if held.start <= time < held.end]
        if (
            last is None
            or last.time != time
            or any(one is not other for one, other in zip(last.seated, rows, strict=False))
        ):  # another time, or somebody sits elsewhere by now
            last = _Moment(cycle, time)
        releases.move_all(last.cluster, rows[len(last.seated) :], -1)
        last.seated = rows
        return last


def lift(cycle: Cycle, unit: Unit) -> Held | None:
    """Takes a unit's promise back, if it has one."""
    if unit.key not in cycle.memory.promised:
        return None
    held = next((each for each in cycle.reservations if each.unit.key == unit.key), None)
    if held is not None:
        cycle.reservations.remove(held)
        shadows.move_in_shadows(cycle.reservations, held, +1)
        cycle.memory.promised.discard(unit.key)
        _count(cycle, unit.queue, -1)
    return held


def _count(cycle: Cycle, queue: str, change: int) -> None:
    """The queue has one reservation more or less."""
    memory = cycle.memory
    memory.moves += 1
    memory.reserved[queue] = memory.reserved.get(queue, 0) + change
    if not memory.reserved[queue]:
        del memory.reserved[queue]


def reserve(cycle: Cycle, unit: Unit, promise: Held | None = None) -> Held | None:
    """The earliest time at which capacity and quota suffice for the unit if others end when they
    should, and its seats then; `promise` is what it was promised before, which is kept if nothing
    earlier is found; once that has passed it is replaced by a later one, or lost."""
    overdue = promise is not None and _is_overdue(cycle, promise)
    if promise is not None and overdue:
        withdrawals.note(cycle, unit.key, withdrawals.why_lost(cycle, promise.reservation))
    if promise is None:
        if not allowance.may_promise(cycle, unit):
            return None
        if cycle.memory.final is not None and earliest.never_fits(cycle, unit):
            allowance.searched_in_vain(cycle, unit, never=True)
            return None
    before = FOREVER if promise is None or overdue else promise.start
    found = earliest.find(cycle, unit, before)
    if found is not None:
        if promise is None:
            _make_way(cycle, unit.queue)
        end = _end(cycle, unit, found.time)
        firm = (promise is not None and promise.firm) or _is_firm(cycle, unit, found.time)
        made = _made(cycle, unit) if promise is None else promise.made
        held = Held(
            found.unit, found.time, end, list(found.seats), found.cluster, fresh=True, firm=firm,
            made=made,
        )  # fmt: skip
        if _add(cycle, held):
            return held
    if promise is None:
        allowance.searched_in_vain(cycle, unit, never=earliest.never_fits(cycle, unit))
        return None
    if overdue:
        return None  # no later start is known: one that moves with the clock says nothing
    put_back(cycle, promise)
    return promise


def _end(cycle: Cycle, unit: Unit, start: float) -> float:
    estimate = cycle.estimate(unit)
    return FOREVER if estimate is None else start + estimate


def _made(cycle: Cycle, unit: Unit) -> float:
    """Now, or when it got the reservation that is looked for anew in every decision."""
    if unit.key not in cycle.withdrawn:
        for old in cycle.snapshot.reservations:
            if old.unit == unit.key and old.made is not None:
                return old.made
    return cycle.now


def _is_overdue(cycle: Cycle, promise: Held) -> bool:
    """Whether a start has passed that could not be kept; not while a workload ends in this very
    moment, but for rounding."""
    if promise.start > cycle.now:
        return False
    if promise.given + withdrawals.LATE < cycle.now:
        return True
    cycle.ledger.refresh(cycle)
    return not len(cycle.ledger.times(cycle.now, cycle.now + 2 * withdrawals.LATE))


def _is_firm(cycle: Cycle, unit: Unit, start: float) -> bool:
    """Whether the start can be promised: it is the turn of the workload's queue by then, at every
    level of the tree. Otherwise another queue that is below its share may still take the place, and
    the reservation is tentative."""
    tree, need = cycle.tree, cycle.need(unit)
    if _has_terms(cycle, unit):
        return False  # its place is looked for anew in every decision
    if len(tree.queues) == 1:
        return True
    for name in tree.path(unit.queue):
        if tree.inside(name, need):
            continue
        released = usage_profile.released_by(cycle, name, start)
        less = {resource: -amount for resource, amount in released.items()}
        if not cycle.fair_shares.is_below(name, less):
            return False
    return True


def keep(cycle: Cycle, promise: Held | None) -> None:
    """The unit may not start now, for reasons of quota that will have passed when it is due."""
    if promise is not None and promise.start > cycle.now:
        put_back(cycle, promise)


def put_back(cycle: Cycle, promise: Held) -> None:
    promise.fresh = True
    shadows.move_in_shadows(cycle.reservations, promise, -1)
    _append(cycle, promise)


def _append(cycle: Cycle, held: Held) -> None:
    cycle.reservations.append(held)
    cycle.memory.promised.add(held.unit.key)
    _count(cycle, held.unit.queue, +1)


def _add(cycle: Cycle, held: Held) -> bool:
    """One more promise, if those that start while it runs still hold. They may get other devices
    for it; those under way when it starts do not, since it was found beside them."""
    stay = Stay(held.unit, held.start, held.end, held.seats)
    if shadows.admit(shadows.affected(cycle.reservations, stay), stay, keep=True) is not None:
        return False
    _append(cycle, held)
    return True


def is_due(cycle: Cycle, promise: Held | None) -> bool:
    return promise is not None and promise.start <= cycle.now


def claim(cycle: Cycle, unit: Unit, promise: Held | None) -> bool:
    """A promise that is due: the unit starts on the very nodes, or those who were let in on the
    understanding that they go are told to go."""
    if promise is None or not is_due(cycle, promise):
        return False
    cluster = cycle.scene.cluster
    mark = cluster.mark()
    seats: Sequence[Seat] | None = promise.seats
    if not place.sit_down(cluster, unit, promise.seats):  # other devices may be promised to others
        seats = shadows.sit_again(cluster, unit, promise.seats)
    if seats is not None:
        until = passing.stays_until(cycle, unit, cycle.expected_end(unit))
        stay = Stay(unit, cycle.now, until, seats)
        if not _clashing(cycle, stay):
            cycle.commit(unit, tuple(seats))
            return True
    cluster.rollback(mark)
    return overruns.make_place(cycle, unit, promise)


def _asks_for(unit: Unit, old: Reservation) -> bool:
    """Whether the unit still asks for what it was promised."""
    wanted = {wish.role.name: wish.count for wish in place.least_of(unit)}
    return Counter([seat.role for seat in old.seats]) == wanted


def _hold_again(
    cycle: Cycle, unit: Unit, old: Reservation, start: float, shadow: Cluster
) -> Held | None:
    """The promise as it was, in the cluster as it will be then; None: there is no room for it."""
    rows = releases.rows_of(shadow, unit, old.seats)
    seats: list[Seat] | None = list(old.seats)
    there = _all_there(shadow, unit, old.seats, rows)
    if not there:
        seats = shadows.sit_again(shadow, unit, old.seats)
    if seats is None:
        shadow.rollback(0)
        nodes = {seat.node for seat in old.seats}
        for guest in overruns.candidates(cycle, unit, nodes, old.made, start):
            end = looks.believed(guest.expected_end, cycle.now)
            if end is None or end > start:  # else the shadow is without it already
                overruns.release(shadow, guest)
        seats = shadows.sit_again(shadow, unit, old.seats)
    if seats is None:
        return None
    shadow.settle()
    end = _end(cycle, unit, start)
    return Held(
        unit, start, end, seats, shadow, fresh=False, firm=old.firm, made=old.made,
        given=old.start, _rows=rows if there else None,
    )  # fmt: skip


def _all_there(cluster: Cluster, unit: Unit, seats: Sequence[Seat], rows: releases.Rows) -> bool:
    """Takes the very seats, devices and all, if every one of them is free; else nothing."""
    if not all(cluster.serves(role, seat) for role, seat in _cast(unit, seats)):
        return False
    if rows.ports:
        return place.sit_down(cluster, unit, seats)
    if rows.devices.shape[1] and not cluster.bank.has_room(rows.devices):
        return False
    cluster.shift(rows.members, rows.devices, -1)
    if cluster.free[:, rows.members[0]].min(initial=0) >= 0:
        return True
    cluster.shift(rows.members, rows.devices, +1)
    return False


def _cast(unit: Unit, seats: Sequence[Seat]) -> Iterator[tuple[Role, Seat]]:
    """Of every role and node, one seat."""
    roles = {role.name: role for role in unit.roles}
    for role_and_node, seat in {(seat.role, seat.node): seat for seat in seats}.items():
        yield roles[role_and_node[0]], seat


def _has_terms(cycle: Cycle, unit: Unit) -> bool:
    """Whether more than room decides where it may be: then its place is looked for anew."""
    return any(cycle.scene.crowd.concerns(unit, role) for role in unit.roles)
