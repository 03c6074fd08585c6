"""Which blocked heads get a reservation: how many per queue, how many in all, and after how long.

Every queue has its own number (`Queue.reserve`). The policy bounds the total, since each
reservation costs decision time: the first reservation of a queue comes before further ones of
others, and where more queues wait than the bound, those with the smallest shares come first. A
workload that can never start, or for which no start can be found, uses up neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.core import order, passing, usershares
from windlass.core.facts import Unit
from windlass.core.shadows import Held
from windlass.core.shapes import OWN

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

SEARCHES = 4
"""Heads of a queue for which a search may end without a start before no more are searched for. Of
each class one is searched for, and none that could not start if all others had ended."""
NODE_BOUND = 60_000
LEAST_BOUND, MOST_BOUND = 8, 128
"""Where the policy does not say, nodes times reservations are bounded: each reservation keeps a
view of the cluster at its start. 128 up to 468 nodes, 12 at 5,000, 8 from 7,500 on."""
PATIENCE = 12.0
"""Where only who waited long gets a promise: so many times as long as it runs. From 8 to 20 the
mean is about as short as without promises, or shorter (docs/scheduling.md)."""


def most(cycle: Cycle) -> int:
    """Reservations that there are at most, over all queues."""
    said = cycle.policy.reservations
    if said is not None:
        return said
    return max(LEAST_BOUND, min(MOST_BOUND, NODE_BOUND // max(1, len(cycle.scene.cluster))))


def has_one_left(cycle: Cycle, queue: str) -> bool:
    """Whether there may be one more reservation of a queue, as far as the total is concerned. The
    first one of a queue takes the place of a further one, or of one of a queue with a larger
    share; a further one leaves places for queues that wait and have none yet."""
    given, bound = cycle.memory.reserved, most(cycle)
    free = bound - sum(given.values())
    if queue not in given:
        return free > 0 or (bound > 0 and gives_way(cycle, queue) is not None)
    return free > cycle.waiting_queues - len(given)


def gives_way(cycle: Cycle, queue: str) -> Held | None:
    """The reservation that a first one of the queue takes the place of when there are too many."""
    memory = cycle.memory
    if memory.yields_at != memory.moves:
        memory.yields_at, memory.yields = memory.moves, {}
    if queue not in memory.yields:
        memory.yields[queue] = _gives_way(cycle, queue)
    return memory.yields[queue]


def _gives_way(cycle: Cycle, queue: str) -> Held | None:
    given, tree = cycle.memory.reserved, cycle.tree
    ranks = {name: tree.rank(name, {}) for name in given}
    own = tree.rank(queue, {})

    def place(held: Held) -> tuple[bool, bool, tuple[int, ...], float, str]:
        name = held.unit.queue
        return given[name] > 1, not held.firm, ranks[name], held.start, held.unit.key

    able = [
        held
        for held in cycle.reservations
        if given[held.unit.queue] > 1 or ranks[held.unit.queue] > own
    ]
    return max(able, key=place, default=None)


def may_promise(cycle: Cycle, unit: Unit) -> bool:
    """The first blocked heads of a queue get a promise, no more than it says, and where it is
    patient only once they have waited long."""
    if not _has_one_left(cycle, unit):
        return False
    return not cycle.queue_of(unit).patient or _waited_long(cycle, unit)


def may_promise_others(cycle: Cycle, unit: Unit) -> bool:
    """Whether others of its kind may get a promise that the unit itself does not: they wait since
    longer, or are of a user who holds less."""
    if usershares.may_reserve(cycle, unit):
        return True
    if not cycle.queue_of(unit).patient or not _has_one_left(cycle, unit):
        return False
    known = cycle.memory.waited.get(unit.queue)
    if known is None:
        known = any(_waited_long(cycle, other) for other in cycle.snapshot.members(unit.queue))
        cycle.memory.waited[unit.queue] = known
    return known


def searched_in_vain(cycle: Cycle, unit: Unit, *, never: bool) -> None:
    """No start was found for the workload, nor would one be for others of its class that run as
    long or longer. `never`: for none of its class, and nothing was spent to find out."""
    memory, kind = cycle.memory, cycle.asked(unit).kind
    memory.in_vain = True
    estimate = cycle.estimate(unit)
    runs = passing.FOREVER if estimate is None else estimate
    if kind != OWN:
        memory.no_start[kind] = 0.0 if never else min(runs, memory.no_start.get(kind, runs))
    if not never:
        memory.searched[unit.queue] = memory.searched.get(unit.queue, 0) + 1


def _is_in_vain(cycle: Cycle, unit: Unit) -> bool:
    """Whether a search for others of its class says that there is no start for the workload."""
    known = cycle.memory.no_start
    if not known:
        return False
    shortest = known.get(cycle.asked(unit).kind)
    if shortest is None:
        return False
    estimate = cycle.estimate(unit)
    return estimate is None or estimate >= shortest


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
                yield _patient_until(cycle, unit)


def _waited_long(cycle: Cycle, unit: Unit) -> bool:
    return _patient_until(cycle, unit) <= cycle.now


def _patient_until(cycle: Cycle, unit: Unit) -> float:
    """When it will have waited long for how long it says it runs; what it ran before was no
    waiting. Never where it says nothing: a promise by guesses costs more than it brings."""
    said = cycle.estimate(unit)
    return passing.FOREVER if said is None else unit.submitted + unit.attained + PATIENCE * said


def _has_one_left(cycle: Cycle, unit: Unit) -> bool:
    """Whether the queue may have one more reservation, and a search makes sense."""
    memory, name = cycle.memory, unit.queue
    if memory.searched.get(name, 0) >= SEARCHES or _is_in_vain(cycle, unit):
        return False
    wanted, own = cycle.queue_of(unit).promises, memory.reserved.get(name, 0)
    if not wanted or not has_one_left(cycle, name):
        return False
    if own < wanted:
        return True
    binding = 0
    for held in cycle.reservations:
        if held.unit.queue == name:
            passes = passing.passes_in_queue(cycle, unit, held)
            binding += not passes and not usershares.comes_later(cycle, held.unit, unit)
    return binding < wanted
