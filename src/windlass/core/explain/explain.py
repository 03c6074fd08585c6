"""Why one workload waits, in full: which workloads hold what it needs, when it may start, what
would start it now.

For one workload on demand, from the same snapshot that decisions are made from; the verdict is the
one that `decide` gives. Pure: it changes nothing. It names workloads and users, so the caller
decides what a person may see of `holders` and of changes that name other workloads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from windlass.core.cycle import cycle, defragmentation
from windlass.core.cycle.cycle import Cycle
from windlass.core.explain import counterfactuals
from windlass.core.explain.counterfactuals import Change, Lab
from windlass.core.model.types import Policy, Running, Verdict, Workload
from windlass.core.snapshot.snapshot import Snapshot
from windlass.core.verdicts import formatting
from windlass.core.verdicts.messages import HOST_PORTS
from windlass.kinds.reasons import Reason

Sure = Literal["now", "reserved", "predicted", "unknown"]
Basis = Literal["", "stated", "similar", "both"]
"""How the ends of running workloads are known: their users stated them, similar ones ended so, or
some one and some the other."""

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
    Reason.WAITING_FOR_MEMBERS,
    Reason.UNSUPPORTED,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """A running workload that holds what is missing."""

    workload: str
    queue: str
    user: str
    resource: str
    amount: int
    expected_end: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """When the workload may start, and on what that rests."""

    at: float | None
    sure: Sure
    rests_on: str
    runs: tuple[str, ...] = ()
    """Running workloads on whose end it rests."""
    basis: Basis = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    workload: str
    verdict: Verdict | None
    """None: it starts now."""
    position: int
    """In its queue, counted from 1."""
    waiting_in_queue: int
    turn: int
    """In the whole cluster: workloads that are considered before it and may take what it needs. 0:
    not computed."""
    holders: tuple[Holder, ...]
    start: Start
    fits_if: tuple[Change, ...]
    certificate: str = ""
    """If it is impossible: the bound that proves it, with numbers."""

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
    """Of a workload that waits; KeyError for any other."""
    workload = snapshot.waiting[key]
    done = cycle.run(snapshot, now, policy)
    line = [each.key for each in snapshot.pending_in_order(workload.queue, done.state.ordering)]
    verdict = None if key in done.state.placements else done.verdict_of(key)
    lab = Lab(snapshot, workload, now, policy)
    found: tuple[Change, ...] = ()
    if verdict is not None and verdict.reason not in _NO_CHANGE_HELPS:
        helpful = [each.node for each in done.state.wanted_nodes if key in each.workloads]
        found = tuple(counterfactuals.nearest(lab, verdict, helpful))
    start = _start(done, lab, verdict, found)
    return Explanation(
        key,
        verdict,
        position=line.index(key) + 1,
        waiting_in_queue=len(line),
        turn=done.turn_of.get(key, 0),
        holders=_holders(done, workload, verdict),
        start=start,
        fits_if=(*found, *_moves(done, lab)),
        certificate=_certificate(verdict),
    )


def _moves(done: Cycle, lab: Lab) -> Iterator[Change]:
    """Workloads that would have to run elsewhere, whether or not their owners allow it."""
    found = defragmentation.propose(done.state, lab.workload)
    if found is None or lab.tries <= 0:
        return
    moves = tuple(
        counterfactuals.Relocation(
            each.running.workload.key,
            tuple(sorted({pod.node for pod in each.running.pods})),
            each.pods,
            each.running.workload.movable,
        )
        for each in found.moves
    )
    if not lab.starts(lab.with_moved(moves)):
        return  # another workload would take the place
    names = tuple(each.workload for each in moves)
    yield Change("moves", counterfactuals.moved(moves, names), names, moves=moves)


def _holders(done: Cycle, workload: Workload, verdict: Verdict | None) -> tuple[Holder, ...]:
    """Workloads that hold the binding resource where the workload could use it, the largest part
    first."""
    if verdict is None or verdict.reason in (*_NO_CHANGE_HELPS, Reason.IMPOSSIBLE):
        return ()
    if verdict.resource == HOST_PORTS or (
        verdict.reason is Reason.WAITING_FOR_TOPOLOGY and not verdict.resource
    ):
        return ()  # not an amount is missing
    resource = verdict.resource
    if not any(resource in held for held in done.state.snapshot.usage.values()):
        resource = _main_resource(workload)
    workloads: Iterable[Running]
    if verdict.reason is Reason.WAITING_FOR_QUOTA:
        workloads = counterfactuals.counted_workloads(done.state.snapshot, workload, verdict)
    else:
        workloads = _where_it_could_be(done, workload)
    found = [
        Holder(r.workload.key, r.workload.queue, r.workload.user, resource, amount, r.expected_end)
        for r in workloads
        if (amount := done.state.snapshot.usage[r.workload.key].get(resource, 0))
    ]
    found.sort(key=lambda holder: (-holder.amount, holder.workload))
    return tuple(found[:MOST_HOLDERS])


def _main_resource(workload: Workload) -> str:
    requests = [request for role in workload.roles for request in role.devices]
    return requests[0].kind if requests else "cpu"


def _where_it_could_be(done: Cycle, workload: Workload) -> Iterable[Running]:
    cluster = done.state.snapshot.cluster
    usable = {
        node.name
        for role in workload.roles
        for node, accepted in zip(cluster.nodes, cluster.mask(role.constraint), strict=True)
        if accepted
    }
    for running in done.state.snapshot.running.values():
        if any(pod.node in usable for pod in running.pods):
            yield running


def _start(done: Cycle, lab: Lab, verdict: Verdict | None, found: tuple[Change, ...]) -> Start:
    key = lab.workload.key
    if verdict is None:
        return Start(done.state.now, "now", "it fits now")
    if key in done.state.nominations:
        return Start(None, "reserved", "waiting for preempted workloads to exit")
    ends = next((change.names for change in found if change.action == "ends"), ())
    at, basis = _last_end(done, ends)
    for held in done.state.reservations:
        if held.record.workload == key:
            start = held.record.start
            if at is None or at > start:  # it rests on other runs than the nearest change
                ends, basis = (), _basis_of(done, start)
            return Start(start, "reserved", rests_on(ends, basis), ends, basis)
    if verdict.reason is Reason.ADMISSION_REFUSED:
        return Start(None, "unknown", "the cluster refuses its pods until a rule is changed")
    if verdict.reason is Reason.WAITING_TO_RETRY:
        return Start(
            lab.workload.not_before, "predicted", "no other workload takes its capacity until then"
        )
    if at is not None:
        return Start(max(at, done.state.now), "predicted", rests_on(ends, basis), ends, basis)
    if verdict.reason is Reason.IMPOSSIBLE:
        return Start(None, "unknown", "it cannot start on these nodes")
    return Start(
        None,
        "unknown",
        "no end is stated for the runs that hold what it needs, and no similar runs have ended",
    )


def end_of(snapshot: Snapshot, running: Running, now: float) -> tuple[float | None, Basis]:
    """When a running workload should end, and how that is known."""
    if running.expected_end is not None:
        return running.expected_end, "stated"
    expected = snapshot.history.at(now).expected(running.workload)
    return (None, "") if expected is None else (max(now, running.started + expected), "similar")


def rests_on(names: Sequence[str], basis: Basis) -> str:
    """`run a ends by its stated time`, for these names of running workloads."""
    ending, their = "end", "their stated times"
    if len(names) == 1:
        ending, their = "ends", "its stated time"
    listed = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "running runs"
    how = {
        "stated": f"by {their}",
        "similar": "as similar runs did",
        "both": f"by {their} or as similar runs did",
    }
    return f"{listed} {ending} {how.get(basis, 'when expected')}"


def _last_end(done: Cycle, names: Iterable[str]) -> tuple[float | None, Basis]:
    """When the last of these has ended; None unless it is known of all."""
    snapshot, now = done.state.snapshot, done.state.now
    found = [end_of(snapshot, snapshot.running[name], now) for name in names]
    known = [at for at, _ in found if at is not None]
    if not found or len(known) < len(found):
        return None, ""
    kinds = {basis for _, basis in found}
    return max(known), (found[0][1] if len(kinds) == 1 else "both")


def _basis_of(done: Cycle, start: float) -> Basis:
    """How the ends of the running workloads are known that end before a reserved start; of all of
    them, if it was reserved when others ran."""
    snapshot, now = done.state.snapshot, done.state.now
    ends = [end_of(snapshot, running, now) for running in snapshot.running.values()]
    known = [(at, basis) for at, basis in ends if at is not None]
    kinds = {basis for at, basis in known if at <= start} or {basis for _, basis in known}
    return "both" if len(kinds) > 1 else next(iter(kinds), "")


def _certificate(verdict: Verdict | None) -> str:
    if verdict is None or verdict.reason is not Reason.IMPOSSIBLE:
        return ""
    missing = f", {verdict.deficit} too few" if verdict.resource == "members" else ""
    return f"it {verdict.message}{missing}"


# --- text ---------------------------------------------------------------------------------------


def _when(start: Start) -> str:
    if start.at is None:
        return f"when it starts is not known: {start.rests_on}"
    phrases = {"reserved": "reserved to start by", "predicted": "expected to start around"}
    return f"{phrases[start.sure]} {formatting.moment(start.at)} if {start.rests_on}"


def _held_by(holder: Holder) -> str:
    until = (
        "" if holder.expected_end is None else f" until {formatting.moment(holder.expected_end)}"
    )
    amount = formatting.amount(holder.resource, holder.amount)
    return f"{holder.workload} (queue {holder.queue}) holds {amount}{until}"
