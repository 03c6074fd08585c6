"""Firm reservations that a decision does not keep, each with the reason.

A firm start is a promise: the next decision keeps it, makes it earlier, or withdraws it. Where one
is lost, the step that lost it notes why (`note`); `made_by` compares what the last decision gave
with what this one gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.core import looks, order, verdicts
from windlass.core.facts import Reservation, Unit, Withdrawal

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

LATE = 2 * looks.EARLY
"""Seconds by which a start may be late by rounding alone."""
_UNKNOWN = "the capacity that it counted on is not free by then"


def note(cycle: Cycle, key: str, reason: str) -> None:
    """The first reason counts: later ones follow from it."""
    cycle.withdrawn.setdefault(key, reason)


def passed_by(cycle: Cycle, passer: Unit, reserved: Unit) -> str:
    """Why a workload that starts delays a reservation of another."""
    if passer.queue == reserved.queue:
        priority = order.priority(cycle.queue_of(passer), passer)
        return f"a workload of priority {priority} in queue {passer.queue} comes first"
    return f"queue {passer.queue} takes back its guarantee"


def why_lost(cycle: Cycle, old: Reservation) -> str:
    """Why the place of a reservation of an earlier decision will not be free."""
    cluster, snapshot = cycle.scene.cluster, cycle.snapshot
    nodes = sorted({seat.node for seat in old.seats})
    for name in nodes:
        at = cluster.index.get(name)
        if at is None:
            return f"node {name} was lost"
        if not cluster.nodes[at].ready:
            return f"node {name} takes no new workloads"
    there = sorted({key for name in nodes for key in snapshot.there.get(name, ())})
    for key in there:
        end = snapshot.running[key].expected_end
        if end is not None and end <= cycle.now:
            queue = snapshot.running[key].unit.queue
            return f"a workload of queue {queue} ran longer than its estimate"
    for key, nomination in sorted(cycle.nominations.items()):
        nominee = cycle.workload(key)
        if nominee is not None and any(seat.node in nodes for seat in nomination.seats):
            return passed_by(cycle, nominee, snapshot.waiting[old.unit])
    for key in there:
        if old.made is not None and snapshot.running[key].started >= old.made:
            return f"a workload of queue {snapshot.running[key].unit.queue} holds its place"
    return _UNKNOWN


def announce(cycle: Cycle) -> None:
    """Finds them, and says so in the verdicts of the workloads."""
    cycle.withdrawals = tuple(_made_by(cycle))
    for each in cycle.withdrawals:
        verdict = cycle.verdicts.get(each.unit)
        if verdict is not None:
            start = verdicts.moment(each.start)
            lost = f"its start by {start} was withdrawn: {each.reason}"
            message = f"{verdict.message}; {lost}"
            cycle.verdicts[each.unit] = dataclasses.replace(
                verdicts.addressed(verdict, each.unit), message=message
            )


def _made_by(cycle: Cycle) -> Iterator[Withdrawal]:
    """In the order in which the reservations were given."""
    kept = {held.unit.key: held for held in cycle.reservations if held.firm}
    for old in cycle.snapshot.reservations:
        key = old.unit
        if not old.firm or key not in cycle.snapshot.waiting:
            continue
        if key in cycle.placements or key in cycle.nominations:
            continue
        now = kept.get(key)
        if now is None or now.given > old.start + LATE:
            yield Withdrawal(key, old.start, _reason(cycle, key))


def _reason(cycle: Cycle, key: str) -> str:
    known = cycle.withdrawn.get(key)
    if known is not None:
        return known
    verdict = cycle.verdicts.get(key)
    return _UNKNOWN if verdict is None else verdict.message
