"""The usage intervals of replicas: `status.held`, which the ledger records. Pure.

An interval begins with the step that starts replicas. It ends when the attempt is over or the
scheduler has freed the capacity of replicas that left, as decisions count it; with
`placement.gang: false` it ends when the replica ends. The run controller writes intervals together
with the step itself, so they cost no write of their own, and before any pod is deleted.

The ledger reads the nodes of replicas from `assignment` while that is of the same attempt. What the
scheduler will overwrite is copied first, up to a bound: a Run must stay small. Beyond it the ledger
uses its own observations.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from windlass.control.model import members
from windlass.control.model.run_view import View
from windlass.kinds.types import core, run
from windlass.kinds.values import times

MOST_COPIED = 200
"""Replicas whose nodes are copied into the status of one Run: about 20 KB."""


def started(owner: run.Run, sizes: Mapping[str, int], now: datetime.datetime) -> list[run.Held]:
    """For the step that starts these replicas: a new attempt, or replicas that join."""
    attempt, at = owner.status.attempt, times.seconds(now)
    # Replicas that left without a confirmation have ended: their index is used again.
    kept = [_ended(each, at) if _is_leaving(each) else each for each in owner.status.held or ()]
    for role, size in sorted(sizes.items()):
        first = _size(kept, attempt, role)
        if size > first:
            kept.append(
                run.Held(attempt=attempt, role=role, first=first, count=size - first, since=at)
            )
    return _bounded(kept)


def leaving(owner: run.Run, sizes: Mapping[str, int]) -> list[run.Held]:
    """For the step that removes replicas above these sizes: their nodes are copied, because the
    scheduler cuts the assignment when they are gone."""
    kept: list[run.Held] = []
    for each in owner.status.held or ():
        stay = sizes.get(each.role, each.first + each.count) - each.first
        if each.until is not None or each.members is not None or stay >= each.count:
            kept.append(each)
            continue
        if stay > 0:
            kept.append(msgspec.structs.replace(each, count=stay))
        gone = max(0, stay)
        part = msgspec.structs.replace(each, first=each.first + gone, count=each.count - gone)
        kept.append(msgspec.structs.replace(part, members=_places(owner, part) or []))
    return _bounded(kept)


def left(view: View) -> list[run.Held] | None:
    """The intervals after the capacity of removed replicas was freed; None: no change."""
    held = view.owner.status.held or ()
    assigned = {role: len(listed) for role, listed in view.assigned.items()}
    gone = [each for each in held if _is_leaving(each) and each.first >= assigned.get(each.role, 0)]
    if not gone:
        return None
    at = times.seconds(view.now)
    return [_ended(each, at) if each in gone else each for each in held]


def over(
    owner: run.Run, pods: Iterable[core.Pod], now: datetime.datetime, *, again: bool
) -> list[run.Held] | None:
    """For the step that ends an attempt; `again`: another attempt follows. None: no change."""
    held = owner.status.held
    if not held:
        return None
    at = times.seconds(now)
    ends = {} if owner.spec.placement.gang else _ends(pods)
    closed = []
    for each in held:
        ended = each
        if each.until is None:
            ended = _early(_ended(each, at), ends)
        if again and ended.members is None:
            ended = msgspec.structs.replace(ended, members=_places(owner, ended))
        closed.append(ended)
    return _bounded(closed)


def holds_ledger(owner: run.Run) -> bool:
    return run.FINALIZER_LEDGER in (owner.metadata.finalizers or ())


def without_ledger(owner: run.Run) -> list[str]:
    return [each for each in owner.metadata.finalizers or () if each != run.FINALIZER_LEDGER]


# --- parts ----------------------------------------------------------------------------------------


def _is_leaving(each: run.Held) -> bool:
    return each.until is None and each.members is not None


def _ended(each: run.Held, at: str) -> run.Held:
    return msgspec.structs.replace(each, until=max(at, each.since))


def _size(held: Sequence[run.Held], attempt: int, role: str) -> int:
    """The number of replicas of a role with an open interval: the first free index."""
    return max(
        (
            each.first + each.count
            for each in held
            if each.attempt == attempt and each.role == role and each.until is None
        ),
        default=0,
    )


def _places(owner: run.Run, each: run.Held) -> list[run.Member] | None:
    assignment = owner.status.assignment
    if assignment is None or assignment.attempt != each.attempt:
        return None
    return assignment.members.get(each.role, [])[each.first : each.first + each.count]


def _ends(pods: Iterable[core.Pod]) -> dict[tuple[int, str, int], str]:
    """When replicas ended, as far as their pods show."""
    found = {}
    for pod in pods:
        key, end = members.key_of(pod), members.ended_at(pod)
        if key is not None and end is not None:
            found[key.attempt, key.role, key.index] = end
    return found


def _early(each: run.Held, ends: Mapping[tuple[int, str, int], str]) -> run.Held:
    """The interval with the ends of replicas that ended before the others."""
    if not ends or each.until is None:
        return each
    since, until = times.parse(each.since), times.parse(each.until)
    lasted = []
    for index in range(each.first, each.first + each.count):
        end = ends.get((each.attempt, each.role, index))
        at = min(until, max(since, times.parse(end))) if end else until
        lasted.append(int((at - since).total_seconds()))
    return msgspec.structs.replace(each, lasted=lasted)


def _bounded(held: list[run.Held]) -> list[run.Held]:
    """The latest first: drops the copied nodes of the oldest, then the oldest."""
    copied, found = 0, []
    for each in reversed(held[-run.HELD :]):
        kept = each
        if each.members:
            copied += len(each.members)
            if copied > MOST_COPIED:
                kept = msgspec.structs.replace(each, members=[])
        found.append(kept)
    return found[::-1]
