"""What a Run does after a failure: another attempt, a restart within the attempt, or its end.

Pure. `control.runs.state_machine` asks, `control.convert.run_workloads` asks when a Run may be
placed again.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable

from windlass.control.model.run_view import View
from windlass.kinds.reasons import Reason
from windlass.kinds.types import run
from windlass.kinds.values import times

FIRST_RETRY, LONGEST_RETRY = 5.0, 300.0
"""Seconds before what failed is started again: doubling each time."""

_COSTLY = {
    Reason.NODE_LOST: "NodeLost",
    Reason.AGENT_LOST: "NodeLost",
    Reason.CODE_FAILED: "Failed",
    Reason.OUT_OF_MEMORY: "Failed",
    Reason.OUT_OF_SHARED_MEMORY: "Failed",
    Reason.OUT_OF_DISK: "Failed",
}
"""Causes of another attempt that are counted."""
_REFUSALS = frozenset({Reason.NODE_REFUSED, Reason.ADMISSION_REFUSED})
"""Another component refused the start; each further attempt is made later."""
_FREE = frozenset({Reason.SUSPENDED, Reason.RESIZED, Reason.WAITING_FOR_DATA}) | _REFUSALS
"""Always followed by another attempt, which costs nothing: not the Run's doing."""
RESTARTABLE = frozenset(
    {
        Reason.CODE_FAILED,
        Reason.OUT_OF_MEMORY,
        Reason.OUT_OF_SHARED_MEMORY,
        Reason.OUT_OF_DISK,
        Reason.AGENT_LOST,
    }
)
"""Failures of a member after which its node can take it again."""
BLAMES_NODE = frozenset({Reason.NODE_LOST, Reason.AGENT_LOST, Reason.NODE_REFUSED})
BLAMED_FOR = 3600.0
"""Seconds after the last failure that was a node's, when a Run forgets which nodes to avoid."""


def cost(owner: run.Run, reason: Reason) -> int | None:
    """What another attempt after this would cost; None: there is none."""
    retries = owner.spec.retries
    if reason in _FREE or (reason is Reason.PREEMPTED and "Preempted" in retries.causes):
        return 0
    if _COSTLY.get(reason) in retries.causes and owner.status.retries < retries.limit:
        return 1
    return None


def avoided(owner: run.Run, more: Iterable[str], now: datetime.datetime) -> list[str]:
    """The nodes that failed it, those that do it now last; none when that is long ago."""
    before = list(owner.status.avoid or ())
    at = [step.at for step in owner.status.history or () if step.reason in BLAMES_NODE]
    if not at or (now - times.parse(at[-1])).total_seconds() > BLAMED_FOR:
        before = []
    more = list(more)
    return [*(node for node in before if node not in more), *more][-run.AVOIDED :]


def retry_at(owner: run.Run) -> float:
    """Unix time before which a Run that failed must not be placed again; 0 if it may at once."""
    seconds, history = rest(owner), owner.status.history
    return times.parse(history[-1].at).timestamp() + seconds if seconds and history else 0.0


def rest(owner: run.Run) -> float:
    """Seconds for which a Run that failed is not placed again."""
    history = owner.status.history or ()
    if owner.status.phase != "Queued" or not history:
        return 0.0
    last = history[-1]
    if last.reason in _COSTLY:
        times_before = owner.status.retries
    elif last.reason in _REFUSALS:
        ends = (step.reason for step in reversed(history) if step.to_phase == "Queued")
        times_before = len(list(itertools.takewhile(lambda r: r in _REFUSALS, ends)))
    else:
        return 0.0
    return pause(times_before)


def lately(owner: run.Run) -> tuple[Reason, str] | None:
    """Why it must wait before it is placed again: what happened."""
    history = owner.status.history or ()
    if owner.status.phase != "Queued" or not history or not retry_at(owner):
        return None
    last = history[-1]
    if last.reason == Reason.ADMISSION_REFUSED:
        return Reason.ADMISSION_REFUSED, last.message
    return Reason.WAITING_TO_RETRY, f"{last.reason}: {last.message}"


def pause(count: int) -> float:
    """Seconds to wait the nth time."""
    return float(min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(max(count, 1) - 1, 20)))


def restart(view: View, member: tuple[str, int], reason: Reason) -> tuple[str, int] | None:
    """What starts again within the attempt when a member failed, and as which restart; None: the
    whole Run ends or is tried again. With the note of it written, its pods are of the past."""
    spec, status = view.owner.spec, view.owner.status
    if spec.restart == "run" or reason not in RESTARTABLE or status.restarts >= spec.retries.limit:
        return None
    role, index = member
    return (role if spec.restart == "role" else f"{role}/{index}"), status.restarts + 1


def restart_pause(view: View) -> float:
    """Seconds until members that were restarted may be made anew."""
    at = view.owner.status.restarted_at
    if at is None:
        return 0.0
    return max(0.0, pause(view.owner.status.restarts) - view.seconds_since(at))
