"""The life of a Run: from what is observed to the next step. Pure: events in, actions out.

One function per phase looks at the Run and its pods and answers with a `Plan`: at most one change
of phase or one note, pods to create, pods to delete, and when to look again. `control.runs` carries
it out. Every step can be repeated: the plan depends only on what is stored, and what cannot be
seen from pods (who was started, who is started again) is noted before it is done.

    Queued -> Starting -> Running -> Succeeded | Failed | Stopped
                 \\___________\\_> Stopping -> the same, or Queued for another attempt
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from windlass.control import holding, members, podrender, retrying
from windlass.control.runview import Member, View, resizes_live
from windlass.kinds import duration, kubernetes, times
from windlass.kinds.reasons import Reason

ALLOWED: dict[str, frozenset[str]] = {
    "Queued": frozenset({"Starting", "Stopped"}),
    "Starting": frozenset({"Running", "Stopping", "Queued", "Succeeded", "Failed", "Stopped"}),
    "Running": frozenset({"Stopping", "Queued", "Succeeded", "Failed", "Stopped"}),
    "Stopping": frozenset({"Queued", "Succeeded", "Failed", "Stopped"}),
    "Succeeded": frozenset(),
    "Failed": frozenset(),
    "Stopped": frozenset(),
}
_SHORT = frozenset({Reason.WAITING_FOR_CAPACITY, Reason.WAITING_FOR_DATA})
"""What a Run that has room is told while its pods cannot be made."""
_NOT_YET = "not all members run yet: "
_BY_USER = "stopped by its user"
_PREPARING_AFTER = 1.0
"""Seconds after which it is told that an environment is being made: most are there already."""
_LOOK_AGAIN = 5.0
"""Seconds until pods that could not be made are tried again."""
_END = {Reason.COMPLETED: "Succeeded", Reason.USER_STOPPED: "Stopped"}


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A change of phase."""

    to: str
    reason: str
    message: str
    exit_code: int | None = None
    next_attempt: bool = False
    cost: int = 0
    """Retries that the next attempt costs."""
    avoid: tuple[str, ...] = ()
    """Nodes that are to blame."""
    members: Mapping[str, int] | None = None
    """By role, how many are started with this step; None: as before."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    move: Move | None = None
    note: Mapping[str, Any] | None = None
    """What to write into the status without a change of phase, before anything else is done."""
    create: podrender.Pods | tuple[()] = ()
    delete: tuple[kubernetes.Pod, ...] = ()
    force: tuple[kubernetes.Pod, ...] = ()
    """Pods that nobody will ever confirm to be gone: deleted without waiting, after the move."""
    wake: float | None = None
    """Seconds after which to look again."""
    delete_run: bool = False


def plan(view: View) -> Plan:
    """The next step."""
    phase = view.owner.status.phase
    made = _STEPS[phase](view)
    if made.move is not None:
        assert made.move.to in ALLOWED[phase], f"{phase} -> {made.move.to}"  # noqa: S101
    return made


# --- one function per phase -----------------------------------------------------------------------


def _queued(view: View) -> Plan:
    owner = view.owner
    if owner.metadata.deletion_timestamp:
        return Plan(move=_end(view, Reason.USER_STOPPED, "deleted"))
    if owner.spec.stop:
        return Plan(move=_end(view, Reason.USER_STOPPED, _BY_USER))
    if view.older:
        return _clear(view, view.older)
    wanted = view.wanted
    # Room that an earlier leader gave is re-affirmed or withdrawn by today's scheduler first.
    if owner.spec.suspend or not wanted or not view.is_current():
        return Plan()
    if view.closed:  # the scheduler takes the room back
        return Plan(wake=_LOOK_AGAIN)
    nodes = sorted({member.node for member in wanted.values()})
    words = f"placed on {_some(nodes)}"
    return Plan(move=Move("Starting", Reason.ASSIGNED, words, members=view.sizes))


def _starting(view: View) -> Plan:
    stop = _stop_wanted(view)
    if stop is not None:
        return Plan(move=stop)
    present, wanted = view.present, view.wanted
    ready = [m for m in wanted if m in present and members.has_started(present[m])]
    if ready and len(ready) == len(wanted) and not _outdated(view):
        # Also when all have ended meanwhile: a run that succeeds has run, and its history says so.
        words = f"{len(ready)} running{_whose_choice(view)}"
        return Plan(move=Move("Running", Reason.MEMBERS_RUNNING, words, members=view.sizes))
    early = _shrink(view) or _outcome(view) or _left(view)
    if early is not None:
        return early
    limit = view.owner.spec.duration and view.owner.spec.duration.start
    late = _until(view, limit or None, "did not start within spec.duration.start")
    if late.move is not None:
        return dataclasses.replace(late, move=_with_hindrance(view, late.move))
    told, again = _hindered(view)
    if told is not None:
        return Plan(note={"message": told})
    wake = min((each for each in (late.wake, again) if each is not None), default=None)
    return _keep_whole(view, [member for member in wanted if member not in present], wake)


def _hindered(view: View) -> tuple[str | None, float | None]:
    """What to tell of members that have not started, if that is new; and when to look again."""
    status, words, again = view.owner.status, "", None
    for (role, index), pod in sorted(view.present.items()):
        since = members.preparing_since(pod)
        if hindrance := members.hindrance(pod):
            words = f"{_NOT_YET}{role} {index}: {hindrance}"
            break
        if since and (again := _PREPARING_AFTER - view.seconds_since(since)) <= 0:
            words, again = f"{_NOT_YET}{_awaited(view)}", None
    if words:
        return (words if words != status.message else None), again
    if status.message.startswith(_NOT_YET) and status.history:
        return status.history[-1].message, again
    return None, again


def _awaited(view: View) -> str:
    """What members that prepare themselves wait for: others have an address when their node has
    taken them, and all of them are waited for."""
    without = [
        member
        for member, pod in sorted(view.present.items())
        if not pod.status.pod_ip and not members.preparing_since(pod)
    ]
    if view.setting.engine.images and without:
        role, index = without[0]
        return f"{role} {index} has no address yet"
    return "its environment and code are being made"


def _with_hindrance(view: View, move: Move) -> Move:
    """A start that took too long, with what was known to keep it."""
    told = view.owner.status.message
    if not told.startswith(_NOT_YET):
        return move
    return dataclasses.replace(move, message=f"{move.message}: {told.removeprefix(_NOT_YET)}")


def _running(view: View) -> Plan:
    stop = _stop_wanted(view)
    if stop is not None:
        return Plan(move=stop)
    early = _shrink(view) or _outcome(view) or _left(view)
    if early is not None:
        return early
    present, started = view.present, view.started
    missing = sorted(member for member in view.wanted if member not in present)
    for role, index in missing:
        if index < started.get(role, 0) and not view.restart_of((role, index)):
            message = f"the pod of {role} {index} was deleted"
            return Plan(move=_stop_or_end(view, Reason.NODE_LOST, message))
    limit = view.owner.spec.duration and view.owner.spec.duration.max
    late = _until(view, limit or None, "ran longer than spec.duration.max")
    if late.move is not None:
        return late
    sizes = view.sizes
    if not missing and any(sizes[role] > started.get(role, 0) for role in sizes):
        return Plan(note={"members": sizes})
    granted = _granted(view)
    if granted is not None:
        return Plan(note={"granted": granted})
    return _keep_whole(view, missing, late.wake)


def _whose_choice(view: View) -> str:
    """Where links or nearness of devices matter, and the node's plug-in chooses which they are."""
    if not view.setting.engine.images:
        return ""
    several = any((d.count or 1) > 1 for r in view.owner.spec.roles for d in r.devices or ())
    held = any(member.devices for member in view.wanted.values())
    matters = held and (several or view.owner.spec.placement.bundle is not None)
    return "; which devices each member got is its node's choice" if matters else ""


def _granted(view: View) -> dict[str, list[str] | None] | None:
    """What nodes gave to members, once all that hold devices were told; None: nothing new. As a
    merge patch: who is gone goes."""
    found: dict[str, list[str] | None] = {}
    for (role, index), member in view.wanted.items():
        pod = view.present.get((role, index))
        names = members.granted_devices(pod) if pod else []
        if names:
            found[f"{role}/{index}"] = names
        elif member.devices:
            return None
    known = view.owner.status.granted or {}
    return dict.fromkeys(known) | found if found != known else None


def _stopping(view: View) -> Plan:
    """Waits until every pod is known to be gone, or nobody can ever tell."""
    gone = [pod for pod in view.active if view.node_of(pod).state == "gone"]
    lost = [pod for pod in view.active if view.node_of(pod).state == "lost"]
    if len(gone) + len(lost) < len(view.active):
        return Plan(delete=_unasked(view.active), force=tuple(gone))
    status, message = view.owner.status, view.owner.status.message
    if lost:
        left = _lost_after(view, lost)
        if left > 0:
            return Plan(delete=_unasked(lost), force=tuple(gone), wake=left)
        nodes = sorted({pod.spec.node_name or "" for pod in lost})
        message = f"{message}; members on {_some(nodes)}, which is silent, may have run twice"
    move = _end(view, Reason(status.reason), message, status.exit_code)
    return Plan(move=move, force=(*gone, *lost))


def _finished(view: View) -> Plan:
    """Nothing more happens, but what should be gone goes."""
    strays = _clear(view, view.active)
    ttl = view.owner.spec.ttl_after_finished
    if ttl is None or view.owner.metadata.deletion_timestamp:
        return strays
    left = duration.milliseconds(ttl) / 1000 - view.seconds_in_phase()
    if left > 0:
        return dataclasses.replace(strays, wake=left)
    return dataclasses.replace(strays, delete_run=True)


_STEPS: dict[str, Callable[[View], Plan]] = {
    "Queued": _queued,
    "Starting": _starting,
    "Running": _running,
    "Stopping": _stopping,
    "Succeeded": _finished,
    "Failed": _finished,
    "Stopped": _finished,
}


# --- why an attempt ends --------------------------------------------------------------------------


def _stop_wanted(view: View) -> Move | None:
    """What somebody else wants, or did."""
    owner, eviction = view.owner, view.owner.status.eviction
    if owner.metadata.deletion_timestamp:
        return _stop_or_end(view, Reason.USER_STOPPED, "deleted")
    if owner.spec.stop:
        return _stop_or_end(view, Reason.USER_STOPPED, _BY_USER)
    if owner.spec.suspend:
        return _stop_or_end(view, Reason.SUSPENDED, "held by spec.suspend")
    if eviction is not None and eviction.keep_members is None:
        return _stop_or_end(view, Reason.PREEMPTED, eviction.reason)
    return _lost_node(view) or _resize_by_restart(view)


def _lost_node(view: View) -> Move | None:
    if not view.nodes:
        return None
    present = view.present
    for member, room in sorted(view.wanted.items(), key=lambda each: each[0]):
        pod, node = present.get(member), view.node(room.node)
        if node.state in ("lost", "gone") and (pod is None or members.is_active(pod)):
            how = "is gone" if node.state == "gone" else "is silent"
            return _stop_or_end(
                view, Reason.NODE_LOST, f"node {room.node} {how}", avoid=(room.node,)
            )
    return None


def _resize_by_restart(view: View) -> Move | None:
    """Some role has more or less room than members and cannot change its size while it runs."""
    started, sizes = view.started, view.sizes
    for role, size in sizes.items():
        known = started.get(role, size)
        grows = size > known and view.owner.status.phase == "Running"
        if (grows or size < known) and not resizes_live(view.owner, role):
            return _stop_or_end(view, Reason.RESIZED, f"with {size} {role} instead of {known}")
    return _outgrown(view)


def _outgrown(view: View) -> Move | None:
    """Some role has room for more members than there are ports for: the next attempt gets its
    own. Those who run were told the ports of all, so nobody's are moved."""
    if not view.present or view.setting.engine.addresses != "node":
        return None
    block = view.setting.ports
    total = sum(view.sizes.values())
    for role, size in view.sizes.items():
        if block is not None and size > block.room(role):
            ports = f"it has ports for {block.room(role)}"
        elif block is None and total > 1:
            ports = "it has no ports"
        else:
            continue
        words = f"with {size} {role}: {ports}, and more only with a new start"
        return _stop_or_end(view, Reason.RESIZED, words)
    return None


def _outcome(view: View) -> Plan | None:
    """How the attempt ended, if it did: the first failed member decides, else completion."""
    present, wanted = view.present, view.wanted
    outdated = _outdated(view)
    for member in sorted(wanted.keys() & present.keys() - outdated):
        pod = present[member]
        if members.state(pod) == "failed":
            return _failed(view, member, pod)
    if _is_complete(view, present):
        return Plan(move=_stop_or_end(view, Reason.COMPLETED, "ended with success", 0))
    return None


def _failed(view: View, member: Member, pod: kubernetes.Pod) -> Plan:
    if pod.metadata.deletion_timestamp:
        return Plan(move=_stop_or_end(view, Reason.NODE_LOST, f"{pod.name} was deleted"))
    reason, message, exit_code = members.failure(pod)
    again = retrying.restart(view, member, reason)
    if again is not None:
        what, number = again
        limit = view.owner.spec.retries.limit
        note = {
            "restarts": number,
            "restarted": {**(view.owner.status.restarted or {}), what: number},
            "restartedAt": times.seconds(view.now),
            "message": f"{message}; {what} starts again, {number} of {limit}",
        }
        return Plan(note=note)
    node = pod.spec.node_name or ""
    avoid = (node,) if node and reason in retrying.BLAMES_NODE else ()
    return Plan(move=_stop_or_end(view, reason, message, exit_code, avoid))


def _is_complete(view: View, present: Mapping[Member, kubernetes.Pod]) -> bool:
    spec = view.owner.spec
    if spec.placement.gang:
        deciding = list(view.wanted)
    else:  # Members come one by one: it is complete when the last of them was there, too.
        deciding = [(role.name, index) for role in spec.roles for index in range(role.replicas)]
    if spec.completion is not None:
        deciding = [member for member in deciding if member[0] == spec.completion.role]
    return bool(deciding) and all(
        member in present and members.state(present[member]) == "succeeded" for member in deciding
    )


def _stop_or_end(
    view: View,
    reason: Reason,
    message: str,
    exit_code: int | None = None,
    avoid: tuple[str, ...] = (),
) -> Move:
    """Through Stopping while pods are active, else straight to what follows."""
    if view.active:
        return Move("Stopping", reason, message, exit_code, avoid=avoid)
    return dataclasses.replace(_end(view, reason, message, exit_code), avoid=avoid)


def _end(view: View, reason: Reason, message: str, exit_code: int | None = None) -> Move:
    cost = retrying.cost(view.owner, reason)
    if cost is None:
        return Move(_END.get(reason, "Failed"), reason, message, exit_code)
    if cost:
        limit = view.owner.spec.retries.limit
        message = f"{message}; retry {view.owner.status.retries + cost} of {limit}"
    return Move("Queued", reason, message, exit_code, next_attempt=True, cost=cost)


def _until(view: View, limit: str | None, what: str) -> Plan:
    if limit is None:
        return Plan()
    left = duration.milliseconds(limit) / 1000 - view.seconds_in_phase()
    if left > 0:
        return Plan(wake=left)
    return Plan(move=_stop_or_end(view, Reason.TIMEOUT, f"{what} ({limit})"))


def _lost_after(view: View, pods: Iterable[kubernetes.Pod]) -> float:
    """Seconds until pods on silent nodes are given up."""
    limit = duration.milliseconds(view.owner.spec.retries.lost_after) / 1000
    silent = [view.node_of(pod).since for pod in pods]
    since = min([view.seconds_in_phase(), *(view.seconds_since(at) for at in silent if at)])
    return limit - since


# --- members that come and go within an attempt ---------------------------------------------------


def _shrink(view: View) -> Plan | None:
    """Members above what it may keep are given up: noted first, so that whoever takes back the
    eviction knows that it is too late, then told to go."""
    started, sizes = view.started, view.sizes
    fewer = {role: sizes.get(role, 0) for role in started if sizes.get(role, 0) < started[role]}
    return Plan(note={"members": {**started, **fewer}}) if fewer else None


def _left(view: View) -> Plan | None:
    """Members whose room was taken back hold it no longer."""
    held = holding.left(view)
    return None if held is None else Plan(note={"held": msgspec.to_builtins(held)})


def _surplus(view: View) -> tuple[kubernetes.Pod, ...]:
    """Pods of members that are no longer wanted, or are to be made anew."""
    present, wanted = view.present, view.wanted
    unwanted = [present[member] for member in sorted(present.keys() - wanted.keys())]
    outdated = [present[member] for member in sorted(_outdated(view))]
    return _unasked([*unwanted, *outdated, *view.older])


def _outdated(view: View) -> set[Member]:
    """Members whose pods were made before their last restart."""
    if not view.owner.status.restarted:
        return set()
    return {
        member
        for member, pod in view.present.items()
        if members.restart_of(pod) < view.restart_of(member)
    }


def _keep_whole(view: View, missing: Sequence[Member], wake: float | None) -> Plan:
    """Makes the pods of members that joined or start again, deletes those of others."""
    pause = retrying.restart_pause(view)
    due = [member for member in missing if pause <= 0 or not view.restart_of(member)]
    if len(due) < len(missing):
        wake = pause if wake is None else min(pause, wake)
    if due and (view.setting.hindrance.words or view.owner.status.reason in _SHORT):
        return _short(view, view.setting.hindrance, wake)
    return Plan(create=_pods(view, due), delete=_surplus(view), wake=wake)


def _short(view: View, hindrance: podrender.Hindrance, wake: float | None) -> Plan:
    """No pod can be made now: says so once and looks again; and when it is over, that it is."""
    status = view.owner.status
    reason, problem = hindrance.reason, hindrance.words
    if hindrance.final:
        return Plan(move=_stop_or_end(view, reason, problem))
    if not problem:
        before = [(step.reason, step.message) for step in status.history or ()] or [("", "")]
        return Plan(note=dict(zip(("reason", "message"), before[-1], strict=True)))
    if (status.reason, status.message) != (reason, problem):
        return Plan(note={"reason": reason, "message": problem})
    wake = _LOOK_AGAIN if wake is None else min(_LOOK_AGAIN, wake)
    return Plan(delete=_surplus(view), wake=wake)


def _pods(view: View, wanted: Sequence[Member]) -> podrender.Pods | tuple[()]:
    if not wanted:
        return ()
    chosen = {member: view.wanted[member] for member in wanted}
    restarts = {member: view.restart_of(member) for member in wanted}
    return podrender.Pods(view.owner, chosen, view.setting, restarts)


def _clear(view: View, pods: Sequence[kubernetes.Pod]) -> Plan:
    """Pods that should not be there any more; where their node is lost nobody confirms it."""
    alive = [pod for pod in pods if view.node_of(pod).state == "ready"]
    silent = tuple(pod for pod in pods if view.node_of(pod).state != "ready")
    return Plan(delete=_unasked(alive), force=silent)


def _unasked(pods: Iterable[kubernetes.Pod]) -> tuple[kubernetes.Pod, ...]:
    return tuple(pod for pod in pods if not pod.metadata.deletion_timestamp)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
