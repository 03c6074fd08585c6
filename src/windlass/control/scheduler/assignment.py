"""What the scheduler writes into a Run: assignment, nomination, eviction. Pure.

`control.scheduler.loop` writes what these functions return, each with the resourceVersion it was
decided on. A status patch is a merge patch: None removes a field.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from windlass.control.convert import reservations, run_workloads
from windlass.control.model import run_view
from windlass.core.model import types
from windlass.core.preemption import evict as evictions
from windlass.kinds.types import run
from windlass.kinds.values import duration, times

Patch = dict[str, Any]
BY_USER = "user"
BY_QUEUE = "queue"
"""Its queue is being drained."""
INCOMPLETE = "incomplete: "
"""What the message of a Run begins with that runs without all members of its gang."""


# --- decisions ------------------------------------------------------------------------------------


def start(owner: run.Run, pods: Iterable[types.PodAssignment], epoch: int) -> Patch:
    """An assignment for the current attempt; an earlier nomination or eviction ends."""
    patch: Patch = {"assignment": _assignment_patch(owner, _by_role(pods), epoch)}
    old = owner.status
    if old.assignment is not None and old.assignment.shrunk_at is not None:
        patch["assignment"]["shrunkAt"] = None
    stale = {"nomination": old.nomination, "eviction": old.eviction, "queue": old.queue}
    return patch | {name: None for name, value in stale.items() if value is not None}


def grow(owner: run.Run, pods: Iterable[types.PodAssignment], epoch: int) -> Patch:
    """More pods for a Run that has an assignment: new members come after the existing ones."""
    given = owner.status.assignment
    assert given is not None, "the caller has checked holds_assignment"  # noqa: S101
    members = {
        role: [_member_patch(member) for member in listed] for role, listed in given.members.items()
    }
    for role, added in _by_role(pods).items():
        members.setdefault(role, []).extend(added)
    patch: Patch = {"assignment": _assignment_patch(owner, members, epoch)}
    return patch | ({"nomination": None} if owner.status.nomination is not None else {})


def nominate(owner: run.Run, pods: Iterable[types.PodAssignment], epoch: int) -> Patch | None:
    """The capacity that is being freed for it; None: the status has it already."""
    attempt = {"attempt": run_workloads.nominated_attempt(owner)}
    wanted = _assignment_patch(owner, _by_role(pods), epoch) | attempt
    known = owner.status.nomination
    if known is not None and known.attempt == wanted["attempt"]:
        written = _assignment_patch(owner, _member_patches(known.members), known.epoch) | attempt
        return None if written == wanted else {"nomination": wanted}
    return {"nomination": wanted}


def evict(
    owner: run.Run,
    eviction: types.Eviction,
    now: datetime.datetime,
    preemptor: run.Run | None = None,
) -> Patch:
    """What it must give back. A Run that has not started loses its assignment at once. Members go
    from the highest index down: of each role, all from the lowest chosen index on. `preemptor`: the
    Run that it gives way to; only readers of its own namespace learn its name."""
    if owner.status.phase == "Queued":
        return {"assignment": None}
    keep: dict[str, int] = {}
    for role, index in eviction.pods:
        keep[role] = min(keep.get(role, index), index)
    whole = 0 in keep.values()  # index 0 is removed last, with the Run
    by = f"{reservations.BY}{eviction.reservation}" if eviction.reservation else eviction.preemptor
    reason = _with_name(eviction.reason, owner, preemptor)
    patch: Patch = {"eviction": _eviction(owner, by, reason, None if whole else keep, now)}
    if eviction.move:
        before = [{"at": each.at, "by": each.by} for each in owner.status.moves or ()]
        moves = [*before, {"at": times.seconds(now), "by": eviction.preemptor}]
        patch["moves"] = moves[-run.MOVES :]
    return patch


def _with_name(reason: str, owner: run.Run, preemptor: run.Run | None) -> str:
    """`preempted by run high (priority 90 > 20)`"""
    if preemptor is None:
        return reason
    same = preemptor.namespace == owner.namespace
    if reason.startswith(evictions.PREEMPTED_BY):
        ranks = reason.partition(" (")[2]
        name = f"run {preemptor.name}" if same else "a run of another team"
        return f"preempted by {name} ({ranks}" if ranks else f"preempted by {name}"
    if reason.startswith(evictions.SURPLUS):
        return f"{run_view.FOR} {f'run {preemptor.name}' if same else 'a run of another team'}"
    return f"{reason}; run {preemptor.name} starts there" if same else reason


def drain(owner: run.Run, now: datetime.datetime) -> Patch | None:
    """Its queue is being drained: it gives everything back; None: it is evicted already."""
    if owner.status.phase == "Queued":
        return {"assignment": None}
    eviction = owner.status.eviction
    if owner.status.phase == "Stopping" or (eviction and eviction.keep_members is None):
        return None
    return {"eviction": _eviction(owner, BY_QUEUE, "its queue is being drained", None, now)}


def with_past_nodes(owner: run.Run, patch: Patch) -> Patch:
    """The patch, and the nodes that it takes from a Run that has been there: the server accepts
    logs of a Run only from agents of nodes that it has or had."""
    given = owner.status.assignment
    if given is None or "assignment" not in patch or not _has_been_there(owner, given):
        return patch
    written = patch["assignment"]
    members = {} if written is None else written.get("members", {})
    after = {member["node"] for listed in members.values() for member in listed or ()}
    before: set[str] = set()
    for role, listed in given.members.items():
        nodes = {member.node for member in listed}
        before |= nodes
        if written is not None and role not in members:
            after |= nodes  # a merge patch leaves what it does not name
    left = sorted(before - after)
    past = [node for node in owner.status.past_nodes or () if node not in left]
    return {**patch, "pastNodes": [*past, *left][-run.PAST_NODES :]} if left else patch


def _has_been_there(owner: run.Run, given: run.Assignment) -> bool:
    return owner.status.phase != "Queued" or given.attempt != owner.status.attempt


# --- earlier decisions ---------------------------------------------------------------------------


def reconcile(
    owner: run.Run,
    epoch: int,
    now: datetime.datetime,
    takes: Callable[[run.Run, str], bool],
    pods: Sequence[run.MemberKey],
    *,
    first: bool = True,
) -> Patch | None:
    """The patch that an existing assignment or eviction needs before a new decision.

    `first`: this leader has decided nothing yet, so assignments of earlier leaders are valid. One
    that appears later was written before the earlier term ended and arrived late: its capacity may
    belong to another workload by now."""
    given = owner.status.assignment
    if given is None or not run_workloads.holds_assignment(owner):
        return None
    if owner.status.phase == "Queued":
        late = given.epoch != epoch and given.attempt == owner.status.attempt and not first
        return {"assignment": None} if late else _reconcile_waiting(owner, given, epoch, takes, now)
    if owner.status.phase == "Stopping":
        return None
    if given.epoch != epoch and (patch := _reconcile_growth(owner, given, epoch, pods, first)):
        return patch
    eviction = owner.status.eviction
    if eviction is not None and eviction.keep_members is not None and is_taken(owner):
        keep = eviction.keep_members
        if any(key.index >= keep.get(key.role, key.index + 1) for key in pods):
            return None  # they are still on their way out
        rest = {"members": _cut(given.members, keep)} | _shrunk(owner, now)
        return {"assignment": rest, "eviction": None}
    return _reconcile_size(owner, given, now) or _reconcile_message(owner)


def incomplete(owner: run.Run, reason: str, message: str) -> Patch:
    """The message of a gang that runs without all of its members; its reason stays as it is. Empty:
    the status has it already, or no member is missing."""
    if not run_workloads.is_incomplete(owner):
        return {}
    text = f"{INCOMPLETE}{reason}: {message}"
    return {"message": text} if owner.status.message != text else {}


def _reconcile_message(owner: run.Run) -> Patch | None:
    """A gang that was incomplete has all of its members: it gets its earlier message back."""
    status = owner.status
    if not status.message.startswith(INCOMPLETE) or run_workloads.is_incomplete(owner):
        return None
    return {"message": status.history[-1].message if status.history else ""}


def cancel_eviction(
    owner: run.Run, preemptors: Iterable[str], *, drained: bool = False
) -> Patch | None:
    """Cancels an eviction whose preemptor (or reservation) is gone or was placed elsewhere, or
    whose queue is open again, if it is not carried out yet. Members that an earlier preemptor
    evicted stay gone."""
    eviction = owner.status.eviction
    if eviction is None or eviction.by == BY_USER or eviction.by in preemptors:
        return None
    if eviction.by == BY_QUEUE and drained:
        return None
    if owner.status.phase not in ("Starting", "Running") or is_taken(owner):
        return None
    given = owner.status.assignment.members if owner.status.assignment else {}
    started_counts = {
        r: n for r, n in (owner.status.members or {}).items() if n < len(given.get(r, ()))
    }
    if eviction.keep_members is None or not started_counts:
        return {"eviction": None}
    gone = {role: None for role in eviction.keep_members if role not in started_counts}
    return {"eviction": {"keepMembers": {**started_counts, **gone}}}


def is_taken(owner: run.Run) -> bool:
    """Whether the run controller has begun to carry out the eviction: too late to cancel it."""
    keep = run_view.kept_members(owner)
    if owner.status.phase not in ("Starting", "Running"):
        return True
    started = owner.status.members or {}
    return bool(keep) and all(started.get(role, 0) <= keep[role] for role in keep)


def _reconcile_waiting(
    owner: run.Run,
    given: run.Assignment,
    epoch: int,
    takes: Callable[[run.Run, str], bool],
    now: datetime.datetime,
) -> Patch | None:
    """Not started: a suspended Run, and one whose nodes no longer accept it, loses its assignment;
    others are confirmed by the current leader. A Run that restarts at another size keeps its
    nodes."""
    members = run_workloads.kept_assignment(owner)
    nodes = {member.node for listed in members.values() for member in listed}
    fits = all(takes(owner, node) for node in nodes)
    if given.attempt == owner.status.attempt and (owner.spec.suspend or not fits):
        return {"assignment": None}
    if given.attempt != owner.status.attempt:
        patch: Patch = {"assignment": None}
        if fits:
            patch = {
                "assignment": _assignment_patch(owner, _member_patches(members), epoch)
                | _shrunk(owner, now)
            }
        return patch | ({"eviction": None} if owner.status.eviction else {})
    if given.epoch != epoch or members != given.members:
        return {"assignment": _assignment_patch(owner, _member_patches(members), epoch)}
    return None


def _shrunk(owner: run.Run, now: datetime.datetime) -> Patch:
    """When a Run gave members back to a preemptor. One that its user scaled down may grow again at
    once."""
    eviction = owner.status.eviction
    yielded = eviction is not None and eviction.keep_members and eviction.by != BY_USER
    return {"shrunkAt": times.seconds(now)} if yielded else {}


def _reconcile_growth(
    owner: run.Run, given: run.Assignment, epoch: int, pods: Sequence[run.MemberKey], first: bool
) -> Patch | None:
    """Additional members that an earlier leader assigned and that have no pods yet."""
    started_counts = run_view.started_members(owner, pods)
    if not owner.status.members or all(
        len(listed) <= started_counts.get(role, 0) for role, listed in given.members.items()
    ):
        return None
    members = given.members
    if not first:
        members = {role: listed[: started_counts.get(role, 0)] for role, listed in members.items()}
    return {"assignment": _assignment_patch(owner, _member_patches(members), epoch)}


def _reconcile_size(owner: run.Run, given: run.Assignment, now: datetime.datetime) -> Patch | None:
    """Its user wants fewer members than it has, or no longer does."""
    eviction, request = owner.status.eviction, f"scaled by {BY_USER}"
    sizes = {role.name: role.replicas for role in owner.spec.roles}
    keep = {r: sizes[r] for r, listed in given.members.items() if sizes.get(r, 0) < len(listed)}
    if eviction is not None and eviction.by != BY_USER:
        return None  # an eviction for a preemptor comes first; afterwards this runs again
    if not keep:
        return {"eviction": None} if eviction is not None and not is_taken(owner) else None
    if eviction is not None and eviction.keep_members == keep:
        return None
    if eviction is not None and is_taken(owner):
        return None
    gone = {role: None for role in run_view.kept_members(owner) if role not in keep}
    return {"eviction": _eviction(owner, BY_USER, request, keep, now, gone)}


# --- parts ----------------------------------------------------------------------------------------


def _eviction(
    owner: run.Run,
    by: str,
    reason: str,
    keep: Mapping[str, int] | None,
    now: datetime.datetime,
    gone: Mapping[str, None] | None = None,
) -> Patch:
    grace = datetime.timedelta(milliseconds=duration.milliseconds(owner.spec.checkpoint.grace))
    return {
        "by": by,
        "reason": reason,
        "keepMembers": None if keep is None else {**keep, **(gone or {})},
        "deadline": times.seconds(now + grace),
    }


def _assignment_patch(owner: run.Run, members: Mapping[str, Any], epoch: int) -> Patch:
    """A whole assignment; roles of an earlier one do not stay behind: roles never change."""
    names = [role.name for role in owner.spec.roles]
    listed = {role: members[role] for role in names if members.get(role)}
    absent = {role: None for role in names if role not in listed and _has_role(owner, role)}
    return {"attempt": owner.status.attempt, "epoch": epoch, "members": listed | absent}


def _has_role(owner: run.Run, role: str) -> bool:
    nominations = (owner.status.assignment, owner.status.nomination)
    return any(held is not None and role in held.members for held in nominations)


def _by_role(pods: Iterable[types.PodAssignment]) -> dict[str, list[Patch]]:
    members: dict[str, list[Patch]] = {}
    for pod in sorted(pods, key=lambda pod: (pod.role, pod.index)):
        member: Patch = {"node": pod.node}
        if pod.grants:
            member["devices"] = run_workloads.device_names(pod.grants)
        members.setdefault(pod.role, []).append(member)
    return members


def _member_patch(member: run.Member) -> Patch:
    written: Patch = {"node": member.node}
    return written | {"devices": member.devices} if member.devices else written


def _member_patches(members: Mapping[str, Sequence[run.Member]]) -> dict[str, list[Patch]]:
    return {role: [_member_patch(member) for member in listed] for role, listed in members.items()}


def _cut(members: Mapping[str, Sequence[run.Member]], keep: Mapping[str, int]) -> Patch:
    return {role: [_member_patch(m) for m in members[role][:n]] for role, n in keep.items()}
