"""Queues that are paused, drained, opened, and runs that move between them: no run is lost."""

from __future__ import annotations

import pytest

from tests.unit.control import build
from tests.unit.control.world import World
from windlass.kinds.types import meta, queue


@pytest.fixture
async def world(store) -> World:
    await store.create(build.node("n1"))
    await store.create(build.a_queue())
    return World(store)


async def change(world: World, name: str = "default", **spec: object) -> None:
    await world.store.patch(queue.Queue, name, patch={"spec": spec})


async def add(world: World, name: str, **spec: object) -> None:
    await world.store.create(
        queue.Queue(metadata=meta.ObjectMeta(name=name), spec=queue.QueueSpec(**spec))
    )


async def test_in_a_paused_queue_nothing_starts_or_grows_and_what_runs_goes_on(world):
    await world.submit("wide", 3, min_replicas=1, resize="live")
    await world.submit("tight", cpu="2")
    await world.go(2)
    await change(world, stop="hold")
    await world.patch("tight", {"stop": True})
    await world.submit("late")
    await world.go(3)
    late, wide = await world.status("late"), await world.status("wide")
    assert (late.phase, late.reason) == ("Queued", "QueuePaused")
    assert "default is paused" in late.message
    assert (wide.phase, wide.attempt, wide.members) == ("Running", 0, {"worker": 2})
    await change(world, stop=None)
    await world.go(2)
    assert (await world.status("late")).phase == "Running"


async def test_a_pause_above_holds_the_queues_below(world):
    await add(world, "company", stop="hold")
    await add(world, "below", parent="company")
    await world.submit("job", queue="below")
    await world.go(1)
    status = await world.status("job")
    assert (status.reason, "queue company" in status.message) == ("QueuePaused", True)


async def test_a_drained_queue_stops_its_runs_by_contract_and_opened_again_it_starts_them(world):
    await world.submit("soft")
    await world.submit("firm", preemptible=False)
    await world.go(2)
    await change(world, stop="drain")
    await world.go(3)
    soft, firm = await world.status("soft"), await world.status("firm")
    assert (soft.phase, soft.attempt, soft.retries, soft.reason) == ("Queued", 1, 0, "QueuePaused")
    assert firm.phase == "Running"
    await change(world, stop=None)
    await world.go(2)
    soft = await world.status("soft")
    assert (soft.phase, soft.attempt, soft.eviction) == ("Running", 1, None)


async def test_a_drain_that_is_cancelled_in_time_stops_no_run(world):
    await world.submit("job")
    await world.go(2)
    await change(world, stop="drain")
    await world.live(cycles=1, writes=1, after=True)  # the eviction, and the leader dies
    assert (await world.status("job")).eviction is not None
    await change(world, stop=None)
    await world.go(2)
    job = await world.status("job")
    assert (job.phase, job.attempt, job.eviction) == ("Running", 0, None)


async def test_a_queue_with_namespaces_is_for_them_and_a_parent_for_no_run(world):
    await add(world, "vision", namespaces=["vision"], guarantee={"cpu": "4"})
    await add(world, "company")
    await add(world, "ours", parent="company", namespaces=[build.NAMESPACE])
    await world.submit("thief", queue="vision")
    await world.submit("climber", queue="company")
    await world.submit("honest")
    await world.go(2)
    thief, climber = await world.status("thief"), await world.status("climber")
    assert (thief.phase, thief.reason) == ("Queued", "QueueNotYours")
    assert "for the namespaces vision" in thief.message
    assert (climber.phase, climber.reason) == ("Queued", "QueueNotYours")
    assert (await world.status("honest")).phase == "Running"


async def test_a_running_run_cannot_be_moved_onto_another_teams_account(world):
    await add(world, "vision", namespaces=["vision"], guarantee={"cpu": "1"}, limit={"cpu": "1"})
    await add(world, "ours", namespaces=[build.NAMESPACE], limit={"cpu": "1"})
    await world.submit("sly")
    await world.go(2)
    await world.patch("sly", {"queue": "vision"})
    await world.submit("second")
    await world.go(2)
    second = await world.status("second")
    assert (await world.status("sly")).phase == "Running"
    assert (second.phase, second.reason) == ("Queued", "WaitingForQuota")


async def test_a_run_that_moves_takes_its_capacity_along_and_is_not_stopped(world):
    await add(world, "left", limit={"cpu": "1"})
    await add(world, "right", limit={"cpu": "1"})
    await world.submit("job", queue="left")
    await world.go(1)  # it was first, whatever their uids say
    await world.submit("next", queue="left")
    await world.go(2)
    assert (await world.status("next")).reason == "WaitingForQuota"
    await world.patch("job", {"queue": "right"})
    await world.go(2)
    job, following = await world.status("job"), await world.status("next")
    assert (job.phase, job.attempt) == ("Running", 0)
    assert following.phase == "Running"
