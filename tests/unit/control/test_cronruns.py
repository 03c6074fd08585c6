"""CronRuns against the real embedded store; the wall clock is moved by hand."""

import contextlib
import dataclasses
import datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.control.build import NAMESPACE, role
from tests.unit.control.faults import Crash, Fragile
from windlass.control.cron import controller
from windlass.control.runtime.controller import DONE
from windlass.kinds.types import core, cronrun, meta, run
from windlass.kinds.values import times
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

KEY = (NAMESPACE, "nightly")


@dataclasses.dataclass
class Clock:
    now: datetime.datetime

    def __call__(self) -> datetime.datetime:
        return self.now

    def to(self, text: str) -> None:
        self.now = times.parse(f"{text}Z")


@pytest.fixture
def clock() -> Clock:
    # After the creation times that the store itself gives.
    return Clock(times.parse("2200-01-01T00:00:00Z"))


async def make(store, schedule="0 3 * * *", since="2200-01-01T00:00", **spec) -> cronrun.CronRun:
    template = cronrun.RunTemplate(
        metadata=cronrun.TemplateMeta(labels={"team": "a"}, annotations={"why": "nightly"}),
        spec=run.RunSpec(roles=[role()]),
    )
    made = await store.create(
        cronrun.CronRun(
            metadata=meta.ObjectMeta(name="nightly", namespace=NAMESPACE),
            spec=cronrun.CronRunSpec(schedule=schedule, template=template, **spec),
        )
    )
    return await store.patch(
        cronrun.CronRun, "nightly", NAMESPACE,
        patch={"status": {"lastScheduleTime": f"{since}:00Z"}}, subresource="status",
    ) if since else made  # fmt: skip


async def names(store) -> list[str]:
    return sorted(r.name for r in (await store.list(run.Run, NAMESPACE)).items)


async def finish(store, name: str, phase: str = "Succeeded") -> None:
    await store.patch(
        run.Run, name, NAMESPACE, patch={"status": {"phase": phase}}, subresource="status"
    )


async def told(store) -> list[str]:
    return [e.message for e in (await store.list(core.Event, NAMESPACE)).items]


async def current(store) -> cronrun.CronRun:
    return await store.get(cronrun.CronRun, "nightly", NAMESPACE)


async def test_nothing_starts_before_its_time_and_the_next_look_is_at_the_start(store, clock):
    await make(store)
    clock.to("2200-01-01T02:58:00")
    result = await controller.CronRuns(store, clock).reconcile(KEY)
    assert await names(store) == []
    assert result.after == pytest.approx(120.01)


async def test_far_starts_are_looked_at_now_and_then_because_clocks_jump(store, clock):
    await make(store)
    result = await controller.CronRuns(store, clock).reconcile(KEY)
    assert result.after == controller.LONGEST_SLEEP


async def test_a_due_start_makes_one_owned_labelled_run_and_records_it(store, clock):
    cron = await make(store)
    clock.to("2200-01-01T03:00:00")
    await controller.CronRuns(store, clock).reconcile(KEY)
    made = await store.get(run.Run, "nightly-000101-0300", NAMESPACE)
    (owner,) = made.metadata.owner_references
    assert (owner.kind, owner.uid, owner.controller) == ("CronRun", cron.uid, True)
    assert made.metadata.labels == {"team": "a", cronrun.LABEL_CRONRUN: "nightly"}
    assert made.metadata.annotations == {
        "why": "nightly", controller.ANNOTATION_SCHEDULED: "2200-01-01T03:00:00Z",
    }  # fmt: skip
    status = (await current(store)).status
    assert status.last_schedule_time == "2200-01-01T03:00:00Z"
    assert [(a.name, a.uid) for a in status.active] == [(made.name, made.uid)]
    assert controller.owner_key(made) == KEY


async def test_the_next_start_is_in_the_status_unless_nothing_will_start(store, clock):
    await make(store, time_zone="Europe/Berlin")
    reconciler = controller.CronRuns(store, clock)
    clock.to("2200-07-01T00:00:00")
    await reconciler.reconcile(KEY)
    assert (await current(store)).status.next_schedule_time == "2200-07-01T01:00:00Z"
    clock.to("2200-07-01T01:00:00")
    await reconciler.reconcile(KEY)
    assert (await current(store)).status.next_schedule_time == "2200-07-02T01:00:00Z"
    await store.patch(cronrun.CronRun, "nightly", NAMESPACE, patch={"spec": {"suspend": True}})
    await reconciler.reconcile(KEY)
    assert (await current(store)).status.next_schedule_time is None


async def test_looking_again_changes_nothing(store, clock):
    await make(store)
    clock.to("2200-01-01T03:00:30")
    reconciler = controller.CronRuns(store, clock)
    await reconciler.reconcile(KEY)
    before = await current(store)
    await reconciler.reconcile(KEY)
    assert (await current(store)).metadata.resource_version == before.metadata.resource_version
    assert len(await names(store)) == 1


async def test_a_crash_before_the_start_was_recorded_does_not_make_a_second_run(store, clock):
    await make(store)
    clock.to("2200-01-01T03:00:00")
    await controller.CronRuns(store, clock).reconcile(KEY)
    await store.patch(
        cronrun.CronRun, "nightly", NAMESPACE, subresource="status",
        patch={"status": {"lastScheduleTime": "2200-01-01T00:00:00Z", "active": None}},
    )  # fmt: skip
    clock.to("2200-01-01T03:00:20")
    await controller.CronRuns(store, clock).reconcile(KEY)
    assert await names(store) == ["nightly-000101-0300"]
    assert (await current(store)).status.last_schedule_time == "2200-01-01T03:00:00Z"


async def test_a_run_of_that_name_of_another_owner_is_not_taken_for_ours(store, clock):
    foreign = run.Run(
        metadata=meta.ObjectMeta(name="nightly-000101-0300", namespace=NAMESPACE),
        spec=run.RunSpec(roles=[role()]),
    )
    await store.create(foreign)
    await make(store)
    clock.to("2200-01-01T03:00:00")
    with pytest.raises(errors.AlreadyExists):
        await controller.CronRuns(store, clock).reconcile(KEY)
    assert (await current(store)).status.last_schedule_time == "2200-01-01T00:00:00Z"


async def test_only_the_latest_missed_start_is_made_and_the_rest_is_reported(store, clock):
    await make(store, "0 * * * *")
    clock.to("2200-01-01T05:30:00")
    await controller.CronRuns(store, clock).reconcile(KEY)
    assert await names(store) == ["nightly-000101-0500"]
    assert await told(store) == [
        "4 earlier starts were missed; made up only for 2200-01-01T05:00:00Z"
    ]


async def test_a_start_missed_by_more_than_the_deadline_is_skipped_and_reported_once(store, clock):
    await make(store, "0 * * * *", starting_deadline="10m")
    clock.to("2200-01-01T05:30:00")
    reconciler = controller.CronRuns(store, clock)
    await reconciler.reconcile(KEY)
    await reconciler.reconcile(KEY)
    assert await names(store) == []
    assert await told(store) == [
        "the start of 2200-01-01T05:00:00Z was missed by more than 10m and is skipped"
    ]


async def test_suspended_starts_nothing_and_sleeps(store, clock):
    await make(store, suspend=True)
    clock.to("2200-01-01T03:00:00")
    reconciler = controller.CronRuns(store, clock)
    assert await reconciler.reconcile(KEY) == DONE
    assert await names(store) == []
    (condition,) = (await current(store)).status.conditions
    assert (condition.status, condition.reason) == ("False", "Suspended")
    held = await current(store)
    await reconciler.reconcile(KEY)
    assert (await current(store)).metadata.resource_version == held.metadata.resource_version


async def test_released_it_makes_up_for_the_latest_start_and_says_so(store, clock):
    await make(store, suspend=True)
    reconciler = controller.CronRuns(store, clock)
    clock.to("2200-01-02T03:30:00")
    await reconciler.reconcile(KEY)
    await store.patch(cronrun.CronRun, "nightly", NAMESPACE, patch={"spec": {"suspend": False}})
    await reconciler.reconcile(KEY)
    assert await names(store) == ["nightly-000102-0300"]
    (condition,) = (await current(store)).status.conditions
    assert (condition.status, condition.reason) == ("True", "Assigned")


async def test_released_before_the_next_start_it_is_no_longer_said_to_be_held(store, clock):
    await make(store, suspend=True)
    reconciler = controller.CronRuns(store, clock)
    await reconciler.reconcile(KEY)
    await store.patch(cronrun.CronRun, "nightly", NAMESPACE, patch={"spec": {"suspend": False}})
    await reconciler.reconcile(KEY)
    (condition,) = (await current(store)).status.conditions
    assert (condition.status, condition.reason) == ("True", "Assigned")


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("Allow", ["nightly-000101-0300", "nightly-000102-0300"]),
        ("Forbid", ["nightly-000101-0300"]),
        ("Replace", ["nightly-000101-0300", "nightly-000102-0300"]),
    ],
)
async def test_when_the_last_run_has_not_ended(store, clock, policy, expected):
    await make(store, concurrency_policy=policy)
    reconciler = controller.CronRuns(store, clock)
    for day in (1, 2):
        clock.to(f"2200-01-0{day}T03:00:00")
        await reconciler.reconcile(KEY)
    assert await names(store) == expected
    assert [a.name for a in (await current(store)).status.active] == expected
    last = await store.get(run.Run, "nightly-000101-0300", NAMESPACE)
    assert last.spec.stop == (policy == "Replace"), "it stays as a record"
    (condition,) = (await current(store)).status.conditions
    assert condition.reason == ("LastNotEnded" if policy == "Forbid" else "Assigned")


async def test_a_forbidden_start_is_made_up_for_when_the_last_run_ends(store, clock):
    await make(store, concurrency_policy="Forbid")
    reconciler = controller.CronRuns(store, clock)
    for day in (1, 2):
        clock.to(f"2200-01-0{day}T03:00:00")
        await reconciler.reconcile(KEY)
    await finish(store, "nightly-000101-0300")
    clock.to("2200-01-02T04:00:00")
    await reconciler.reconcile(KEY)
    assert await names(store) == ["nightly-000101-0300", "nightly-000102-0300"]


async def test_only_so_many_ended_runs_are_kept(store, clock):
    await make(store, successful_history_limit=2, failed_history_limit=1)
    reconciler = controller.CronRuns(store, clock)
    for day in range(1, 8):
        clock.to(f"2200-01-{day:02}T03:00:00")
        await reconciler.reconcile(KEY)
        phase = "Failed" if day in (2, 4) else "Succeeded"
        await finish(store, f"nightly-0001{day:02}-0300", phase)
    await reconciler.reconcile(KEY)
    assert await names(store) == [
        "nightly-000104-0300", "nightly-000106-0300", "nightly-000107-0300",
    ]  # fmt: skip
    assert (await current(store)).status.active is None


class Unchecked:
    """The store of a cluster whose schema cannot tell a bad schedule from a good one."""

    def __init__(self, store) -> None:
        self._store = store

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def get(self, kind, name, namespace=""):
        found = await self._store.get(kind, name, namespace)
        found.spec.schedule = "0 0 30 2 *"
        return found


async def test_an_invalid_schedule_is_named_in_the_condition(store, clock):
    await make(store)
    assert await controller.CronRuns(Unchecked(store), clock).reconcile(KEY) == DONE
    (condition,) = (await current(store)).status.conditions
    assert (condition.type, condition.status) == ("Scheduled", "False")
    assert "spec.schedule '0 0 30 2 *'" in condition.message


async def test_a_deleted_cronrun_is_left_alone(store, clock):
    assert await controller.CronRuns(store, clock).reconcile((NAMESPACE, "gone")) == DONE


lives = st.lists(
    st.tuples(st.integers(1, 200), st.integers(1, 6), st.booleans(), st.booleans()),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lives=lives,
    schedule=st.sampled_from(["*/7 * * * *", "0 * * * *", "30 2 * * *"]),
    policy=st.sampled_from(["Allow", "Forbid", "Replace"]),
)
async def test_whatever_crashes_each_time_on_the_schedule_gets_at_most_one_run(
    lives, schedule, policy, tmp_path_factory
):
    """Each life moves the clock, reconciles, and dies at one of its writes; Runs end in between."""
    api = await Api.open(tmp_path_factory.mktemp("crash") / "store.db")
    store = EmbeddedStore(api)
    try:
        await store.create(core.Namespace(metadata=meta.ObjectMeta(name=NAMESPACE)))
        await make(store, schedule, concurrency_policy=policy)
        made: dict[str, set[str]] = {}
        clock = Clock(times.parse("2200-01-01T00:00:00Z"))
        for minutes, writes, after, ends in lives:
            clock.now += datetime.timedelta(minutes=minutes)
            fragile = Fragile(store)
            fragile.writes_left, fragile.after = writes, after
            for _ in range(2):  # the life that dies, and the one after it
                with contextlib.suppress(Crash):
                    await controller.CronRuns(fragile, clock).reconcile(KEY)
                for each in (await store.list(run.Run, NAMESPACE)).items:
                    at = each.metadata.annotations[controller.ANNOTATION_SCHEDULED]
                    made.setdefault(at, set()).add(each.uid)
            if ends:
                for each in (await store.list(run.Run, NAMESPACE)).items:
                    await finish(store, each.name)
        assert all(len(uids) == 1 for uids in made.values())
    finally:
        await api.close()
