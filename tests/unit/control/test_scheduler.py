"""The scheduler's cycle against the real embedded store."""

import asyncio
import contextlib
import math
import threading

import pytest

from tests.unit.control import build
from windlass.control.model.capabilities import NAMESPACE, Engine
from windlass.control.runtime import leader_election
from windlass.control.runtime.informers import InformerFactory
from windlass.control.scheduler import loop as scheduler_loop
from windlass.control.scheduler import rate_limit, status_writer
from windlass.core.invariants import invariants
from windlass.kinds.types import core, meta, run
from windlass.kinds.values import times
from windlass.store import errors
from windlass.telemetry import prometheus


@contextlib.asynccontextmanager
async def scheduling(store, epoch=1, *, live=True, write_to=None, **more):
    """A scheduler whose informers are in sync; `live=False`: and then see no more changes."""
    informers = InformerFactory(store)
    made = scheduler_loop.Scheduler(write_to or store, informers, epoch=epoch, **more)
    async with informers:
        if not live:
            await informers.stop()
        yield made


async def setup(store, *runs: run.Run, cpu="4", extra=None) -> None:
    with contextlib.suppress(errors.AlreadyExists):
        await store.create(build.node(cpu=cpu, extra=extra))
        await store.create(build.a_queue())
    for owner in runs:
        await store.create(owner)


async def status(store, name="job") -> run.RunStatus:
    return (await store.get(run.Run, name, build.NAMESPACE)).status


async def set_status(store, patch, name="job") -> None:
    await store.patch(
        run.Run, name, build.NAMESPACE, patch={"status": patch}, subresource="status"
    )  # fmt: skip


async def test_a_waiting_run_is_assigned_with_attempt_and_epoch(store):
    await setup(store, build.a_run("job", build.role(replicas=2)))
    async with scheduling(store, epoch=5) as made:
        await made.cycle()
    assigned = (await status(store)).assignment
    assert (assigned.attempt, assigned.epoch) == (0, 5)
    assert [member.node for member in assigned.members["worker"]] == ["n1", "n1"]


async def test_the_verdict_is_written_when_it_changes_and_only_then(store):
    await setup(store, build.a_run("job", build.role(cpu="64")))
    async with scheduling(store) as made:
        await made.cycle()
        first = await store.get(run.Run, "job", build.NAMESPACE)
        assert first.status.reason == "Impossible"
        await made.cycle()
    again = await store.get(run.Run, "job", build.NAMESPACE)
    assert again.metadata.resource_version == first.metadata.resource_version


async def test_capacity_just_given_away_is_not_given_again_before_the_informer_shows_it(store):
    runs = [build.a_run(name, build.role(cpu="3")) for name in ("a", "b")]
    await setup(store, *runs)
    async with scheduling(store, live=False) as made:
        await made.cycle()
        await made.cycle()
    given = [(await status(store, name)).assignment is not None for name in ("a", "b")]
    assert sorted(given) == [False, True]


async def test_a_run_that_changed_since_it_was_seen_is_left_for_the_next_decision(store):
    await setup(store, build.a_run())
    async with scheduling(store, live=False) as made:
        await store.patch(run.Run, "job", build.NAMESPACE, patch={"spec": {"suspend": True}})
        await made.cycle()
    assert (await status(store)).assignment is None
    async with scheduling(store) as made:
        await made.cycle()
    assert (await status(store)).reason == "Suspended"


async def test_a_new_leader_reaffirms_what_was_not_started(store):
    await setup(store, build.a_run())
    async with scheduling(store, epoch=1) as made:
        await made.cycle()
    async with scheduling(store, epoch=2) as made:
        await made.cycle()
    assigned = (await status(store)).assignment
    assert (assigned.epoch, assigned.members["worker"][0].node) == (2, "n1")


async def test_a_new_leader_withdraws_capacity_on_a_node_that_is_gone_and_decides_anew(store):
    await setup(store, build.a_run())
    async with scheduling(store, epoch=1) as made:
        await made.cycle()
    await store.delete(core.Node, "n1")
    await store.create(build.node("n2"))
    async with scheduling(store, epoch=2) as made:
        await made.cycle()
    assigned = (await status(store)).assignment
    assert (assigned.epoch, assigned.members["worker"][0].node) == (2, "n2")


async def test_what_is_already_started_keeps_its_epoch(store):
    await setup(store, build.a_run())
    async with scheduling(store, epoch=1) as made:
        await made.cycle()
    await set_status(store, {"phase": "Running"})
    async with scheduling(store, epoch=2) as made:
        await made.cycle()
    assert (await status(store)).assignment.epoch == 1


async def test_a_run_that_failed_waits_for_its_time_and_asks_for_the_wake(store):
    await setup(store, build.a_run())
    step = {"at": "2200-01-01T00:00:00Z", "to": "Queued", "reason": "NodeLost"}
    await set_status(store, {"phase": "Queued", "attempt": 1, "history": [step]})
    then = times.parse("2200-01-01T00:00:01Z")
    async with scheduling(store, now=lambda: then) as made:
        assert await made.cycle() == 7258118400 + 5
    assert (await status(store)).assignment is None


async def test_a_leader_whose_term_is_over_writes_nothing(store):
    await setup(store, build.a_run())
    over = leader_election.Guarded(store, leader_election.Term(1, ends=0.0, clock=lambda: 1.0))
    async with scheduling(store, write_to=over) as made:
        with pytest.raises(leader_election.LeadershipLostError):
            await made.cycle()
    assert (await status(store)).assignment is None


async def test_devices_are_granted_by_name(store):
    role = build.role(replicas=2, devices=[run.Device(kind="gpu")])
    await setup(store, build.a_run("job", role), extra={"windlass.dev/gpu": "2"})
    async with scheduling(store) as made:
        await made.cycle()
    assigned = (await status(store)).assignment
    assert [member.devices for member in assigned.members["worker"]] == [["gpu/0"], ["gpu/1"]]


async def test_a_form_that_no_node_grants_is_impossible(store):
    role = build.role(devices=[run.Device(kind="gpu", share="1/4")])
    await setup(store, build.a_run("job", role), extra={"windlass.dev/gpu": "2"})
    async with scheduling(store) as made:
        await made.cycle()
    told = await status(store)
    assert (told.reason, told.assignment) == ("Impossible", None)
    assert told.message.startswith("no node grants shares of gpu")


async def test_capacity_given_to_a_run_that_is_held_before_it_starts_is_taken_back(store):
    await setup(store, build.a_run())
    async with scheduling(store) as made:
        await made.cycle()
    await store.patch(run.Run, "job", build.NAMESPACE, patch={"spec": {"suspend": True}})
    async with scheduling(store) as made:
        await made.cycle()
    told = await status(store)
    assert (told.assignment, told.reason) == (None, "Suspended")


async def test_the_heads_of_a_queue_know_their_place_and_when_they_start(store):
    takes_an_hour = run.Durations(expected="1h")
    first = build.a_run("first", build.role(cpu="4"), duration=takes_an_hour, priority=95)
    await setup(store, first)
    async with scheduling(store) as made:
        await made.cycle()
    step = {"at": "2200-01-01T00:00:00Z", "to": "Starting"}
    await set_status(store, {"phase": "Starting", "history": [step]}, "first")
    for number in range(5):
        priority = 90 - number
        await store.create(build.a_run(f"r{number}", build.role(cpu="4"), priority=priority))
    async with scheduling(store) as made:
        await made.cycle()
    places = [(await status(store, f"r{number}")).queue for number in range(5)]
    assert [place and (place.position, place.of) for place in places] == [
        (1, 5), (2, 5), (3, 5), None, None,
    ]  # fmt: skip
    assert places[0].expected_start == "2200-01-01T01:00:00Z"


async def test_a_run_that_got_capacity_waits_in_no_place(store):
    await setup(store, build.a_run("job", build.role(cpu="6")))
    async with scheduling(store) as made:
        await made.cycle()
    assert (await status(store)).queue.position == 1
    await store.create(build.node("n2", cpu="8"))
    async with scheduling(store) as made:
        await made.cycle()
    told = await status(store)
    assert told.assignment is not None
    assert told.queue is None


async def test_words_are_paced_and_assignments_are_not(store):
    clock = [0.0]
    waiting = [build.a_run(f"w{number}", build.role(cpu="64")) for number in range(30)]
    small = [build.a_run(f"s{number}", build.role(cpu="100m")) for number in range(12)]
    await setup(store, *waiting, *small)
    async with scheduling(store, live=False, clock=lambda: clock[0]) as made:

        async def told() -> int:
            return len([1 for owner in waiting if (await status(store, owner.name)).reason])

        assert await made.cycle() is not None
        assert await told() == status_writer.REASONS_BESIDE_STARTS
        given = [(await status(store, owner.name)).assignment for owner in small]
        assert None not in given
        for _ in range(2):
            await made.cycle()
            assert await told() == status_writer.REASONS_PER_SECOND
        clock[0] = 1.0
        await made.cycle()
        assert await told() == len(waiting)


async def test_every_workload_gets_its_reason_in_the_end_though_nothing_changes(store):
    clock = [0.0]
    count = status_writer.MOST_PENDING + 30
    waiting = [build.a_run(f"w{number}", build.role(cpu="64")) for number in range(count)]
    await setup(store, *waiting)
    async with scheduling(store, live=False, clock=lambda: clock[0]) as made:
        seconds = math.ceil(count / status_writer.REASONS_PER_SECOND)
        for second in range(seconds):
            clock[0] = float(second)
            await made.cycle()
    untold = [owner.name for owner in waiting if not (await status(store, owner.name)).reason]
    assert untold == []


async def test_with_very_many_waiting_workloads_reasons_are_updated_periodically(
    store, monkeypatch
):
    monkeypatch.setattr(scheduler_loop, "INLINE_WORKLOADS", 0)
    clock, moment = [5.0], [times.now()]
    await setup(store, build.a_run("first", build.role(cpu="64")))
    async with scheduling(store, live=False, clock=lambda: clock[0], now=lambda: moment[0]) as made:
        await made.cycle()
        assert (await status(store, "first")).reason
        late = await store.create(build.a_run("late", build.role(cpu="64")))
        made._cache.on_run("ADDED", None, late)
        again = await made.cycle()
        assert not (await status(store, "late")).reason
        clock[0] += rate_limit.REASONS_EVERY
        moment[0] = times.from_unix(again)
        await made.cycle()
        assert (await status(store, "late")).reason


async def test_what_changed_under_our_hands_is_decided_again_though_it_asks_for_the_same(store):
    await setup(store, build.a_run())
    async with scheduling(store, live=False) as made:
        seen = await store.get(run.Run, "job", build.NAMESPACE)
        newer = await store.patch(
            run.Run, "job", build.NAMESPACE, patch={"metadata": {"labels": {"a": "b"}}}
        )
        await made.cycle()
        assert (await status(store)).assignment is None
        made._cache.on_run("MODIFIED", seen, newer)
        await made.cycle()
    assert (await status(store)).assignment is not None


class Decisions:
    """Counts them, and lets something happen in the middle of one."""

    def __init__(self, monkeypatch, meanwhile=lambda: None) -> None:
        self.threads: list[threading.Thread] = []
        real = scheduler_loop.core.run

        def spied(*args):
            self.threads.append(threading.current_thread())
            meanwhile()
            return real(*args)

        monkeypatch.setattr(scheduler_loop.core, "run", spied)


async def test_nothing_is_decided_again_when_nothing_changed_that_counts(store, monkeypatch):
    decisions = Decisions(monkeypatch)
    await setup(store, build.a_run("job", build.role(cpu="64")))
    async with scheduling(store, live=False) as made:
        await made.cycle()
        made._cache.on_node("MODIFIED", None, build.node())
        await made.cycle()
        assert len(decisions.threads) == 1
        made._cache.on_node("MODIFIED", None, build.node(cpu="100"))
        await made.cycle()
    assert len(decisions.threads) == 2
    assert (await status(store)).assignment is not None


async def test_what_could_not_be_written_is_decided_again(store):
    class Away:
        """The real store; the first write finds no server."""

        def __init__(self) -> None:
            self.patch = self.refuse

        async def refuse(self, *_, **__):
            self.patch = store.patch
            raise errors.Unavailable("the server is away")

    await setup(store, build.a_run())
    async with scheduling(store, live=False, write_to=Away()) as made:
        with pytest.raises(errors.Unavailable):
            await made.cycle()
        await made.cycle()
    assert (await status(store)).assignment is not None


async def test_a_large_cluster_is_decided_in_a_thread_and_changes_meanwhile_are_kept(
    store, monkeypatch
):
    monkeypatch.setattr(scheduler_loop, "INLINE_NODES", 0)
    loop, held = asyncio.get_running_loop(), None
    await setup(store, build.a_run())
    async with scheduling(store, live=False) as made:
        seen = await store.get(run.Run, "job", build.NAMESPACE)
        suspend = {"spec": {"suspend": True}}
        held = await store.patch(run.Run, "job", build.NAMESPACE, patch=suspend)

        def meanwhile() -> None:
            """On the loop, while the thread waits for it: the loop is free."""
            done = threading.Event()

            def change() -> None:
                made._cache.on_run("MODIFIED", seen, held)
                done.set()

            loop.call_soon_threadsafe(change)
            assert done.wait(30)

        decisions = Decisions(monkeypatch, meanwhile)
        await made.cycle()
        assert decisions.threads != [threading.current_thread()]
        assert (await status(store)).assignment is None
        await made.cycle()
    assert (await status(store)).reason == "Suspended"


async def test_a_decision_that_breaks_a_rule_is_counted_and_logged(store, monkeypatch, caplog):
    registry = prometheus.Registry()
    await setup(store, build.a_run())
    async with scheduling(store, registry=registry) as made:
        await made.cycle()
        text = registry.render()
        assert "# TYPE windlass_invariant_violations_total counter" in text
        assert "windlass_invariant_violations_total{" not in text
        found = [("I1", "node n1 is given out twice")]
        monkeypatch.setattr(invariants, "broken", lambda *_: found)
        made._cache.on_node("MODIFIED", None, build.node(cpu="100"))
        await made.cycle()
    assert 'windlass_invariant_violations_total{invariant="I1"} 1' in registry.render()
    assert "node n1 is given out twice" in caplog.text


async def test_what_the_engine_cannot_do_is_said_at_once_and_taken_back_when_it_can(store):
    image = run.Environment(image="pytorch")
    await setup(store, build.a_run("job", environment=image))
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name=NAMESPACE)))
    name = meta.ObjectMeta(name="engine", namespace=NAMESPACE)
    facts = await store.create(core.ConfigMap(metadata=name, data=Engine(images=False).data()))
    async with scheduling(store) as made:
        await made.cycle()
        told = await status(store)
        assert (told.assignment, told.reason) == (None, "Unsupported")
        assert "this engine runs processes" in told.message
        facts.data = Engine().data()
        await store.replace(facts)
        async with asyncio.timeout(5):
            while (await status(store)).assignment is None:
                await made.cycle()
                await asyncio.sleep(0.01)
