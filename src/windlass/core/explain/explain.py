"""Why one unit waits, in full: who holds what it needs, when it may start, what would start it now.

For one unit on demand, from the same snapshot that decisions are made from; the verdict is the
very one that `decide` gives. Pure: it changes nothing. It names units and users, so the caller
decides what a person may see of `holders` and of changes that name other units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Literal

from windlass.core import changes, cycle, defragmentation, verdicts
from windlass.core.changes import Change, Lab
from windlass.core.cycle import Cycle
from windlass.core.facts import Policy, Running, Unit, Verdict
from windlass.core.state import Snapshot
from windlass.kinds.reasons import Reason

Sure = Literal["now", "reserved", "predicted", "unknown"]

MOST_HOLDERS = 20
_NO_CHANGE_HELPS = (
    Reason.NO_SUCH_QUEUE,
    Reason.WAITING_TO_RETRY,
    Reason.ADMISSION_REFUSED,
    Reason.SUSPENDED,
    Reason.QUEUE_PAUSED,
    Reason.QUEUE_NOT_YOURS,
    Reason.BUDGET_EXHAUSTED,
    Reason.WAITING_FOR_DATA,
    Reason.UNSUPPORTED,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """A running unit that holds what is missing."""

    unit: str
    queue: str
    user: str
    resource: str
    amount: int
    expected_end: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """When the unit may start, and on what that rests."""

    at: float | None
    sure: Sure
    rests_on: str


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    unit: str
    verdict: Verdict | None
    """None: it starts now."""
    position: int
    """In its queue, counted from 1."""
    waiting_in_queue: int
    turn: int
    """In the whole cluster: who is asked before it may take what it needs. 0: was not asked."""
    holders: tuple[Holder, ...]
    start: Start
    fits_if: tuple[Change, ...]
    certificate: str = ""
    """If it is impossible: the bound that says so, with numbers."""

    def sentences(self) -> list[str]:
        """For people, in the order in which they ask."""
        if self.verdict is None:
            return ["it starts now"]
        found = [f"{self.verdict.reason}: {self.verdict.message}"]
        found.append(f"number {self.position} of {self.waiting_in_queue} in its queue")
        found.append(_when(self.start))
        found += [_held_by(holder) for holder in self.holders[:5]]
        return found + [change.message for change in self.fits_if]


def explain(
    snapshot: Snapshot,
    key: str,
    now: float,
    policy: Policy = Policy(),  # noqa: B008
) -> Explanation:
    """Of a unit that waits; KeyError for any other."""
    unit = snapshot.waiting[key]
    done = cycle.run(snapshot, now, policy)
    line = [each.key for each in snapshot.line(unit.queue, done.standing)]
    verdict = None if key in done.placements else done.verdict_of(key)
    lab = Lab(snapshot, unit, now, policy)
    found: tuple[Change, ...] = ()
    if verdict is not None and verdict.reason not in _NO_CHANGE_HELPS:
        helpful = [each.node for each in done.wanted if key in each.units]
        found = tuple(changes.nearest(lab, verdict, helpful))
    start = _start(done, lab, verdict, found)
    return Explanation(
        key,
        verdict,
        position=line.index(key) + 1,
        waiting_in_queue=len(line),
        turn=done.turn_of.get(key, 0),
        holders=_holders(done, unit, verdict),
        start=start,
        fits_if=(*found, *_moves(done, lab)),
        certificate=_certificate(verdict),
    )


def _moves(done: Cycle, lab: Lab) -> Iterator[Change]:
    """Workloads that would have to run elsewhere, whether or not their owners allow it."""
    found = defragmentation.propose(done, lab.unit)
    if found is None or lab.tries <= 0:
        return
    moves = tuple(
        changes.Relocation(
            each.running.unit.key,
            tuple(sorted({seat.node for seat in each.running.seats})),
            each.seats,
            each.running.unit.movable,
        )
        for each in found.moves
    )
    if not lab.starts(lab.with_moved(moves)):
        return  # another workload would take the place
    names = tuple(each.unit for each in moves)
    yield Change("moves", changes.moved(moves, names), names, moves=moves)


def _holders(done: Cycle, unit: Unit, verdict: Verdict | None) -> tuple[Holder, ...]:
    """Who holds the binding resource where the unit could use it, the largest part first."""
    if verdict is None or verdict.reason in (*_NO_CHANGE_HELPS, Reason.IMPOSSIBLE):
        return ()
    resource = verdict.resource
    if not any(resource in held for held in done.snapshot.held.values()):
        resource = _main_resource(unit)
    units: Iterable[Running]
    if verdict.reason is Reason.WAITING_FOR_QUOTA:
        units = changes.who_counts(done.snapshot, unit, verdict)
    else:
        units = _where_it_could_be(done, unit)
    found = [
        Holder(r.unit.key, r.unit.queue, r.unit.user, resource, amount, r.expected_end)
        for r in units
        if (amount := done.snapshot.held[r.unit.key].get(resource, 0))
    ]
    found.sort(key=lambda holder: (-holder.amount, holder.unit))
    return tuple(found[:MOST_HOLDERS])


def _main_resource(unit: Unit) -> str:
    requests = [request for role in unit.roles for request in role.devices]
    return requests[0].kind if requests else "cpu"


def _where_it_could_be(done: Cycle, unit: Unit) -> Iterable[Running]:
    cluster = done.snapshot.cluster
    usable = {
        node.name
        for role in unit.roles
        for node, accepted in zip(cluster.nodes, cluster.mask(role.constraint), strict=True)
        if accepted
    }
    for running in done.snapshot.running.values():
        if any(seat.node in usable for seat in running.seats):
            yield running


def _start(done: Cycle, lab: Lab, verdict: Verdict | None, found: tuple[Change, ...]) -> Start:
    key = lab.unit.key
    if verdict is None:
        return Start(done.now, "now", "there is room for it")
    if key in done.nominations:
        return Start(None, "reserved", "its room is held; those who were told to go must leave")
    for held in done.reservations:
        if held.reservation.unit == key:
            return Start(held.reservation.start, "reserved", "running units end when they should")
    if verdict.reason in (Reason.WAITING_TO_RETRY, Reason.ADMISSION_REFUSED):
        return Start(lab.unit.not_before, "predicted", "nothing else may take its room until then")
    ends = next((change.names for change in found if change.kind == "ends"), ())
    last = [done.snapshot.running[name].expected_end for name in ends]
    known = [end for end in last if end is not None]
    if last and len(known) == len(last):
        at = max(known)
        who = f"{len(ends)} running unit{'s' if len(ends) > 1 else ''}"
        return Start(max(at, done.now), "predicted", f"{who} end when expected, nobody passes it")
    if verdict.reason is Reason.IMPOSSIBLE:
        return Start(None, "unknown", "it cannot start on these nodes")
    return Start(None, "unknown", "nothing is known about when what it needs comes free")


def _certificate(verdict: Verdict | None) -> str:
    if verdict is None or verdict.reason is not Reason.IMPOSSIBLE:
        return ""
    missing = f", {verdict.deficit} too few" if verdict.resource == "members" else ""
    return f"it {verdict.message}{missing}"


# --- words --------------------------------------------------------------------------------------


def _when(start: Start) -> str:
    if start.at is None:
        return f"when it starts is not known: {start.rests_on}"
    words = {"reserved": "promised to start by", "predicted": "expected to start around"}
    return f"{words[start.sure]} {verdicts.moment(start.at)} if {start.rests_on}"


def _held_by(holder: Holder) -> str:
    until = "" if holder.expected_end is None else f" until {verdicts.moment(holder.expected_end)}"
    amount = verdicts.told(holder.resource, holder.amount)
    return f"{holder.unit} (queue {holder.queue}) holds {amount}{until}"
