"""The scheduler's cycle against the real embedded store."""

import contextlib

import pytest

from tests.unit.control import build
from windlass.control import leader, scheduler
from windlass.kinds import kubernetes, queue, run
from windlass.store import errors
from windlass.store.reflector import Reflector


@contextlib.asynccontextmanager
async def scheduling(store, epoch=1, *, live=True, write_to=None):
    """A scheduler whose reflectors are in sync; `live=False`: and then see no more changes."""
    kinds = (kubernetes.Node, kubernetes.Pod, run.Run, queue.Queue)
    reflectors = [Reflector(store, kind) for kind in kinds]
    async with contextlib.AsyncExitStack() as stack:
        for reflector in reflectors:
            await stack.enter_async_context(reflector)
            await reflector.synced()
        if not live:
            for reflector in reflectors:
                await reflector.stop()
        nodes, pods, runs, queues = reflectors
        yield scheduler.Scheduler(
            write_to or store, nodes=nodes, pods=pods, runs=runs, queues=queues, epoch=epoch
        )


async def setup(store, *runs: run.Run, cpu="4") -> None:
    with contextlib.suppress(errors.AlreadyExists):
        await store.create(build.node(cpu=cpu))
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


async def test_room_just_given_away_is_not_given_again_before_the_reflector_shows_it(store):
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


async def test_a_new_leader_withdraws_room_on_a_node_that_is_gone_and_decides_anew(store):
    await setup(store, build.a_run())
    async with scheduling(store, epoch=1) as made:
        await made.cycle()
    await store.delete(kubernetes.Node, "n1")
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
    async with scheduling(store) as made:
        assert await made.cycle() == 7258118400 + 5
    assert (await status(store)).assignment is None


async def test_a_leader_whose_term_is_over_writes_nothing(store):
    await setup(store, build.a_run())
    over = leader.Guarded(store, leader.Term(1, ends=0.0, clock=lambda: 1.0))
    async with scheduling(store, write_to=over) as made:
        with pytest.raises(leader.LeadershipLostError):
            await made.cycle()
    assert (await status(store)).assignment is None
