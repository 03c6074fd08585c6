"""The life of a Run: from observations to the next step. Pure: events in, actions out.

One function per phase takes the Run and its pods and returns a `Plan`: at most one change of phase
or one note, pods to create, pods to delete, and when to reconcile again.
`control.runs.controller` executes it. Every step can be repeated: the plan depends only on stored
state, and what pods do not show (started and restarted replicas) is noted before it is done.

    Queued -> Starting -> Running -> Succeeded | Failed | Stopped
    Queued -> Failed, when a dependency can never be met
                 \\___________\\_> Stopping -> the same, or Queued for another attempt
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from windlass.control.model import attempts, dependencies, members, retry, run_view
from windlass.control.model.run_view import Member, Node, View, resizes_live
from windlass.control.runs import pod_template, usage_intervals
from windlass.core.verdicts import formatting
from windlass.kinds.annotations import PINNED
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core
from windlass.kinds.values import duration, times

ALLOWED: dict[str, frozenset[str]] = {
    "Queued": frozenset({"Starting", "Failed", "Stopped"}),
    "Starting": frozenset({"Running", "Stopping", "Queued", "Succeeded", "Failed", "Stopped"}),
    "Running": frozenset({"Stopping", "Queued", "Succeeded", "Failed", "Stopped"}),
    "Stopping": frozenset({"Queued", "Succeeded", "Failed", "Stopped"}),
    "Succeeded": frozenset(),
    "Failed": frozenset(),
    "Stopped": frozenset(),
}
_SHORT = frozenset({Reason.WAITING_FOR_CAPACITY, Reason.WAITING_FOR_DATA})
"""Reasons of a placed Run whose pods cannot be created."""
_NOT_YET = "waiting: "
"""How the message about replicas that have not started begins."""
_PREPARING = "installing packages and unpacking code"
_BY_USER = "stopped by its user"
_PREPARING_AFTER = 1.0
"""Seconds before the preparation of an environment is reported: most are cached."""
_CHECK_AGAIN = 5.0
"""Seconds until pods that could not be created are tried again."""
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
    """Nodes that caused the failure."""
    members: Mapping[str, int] | None = None
    """By role, the number of replicas that start with this step; None: as before."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    move: Move | None = None
    note: Mapping[str, Any] | None = None
    """A status patch without a change of phase, written before any other action."""
    create: pod_template.Pods | tuple[()] = ()
    delete: tuple[core.Pod, ...] = ()
    force: tuple[core.Pod, ...] = ()
    """Pods whose end no node will ever confirm: deleted without waiting, after the move."""
    wake: float | None = None
    """Seconds until the next reconciliation."""
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
    if dependencies.state(owner) == "Never":
        return Plan(move=_end(view, Reason.DEPENDENCY_FAILED, dependencies.failure(owner)))
    wanted = view.wanted
    # The present scheduler first confirms or withdraws an assignment of an earlier leader.
    if owner.spec.suspend or not wanted or not view.is_current():
        return Plan()
    if view.closed:  # the scheduler withdraws the assignment
        return Plan(wake=_CHECK_AGAIN)
    nodes = sorted({member.node for member in wanted.values()})
    message = f"placed on {_some(nodes)}"
    return Plan(move=Move("Starting", Reason.ASSIGNED, message, members=view.sizes))


def _starting(view: View) -> Plan:
    stop = _stop_wanted(view)
    if stop is not None:
        return Plan(move=stop)
    present, wanted = view.present, view.wanted
    ready = [m for m in wanted if m in present and members.has_started(present[m])]
    if ready and len(ready) == len(wanted) and not _outdated(view):
        # Also if all have ended meanwhile: a run that succeeds has run, and its history shows it.
        message = f"{len(ready)} running{_device_choice_note(view)}"
        return Plan(move=Move("Running", Reason.MEMBERS_RUNNING, message, members=view.sizes))
    early = _shrink(view) or _outcome(view) or _left(view)
    if early is not None:
        return early
    limit = view.owner.spec.duration and view.owner.spec.duration.start
    late = _until(view, limit or None, "did not start within --start-timeout", "start")
    if late.move is not None:
        return dataclasses.replace(late, move=_with_cause(view, late.move))
    note, again = _blocked_message(view)
    if note is not None:
        return Plan(note={"message": note})
    wake = min((each for each in (late.wake, again) if each is not None), default=None)
    return _keep_whole(view, [member for member in wanted if member not in present], wake)


def _blocked_message(view: View) -> tuple[str | None, float | None]:
    """The message about replicas that have not started, if it is new; and when to check again."""
    status, message, again = view.owner.status, "", None
    for (role, index), pod in sorted(view.present.items()):
        since = members.preparing_since(pod)
        if blocked := members.blocked(pod):
            message = f"{_NOT_YET}{role} {index}: {blocked}"
            break
        if since and (again := _PREPARING_AFTER - view.seconds_since(since)) <= 0:
            message, again = _awaited(view), None
    if message:
        return (message if message != status.message else None), again
    if _is_about_waiting(status.message) and status.history:
        return status.history[-1].message, again
    return None, again


def _awaited(view: View) -> str:
    """What preparing replicas wait for: a replica has an address once its node has accepted it, and
    each waits for all of them."""
    without = [
        member
        for member, pod in sorted(view.present.items())
        if not pod.status.pod_ip and not members.preparing_since(pod)
    ]
    if view.context.engine.images and without:
        role, index = without[0]
        return f"{_NOT_YET}{role} {index} has no address yet"
    return _PREPARING


def _is_about_waiting(message: str) -> bool:
    return message.startswith(_NOT_YET) or message == _PREPARING


def _with_cause(view: View, move: Move) -> Move:
    """A start that timed out, with its known cause."""
    cause = view.owner.status.message
    if not _is_about_waiting(cause):
        return move
    return dataclasses.replace(move, message=f"{move.message}: {cause.removeprefix(_NOT_YET)}")


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
    late = _until(view, limit or None, "exceeded --timeout", "max")
    if late.move is not None:
        return late
    sizes = view.sizes
    if not missing and any(sizes[role] > started.get(role, 0) for role in sizes):
        return Plan(note={"members": sizes})
    granted = _granted(view)
    if granted is not None:
        return Plan(note={"granted": granted})
    return _keep_whole(view, missing, late.wake)


def _device_choice_note(view: View) -> str:
    """A note where links or locality of devices matter, and the node's plug-in chooses the
    devices."""
    if not view.context.engine.images:
        return ""
    several = any((d.count or 1) > 1 for r in view.owner.spec.roles for d in r.devices or ())
    has_devices = any(member.devices for member in view.wanted.values())
    matters = has_devices and (several or view.owner.spec.placement.bundle is not None)
    return "; the node of each replica chose its devices" if matters else ""


def _granted(view: View) -> dict[str, list[str] | None] | None:
    """The devices that nodes granted, once all replicas with devices have them; None: nothing new.
    As a merge patch: entries of deleted replicas are removed."""
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
    """Waits until every pod is confirmed as deleted, or no node can ever confirm it."""
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
        message = (
            f"{message}; replicas on {_some(nodes)}, which does not report, may have run twice"
        )
    move = _end(view, Reason(status.reason), message, status.exit_code)
    return Plan(move=move, force=(*gone, *lost))


def _finished(view: View) -> Plan:
    """Deletes leftover pods; nothing else happens."""
    strays = _clear(view, view.active)
    ttl = view.owner.spec.ttl_after_finished
    pinned = (view.owner.metadata.annotations or {}).get(PINNED) == "true"
    if ttl is None or pinned or view.owner.metadata.deletion_timestamp:
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
    """Ends that come from outside: a user, the scheduler, a node."""
    owner, eviction = view.owner, view.owner.status.eviction
    if owner.metadata.deletion_timestamp:
        return _stop_or_end(view, Reason.USER_STOPPED, "deleted")
    if owner.spec.stop:
        return _stop_or_end(view, Reason.USER_STOPPED, _BY_USER)
    if owner.spec.suspend:
        return _stop_or_end(view, Reason.SUSPENDED, "suspended by spec.suspend")
    if eviction is not None and eviction.keep_members is None:
        return _stop_or_end(view, Reason.PREEMPTED, eviction.reason)
    return _lost_node(view) or _resize_by_restart(view)


def _lost_node(view: View) -> Move | None:
    if not view.nodes:
        return None
    present = view.present
    for member, place in sorted(view.wanted.items(), key=lambda each: each[0]):
        pod, node = present.get(member), view.node(place.node)
        if node.state in ("lost", "gone") and (pod is None or members.is_active(pod)):
            how = "is gone" if node.state == "gone" else "is silent"
            return _stop_or_end(
                view, Reason.NODE_LOST, f"node {place.node} {how}", avoid=(place.node,)
            )
    return None


def _resize_by_restart(view: View) -> Move | None:
    """Some role has more or fewer assigned places than replicas and cannot be resized while it
    runs."""
    started, sizes = view.started, view.sizes
    for role, size in sizes.items():
        known = started.get(role, size)
        grows = size > known and view.owner.status.phase == "Running"
        if (grows or size < known) and not resizes_live(view.owner, role):
            message = f"with {formatting.count(size, role)} instead of {known}"
            eviction = view.owner.status.eviction
            if size < known and eviction is not None and role in (eviction.keep_members or ()):
                joined = " " if eviction.reason.startswith(run_view.FOR) else ", "
                message += f"{joined}{eviction.reason}"
            return _stop_or_end(view, Reason.RESIZED, message)
    return _outgrown(view)


def _outgrown(view: View) -> Move | None:
    """Some role has more replicas than ports: the next attempt gets a new block. Running replicas
    know the ports of all, so no port is moved."""
    if not view.present or view.context.engine.addresses != "node":
        return None
    block = view.context.ports
    total = sum(view.sizes.values())
    for role, size in view.sizes.items():
        if block is not None and size > block.size_for(role):
            ports = f"it has ports for {block.size_for(role)}"
        elif block is None and total > 1:
            ports = "it has no ports"
        else:
            continue
        message = f"with {size} {role}: {ports}, and more only with a new start"
        return _stop_or_end(view, Reason.RESIZED, message)
    return None


def _outcome(view: View) -> Plan | None:
    """The result of the attempt, if it has ended: the first failed replica decides, else
    completion."""
    present, wanted = view.present, view.wanted
    outdated = _outdated(view)
    for member in sorted(wanted.keys() & present.keys() - outdated):
        pod = present[member]
        if members.state(pod) == "failed":
            return _failed(view, member, pod)
    if _is_complete(view, present):
        message = f"{run_view.SUCCESS}{_memory_warning(present.values())}"
        return Plan(move=_stop_or_end(view, Reason.COMPLETED, message, 0))
    return None


def _memory_warning(pods: Iterable[core.Pod]) -> str:
    names = sorted(pod.name for pod in pods if members.lost_processes(pod))
    if not names:
        return ""
    return (
        f", but processes in {_some(names)} were killed for exceeding the memory limit: results "
        "may be incomplete; use more --memory"
    )


def _failed(view: View, member: Member, pod: core.Pod) -> Plan:
    if pod.metadata.deletion_timestamp:
        return Plan(move=_stop_or_end(view, Reason.NODE_LOST, f"{pod.name} was deleted"))
    reason, message, exit_code = members.failure(pod)
    again = retry.restart(view, member, reason)
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
    avoid = (node,) if node and reason in retry.BLAMES_NODE else ()
    return Plan(move=_stop_or_end(view, reason, message, exit_code, avoid))


def _is_complete(view: View, present: Mapping[Member, core.Pod]) -> bool:
    spec = view.owner.spec
    if spec.placement.gang:
        deciding = list(view.wanted)
    else:  # Replicas start one by one: it is complete when the last of them has run, too.
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
    """Through Stopping while pods are active, else directly to the next phase."""
    if view.active:
        return Move("Stopping", reason, message, exit_code, avoid=avoid)
    return dataclasses.replace(_end(view, reason, message, exit_code), avoid=avoid)


def _end(view: View, reason: Reason, message: str, exit_code: int | None = None) -> Move:
    cost = retry.cost(view.owner, reason)
    if cost is None:
        return Move(_END.get(reason, "Failed"), reason, message, exit_code)
    if cost:
        limit = view.owner.spec.retries.limit
        message = f"{message}; retry {view.owner.status.retries + cost} of {limit}"
    return Move("Queued", reason, message, exit_code, next_attempt=True, cost=cost)


def _until(view: View, limit: str | None, what: str, field: str) -> Plan:
    if limit is None:
        return Plan()
    left = duration.milliseconds(limit) / 1000 - view.seconds_in_phase()
    if left > 0:
        return Plan(wake=left)
    return Plan(move=_stop_or_end(view, Reason.TIMEOUT, f"{what} {limit} (spec.duration.{field})"))


def _lost_after(view: View, pods: Iterable[core.Pod]) -> float:
    """Seconds until pods on silent nodes count as lost."""
    limit = duration.milliseconds(view.owner.spec.retries.lost_after) / 1000
    return limit - min(_silent_for(view, view.node_of(pod)) for pod in pods)


def _silent_for(view: View, node: Node) -> float:
    """Seconds for which a node has not been ready. A new leader goes on counting from the time in
    the object."""
    return max(node.silent, view.seconds_since(node.since) if node.since else 0.0)


# --- replicas that join and leave within an attempt -----------------------------------------------


def _shrink(view: View) -> Plan | None:
    """Removes replicas above the assigned size: noted first, so that the scheduler does not
    withdraw an eviction that has taken effect, then deleted."""
    started, sizes = view.started, view.sizes
    fewer = {role: sizes.get(role, 0) for role in started if sizes.get(role, 0) < started[role]}
    return Plan(note={"members": {**started, **fewer}}) if fewer else None


def _left(view: View) -> Plan | None:
    """Ends the usage intervals of removed replicas once the scheduler has freed their capacity."""
    intervals = usage_intervals.left(view)
    return None if intervals is None else Plan(note={"held": msgspec.to_builtins(intervals)})


def _surplus(view: View) -> tuple[core.Pod, ...]:
    """Pods of replicas that are no longer wanted, or are restarted."""
    present, wanted = view.present, view.wanted
    unwanted = [present[member] for member in sorted(present.keys() - wanted.keys())]
    outdated = [present[member] for member in sorted(_outdated(view))]
    return _unasked([*unwanted, *outdated, *view.older])


def _outdated(view: View) -> set[Member]:
    """Replicas whose pods were created before their last restart."""
    if not view.owner.status.restarted:
        return set()
    return {
        member
        for member, pod in view.present.items()
        if members.restart_of(pod) < view.restart_of(member)
    }


def _keep_whole(view: View, missing: Sequence[Member], wake: float | None) -> Plan:
    """Creates the pods of replicas that joined or restart, deletes those of others."""
    pause = retry.restart_pause(view)
    due = [member for member in missing if pause <= 0 or not view.restart_of(member)]
    if len(due) < len(missing):
        wake = pause if wake is None else min(pause, wake)
    if due and (view.context.blocked.message or view.owner.status.reason in _SHORT):
        return _short(view, view.context.blocked, wake)
    return Plan(create=_pods(view, due), delete=_surplus(view), wake=wake)


def _short(view: View, blocked: attempts.BlockedReason, wake: float | None) -> Plan:
    """No pod can be created now: writes the reason once and tries again; or ends the attempt."""
    status = view.owner.status
    reason, problem = blocked.reason, blocked.message
    if blocked.final:
        return Plan(move=_stop_or_end(view, reason, problem))
    if not problem:
        before = [(step.reason, step.message) for step in status.history or ()] or [("", "")]
        return Plan(note=dict(zip(("reason", "message"), before[-1], strict=True)))
    if (status.reason, status.message) != (reason, problem):
        return Plan(note={"reason": reason, "message": problem})
    wake = _CHECK_AGAIN if wake is None else min(_CHECK_AGAIN, wake)
    return Plan(delete=_surplus(view), wake=wake)


def _pods(view: View, wanted: Sequence[Member]) -> pod_template.Pods | tuple[()]:
    if not wanted:
        return ()
    chosen = {member: view.wanted[member] for member in wanted}
    restarts = {member: view.restart_of(member) for member in wanted}
    return pod_template.Pods(view.owner, chosen, view.context, restarts)


def _clear(view: View, pods: Sequence[core.Pod]) -> Plan:
    """Deletes leftover pods; if their node is lost, without confirmation."""
    alive = [pod for pod in pods if view.node_of(pod).state == "ready"]
    silent = tuple(pod for pod in pods if view.node_of(pod).state != "ready")
    return Plan(delete=_unasked(alive), force=silent)


def _unasked(pods: Iterable[core.Pod]) -> tuple[core.Pod, ...]:
    return tuple(pod for pod in pods if not pod.metadata.deletion_timestamp)


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
