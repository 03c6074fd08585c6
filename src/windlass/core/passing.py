"""Which reservations a workload must not delay, and which it may pass.

Asked for every waiting workload, more than once, so what holds for one of a class is kept for all
of it as long as nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

from windlass.core import order
from windlass.core.facts import Unit
from windlass.core.shadows import Held
from windlass.core.shapes import OWN

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

FOREVER = float("inf")


def crossed(cycle: Cycle, unit: Unit, end: float | None) -> tuple[Held, ...]:
    """Promises that the unit, started now, would run into and must not delay."""
    if not cycle.reservations:
        return ()
    until = stays_until(cycle, unit, end)
    # A list: this is asked for everybody who waits, more than once.
    met = [held for held in cycle.reservations if held.start < until]
    if unit.key in cycle.memory.promised:  # its own is not in its way
        met = [held for held in met if held.unit.key != unit.key]
    return tuple(binding(cycle, unit, met))


def binds(cycle: Cycle, unit: Unit, held: Held) -> bool:
    """Whether the unit must not delay a promise."""
    return held.unit.key not in _passed(cycle, unit)


def binding(cycle: Cycle, unit: Unit, promises: list[Held]) -> list[Held]:
    """Those that the unit must not delay."""
    passed = _passed(cycle, unit)
    return [held for held in promises if held.unit.key not in passed] if passed else promises


def _passed(cycle: Cycle, unit: Unit) -> Set[str]:
    """Reservations that the workload may delay. Found once for all of its kind, as long as nothing
    moves: every waiting workload asks, more than once."""
    if unit.queue not in cycle.tree.queues:
        return frozenset()
    kind, memory = cycle.asked(unit).kind, cycle.memory
    if memory.passed_at != memory.moves:
        memory.passed_at, memory.passed = memory.moves, {}
    known = memory.passed.get(kind) if kind != OWN else None
    if known is None:
        known = frozenset(_all_passed(cycle, unit))
        if kind != OWN:
            memory.passed[kind] = known
    return known


def passes_in_queue(cycle: Cycle, unit: Unit, held: Held) -> bool:
    """Whether a workload may delay a reservation of its own queue: the higher priority passes one
    of an earlier decision. The order among equals says which workload gets a reservation, and once
    given it is kept."""
    if held.fresh:
        return False
    queue = cycle.queue_of(unit)
    return order.priority(queue, unit) > order.priority(queue, held.unit)


def _all_passed(cycle: Cycle, unit: Unit) -> Iterator[str]:
    """Between queues a workload passes that takes back its queue's guarantee where the other would
    borrow, or whose queue is below its share where the other is not and has only a tentative
    reservation. In a window of an advance reservation its beneficiaries pass reservations of others
    that are for the same nodes after the window."""
    own = unit.queue
    takes_back = cycle.tree.inside(own, cycle.need(unit))
    for held in cycle.reservations:
        other = held.unit.queue
        if cycle.windows is not None and cycle.windows.may_pass(unit, held):
            passes = True
        elif own == other:
            passes = passes_in_queue(cycle, unit, held)
        elif (held.firm and (held.fresh or not takes_back)) or _is_inside(cycle, held):
            passes = False
        else:
            passes = (takes_back and not held.fresh) or (
                not held.firm and _passes_by_share(cycle, own, other)
            )
        if passes:
            yield held.unit.key


def _is_inside(cycle: Cycle, held: Held) -> bool:
    """Whether the reserved workload would stay within its queue's guarantee; found again when its
    queue has moved."""
    known, unit = cycle.memory.inside, held.unit
    moved = cycle.tree.last_move(unit.queue)
    found = known.get(unit.key)
    if found is None or found[0] != moved:
        inside = cycle.tree.inside(unit.queue, cycle.need(unit))
        found = known[unit.key] = (moved, inside)
    return found[1]


def _passes_by_share(cycle: Cycle, own: str, other: str) -> bool:
    """As `FairShares.may_pass`; found again when one of the queues has moved."""
    known, tree = cycle.memory.by_share, cycle.tree
    moved = (tree.last_move(own), tree.last_move(other))
    found = known.get((own, other))
    if found is None or found[0] != moved:
        found = known[own, other] = (moved, cycle.fair_shares.may_pass(own, other))
    return found[1]


def stays_until(cycle: Cycle, unit: Unit, end: float | None) -> float:
    """When it is gone: unknown is never, unless the policy has it stopped for promises."""
    if end is not None:
        return end
    stopped = cycle.policy.unknown_runtime == "preemptible" and unit.preemptible
    return cycle.now if stopped else FOREVER
