"""What a Run waits for by `spec.after`: the state of each dependency, and of all together. Pure.

`control.dependencies` records what it sees of the named Runs in `status.after`. The scheduler, the
run controller and the array controller read only that record, so that all of them see the same, and
a dependency that is deleted after its end stays as it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from windlass.kinds.reasons import Reason
from windlass.kinds.types import run

State = Literal["Waiting", "Met", "Never"]
Find = Callable[[str], run.Run | None]
"""A Run of the same namespace by its name."""

DELETED: Final = "Deleted"
CYCLE: Final = "Cycle"
WANTED: Final[Mapping[str, str]] = {"ok": "succeed", "any": "end", "failed": "fail"}


def state(owner: run.Run) -> State:
    """Of all dependencies together."""
    known = {each.run: each.outcome for each in owner.status.after or ()}
    outcomes = {known.get(each.run, "Waiting") for each in owner.spec.after or ()}
    if "Never" in outcomes:
        return "Never"
    return "Waiting" if "Waiting" in outcomes else "Met"


def is_waiting(owner: run.Run) -> bool:
    """Whether a later change of a dependency still matters to it."""
    return bool(owner.spec.after) and not owner.finished and state(owner) == "Waiting"


def hold(owner: run.Run) -> tuple[Reason, str] | None:
    """Why it takes no part in the queue; None if its dependencies allow it to."""
    match state(owner):
        case "Met":
            return None
        case "Never":
            return Reason.DEPENDENCY_FAILED, failure(owner)
        case "Waiting":
            return Reason.WAITING_FOR_DEPENDENCY, _waiting(owner)


def failure(owner: run.Run) -> str:
    """Why it can never start; "" if it can."""
    for after, known in _pairs(owner):
        if known.outcome != "Never":
            continue
        if known.phase == CYCLE:
            return f"it waits for run {after.run}, which waits for it"
        if known.phase == DELETED:
            return f"run {after.run} was deleted before it could {WANTED[after.when]}"
        return f"run {after.run} is {known.phase}, and this run needs it to {WANTED[after.when]}"
    return ""


def observed(owner: run.Run, find: Find) -> list[run.Dependency]:
    """The record as it should be now."""
    return [_observed(owner, after, known, find) for after, known in _pairs(owner)]


def is_recorded(owner: run.Run, dependent: run.Run) -> bool:
    """Whether a dependent has noted the end of a Run, which may be deleted then."""
    if dependent.finished:
        return True
    return all(
        known.outcome != "Waiting" or known.uid not in ("", owner.uid)
        for after, known in _pairs(dependent)
        if after.run == owner.name
    )


def _pairs(owner: run.Run) -> list[tuple[run.After, run.Dependency]]:
    known = {each.run: each for each in owner.status.after or ()}
    return [
        (after, known.get(after.run) or run.Dependency(run=after.run))
        for after in owner.spec.after or ()
    ]


def _observed(
    owner: run.Run, after: run.After, known: run.Dependency, find: Find
) -> run.Dependency:
    if known.outcome != "Waiting":
        return known
    found = find(after.run)
    if found is None or (known.uid and found.uid != known.uid):
        if not known.uid:
            return run.Dependency(run=after.run)
        # Deletion stops a run, so one that was not seen to end did not succeed.
        outcome: State = "Never" if after.when == "ok" else "Met"
        return run.Dependency(run=after.run, uid=known.uid, phase=DELETED, outcome=outcome)
    if found.finished:
        outcome = "Met" if _fulfils(after.when, found) else "Never"
        return run.Dependency(
            run=after.run, uid=found.uid, phase=found.status.phase, outcome=outcome
        )
    if _reaches(found, owner.uid, find):
        return run.Dependency(run=after.run, uid=found.uid, phase=CYCLE, outcome="Never")
    return run.Dependency(run=after.run, uid=found.uid, phase=found.status.phase)


def _fulfils(when: str, ended: run.Run) -> bool:
    return when == "any" or (ended.status.phase == "Succeeded") == (when == "ok")


def _reaches(start: run.Run, uid: str, find: Find) -> bool:
    """Whether a Run waits, directly or through others, for the Run with this uid."""
    pending, visited = [start], set[str]()
    while pending:
        current = pending.pop()
        if current.uid == uid:
            return True
        if current.uid in visited or not is_waiting(current):
            continue
        visited.add(current.uid)
        following = (find(each.run) for each in current.spec.after or ())
        pending += [each for each in following if each is not None]
    return False


def _waiting(owner: run.Run) -> str:
    parts = []
    for after, known in _pairs(owner):
        if known.outcome == "Waiting":
            phase = known.phase or "does not exist yet"
            parts.append(f"run {after.run} ({phase}) must {WANTED[after.when]} first")
    return ", ".join(parts[:3]) + (f", and {len(parts) - 3} more" if len(parts) > 3 else "")
