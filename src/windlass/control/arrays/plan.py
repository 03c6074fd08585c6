"""The next step of an array: what to record, which indices to start, what to remove. Pure.

The status of the array is the record of its indices. An index is started only if the record does
not have it and no Run of it exists, and the Run of an index is removed only when the record has its
result. So each index succeeds at most once in the record, whatever step a crash interrupts.

`control.arrays.controller` executes the plan.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from windlass.control.model import array_runs, dependencies
from windlass.control.runs.state_machine import Move
from windlass.kinds.annotations import PINNED
from windlass.kinds.reasons import Reason
from windlass.kinds.types import run
from windlass.kinds.values import duration, index_set, times

MOST_ACTIVE: Final = 1000
"""Runs of one array at the same time, also without `parallelism`."""
WINDOW: Final = 64
"""Runs of one array that may wait in the queue: further ones would only wait behind them."""
_ACTIVE: Final = frozenset({"Starting", "Running", "Stopping"})
Failures = dict[tuple[str, int | None], int]
"""Reason and exit code -> indices."""


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """The input: the array as it is stored, and the Runs of its indices."""

    array: run.Run
    children: Sequence[run.Run]
    now: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    status: run.ArrayStatus | None = None
    """The record as it should be; None: as it is."""
    has_news: bool = False
    """Whether the record has results that the stored one does not have."""
    move: Move | None = None
    note: Mapping[str, str] | None = None
    """Reason and message without a change of phase."""
    create: tuple[int, ...] = ()
    change: tuple[tuple[run.Run, Mapping[str, Any]], ...] = ()
    """Runs of indices, and the patch of their spec."""
    release: tuple[run.Run, ...] = ()
    """Runs whose result is in `status`: removed once that is written."""
    wake: float | None = None
    delete_array: bool = False


@dataclasses.dataclass(slots=True)
class Tally:
    """The record as sets."""

    wanted: int
    succeeded: int = 0
    stopped: int = 0
    failures: Failures = dataclasses.field(default_factory=dict)

    @property
    def failed(self) -> int:
        found = 0
        for indices in self.failures.values():
            found |= indices
        return found

    @property
    def ended(self) -> int:
        return self.succeeded | self.stopped | self.failed

    def add(self, index: int, ended: run.Run) -> None:
        bit, status = 1 << index, ended.status
        if status.phase == "Succeeded":
            self.succeeded |= bit
        elif status.phase == "Stopped":
            self.stopped |= bit
        else:
            key = (status.reason, status.exit_code)
            if key not in self.failures and len(self.failures) >= run.FAILURES - 1:
                key = (str(Reason.CODE_FAILED), None)
            self.failures[key] = self.failures.get(key, 0) | bit


def tally(array: run.Run) -> Tally:
    """The stored record. ValueError if `spec.array` has no valid indices."""
    assert array.spec.array is not None, "the caller has an array"  # noqa: S101
    found = Tally(index_set.parse_array(array.spec.array.indices))
    stored = array.status.array
    if stored is not None:
        found.succeeded = index_set.parse(stored.succeeded_indices)
        found.stopped = index_set.parse(stored.stopped_indices)
        found.failures = {
            (each.reason, each.exit_code): index_set.parse(each.indices)
            for each in stored.failures or ()
        }
    return found


def not_started(array: run.Run) -> int:
    """The indices that have not ended and that no Run exists for, as the stored record says."""
    record = tally(array)
    active = array.status.array.active_indices if array.status.array is not None else ""
    return record.wanted & ~record.ended & ~index_set.parse(active)


def plan(view: View) -> Plan:
    """The next step."""
    array = view.array
    if array.finished:
        return _finished(view)
    try:
        record = tally(array)
        to_stop = _to_stop(array, record.wanted)
    except ValueError as problem:  # a cluster's API server does not check all of it
        return Plan(move=Move("Failed", Reason.UNSUPPORTED, f"spec.array: {problem}"))
    if array.status.phase == "Queued" and dependencies.state(array) == "Never" and not to_stop:
        return Plan(move=Move("Failed", Reason.DEPENDENCY_FAILED, dependencies.failure(array)))
    before = record.ended
    live = _record_ended(view, record)
    record.stopped |= record.wanted & to_stop & ~record.ended & ~index_set.of(live)
    status = _status(record, live)
    pending = record.wanted & ~record.ended & ~index_set.of(live)
    return Plan(
        status=status if status != array.status.array else None,
        has_news=record.ended != before,
        move=_move(array, record, live, has_news=record.ended != before),
        note=_note(array, record, live),
        create=_next(array, pending, live),
        change=tuple(_changes(array, live, to_stop)),
        release=_recorded(view, record),
    )


# --- the record -----------------------------------------------------------------------------------


def past_nodes(array: run.Run, children: Iterable[run.Run]) -> dict[str, list[str]]:
    """The status patch with the nodes of indices that have ended: agents send the logs of an index
    after its Run is deleted."""
    before = array.status.past_nodes or []
    ended = (child for child in children if child.finished)
    left = sorted({node for child in ended for node in run.known_nodes(child)} - set(before))
    return {"pastNodes": [*before, *left][-run.PAST_NODES :]} if left else {}


def _record_ended(view: View, record: Tally) -> dict[int, run.Run]:
    """Adds the indices whose Runs have ended; returns the Runs of the others."""
    live: dict[int, run.Run] = {}
    ended = record.ended
    for child in view.children:
        found = array_runs.identity(child)
        if found is None or not record.wanted >> found.index & 1 or ended >> found.index & 1:
            continue
        if child.finished:
            record.add(found.index, child)
        else:
            live[found.index] = child
    return live


def _recorded(view: View, record: Tally) -> tuple[run.Run, ...]:
    """Runs of which nothing is needed any more."""
    ended = record.ended
    found = ((child, array_runs.identity(child)) for child in view.children)
    return tuple(
        child
        for child, known in found
        if known is not None and (ended >> known.index & 1 or not record.wanted >> known.index & 1)
    )


def _status(record: Tally, live: Mapping[int, run.Run]) -> run.ArrayStatus:
    failures = sorted(record.failures.items(), key=lambda each: index_set.lowest(each[1]))
    return run.ArrayStatus(
        total=record.wanted.bit_count(),
        running=sum(child.status.phase in _ACTIVE for child in live.values()),
        succeeded=record.succeeded.bit_count(),
        failed=record.failed.bit_count(),
        stopped=record.stopped.bit_count(),
        active_indices=index_set.text(index_set.of(live)),
        succeeded_indices=index_set.text(record.succeeded),
        stopped_indices=index_set.text(record.stopped),
        failures=[
            run.IndexFailure(reason=reason, exit_code=code, indices=index_set.text(indices))
            for (reason, code), indices in failures
        ]
        or None,
    )


# --- indices that start and stop ------------------------------------------------------------------


def _to_stop(array: run.Run, wanted: int) -> int:
    if array.spec.stop or array.metadata.deletion_timestamp:
        return wanted
    return index_set.parse(array.spec.array.stop) if array.spec.array else 0


def _next(array: run.Run, pending: int, live: Mapping[int, run.Run]) -> tuple[int, ...]:
    """The indices that are created now, lowest first."""
    spec = array.spec
    if not pending or spec.suspend or dependencies.state(array) != "Met":
        return ()
    most = min((spec.array and spec.array.parallelism) or MOST_ACTIVE, MOST_ACTIVE)
    waiting = sum(
        child.status.phase == "Queued" and child.status.assignment is None
        for child in live.values()
    )
    count = max(0, min(most - len(live), WINDOW - waiting))
    return tuple(itertools.islice(index_set.members(pending), count))


def _changes(
    array: run.Run, live: Mapping[int, run.Run], to_stop: int
) -> list[tuple[run.Run, Mapping[str, Any]]]:
    """What changed in the array since the Runs of its indices were created."""
    found: list[tuple[run.Run, Mapping[str, Any]]] = []
    for index, child in live.items():
        patch = _differences(array.spec, child.spec)
        if to_stop >> index & 1 and not child.spec.stop:
            patch["stop"] = True
        if patch:
            found.append((child, patch))
    return found


def _differences(wanted: run.RunSpec, current: run.RunSpec) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for name in ("queue", "priority", "suspend"):
        if getattr(wanted, name) != getattr(current, name):
            patch[name] = getattr(wanted, name)
    if wanted.duration != current.duration:
        before = dict.fromkeys(msgspec.to_builtins(current.duration) or ())
        after = msgspec.to_builtins(wanted.duration)
        # In a merge patch a limit that was removed must be named.
        patch["duration"] = None if after is None else before | after
    sizes = [(role.replicas, role.min_replicas) for role in wanted.roles]
    if sizes != [(role.replicas, role.min_replicas) for role in current.roles]:
        patch["roles"] = [
            msgspec.to_builtins(msgspec.structs.replace(role, replicas=most, min_replicas=least))
            for role, (most, least) in zip(current.roles, sizes, strict=True)
        ]
    return patch


# --- the phase ------------------------------------------------------------------------------------


def _move(
    array: run.Run, record: Tally, live: Mapping[int, run.Run], *, has_news: bool
) -> Move | None:
    if record.ended == record.wanted:
        return _end(array, record)
    running = any(child.status.phase in _ACTIVE for child in live.values())
    if array.status.phase == "Queued" and (running or has_news):
        return Move("Running", Reason.MEMBERS_RUNNING, summary(record, live))
    if array.status.phase == "Running" and array.spec.suspend and not running:
        return Move("Queued", Reason.SUSPENDED, "suspended by spec.suspend")
    return None


def _end(array: run.Run, record: Tally) -> Move:
    total = record.wanted.bit_count()
    if failed := record.failed:
        lowest = index_set.lowest(failed)
        code = next(code for (_, code), each in record.failures.items() if each >> lowest & 1)
        shown = shortened(index_set.text(failed))
        message = f"{failed.bit_count()} of {total} indices failed: {shown}"
        return Move("Failed", Reason.INDICES_FAILED, message, code)
    if stopped := record.stopped:
        what = "deleted" if array.metadata.deletion_timestamp else "stopped by its user"
        message = f"{what}: {stopped.bit_count()} of {total} indices did not run to their end"
        return Move("Stopped", Reason.USER_STOPPED, message)
    return Move("Succeeded", Reason.COMPLETED, f"all {total} indices succeeded", 0)


def _note(array: run.Run, record: Tally, live: Mapping[int, run.Run]) -> Mapping[str, str] | None:
    """Reason and message of a phase that stays, if they are new."""
    status = array.status
    if status.phase == "Queued":
        reason, message = _wait_reason(array, live)
    else:
        reason, message = status.reason, summary(record, live)
    if (reason, message) == (status.reason, status.message):
        return None
    return {"reason": reason, "message": message}


def _wait_reason(array: run.Run, live: Mapping[int, run.Run]) -> tuple[str, str]:
    """Its own, or that of its first index in the queue."""
    if array.spec.suspend:
        return Reason.SUSPENDED, "suspended by spec.suspend"
    if (held := dependencies.hold(array)) is not None:
        return held
    for index, child in sorted(live.items()):
        if child.status.reason:
            return child.status.reason, f"index {index}: {child.status.message}"
    return array.status.reason, array.status.message


def summary(record: Tally, live: Mapping[int, run.Run]) -> str:
    """`37 of 100 indices ended, 8 running, 2 failed`."""
    running = sum(child.status.phase in _ACTIVE for child in live.values())
    parts = [f"{record.ended.bit_count()} of {record.wanted.bit_count()} indices ended"]
    counts = {"running": running, "waiting": len(live) - running}
    counts |= {"failed": record.failed.bit_count(), "stopped": record.stopped.bit_count()}
    return ", ".join([*parts, *(f"{count} {word}" for word, count in counts.items() if count)])


def shortened(text: str) -> str:
    """At most about 100 characters of a set of indices."""
    return text if len(text) <= 100 else f"{text[:100].rpartition(',')[0]} ..."


# --- after the end --------------------------------------------------------------------------------


def _finished(view: View) -> Plan:
    """Removes the Runs of indices that are left; then the array, when its time has come."""
    array, children = view.array, tuple(view.children)
    ttl = array.spec.ttl_after_finished
    pinned = (array.metadata.annotations or {}).get(PINNED) == "true"
    if children or ttl is None or pinned or array.metadata.deletion_timestamp:
        return Plan(release=children)
    history = array.status.history
    since = (view.now - times.parse(history[-1].at)).total_seconds() if history else 0.0
    left = duration.milliseconds(ttl) / 1000 - since
    return Plan(wake=left) if left > 0 else Plan(delete_array=True)
