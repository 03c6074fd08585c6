"""Gangs that run without all of their members: what they may take, and their verdicts."""

import pytest

from tests.unit.control import build
from tests.unit.control.test_reclaim import laid_out, meta_roles
from tests.unit.control.world import World
from windlass.control.convert import pod_groups
from windlass.control.explain import narrative
from windlass.control.model import members
from windlass.control.scheduler import assignment
from windlass.control.scheduler.cache import cache
from windlass.core.cycle import cycle
from windlass.kinds.types import core


@pytest.fixture
async def world(store) -> World:
    return await laid_out(store)


async def scaled(world: World, replicas: int, resize: str = "live") -> None:
    """A gang of two runs beside another Run, and gets more members."""
    role = build.role(replicas=replicas, min_replicas=replicas, resize=resize)
    await world.patch("gang", {"roles": meta_roles(role)})


@pytest.mark.parametrize("resize", ["live", "restart"])
async def test_a_gang_preempts_for_its_missing_members(world, resize):
    await world.submit("gang", 2, min_replicas=2, resize=resize)
    await world.submit("low", cpu="2", priority=10)
    await world.go(2)
    await scaled(world, 4, resize)
    await world.live(cycles=1)
    gang, low = await world.status("gang"), await world.status("low")
    assert gang.nomination is not None
    assert len(gang.nomination.members["worker"]) == 2
    assert low.eviction is not None
    assert low.eviction.by == (await world.run("gang")).uid
    await world.go(6)
    gang = await world.status("gang")
    assert (gang.phase, gang.members, gang.nomination) == ("Running", {"worker": 4}, None)
    assert (await world.status("low")).phase == "Queued"


async def test_a_new_leader_goes_on_with_the_nomination_of_a_gang(world):
    await world.submit("gang", 2, min_replicas=2, resize="live")
    await world.submit("low", cpu="2", priority=10)
    await world.go(2)
    await scaled(world, 4)
    for _ in range(6):  # each of them dies after one write
        await world.live(cycles=1, writes=1, after=True)
        await world.turn()
    await world.go(4)
    assert (await world.status("gang")).members == {"worker": 4}


async def test_a_gang_that_cannot_be_completed_has_a_reason_until_it_is_complete(world):
    await world.submit("gang", 2, min_replicas=2, resize="live")
    await world.submit("equal", cpu="2")
    world.lengths["equal"] = 6
    await world.go(2)
    before = (await world.status("gang")).message
    await scaled(world, 4)
    await world.live()
    gang = await world.run("gang")
    assert gang.status.message.startswith(
        f"{assignment.INCOMPLETE}WaitingForCapacity: 2 of 4 pods are missing: needs 2 x 1 cpu"
    )
    assert (gang.status.phase, gang.status.reason) == ("Running", "MembersRunning")
    told = narrative.of_other(gang, None, "", world.now)["sentences"]
    assert any(each.startswith("It is incomplete: WaitingForCapacity: 2 of 4") for each in told)
    version = gang.metadata.resource_version
    await world.live()
    assert (await world.run("gang")).metadata.resource_version == version, "told once"
    await world.go(12)
    gang = await world.status("gang")
    assert (gang.members, gang.message) == ({"worker": 4}, before)


async def test_an_incomplete_gang_that_is_scaled_down_again_loses_the_reason(world):
    await world.submit("gang", 2, min_replicas=2, resize="live")
    await world.submit("equal", cpu="2")
    await world.go(2)
    await scaled(world, 4)
    await world.live()
    assert (await world.status("gang")).message.startswith(assignment.INCOMPLETE)
    await scaled(world, 2)
    await world.live()
    assert not (await world.status("gang")).message.startswith(assignment.INCOMPLETE)


def gang_pod(name: str, node: str = "", nominated: str = "") -> core.Pod:
    """A pod of a gang of two external pods, each with a whole node."""
    made = build.external_pod(name, node, cpu="3")
    made.metadata.namespace = build.NAMESPACE
    made.metadata.resource_version = "1"
    made.metadata.annotations = {pod_groups.GANG: "g", pod_groups.SIZE: "2"}
    made.spec.scheduler_name = members.SCHEDULER
    made.status.phase = "Running" if node else "Pending"
    made.status.nominated_node_name = nominated or None
    return made


def test_a_gang_of_pods_keeps_what_is_nominated_to_its_missing_pod():
    seen = cache.SchedulerCache()
    for name in ("n1", "n2"):
        seen.on_node("ADDED", None, build.node(name))
    seen.on_queue("ADDED", None, build.a_queue())
    seen.on_pod("ADDED", None, gang_pod("a", "n1"))
    missing = gang_pod("b")
    seen.on_pod("ADDED", None, missing)
    snapshot = seen.apply_changes(seen.drain_changes(1000.0))
    (placement,) = cycle.decide(snapshot, 1000.0).placements
    (pod,) = placement.pods
    nominated = gang_pod("b", nominated=pod.node)
    nominated.metadata.resource_version = "2"
    seen.on_pod("MODIFIED", missing, nominated)
    snapshot = seen.apply_changes(seen.drain_changes(1001.0))
    assert snapshot.nominations[placement.workload].pods == (pod,)
    assert cycle.decide(snapshot, 1001.0).placements == (placement,)
