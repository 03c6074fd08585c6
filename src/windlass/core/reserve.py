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
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from windlass.core import alike, earliest, order, place, releases, shadows, verdicts
from windlass.core.cluster import Cluster
from windlass.core.facts import Eviction, Nomination, Reservation, Role, Running, Seat, Unit
from windlass.core.place import Failure, Scene, Wish
from windlass.core.queues import Shortage
from windlass.core.shadows import Held, Stay

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

FOREVER = float("inf")
TRIES = 5
"""Arrangements tried beside promises before the answer is "unresolved"."""
SEARCHES = 4
"""Blocked heads of a queue for whom a start is looked for in vain before no more are looked at."""
PATIENCE = 12.0
"""Where only who waited long gets a promise: so many times as long as it runs. From 8 to 20 the
mean is about as short as without promises, or shorter (docs/scheduling.md)."""


# --- who stays out of whose room ----------------------------------------------------------------


def crossed(cycle: Cycle, unit: Unit, end: float | None) -> tuple[Held, ...]:
    """Promises that the unit, started now, would run into and must not delay."""
    if not cycle.reservations:
        return ()
    until = stays_until(cycle, unit, end)
    # A list: this is asked for everybody who waits, more than once.
    met = [held for held in cycle.reservations if held.start < until]
    if unit.key in cycle.memory.promised:  # its own is not in its way
        met = [held for held in met if held.unit.key != unit.key]
    return tuple(_binding(cycle, unit, met))


def binds(cycle: Cycle, unit: Unit, held: Held) -> bool:
    """Whether a promise counts for the unit: given at an earlier turn of this decision, or not to
    somebody whom the unit may pass."""
    return bool(_binding(cycle, unit, [held]))


def _binding(cycle: Cycle, unit: Unit, promises: list[Held]) -> list[Held]:
    """Those that count for the unit. Whom it may pass is whom it could stop if that ran already: in
    one queue that is the lower priority, between queues who would borrow where the unit takes back
    its guarantee. The order among equals says who is promised a start; once promised it is kept,
    whoever comes to stand before it."""
    earlier = [held for held in promises if not held.fresh]
    if not earlier:
        return promises
    tree, own = cycle.tree, unit.queue
    passed = [held for held in earlier if held.unit.queue == own]
    if passed:
        queue = cycle.queue_of(unit)
        mine = order.priority(queue, unit)
        passed = [held for held in passed if mine > order.priority(queue, held.unit)]
    if tree.inside(own, cycle.need(unit)):
        others = [held for held in earlier if held.unit.queue != own]
        passed += [
            held for held in others if not tree.inside(held.unit.queue, cycle.need(held.unit))
        ]
    return [held for held in promises if held not in passed] if passed else promises


def stays_until(cycle: Cycle, unit: Unit, end: float | None) -> float:
    """When it is gone: unknown is never, unless the policy has it stopped for promises."""
    if end is not None:
        return end
    stopped = cycle.policy.unknown_runtime == "preemptible" and unit.preemptible
    return cycle.now if stopped else FOREVER


def shortage(
    cycle: Cycle, unit: Unit, need: Mapping[str, int], beside: Sequence[Held]
) -> Shortage | None:
    """Which rule of the sharing tree would be broken, for the unit or for them, once those with a
    promise start too; that it may start alone was seen before. Quota that comes back before their
    start is not counted on."""
    tree, firm = cycle.tree, not unit.preemptible
    if not tree.is_bound(unit.queue, firm=firm):
        return None
    if not tree.withholding:  # then nobody else's quota matters but that of queues it shares
        shared = {name for name in tree.path(unit.queue) if tree.queues[name].limit}
        shared |= {unit.queue} if firm and tree.guaranteed else set()
        beside = [held for held in beside if not shared.isdisjoint(tree.path(held.unit.queue))]
    if not beside:
        return None
    for held in beside:
        _count(cycle, held, 1)
    found = tree.shortage(unit.queue, need, firm=firm)
    if found is None and tree.withholding:
        found = _short_beside(cycle, unit, need, beside)
    for held in beside:
        _count(cycle, held, -1)
    return found


def _short_beside(
    cycle: Cycle, unit: Unit, need: Mapping[str, int], beside: Sequence[Held]
) -> Shortage | None:
    """What one of them would have to borrow if the unit started, where others keep some back."""
    tree, found = cycle.tree, None
    tree.add(unit.queue, need, firm=not unit.preemptible)
    for held in beside:
        _count(cycle, held, -1)
        resource = _may_not_be_lent(cycle, held.unit)
        if resource and found is None:
            amount = cycle.need(held.unit)[resource]
            found = Shortage("lend", held.unit.queue, resource, amount, 0)
        _count(cycle, held, 1)
    tree.add(unit.queue, need, firm=not unit.preemptible, sign=-1)
    return found


def _may_not_be_lent(cycle: Cycle, unit: Unit) -> str:
    """What the unit would borrow although others keep some of it back: how much is lent changes
    with what they use, so that nothing can be promised. Empty: nothing."""
    tree, need = cycle.tree, cycle.need(unit)
    if not tree.withholding or tree.inside(unit.queue, need):
        return ""
    return next((resource for resource in sorted(tree.withholding) if need.get(resource)), "")


def _count(cycle: Cycle, held: Held, sign: int) -> None:
    unit = held.unit
    cycle.tree.add(unit.queue, cycle.need(unit), firm=not unit.preemptible, sign=sign)


def place_beside(
    cycle: Cycle, unit: Unit, wishes: Sequence[Wish], end: float | None, beside: tuple[Held, ...]
) -> tuple[Seat, ...] | Failure:
    """As `place.place`, in the cycle's scene, without delaying any of these promises."""
    scene = cycle.scene
    if not beside:
        return place.place(scene, unit, wishes)
    limits, clashes = shadows.ceilings(scene, beside, wishes), list[int]()
    until = stays_until(cycle, unit, end)
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
    return shadows.clashing(_binding(cycle, stay.unit, near), stay) if near else []


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
    stay = Stay(unit, cycle.now, stays_until(cycle, unit, end), seats)
    met = shadows.affected(cycle.reservations, stay)
    if not met:
        return
    passed = [held for held in met if not binds(cycle, unit, held)]
    while (refused := shadows.admit(met, stay, keep=True)) is not None:
        # Who has no room left and is passed; else one that is passed moved to where it would be.
        gone = refused if refused in passed or not passed else passed[-1]
        passed = [held for held in passed if held is not gone]
        met.remove(gone)
        lift(cycle, gone.unit)
        alike.forget(cycle)


def give_back(cycle: Cycle, running: Running) -> None:
    """What was about to start does not: the shadows it would run into have its room again."""
    until = stays_until(cycle, running.unit, running.expected_end)
    stay = Stay(running.unit, cycle.now, until, running.seats)
    for held in shadows.affected(cycle.reservations, stay):
        shadows.leave(held, stay)


# --- making promises ----------------------------------------------------------------------------


def recall(cycle: Cycle) -> None:
    """What the last decision promised binds from the start of this one, where it still holds."""
    due = [
        (unit, old, max(old.start, cycle.now))
        for old in cycle.snapshot.reservations[: cycle.policy.reservations]
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
        if not _asks_for(unit, old):
            continue
        moment = _Moment.of(cycle, start, moment)
        shadow = moment.cluster.fork(()) if left[start] else moment.cluster
        held = _hold_again(cycle, unit, old, start, shadow)
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
        cycle.memory.moves += 1
    return held


def may_promise(cycle: Cycle, unit: Unit) -> bool:
    """The first blocked heads of a queue get a promise, no more than it says, and where it is
    patient only once they have waited long."""
    if not _has_one_left(cycle, unit):
        return False
    return not cycle.queue_of(unit).patient or _waited_long(cycle, unit)


def may_promise_others(cycle: Cycle, unit: Unit) -> bool:
    """Whether others of its kind may get a promise that the unit itself does not: they wait since
    longer."""
    if not cycle.queue_of(unit).patient or not _has_one_left(cycle, unit):
        return False
    known = cycle.memory.waited.get(unit.queue)
    if known is None:
        known = any(_waited_long(cycle, other) for other in cycle.snapshot.members(unit.queue))
        cycle.memory.waited[unit.queue] = known
    return known


def patience_ends(cycle: Cycle) -> Iterator[float]:
    """When those who wait in patient queues will have waited long, if a promise is left for them:
    one that is given to an equal lasts until something happens."""
    for name in cycle.snapshot.lines():
        queue = cycle.tree.queues.get(name)
        if queue is None or not queue.patient:
            continue
        given = [held.unit for held in cycle.reservations if held.unit.queue == name]
        highest = max((order.priority(queue, unit) for unit in given), default=None)
        for unit in cycle.snapshot.members(name):
            if highest is None or order.priority(queue, unit) > highest:
                yield _patient_until(unit)


def _waited_long(cycle: Cycle, unit: Unit) -> bool:
    return _patient_until(unit) <= cycle.now


def _patient_until(unit: Unit) -> float:
    """When it will have waited long for how long it says it runs; what it ran before was no
    waiting. Never where it says nothing: a promise by guesses costs more than it brings."""
    said = unit.expected
    return FOREVER if said is None else unit.submitted + unit.attained + PATIENCE * said


def _has_one_left(cycle: Cycle, unit: Unit) -> bool:
    """Whether the queue may promise one more; after some for whom no time could be found, nobody
    else is looked at."""
    if cycle.memory.searched.get(unit.queue, 0) >= SEARCHES:
        return False
    if len(cycle.reservations) >= cycle.policy.reservations or _may_not_be_lent(cycle, unit):
        return False
    given = 0
    for held in cycle.reservations:
        given += held.unit.queue == unit.queue and binds(cycle, unit, held)
    return given < cycle.queue_of(unit).promises


def reserve(cycle: Cycle, unit: Unit, promise: Held | None = None) -> Held | None:
    """The earliest time at which the unit fits if others end when they should, and its seats then;
    `promise` is what it was promised before, which is kept if nothing earlier is found."""
    if promise is None:
        if not may_promise(cycle, unit):
            return None
        if shortage(cycle, unit, cycle.need(unit), cycle.reservations) is not None:
            return None
    found = earliest.find(cycle, unit, promise.start if promise else FOREVER)
    if found is not None:
        end = FOREVER if unit.expected is None else found.time + unit.expected
        held = Held(unit, found.time, end, list(found.seats), found.cluster, fresh=True)
        if _add(cycle, held):
            return held
    if promise is None:
        searched = cycle.memory.searched
        searched[unit.queue] = searched.get(unit.queue, 0) + 1
        return None
    _put_back(cycle, promise)
    return promise


def keep(cycle: Cycle, promise: Held | None) -> None:
    """The unit may not start now, for reasons of quota that will have passed when it is due."""
    if promise is not None and promise.start > cycle.now:
        _put_back(cycle, promise)


def _put_back(cycle: Cycle, promise: Held) -> None:
    promise.fresh = True
    shadows.move_in_shadows(cycle.reservations, promise, -1)
    _append(cycle, promise)


def _append(cycle: Cycle, held: Held) -> None:
    cycle.reservations.append(held)
    cycle.memory.promised.add(held.unit.key)
    cycle.memory.moves += 1


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
        until = stays_until(cycle, unit, cycle.expected_end(unit))
        stay = Stay(unit, cycle.now, until, seats)
        if not _clashing(cycle, stay):
            cycle.commit(unit, tuple(seats))
            return True
    cluster.rollback(mark)
    return _stop_guests(cycle, unit, promise)


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
        for guest in _guests(cycle, {seat.node for seat in old.seats}, start):
            _release(shadow, guest)
        seats = shadows.sit_again(shadow, unit, old.seats)
    if seats is None:
        return None
    shadow.settle()
    end = FOREVER if unit.expected is None else start + unit.expected
    return Held(unit, start, end, seats, shadow, fresh=False, _rows=rows if there else None)


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


# --- guests: units of unknown end in promised room ----------------------------------------------


def _guests(cycle: Cycle, nodes: set[str], at: float) -> list[Running]:
    """Units that the policy lets into promised room because they can be stopped, newest first."""
    if cycle.policy.unknown_runtime != "preemptible":
        return []
    found = [
        running
        for running in cycle.snapshot.releases.unknown.values()
        if running.unit.preemptible
        and not running.leaving
        and running.protected_until <= at
        and any(seat.node in nodes for seat in running.seats)
    ]
    return sorted(found, key=lambda running: (-running.started, running.unit.key))


def _stop_guests(cycle: Cycle, unit: Unit, promise: Held) -> bool:
    """As few guests as it takes to free the promised seats."""
    cluster = cycle.scene.cluster
    gone = {eviction.unit for eviction in cycle.evictions}
    nodes = {seat.node for seat in promise.seats}
    guests = [g for g in _guests(cycle, nodes, cycle.now) if g.unit.key not in gone]
    mark, seats, stopped = cluster.mark(), None, []
    for guest in guests:
        _release(cluster, guest)
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
        cycle.evictions.append(Eviction(guest.unit.key, members, unit.key, "promised room is due"))
    alike.somebody_goes(cycle, {guest.unit.queue for guest in stopped})
    cycle.nominations[unit.key] = Nomination(unit.key, tuple(seats))
    cycle.hold(unit, seats)
    cycle.verdicts[unit.key] = verdicts.being_freed(unit)
    return True


def _release(cluster: Cluster, running: Running) -> None:
    roles = {role.name: role for role in running.unit.roles}
    for seat in running.seats:
        if seat.role in roles:
            cluster.release(roles[seat.role], seat)
