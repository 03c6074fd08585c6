"""What keeps a workload waiting whatever capacity is free."""

from __future__ import annotations

from windlass.core.admission import user_limits, user_overuse
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Verdict, Workload
from windlass.core.verdicts import messages
from windlass.kinds.reasons import Reason


def barred(state: DecisionState, workload: Workload) -> Verdict | None:
    """What its queue, or a limit of its user, has against this workload. Such a verdict holds for
    no other workload, however similar."""
    queue = state.tree.queues.get(workload.queue)
    if queue is None:
        return None
    if queue.namespaces is not None and workload.namespace not in queue.namespaces:
        return messages.not_yours(workload, queue)
    paused = state.tree.paused.get(workload.queue)
    if paused is not None:
        return Verdict(workload.key, *paused, queue=workload.queue)
    over = user_limits.verdict(state, workload) if state.user_quotas else None
    return over or user_overuse.overspent(state, workload)


def refused(state: DecisionState, workload: Workload) -> Verdict | None:
    """What the workload itself, or a queue that cannot be used, has against a start now."""
    if workload.hold_reason is not None:
        return Verdict(workload.key, workload.hold_reason[0], workload.hold_reason[1])
    if workload.queue not in state.tree.queues:
        return messages.no_such_queue(workload, state.tree.queues)
    broken = state.tree.broken.get(workload.queue)
    if broken:
        return Verdict(workload.key, Reason.NO_SUCH_QUEUE, broken, queue=workload.queue)
    if not state.info(workload).requests:
        return messages.no_members(workload)
    if workload.not_before > state.now:
        state.wakeups.append(workload.not_before)
        return messages.not_yet(workload)
    return None
