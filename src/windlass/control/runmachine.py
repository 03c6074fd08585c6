"""The life of a Run: from what is observed to the next step. Pure: events in, actions out.

One function per phase looks at the Run and its pods and answers with a `Plan`: at most one change
of phase, pods to create, pods to delete, and when to look again. `control.runs` carries it out.
Every step can be repeated: the plan depends only on what is stored.

    Queued -> Starting -> Running -> Succeeded | Failed | Stopped
                 \\___________\\_> Stopping -> the same, or Queued for another attempt
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence

from windlass.control import members, podrender
from windlass.kinds import duration, kubernetes, run, times
from windlass.kinds.reasons import Reason

FIRST_RETRY, LONGEST_RETRY = 5.0, 300.0
"""Seconds before a failed run is placed again: doubling with each attempt."""

ALLOWED: dict[str, frozenset[str]] = {
    "": frozenset({"Queued"}),
    "Queued": frozenset({"Starting", "Stopped"}),
    "Starting": frozenset({"Running", "Stopping", "Queued", "Succeeded", "Failed", "Stopped"}),
    "Running": frozenset({"Stopping", "Queued", "Succeeded", "Failed", "Stopped"}),
    "Stopping": frozenset({"Queued", "Succeeded", "Failed", "Stopped"}),
    "Succeeded": frozenset(),
    "Failed": frozenset(),
    "Stopped": frozenset(),
}

_RETRY_CAUSE = {
    Reason.NODE_LOST: "NodeLost",
    Reason.AGENT_LOST: "NodeLost",
    Reason.PREEMPTED: "Preempted",
    Reason.CODE_FAILED: "Failed",
    Reason.OUT_OF_MEMORY: "Failed",
}
_END = {Reason.COMPLETED: "Succeeded", Reason.USER_STOPPED: "Stopped"}


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A change of phase."""

    to: str
    reason: str
    message: str
    exit_code: int | None = None
    next_attempt: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    move: Move | None = None
    create: tuple[kubernetes.Pod, ...] = ()
    delete: tuple[kubernetes.Pod, ...] = ()
    wake: float | None = None
    """Seconds after which to look again."""
    delete_run: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """What a step looks at."""

    owner: run.Run
    pods: Sequence[kubernetes.Pod]
    """All that the Run owns, of whatever attempt."""
    epoch: int
    now: datetime.datetime

    @property
    def active(self) -> list[kubernetes.Pod]:
        return [pod for pod in self.pods if members.is_active(pod)]

    def wanted(self) -> dict[tuple[str, int], run.Member]:
        """The members of this attempt's assignment, by role and index."""
        assignment = self.owner.status.assignment
        if assignment is None or assignment.attempt != self.owner.status.attempt:
            return {}
        return {
            (role, index): member
            for role, listed in assignment.members.items()
            for index, member in enumerate(listed)
        }

    def present(self) -> dict[tuple[str, int], kubernetes.Pod]:
        """This attempt's pods, by role and index."""
        found: dict[tuple[str, int], kubernetes.Pod] = {}
        for pod in self.pods:
            key = members.key_of(pod)
            if key is not None and key.attempt == self.owner.status.attempt:
                found[key.role, key.index] = pod
        return found

    def seconds_in_phase(self) -> float:
        return (self.now - phase_since(self.owner, self.now)).total_seconds()


def plan(view: View) -> Plan:
    """The next step."""
    if not view.owner.status.history:
        return Plan(move=Move("Queued", "", "submitted"))
    made = _STEPS[view.owner.status.phase](view)
    if made.move is not None:
        allowed = ALLOWED[view.owner.status.phase]
        assert made.move.to in allowed, f"{view.owner.status.phase} -> {made.move.to}"  # noqa: S101
    return made


def phase_since(owner: run.Run, default: datetime.datetime) -> datetime.datetime:
    """When the Run entered its phase."""
    history = owner.status.history or ()
    return times.parse(history[-1].at) if history else default


def retry_at(owner: run.Run) -> float:
    """Unix time before which a Run that failed must not be placed again; 0 if it may at once."""
    history = owner.status.history or ()
    if owner.status.phase != "Queued" or not history or history[-1].reason not in _RETRY_CAUSE:
        return 0.0
    pause = min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(retries_used(owner) - 1, 20))
    return times.parse(history[-1].at).timestamp() + pause


def retries_used(owner: run.Run) -> int:
    """Attempts that were spent on failures; being held and released costs none."""
    held = sum(
        1
        for step in owner.status.history or ()
        if step.to_phase == "Queued" and step.reason == Reason.SUSPENDED
    )
    return max(0, owner.status.attempt - held)


def _queued(view: View) -> Plan:
    if view.owner.metadata.deletion_timestamp:
        return Plan(move=_end(view, Reason.USER_STOPPED, "deleted", None))
    assignment = view.owner.status.assignment
    wanted = view.wanted()
    if view.owner.spec.suspend or assignment is None or not wanted:
        return Plan()
    if assignment.epoch != view.epoch:
        # Decided by an earlier leader: this one's scheduler re-affirms or withdraws it first.
        return Plan()
    nodes = sorted({member.node for member in wanted.values()})
    return Plan(move=Move("Starting", Reason.ASSIGNED, f"placed on {_some(nodes)}"))


def _starting(view: View) -> Plan:
    present, wanted = view.present(), view.wanted()
    started = [key for key in wanted if key in present and members.has_started(present[key])]
    if started and len(started) == len(wanted) and not _stop_wanted(view):
        # Also when all have ended meanwhile: a run that succeeds has run, and its history says so.
        return Plan(move=Move("Running", Reason.MEMBERS_RUNNING, f"{len(started)} running"))
    early = _stop_wanted(view) or _outcome(view)
    if early is not None:
        return Plan(move=early)
    roles = {role.name: role for role in view.owner.spec.roles}
    missing = [
        podrender.pod_of(view.owner, roles[role], index, member)
        for (role, index), member in sorted(wanted.items())
        if (role, index) not in present
    ]
    if missing:
        return Plan(create=tuple(missing))
    limit = view.owner.spec.duration and view.owner.spec.duration.start
    return _until(view, limit or None, "did not start within spec.duration.start")


def _running(view: View) -> Plan:
    early = _stop_wanted(view) or _outcome(view)
    if early is not None:
        return Plan(move=early)
    lost = sorted(view.wanted().keys() - view.present().keys())
    if lost:
        role, index = lost[0]
        message = f"the pod of {role} {index} was deleted"
        return Plan(move=_stop_or_end(view, Reason.NODE_LOST, message, None))
    limit = view.owner.spec.duration and view.owner.spec.duration.max
    return _until(view, limit or None, "ran longer than spec.duration.max")


def _stopping(view: View) -> Plan:
    if view.active:
        unasked = [pod for pod in view.active if not pod.metadata.deletion_timestamp]
        return Plan(delete=tuple(unasked))
    status = view.owner.status
    return Plan(move=_end(view, Reason(status.reason), status.message, status.exit_code))


def _finished(view: View) -> Plan:
    """Nothing more happens, but what should be gone goes."""
    strays = tuple(pod for pod in view.active if not pod.metadata.deletion_timestamp)
    ttl = view.owner.spec.ttl_after_finished
    if ttl is None or view.owner.metadata.deletion_timestamp:
        return Plan(delete=strays)
    left = duration.milliseconds(ttl) / 1000 - view.seconds_in_phase()
    if left > 0:
        return Plan(delete=strays, wake=left)
    return Plan(delete=strays, delete_run=True)


_STEPS: dict[str, Callable[[View], Plan]] = {
    "Queued": _queued,
    "Starting": _starting,
    "Running": _running,
    "Stopping": _stopping,
    "Succeeded": _finished,
    "Failed": _finished,
    "Stopped": _finished,
}


def _stop_wanted(view: View) -> Move | None:
    if view.owner.metadata.deletion_timestamp:
        return _stop_or_end(view, Reason.USER_STOPPED, "deleted", None)
    if view.owner.spec.suspend:
        return _stop_or_end(view, Reason.SUSPENDED, "held by spec.suspend", None)
    return None


def _outcome(view: View) -> Move | None:
    """How the attempt ended, if it did: the first failed member decides, else completion."""
    present = view.present()
    for _, pod in sorted(present.items()):
        if members.state(pod) == "failed":
            if pod.metadata.deletion_timestamp:
                return _stop_or_end(view, Reason.NODE_LOST, f"{pod.name} was deleted", None)
            return _stop_or_end(view, *members.failure(pod))
    completion = view.owner.spec.completion
    deciding = [
        key for key in view.wanted() if completion is None or key[0] == completion.role
    ]  # fmt: skip
    if deciding and all(
        key in present and members.state(present[key]) == "succeeded" for key in deciding
    ):
        return _stop_or_end(view, Reason.COMPLETED, "ended with success", 0)
    return None


def _stop_or_end(view: View, reason: Reason, message: str, exit_code: int | None) -> Move:
    """Through Stopping while pods are active, else straight to what follows."""
    if view.active:
        return Move("Stopping", reason, message, exit_code)
    return _end(view, reason, message, exit_code)


def _end(view: View, reason: Reason, message: str, exit_code: int | None) -> Move:
    if reason is Reason.SUSPENDED:
        return Move("Queued", reason, message, next_attempt=True)
    retries = view.owner.spec.retries
    used = retries_used(view.owner)
    if _RETRY_CAUSE.get(reason) in retries.causes and used < retries.limit:
        words = f"{message}; retry {used + 1} of {retries.limit}"
        return Move("Queued", reason, words, exit_code, next_attempt=True)
    return Move(_END.get(reason, "Failed"), reason, message, exit_code)


def _until(view: View, limit: str | None, what: str) -> Plan:
    if limit is None:
        return Plan()
    left = duration.milliseconds(limit) / 1000 - view.seconds_in_phase()
    if left > 0:
        return Plan(wake=left)
    return Plan(move=_stop_or_end(view, Reason.TIMEOUT, f"{what} ({limit})", None))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
