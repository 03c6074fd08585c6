"""Events are listed in the order of what happened, also within one second."""

from __future__ import annotations

from windlass.kinds.types import core, meta, run
from windlass.sdk import event_order

SECOND, NEXT = "2026-11-01T10:00:00Z", "2026-11-01T10:00:01Z"


def event(
    version: int, reason: str, message: str = "", at: str = SECOND, **more: str
) -> core.Event:
    metadata = meta.ObjectMeta(name=f"{10 - version}", resource_version=str(version))
    return core.Event(
        metadata=metadata, reason=reason, message=message, last_timestamp=at or None, **more
    )


def step(before: str, after: str, message: str = "", at: str = SECOND) -> run.Transition:
    return run.Transition(at=at, from_phase=before, to_phase=after, message=message)


def test_events_of_one_second_are_in_the_order_of_their_writes() -> None:
    later = event(3, "Pulled", at=NEXT)
    micro = event(7, "Scheduled", at="", event_time="2026-11-01T10:00:00.900000Z")
    listed = [event(12, "Started"), micro, later, event(9, "Created")]
    found = [each.reason for each in sorted(listed, key=event_order.rank)]
    assert found == ["Scheduled", "Created", "Started", "Pulled"]


def test_the_steps_of_a_run_stand_where_their_events_are() -> None:
    steps = [
        step("", "Queued", "submitted"),
        step("Queued", "Starting", "placed on a"),
        step("Starting", "Running", "1 running"),
        step("Running", "Queued", "preempted"),
        step("Queued", "Starting", "placed on b"),
        step("Starting", "Running", "1 running"),
        step("Running", "Succeeded", "ended", at=NEXT),
    ]
    events = [
        event(5, "Started", "1 running"),
        event(8, "Preempted", "preempted"),
        event(11, "Started", "attempt 1: 1 running"),
        event(14, "Succeeded", "attempt 1: ended", at=NEXT),
    ]
    ranks = event_order.history_ranks(steps, events)
    assert ranks == [(SECOND, 0), (SECOND, 0), (SECOND, 5), (SECOND, 8), (SECOND, 8), (SECOND, 11),
                     (NEXT, 14)]  # fmt: skip
    warned = event_order.rank(event(6, "ProgressIgnored"))
    assert ranks[2] < warned < ranks[3]


def test_steps_whose_events_are_gone_keep_their_order() -> None:
    steps = [step("", "Queued"), step("Queued", "Starting"), step("Starting", "Running")]
    assert event_order.history_ranks(steps, []) == [(SECOND, 0)] * 3
