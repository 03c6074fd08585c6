"""Runs that are moved to other nodes so that a waiting one fits, from the decision to the pods."""

import datetime

import pytest

from tests.unit.control import build
from tests.unit.control.test_reclaim import laid_out
from tests.unit.control.world import World
from windlass.kinds.types import run
from windlass.kinds.values import times

MOVABLE = run.Placement(movable=True)


@pytest.fixture
async def world(store) -> World:
    return await laid_out(store, nodes=2)


async def fragmented(world: World, placement: run.Placement = MOVABLE, **more) -> None:
    """Two nodes of four CPUs, each half full for an hour: a Run of four fits on neither."""
    world.lengths["filler"] = 3
    await world.submit("filler", cpu="2")
    await world.go(1)
    await world.submit("mover", cpu="2", placement=placement, **more)
    await world.go(1)
    await world.submit("stays", cpu="2")
    await world.go(4)
    assert (await world.status("filler")).phase == "Succeeded"
    assert await nodes_of(world, "mover") != await nodes_of(world, "stays")
    world.now += datetime.timedelta(hours=1)


async def saves(world: World, name: str, ago: float = 60) -> None:
    """A Run reports that it saved its state."""
    at = times.seconds(world.now - datetime.timedelta(seconds=ago))
    await world.store.patch(
        run.Run, name, build.NAMESPACE, subresource="status",
        patch={"status": {"progress": {"checkpoint": at}}},
    )  # fmt: skip


async def nodes_of(world: World, name: str) -> set[str]:
    held = (await world.status(name)).assignment
    assert held is not None
    return {member.node for listed in held.members.values() for member in listed}


async def test_a_run_is_moved_and_both_run(world):
    await fragmented(world)
    await saves(world, "mover")
    old, free = await nodes_of(world, "mover"), await nodes_of(world, "stays")
    await world.submit("big", cpu="4")
    await world.live(cycles=2)
    big, mover = await world.run("big"), await world.status("mover")
    assert big.status.nomination is not None
    assert mover.nomination is not None
    assert mover.nomination.attempt == mover.attempt + 1
    assert mover.eviction is not None
    assert mover.eviction.by == big.uid
    assert "so that a waiting workload" in mover.eviction.reason
    assert [each.by for each in mover.moves or ()] == [big.uid]
    await world.go(5)
    mover = await world.status("mover")
    assert (mover.phase, (await world.status("big")).phase) == ("Running", "Running")
    assert (await nodes_of(world, "mover"), await nodes_of(world, "big")) == (free, old)
    assert (mover.attempt, mover.retries, mover.nomination, mover.eviction) == (1, 0, None, None)


async def test_leaders_that_die_at_every_write_move_it_once(world):
    await fragmented(world)
    await saves(world, "mover")
    await world.submit("big", cpu="4")
    for _ in range(12):
        await saves(world, "mover")
        await world.live(cycles=1, writes=1, after=True)
        await world.turn()
    await world.go(6)
    mover = await world.status("mover")
    assert (mover.phase, (await world.status("big")).phase) == ("Running", "Running")
    assert len(mover.moves or ()) == 1


@pytest.mark.parametrize(
    ("placement", "more", "ago"),
    [
        (run.Placement(), {}, 60),
        (MOVABLE, {}, 900),
        (MOVABLE, {"preemptible": False}, 60),
        (MOVABLE, {"retries": run.Retries(causes=["NodeLost"])}, 60),
    ],
    ids=["no consent", "old checkpoint", "must not be preempted", "would fail"],
)
async def test_pods_that_are_ignored(world, placement, more, ago):
    await fragmented(world, placement, **more)
    await saves(world, "mover", ago)
    await world.submit("big", cpu="4")
    await world.live()
    assert (await world.status("mover")).eviction is None
    assert (await world.status("big")).reason == "WaitingForCapacity"


async def test_a_moved_workload_is_not_moved_again_within_an_hour_under_any_leader(world):
    await fragmented(world)
    await saves(world, "mover")
    world.lengths["big"] = 2
    await world.submit("big", cpu="4")
    await world.go(8)
    assert (await world.status("big")).phase == "Succeeded"
    await world.submit("half", cpu="2")
    await world.go(2)
    await world.patch("stays", {"stop": True})
    await world.go(2)
    assert await nodes_of(world, "mover") != await nodes_of(world, "half")
    await saves(world, "mover")
    await world.submit("next", cpu="4")
    await world.live()
    assert (await world.status("next")).reason == "WaitingForCapacity"
    assert len((await world.status("mover")).moves or ()) == 1
    world.now += datetime.timedelta(hours=1)
    await saves(world, "mover")
    await world.go(5)
    assert (await world.status("next")).phase == "Running"
    assert len((await world.status("mover")).moves or ()) == 2


async def test_the_status_names_the_nodes_that_a_run_has_left(world):
    """Their agents may still send its logs; a node that it has again is not among them."""
    await fragmented(world)
    await saves(world, "mover")
    first = await nodes_of(world, "mover")
    assert (await world.status("mover")).past_nodes is None
    await world.submit("big", cpu="4")
    await world.live(cycles=2)
    await world.go(5)
    moved = await world.status("mover")
    assert await nodes_of(world, "mover") != first
    assert set(moved.past_nodes or ()) == first
