"""Firm reservations that a decision does not keep, each with the reason.

A firm start is kept by the next decision, made earlier, or withdrawn. Where one
is lost, the step that lost it notes why (`note`); `made_by` compares what the last decision gave
with what this one gives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from windlass.core.decision.state import DecisionState
from windlass.core.model.types import ReservationRecord, Withdrawal, Workload
from windlass.core.prediction import aging
from windlass.core.queueing import queue_order
from windlass.core.verdicts import formatting, messages

LATE = 2 * aging.EARLY
"""Seconds by which a start may be late by rounding alone."""
_UNKNOWN = "the capacity that it counted on is not free by then"


def note(state: DecisionState, key: str, reason: str) -> None:
    """The first reason counts: later ones follow from it."""
    state.lost_reservations.setdefault(key, reason)


def passed_by(state: DecisionState, passer: Workload, reserved: Workload) -> str:
    """Why a workload that starts delays a reservation of another."""
    if passer.queue == reserved.queue:
        priority = queue_order.priority(state.queue_of(passer), passer)
        return f"a workload of priority {priority} in queue {passer.queue} comes first"
    return f"queue {passer.queue} reclaims its guarantee"


def why_lost(state: DecisionState, old: ReservationRecord) -> str:
    """Why the place of a reservation of an earlier decision will not be free."""
    cluster, snapshot = state.context.cluster, state.snapshot
    nodes = sorted({pod.node for pod in old.pods})
    for name in nodes:
        at = cluster.index.get(name)
        if at is None:
            return f"node {name} was lost"
        if not cluster.nodes[at].ready:
            return f"node {name} takes no new workloads"
    there = sorted({key for name in nodes for key in snapshot.workloads_on.get(name, ())})
    for key in there:
        end = snapshot.running[key].expected_end
        if end is not None and end <= state.now:
            queue = snapshot.running[key].workload.queue
            return f"a workload of queue {queue} ran longer than its estimate"
    for key, nomination in sorted(state.nominations.items()):
        nominee = state.workload(key)
        if nominee is not None and any(pod.node in nodes for pod in nomination.pods):
            return passed_by(state, nominee, snapshot.waiting[old.workload])
    for key in there:
        if old.made is not None and snapshot.running[key].started >= old.made:
            return f"a workload of queue {snapshot.running[key].workload.queue} holds its place"
    return _UNKNOWN


def announce(state: DecisionState) -> None:
    """Finds them, and says so in the verdicts of the workloads."""
    state.withdrawals = tuple(_made_by(state))
    for each in state.withdrawals:
        verdict = state.verdicts.get(each.workload)
        if verdict is not None:
            start = formatting.moment(each.start)
            lost = f"its start by {start} was withdrawn: {each.reason}"
            message = f"{verdict.message}; {lost}"
            state.verdicts[each.workload] = dataclasses.replace(
                messages.addressed(verdict, each.workload), message=message
            )


def _made_by(state: DecisionState) -> Iterator[Withdrawal]:
    """In the order in which the reservations were given."""
    kept = {
        reservation.workload.key: reservation
        for reservation in state.reservations
        if reservation.firm
    }
    for old in state.snapshot.reservations:
        key = old.workload
        if not old.firm or key not in state.snapshot.waiting:
            continue
        if key in state.placements or key in state.nominations:
            continue
        now = kept.get(key)
        if now is None or now.given > old.start + LATE:
            yield Withdrawal(key, old.start, _reason(state, key))


def _reason(state: DecisionState, key: str) -> str:
    known = state.lost_reservations.get(key)
    if known is not None:
        return known
    verdict = state.verdicts.get(key)
    return _UNKNOWN if verdict is None else verdict.message
