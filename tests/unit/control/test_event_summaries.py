"""Which pods were placed is told of all of an owner's together."""

from __future__ import annotations

import datetime

from windlass.control.scheduler import event_summaries
from windlass.kinds.types import core, meta
from windlass.kinds.values import times


def pod(number: int, owner: str = "") -> core.Pod:
    owned = [meta.OwnerReference("batch/v1", "Job", owner, f"uid-{owner}", controller=True)]
    metadata = meta.ObjectMeta(
        name=f"p{number}", namespace="team", uid=f"u{number}",
        owner_references=owned if owner else None,
    )  # fmt: skip
    return core.Pod(metadata=metadata, spec=core.PodSpec(containers=[]))


async def told(store) -> dict[str, str]:
    found = (await store.list(core.Event, "team")).items
    assert all(each.reason == "Scheduled" for each in found)
    return {f"{e.involved_object.kind} {e.involved_object.name}": e.message for e in found}


async def test_all_pods_of_an_owner_are_one_event(store):
    placed = event_summaries.Summaries(store)
    for number in range(100):
        placed.note(pod(number, "train"), f"n{number % 5}")
    placed.note(pod(200, "other"), "n9")
    for number in (300, 301):
        placed.note(pod(number), "n7")
    await placed.publish()
    assert await told(store) == {
        "Job train": "placed 100 of its pods on n0, n1, n2 and 2 more nodes",
        "Job other": "placed on n9",
        "Pod p300": "placed 2 pods of namespace team on n7",
    }


async def test_however_many_owners_there_are_few_events_are_written_at_once(store):
    placed = event_summaries.Summaries(store)
    for number in range(event_summaries.MOST + 7):
        placed.note(pod(number, f"job-{number}"), "n1")
    await placed.publish()
    assert len(await told(store)) == event_summaries.MOST
    await placed.publish()
    assert len(await told(store)) == event_summaries.MOST + 7


async def test_the_event_has_the_time_of_the_first_placement(store, monkeypatch):
    """The message of a node that refuses the pod a moment later stands after it."""
    moment = times.parse("2026-01-01T10:00:00Z")
    monkeypatch.setattr(times, "now", lambda: moment)
    placed = event_summaries.Summaries(store)
    placed.note(pod(1), "n1")
    moment += datetime.timedelta(seconds=event_summaries.SETTLE)
    placed.note(pod(2), "n1")
    await placed.publish()
    (event,) = (await store.list(core.Event, "team")).items
    assert event.last_timestamp == event.first_timestamp == "2026-01-01T10:00:00Z"
