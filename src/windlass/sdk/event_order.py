"""The order in which events happened, and the history of a run among them.

Times of events have whole seconds. Within a second the resource version decides: it grows with each
write.
"""

from __future__ import annotations

from collections.abc import Iterable

from windlass.kinds.types import core, run
from windlass.kinds.values import times

Rank = tuple[str, int]
"""The second, and the position within it."""
PHASE_REASONS = {
    "Running": ("Started",),
    "Queued": ("Retried", "Preempted"),
    "Succeeded": ("Succeeded",),
    "Failed": ("Failed",),
    "Stopped": ("Stopped",),
}
"""Phase of a run -> reasons of the event that reports it."""


def time_of(event: core.Event) -> str:
    """When it last happened, in whole seconds; empty if it does not say."""
    at = event.last_timestamp or event.event_time or event.metadata.creation_timestamp or ""
    return times.seconds(times.parse(at)) if at else ""


def rank(event: core.Event) -> Rank:
    return time_of(event), int(event.metadata.resource_version or 0)


def history_ranks(steps: Iterable[run.Transition], events: Iterable[core.Event]) -> list[Rank]:
    """Where the steps of a run's history belong among the events: at the event that reports the
    step, if there is one, and never before an earlier step."""
    reported = sorted((rank(each), each.reason, each.message) for each in events)
    found: list[Rank] = []
    last: Rank = ("", 0)
    for step in steps:
        at = times.seconds(times.parse(step.at)) if step.at else ""
        reasons = PHASE_REASONS.get(step.to_phase, ()) if step.from_phase else ()
        own = next(
            (each for each, reason, message in reported
             if each[0] >= at and each > last and reason in reasons
             and message.endswith(step.message)),
            None,
        )  # fmt: skip
        last = max(last, (at, own[1] if own is not None else 0))
        found.append(last)
    return found
