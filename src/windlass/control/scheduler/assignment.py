"""What the scheduler writes into a Run: assignment, nomination, eviction. Pure.

`control.scheduler` writes what these functions return, each with the resourceVersion it was decided
on. A status patch is a merge patch: what is None goes.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from windlass.control import reservations, runview, snapshots
from windlass.core import facts
from windlass.kinds import duration, run, times

Patch = dict[str, Any]
BY_USER = "user"
BY_QUEUE = "queue"
"""Its queue is being drained."""
INCOMPLETE = "incomplete: "
"""What the message of a Run begins with that runs without all members of its gang."""


# --- decisions ------------------------------------------------------------------------------------


def start(owner: run.Run, seats: Iterable[facts.Seat], epoch: int) -> Patch:
    """Room for the attempt that is current; whatever was promised or asked of it before is over."""
    patch: Patch = {"assignment": _room(owner, _by_role(seats), epoch)}
    old = owner.status
    if old.assignment is not None and old.assignment.shrunk_at is not None:
        patch["assignment"]["shrunkAt"] = None
    stale = {"nomination": old.nomination, "eviction": old.eviction, "queue": old.queue}
    return patch | {name: None for name, value in stale.items() if value is not None}


def grow(owner: run.Run, seats: Iterable[facts.Seat], epoch: int) -> Patch:
    """More room for a Run that has some: new members come after those that are there."""
    held = owner.status.assignment
    assert held is not None, "the caller looked: holds_assignment"  # noqa: S101
    members = {role: [_told(member) for member in listed] for role, listed in held.members.items()}
    for role, added in _by_role(seats).items():
        members.setdefault(role, []).extend(added)
    patch: Patch = {"assignment": _room(owner, members, epoch)}
    return patch | ({"nomination": None} if owner.status.nomination is not None else {})


def nominate(owner: run.Run, seats: Iterable[facts.Seat], epoch: int) -> Patch | None:
    """Room that is being freed for it; None: that is what it says already."""
    attempt = {"attempt": snapshots.nominated_attempt(owner)}
    wanted = _room(owner, _by_role(seats), epoch) | attempt
    known = owner.status.nomination
    if known is not None and known.attempt == wanted["attempt"]:
        told = _room(owner, _all_told(known.members), known.epoch) | attempt
        return None if told == wanted else {"nomination": wanted}
    return {"nomination": wanted}


def evict(owner: run.Run, eviction: facts.Eviction, now: datetime.datetime) -> Patch:
    """What it must give back. One that has not started loses its room at once: there is nobody to
    tell. Members go from the highest index down, so that of a role all above the lowest that was
    chosen go."""
    if owner.status.phase == "Queued":
        return {"assignment": None}
    keep: dict[str, int] = {}
    for role, index in eviction.seats:
        keep[role] = min(keep.get(role, index), index)
    whole = 0 in keep.values()  # index 0 goes last, with the Run
    by = f"{reservations.BY}{eviction.reservation}" if eviction.reservation else eviction.gainer
    patch: Patch = {"eviction": _eviction(owner, by, eviction.reason, None if whole else keep, now)}
    if eviction.move:
        before = [{"at": each.at, "by": each.by} for each in owner.status.moves or ()]
        moves = [*before, {"at": times.seconds(now), "by": eviction.gainer}]
        patch["moves"] = moves[-run.MOVES :]
    return patch


def drain(owner: run.Run, now: datetime.datetime) -> Patch | None:
    """Its queue is being drained: it gives back all it holds; None: it was told to go already."""
    if owner.status.phase == "Queued":
        return {"assignment": None}
    eviction = owner.status.eviction
    if owner.status.phase == "Stopping" or (eviction and eviction.keep_members is None):
        return None
    return {"eviction": _eviction(owner, BY_QUEUE, "its queue is being drained", None, now)}


# --- what has become of earlier ones --------------------------------------------------------------


def settle(
    owner: run.Run,
    epoch: int,
    now: datetime.datetime,
    takes: Callable[[run.Run, str], bool],
    pods: Sequence[run.MemberKey],
    *,
    first: bool = True,
) -> Patch | None:
    """What an assignment or eviction that stands needs, before anything new is decided.

    `first`: this leader has decided nothing yet, so what earlier ones gave is still theirs to give.
    What turns up later in an earlier leader's name was sent before its term ended and came late:
    the room may be somebody else's by now."""
    held = owner.status.assignment
    if held is None or not snapshots.holds_assignment(owner):
        return None
    if owner.status.phase == "Queued":
        late = held.epoch != epoch and held.attempt == owner.status.attempt and not first
        return {"assignment": None} if late else _settle_waiting(owner, held, epoch, takes, now)
    if owner.status.phase == "Stopping":
        return None
    if held.epoch != epoch and (patch := _settle_growth(owner, held, epoch, pods, first)):
        return patch
    eviction = owner.status.eviction
    if eviction is not None and eviction.keep_members is not None and is_taken(owner):
        keep = eviction.keep_members
        if any(key.index >= keep.get(key.role, key.index + 1) for key in pods):
            return None  # they are still on their way out
        rest = {"members": _cut(held.members, keep)} | _shrunk(owner, now)
        return {"assignment": rest, "eviction": None}
    return _settle_size(owner, held, now) or _settle_message(owner)


def incomplete(owner: run.Run, reason: str, message: str) -> Patch:
    """What a gang that runs without all of its members is told; its reason stays that it runs.
    Empty: it is told so already, or it has all of them."""
    if not snapshots.is_incomplete(owner):
        return {}
    words = f"{INCOMPLETE}{reason}: {message}"
    return {"message": words} if owner.status.message != words else {}


def _settle_message(owner: run.Run) -> Patch | None:
    """A gang that was incomplete has all of its members: it is told what it was told before."""
    status = owner.status
    if not status.message.startswith(INCOMPLETE) or snapshots.is_incomplete(owner):
        return None
    return {"message": status.history[-1].message if status.history else ""}


def withdraw(owner: run.Run, gainers: Iterable[str], *, drained: bool = False) -> Patch | None:
    """Takes an eviction back whose gainer (or reservation) has gone away or got other room, or
    whose queue is open again, if that is still in time. Members that went for an earlier gainer are
    gone."""
    eviction = owner.status.eviction
    if eviction is None or eviction.by == BY_USER or eviction.by in gainers:
        return None
    if eviction.by == BY_QUEUE and drained:
        return None
    if owner.status.phase not in ("Starting", "Running") or is_taken(owner):
        return None
    held = owner.status.assignment.members if owner.status.assignment else {}
    begun = {r: n for r, n in (owner.status.members or {}).items() if n < len(held.get(r, ()))}
    if eviction.keep_members is None or not begun:
        return {"eviction": None}
    gone = {role: None for role in eviction.keep_members if role not in begun}
    return {"eviction": {"keepMembers": {**begun, **gone}}}


def is_taken(owner: run.Run) -> bool:
    """Whether the run controller has begun to carry out the eviction: too late to take it back."""
    keep = runview.kept_members(owner)
    if owner.status.phase not in ("Starting", "Running"):
        return True
    started = owner.status.members or {}
    return bool(keep) and all(started.get(role, 0) <= keep[role] for role in keep)


def _settle_waiting(
    owner: run.Run,
    held: run.Assignment,
    epoch: int,
    takes: Callable[[run.Run, str], bool],
    now: datetime.datetime,
) -> Patch | None:
    """Not started: held ones, and those whose nodes no longer take them, give their room back;
    others are confirmed by today's leader. A Run that starts again at another size takes its room
    along."""
    members = snapshots.kept_room(owner)
    nodes = {member.node for listed in members.values() for member in listed}
    fits = all(takes(owner, node) for node in nodes)
    if held.attempt == owner.status.attempt and (owner.spec.suspend or not fits):
        return {"assignment": None}
    if held.attempt != owner.status.attempt:
        patch: Patch = {"assignment": None}
        if fits:
            patch = {"assignment": _room(owner, _all_told(members), epoch) | _shrunk(owner, now)}
        return patch | ({"eviction": None} if owner.status.eviction else {})
    if held.epoch != epoch or members != held.members:
        return {"assignment": _room(owner, _all_told(members), epoch)}
    return None


def _shrunk(owner: run.Run, now: datetime.datetime) -> Patch:
    """When a Run gave members back that another needed. One whose user asks for fewer members may
    be asked to grow again at once."""
    eviction = owner.status.eviction
    yielded = eviction is not None and eviction.keep_members and eviction.by != BY_USER
    return {"shrunkAt": times.seconds(now)} if yielded else {}


def _settle_growth(
    owner: run.Run, held: run.Assignment, epoch: int, pods: Sequence[run.MemberKey], first: bool
) -> Patch | None:
    """Room for more members that an earlier leader gave and nobody has taken yet."""
    begun = runview.begun_members(owner, pods)
    if not owner.status.members or all(
        len(listed) <= begun.get(role, 0) for role, listed in held.members.items()
    ):
        return None
    members = held.members
    if not first:
        members = {role: listed[: begun.get(role, 0)] for role, listed in members.items()}
    return {"assignment": _room(owner, _all_told(members), epoch)}


def _settle_size(owner: run.Run, held: run.Assignment, now: datetime.datetime) -> Patch | None:
    """Its user wants fewer members than it has, or no longer does."""
    eviction, wish = owner.status.eviction, f"scaled by {BY_USER}"
    sizes = {role.name: role.replicas for role in owner.spec.roles}
    keep = {r: sizes[r] for r, listed in held.members.items() if sizes.get(r, 0) < len(listed)}
    if eviction is not None and eviction.by != BY_USER:
        return None  # somebody else takes more, or will have taken; then it is looked at again
    if not keep:
        return {"eviction": None} if eviction is not None and not is_taken(owner) else None
    if eviction is not None and eviction.keep_members == keep:
        return None
    if eviction is not None and is_taken(owner):
        return None
    gone = {role: None for role in runview.kept_members(owner) if role not in keep}
    return {"eviction": _eviction(owner, BY_USER, wish, keep, now, gone)}


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


def _room(owner: run.Run, members: Mapping[str, Any], epoch: int) -> Patch:
    """A whole assignment; roles of an earlier one do not stay behind: roles never change."""
    names = [role.name for role in owner.spec.roles]
    listed = {role: members[role] for role in names if members.get(role)}
    absent = {role: None for role in names if role not in listed and _has_role(owner, role)}
    return {"attempt": owner.status.attempt, "epoch": epoch, "members": listed | absent}


def _has_role(owner: run.Run, role: str) -> bool:
    rooms = (owner.status.assignment, owner.status.nomination)
    return any(room is not None and role in room.members for room in rooms)


def _by_role(seats: Iterable[facts.Seat]) -> dict[str, list[Patch]]:
    members: dict[str, list[Patch]] = {}
    for seat in sorted(seats, key=lambda seat: (seat.role, seat.index)):
        member: Patch = {"node": seat.node}
        if seat.grants:
            member["devices"] = snapshots.device_names(seat.grants)
        members.setdefault(seat.role, []).append(member)
    return members


def _told(member: run.Member) -> Patch:
    told: Patch = {"node": member.node}
    return told | {"devices": member.devices} if member.devices else told


def _all_told(members: Mapping[str, Sequence[run.Member]]) -> dict[str, list[Patch]]:
    return {role: [_told(member) for member in listed] for role, listed in members.items()}


def _cut(members: Mapping[str, Sequence[run.Member]], keep: Mapping[str, int]) -> Patch:
    return {role: [_told(m) for m in members[role][:n]] for role, n in keep.items()}
