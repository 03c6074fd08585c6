"""The sentence of `why` about the last preemption of a run: by which run, when, what happens next.

Pure. The run controller records the preemptor in the history of the run.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

from windlass.kinds import reasons
from windlass.kinds.types.run import Run
from windlass.kinds.types.run_status import Transition
from windlass.kinds.values import ages

_NEXT = {
    "Queued": "It starts again, from its last checkpoint, when there is capacity.",
    "Stopping": "It has its grace period to write a checkpoint; then it waits in its queue.",
}
_COMPONENTS = ("user", "queue")
"""Causes of an eviction that are not the uid of a run."""


def preemptor(run: Run) -> str:
    """The uid of the run that preempted it last; "" if none did."""
    step = _last(run)
    return "" if step is None or step.by in _COMPONENTS or "/" in step.by else step.by


def sentences(
    run: Run,
    find: Callable[[str], Run | None],
    may_see: Callable[[str], bool],
    now: datetime.datetime,
) -> list[str]:
    """What to say about the last preemption, while the run stops or waits because of it."""
    step = _last(run)
    if step is None or run.status.phase not in _NEXT:
        return []
    by = find(step.by)
    if by is not None and may_see(by.namespace):
        user = f" of {by.spec.user}" if by.spec.user else ""
        team = f" in {by.namespace}" if by.namespace != run.namespace else ""
        actor = (
            f"by run {by.name}{user}{team} (priority {by.spec.priority}, own {run.spec.priority})"
        )
    elif preemptor(run):
        actor = "by a run of others"
    else:
        actor = "by the platform"
    past = "was" if run.status.phase == "Queued" else "is being"
    reason = step.message.partition("; retry ")[0].removesuffix(".")
    since = f" {ages.age(step.at, now)} ago" if past == "was" else ""
    # The scheduler's own sentence of a preemptor says less: what all readers of the run may know.
    why = "" if reason.startswith("preempted by ") else f": {reason}"
    return [f"It {past} preempted{since} {actor}{why}. {_NEXT[run.status.phase]}"]


def _last(run: Run) -> Transition | None:
    """The last step, if it is a preemption; of two (stopping, queued) that with the cause."""
    steps = list(run.status.history or ())
    if not steps or steps[-1].reason != reasons.Reason.PREEMPTED:
        return None
    return steps[-1]
