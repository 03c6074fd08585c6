"""Which blocked heads get a reservation: how many per queue, how many in all, and after how long.

Every queue has its own number (`Queue.reserve`). The policy bounds the total, since each
reservation costs decision time: the first reservation of a queue comes before further ones of
others, and where more queues wait than the bound, those with the smallest shares come first. A
workload that can never start, or for which no start can be found, uses up neither.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from windlass.core.decision.shadows import Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.equivalence import UNIQUE
from windlass.core.model.types import Workload
from windlass.core.queueing import queue_order
from windlass.core.reservation import backfill, user_turns

SEARCHES = 4
"""Heads of a queue for which a search may end without a start before no more are searched for. Of
each class one is searched for, and none that could not start if all others had ended."""
NODE_BOUND = 60_000
LEAST_BOUND, MOST_BOUND = 8, 128
"""Where the policy does not say, nodes times reservations are bounded: each reservation keeps a
view of the cluster at its start. 128 up to 468 nodes, 12 at 5,000, 8 from 7,500 on."""
LONG_WAIT = 3 * 24 * 3600.0
"""Seconds after which a workload in a patient queue has waited long, if it does not say how long it
runs, or if what runs in its queue is ordered by guesses (`attained`)."""
RESERVATION_DELAY = 12.0
"""In patient queues a workload gets a reservation only when it has waited for so many times its
runtime. From 8 to 20 the mean waiting time is about as short as without reservations, or shorter
(docs/reference/scheduling.md)."""


@dataclasses.dataclass(slots=True)
class Searches:
    """What searches for a start found out in this decision."""

    in_vain: bool = False
    """Whether any search found no start."""
    failed_in: dict[str, int] = dataclasses.field(default_factory=dict)
    """Queue -> searches that found no start."""
    no_start: dict[int, float] = dataclasses.field(default_factory=dict)
    """Equivalence class -> the shortest runtime for which no start was found, as of `seen`."""
    seen: tuple[int, int] = (0, 0)
    """Releases and evictions until then."""
    gives_way: dict[str, Reservation | None] = dataclasses.field(default_factory=dict)
    """Queue -> the reservation that its first one would replace, as of `generation`."""
    generation: int = -1
    waited_long: dict[str, bool] = dataclasses.field(default_factory=dict)
    """Queue -> whether a workload has waited there for longer than the reservation delay."""


def searches(state: DecisionState) -> Searches:
    found = state.cache(Searches)
    if found.seen != (seen := (state.releases, len(state.evictions))):
        found.seen, found.no_start = seen, {}  # there is more to count on
    return found


def most(state: DecisionState) -> int:
    """Reservations that there are at most, over all queues."""
    stated = state.policy.reservations
    if stated is not None:
        return stated
    return max(LEAST_BOUND, min(MOST_BOUND, NODE_BOUND // max(1, len(state.context.cluster))))


def has_one_left(state: DecisionState, queue: str) -> bool:
    """Whether there may be one more reservation of a queue, as far as the total is concerned. The
    first one of a queue takes the place of a further one, or of one of a queue with a larger
    share; a further one leaves places for queues that wait and have none yet."""
    counts, bound = state.reserved_in, most(state)
    free = bound - sum(counts.values())
    if queue not in counts:
        return free > 0 or (bound > 0 and gives_way(state, queue) is not None)
    return free > state.waiting_queues - len(counts)


def gives_way(state: DecisionState, queue: str) -> Reservation | None:
    """The reservation that a first one of the queue takes the place of when there are too many."""
    cache = state.cache(Searches)
    if cache.generation != state.generation:
        cache.generation, cache.gives_way = state.generation, {}
    if queue not in cache.gives_way:
        cache.gives_way[queue] = _gives_way(state, queue)
    return cache.gives_way[queue]


def _gives_way(state: DecisionState, queue: str) -> Reservation | None:
    counts, tree = state.reserved_in, state.tree
    ranks = {name: tree.rank(name, {}) for name in counts}
    own = tree.rank(queue, {})

    def place(reservation: Reservation) -> tuple[bool, bool, tuple[int, ...], float, str]:
        name = reservation.workload.queue
        return (
            counts[name] > 1,
            not reservation.firm,
            ranks[name],
            reservation.start,
            reservation.workload.key,
        )

    able = [
        reservation
        for reservation in state.reservations
        if counts[reservation.workload.queue] > 1 or ranks[reservation.workload.queue] > own
    ]
    return max(able, key=place, default=None)


def may_reserve(state: DecisionState, workload: Workload) -> bool:
    """Whether the workload may get a reservation: it is among the first blocked heads of its queue,
    and where the queue is patient it has waited for the reservation delay."""
    if not _has_one_left(state, workload):
        return False
    return not state.queue_of(workload).delays_reservations or _waited_long(state, workload)


def may_reserve_others(state: DecisionState, workload: Workload) -> bool:
    """Whether others of its class may get a reservation that the workload itself does not: they
    have waited for longer, or their user holds less."""
    if user_turns.may_reserve(state, workload):
        return True
    if not state.queue_of(workload).delays_reservations:
        return False
    if not _has_one_left(state, workload):
        return _youngest_below(state, workload.queue, workload.submitted) is not None
    waited_long = state.cache(Searches).waited_long
    known = waited_long.get(workload.queue)
    if known is None:
        known = any(
            _waited_long(state, other) for other in state.snapshot.pending_in(workload.queue)
        )
        waited_long[workload.queue] = known
    return known


def searched_in_vain(state: DecisionState, workload: Workload, *, never: bool) -> None:
    """No start was found for the workload, nor would one be for others of its class that run as
    long or longer. `never`: for none of its class, and nothing was spent to find out."""
    cache, kind = searches(state), state.info(workload).equivalence_class
    cache.in_vain = True
    estimate = state.estimate(workload)
    runs = backfill.FOREVER if estimate is None else estimate
    if kind != UNIQUE:
        cache.no_start[kind] = 0.0 if never else min(runs, cache.no_start.get(kind, runs))
    if not never:
        cache.failed_in[workload.queue] = cache.failed_in.get(workload.queue, 0) + 1


def _is_in_vain(state: DecisionState, workload: Workload) -> bool:
    """Whether a search for others of its class says that there is no start for the workload."""
    known = searches(state).no_start
    if not known:
        return False
    shortest = known.get(state.info(workload).equivalence_class)
    if shortest is None:
        return False
    estimate = state.estimate(workload)
    return estimate is None or estimate >= shortest


def reservation_delays(state: DecisionState) -> Iterator[float]:
    """When workloads in patient queues will have waited long, if a reservation is left for them:
    one that is given to an equal lasts until something happens."""
    for name in state.snapshot.nonempty_queues():
        queue = state.tree.queues.get(name)
        if queue is None or not queue.delays_reservations:
            continue
        counts = [
            reservation.workload
            for reservation in state.reservations
            if reservation.workload.queue == name
        ]
        highest = max((queue_order.priority(queue, workload) for workload in counts), default=None)
        for workload in state.snapshot.pending_in(name):
            if highest is None or queue_order.priority(queue, workload) > highest:
                yield _delayed_until(state, workload)


def _waited_long(state: DecisionState, workload: Workload) -> bool:
    return _delayed_until(state, workload) <= state.now


def _delayed_until(state: DecisionState, workload: Workload) -> float:
    """When it will have waited long for how long it says it runs; what it ran before was no
    waiting. Where that is unknown the time is fixed: a reservation by guesses costs the others more
    than it brings, so it comes late, as a bound."""
    stated = state.estimate(workload)
    guessed = stated is None or state.queue_of(workload).order == "attained"
    delay = LONG_WAIT if guessed or stated is None else RESERVATION_DELAY * stated
    return workload.submitted + workload.attained + delay


def younger(state: DecisionState, workload: Workload) -> Reservation | None:
    """In a patient queue the reservation is for the workload that was submitted first, of those
    that have waited long; in the order of the queue it may come after others. The reservation that
    one of them got in this decision, and that gives way to this workload."""
    if not state.queue_of(workload).delays_reservations or not _waited_long(state, workload):
        return None
    return _youngest_below(state, workload.queue, workload.submitted)


def _youngest_below(state: DecisionState, queue: str, submitted: float) -> Reservation | None:
    kept = {old.workload for old in state.snapshot.reservations}
    able = [
        each
        for each in state.reservations
        if each.workload.queue == queue
        and each.workload.key not in kept
        and each.workload.submitted > submitted
    ]
    return max(able, key=lambda each: (each.workload.submitted, each.workload.key), default=None)


def _has_one_left(state: DecisionState, workload: Workload) -> bool:
    """Whether the queue may have one more reservation, and a search makes sense."""
    name = workload.queue
    if state.cache(Searches).failed_in.get(name, 0) >= SEARCHES or _is_in_vain(state, workload):
        return False
    wanted, own = state.queue_of(workload).max_reservations, state.reserved_in.get(name, 0)
    if not wanted or not has_one_left(state, name):
        return False
    if own < wanted or younger(state, workload) is not None:
        return True
    binding = 0
    for reservation in state.reservations:
        if reservation.workload.queue == name:
            passes = backfill.passes_in_queue(state, workload, reservation)
            binding += not passes and not user_turns.comes_later(
                state, reservation.workload, workload
            )
    return binding < wanted
