"""Which advance reservation keeps a workload waiting, and the verdict that names it."""

from __future__ import annotations

from windlass.core.decision.state import DecisionState
from windlass.core.model import pod_sets
from windlass.core.model.types import AdvanceReservation, Verdict, Workload
from windlass.core.placement import placement_context
from windlass.core.verdicts import formatting
from windlass.kinds.reasons import Reason

MOST_TRIED = 4
"""Windows that are tried one by one before the first of them is named for all."""


def verdict(state: DecisionState, workload: Workload) -> Verdict | None:
    """None: no reservation is in the way."""
    window = _in_the_way(state, workload)
    return None if window is None else _verdict(state, workload, window)


def _in_the_way(state: DecisionState, workload: Workload) -> AdvanceReservation | None:
    """The window without which the workload would fit now; None: it is not a window that is in the
    way."""
    windows = state.windows
    names = next((role.constraint.reserved for role in workload.roles), ())
    if windows is None or not names:
        return None
    binding = {each.id: each for each in windows.binding(workload)}
    if not _fits(state, workload, ()):
        return None
    for name in names[:MOST_TRIED]:
        others = tuple(other for other in names if other != name)
        if others and _fits(state, workload, others):
            return binding.get(name)
    return binding.get(names[0])


def _verdict(state: DecisionState, workload: Workload, window: AdvanceReservation) -> Verdict:
    start, end = formatting.moment(window.start), formatting.moment(window.end)
    what = "for maintenance " if window.is_maintenance else ""
    if window.start <= state.now:
        message = (
            f"it fits now, but reservation {window.name} reserves the capacity {what}until {end}"
        )
        return Verdict(workload.key, Reason.RESERVED_UNTIL, message, window.name)
    message = (
        f"it fits now, but reservation {window.name} reserves the capacity {what}from {start} "
        f"until {end}, "
    )
    if workload.expected is None and workload.max_runtime is None and not workload.preemptible:
        message += "and it does not say how long it runs; give it a maximum duration to let it "
        message += "start before"
    else:
        message += "and it would still run then"
    return Verdict(workload.key, Reason.RESERVED_UNTIL, message, window.name)


def _fits(state: DecisionState, workload: Workload, names: tuple[str, ...]) -> bool:
    """Whether the pods fit by count if only these windows set capacity aside."""
    bound = state.snapshot.calendar.bound(workload, names)
    return placement_context.fits_by_count(state.context, bound, pod_sets.minimum(bound))
