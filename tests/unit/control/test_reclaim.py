"""Who gives room to whom, from the decision to the pods: nominations, evictions, growth."""

import dataclasses
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.control import build
from tests.unit.control.world import World
from windlass.cli.commands.jobs import ps
from windlass.cli.lib.output import Output
from windlass.control.explain import narrative, preemptions
from windlass.control.scheduler import assignment
from windlass.core.model import types
from windlass.kinds.types import core, meta, run
from windlass.kinds.values import times
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore


@pytest.fixture
async def world(store) -> World:
    return await laid_out(store)


async def laid_out(store, nodes: int = 1) -> World:
    for number in range(nodes):
        await store.create(build.node(f"n{number + 1}"))
    await store.create(build.a_queue())
    return World(store)


async def test_a_better_run_is_nominated_first_and_starts_when_the_capacity_is_free(world):
    await world.submit("low", cpu="4", priority=10)
    await world.go(2)
    await world.submit("high", cpu="4", priority=90)
    await world.live(cycles=1)
    high, low = await world.status("high"), await world.status("low")
    assert high.nomination is not None
    assert (high.nomination.attempt, high.nomination.epoch) == (0, world.epoch)
    assert low.eviction is not None
    assert low.eviction.by == (await world.run("high")).uid
    assert low.eviction.reason == "preempted by run high (priority 90 > 10)"
    await world.live()
    low = await world.status("low")
    assert (low.phase, low.reason) == ("Stopping", "Preempted")
    [stopping] = await told_of_preemption(world, "low", "high", seen=True)
    assert stopping.startswith("It is being preempted by run high (priority 90, own 10). ")
    assert (await world.status("high")).assignment is None
    await world.go(3)
    high, low = await world.status("high"), await world.status("low")
    assert (high.phase, high.nomination) == ("Running", None)
    assert (low.phase, low.attempt, low.retries) == ("Queued", 1, 0)
    [queued] = await told_of_preemption(world, "low", "high", seen=True)
    assert re.fullmatch(
        r"It was preempted \S+ ago by run high \(priority 90, own 10\)\. "
        r"It starts again, from its last checkpoint, when there is capacity\.",
        queued,
    )
    [hidden] = await told_of_preemption(world, "low", "high", seen=False)
    assert " ago by a run of others. " in hidden
    assert "high" not in hidden
    assert await told_of_preemption(world, "high", "low", seen=True) == []


async def told_of_preemption(world: World, name: str, other: str, *, seen: bool) -> list[str]:
    by = await world.run(other)
    return preemptions.sentences(await world.run(name), {by.uid: by}.get, lambda _: seen, world.now)


async def test_a_preempted_run_starts_again_when_there_is_capacity(world):
    world.lengths["high"] = 3
    await world.submit("low", cpu="4", priority=10)
    await world.go(2)
    await world.submit("high", cpu="4", priority=90)
    await world.go(10)
    low = await world.status("low")
    assert (low.phase, low.attempt, low.eviction) == ("Running", 1, None)
    assert (await world.status("high")).phase == "Succeeded"


async def test_capacity_that_was_given_and_not_used_yet_is_taken_back_at_once(world):
    await world.submit("low", cpu="4", priority=10)
    await world.store.patch(
        run.Run, "low", build.NAMESPACE, subresource="status",
        patch={"status": {"assignment": {
            "attempt": 0, "epoch": 99, "members": {"worker": [{"node": "n1"}]}}}},
    )  # fmt: skip
    world.epoch = 98
    await world.submit("high", cpu="4", priority=90)
    await world.live(cycles=2)
    assert (await world.status("high")).phase == "Starting"
    assert (await world.status("low")).assignment is None


async def test_an_eviction_whose_preemptor_is_gone_is_withdrawn_if_it_is_not_carried_out(world):
    await world.submit("low", cpu="4", priority=10)
    await world.go(2)
    await world.submit("high", cpu="4", priority=90)
    await world.live(cycles=1, writes=2, after=True)  # the nomination and the eviction
    assert (await world.status("low")).eviction is not None
    await world.patch("high", {"suspend": True})
    await world.go(2)
    low = await world.status("low")
    assert (low.phase, low.eviction, low.attempt) == ("Running", None, 0)
    assert (await world.status("high")).nomination is None


async def test_an_eviction_that_was_acted_on_is_not_withdrawn(world):
    world.stubborn = True
    await world.submit("low", cpu="4", priority=10)
    await world.go(2)
    await world.submit("high", cpu="4", priority=90)
    await world.live()
    await world.patch("high", {"stop": True})
    await world.go(6)
    low = await world.status("low")
    assert (low.phase, low.attempt, low.eviction) == ("Running", 1, None)


async def test_a_nomination_without_victims_is_decided_again(world):
    await world.submit("low", cpu="4", priority=10)
    await world.go(2)
    await world.submit("high", cpu="4", priority=90)
    await world.live(cycles=1, writes=1, after=True)
    assert (await world.status("high")).nomination is not None
    assert (await world.status("low")).eviction is None
    await world.go(4)
    assert (await world.status("high")).phase == "Running"


@pytest.mark.parametrize("resize", ["live", "restart"])
async def test_an_elastic_run_shrinks_before_it_is_stopped_and_grows_again(world, resize):
    await world.submit("wide", 4, min_replicas=1, resize=resize, priority=10)
    await world.go(2)
    assert len(await world.pods("wide")) == 4
    world.lengths["high"] = 8
    await world.submit("high", cpu="2", priority=90)
    await world.go(5)
    status = await world.status("wide")
    assert (await world.status("high")).phase == "Running"
    assert [pod.metadata.labels[run.LABEL_INDEX] for pod in await world.pods("wide")] == ["0", "1"]
    assert status.attempt == (0 if resize == "live" else 1)
    assert (status.phase, status.eviction, status.members) == ("Running", None, {"worker": 2})
    row = narrative.row(narrative.Row(await world.run("wide"), "default"))
    assert (row["members"], row["minReplicas"], row["replicas"]) == (2, 1, 4)
    [shown] = ps.lines(Output(), {"items": [row], "waiting": 0}, everywhere=False)[1:]
    assert " 2/1..4 " in shown
    assert ("attempt 1 " in shown) == (status.attempt == 1)
    assert "attempt 2" not in shown
    await world.go(20)
    status = await world.status("wide")
    assert (await world.status("high")).phase == "Succeeded"
    assert status.members == {"worker": 4}
    assert len(await world.pods("wide")) == 4
    assert (status.attempt, status.retries) == (0 if resize == "live" else 2, 0)


async def test_an_elastic_run_gives_capacity_to_several_in_one_decision(world):
    await world.submit("wide", 4, min_replicas=1, resize="live", priority=10)
    await world.go(2)
    for number in range(3):
        await world.submit(f"high-{number}", priority=90)
    await world.live(cycles=1)
    wide = await world.status("wide")
    assert wide.eviction is not None
    assert wide.eviction.keep_members == {"worker": 1}
    assert all([(await world.status(f"high-{n}")).nomination for n in range(3)])
    await world.go(4)
    assert [(await world.status(f"high-{n}")).phase for n in range(3)] == ["Running"] * 3
    wide = await world.status("wide")
    assert (wide.members, wide.eviction, wide.attempt) == ({"worker": 1}, None, 0)


async def test_a_run_submitted_while_another_shrinks_makes_it_shrink_further(world):
    world.stubborn = True
    await world.submit("wide", 4, min_replicas=1, resize="live", priority=10)
    await world.go(2)
    await world.submit("first", priority=90)
    await world.live(cycles=2)
    assert (await world.status("wide")).members == {"worker": 3}
    await world.submit("second", priority=90)
    await world.live(cycles=1, writes=3, after=True)  # both nominations and the eviction
    wide = await world.status("wide")
    assert wide.eviction is not None
    assert wide.eviction.keep_members == {"worker": 2}
    # The second goes away in time: what went for the first is gone all the same.
    await world.patch("second", {"stop": True})
    await world.go(6)
    wide = await world.status("wide")
    assert (await world.status("first")).phase == "Running"
    assert (wide.phase, wide.members, wide.eviction) == ("Running", {"worker": 3}, None)


@pytest.mark.parametrize("resize", ["live", "restart"])
async def test_its_user_scales_a_run_down_and_up(world, resize):
    await world.submit("job", 4, min_replicas=1, resize=resize)
    await world.go(2)
    role = build.role(replicas=2, min_replicas=1, resize=resize)
    await world.patch("job", {"roles": meta_roles(role)})
    await world.go(5)
    assert len(await world.pods("job")) == 2
    role.replicas = 3
    await world.patch("job", {"roles": meta_roles(role)})
    await world.go(12)
    status = await world.status("job")
    assert (len(await world.pods("job")), status.phase) == (3, "Running")


def meta_roles(role: run.Role) -> list[dict]:
    return [
        {
            "name": role.name, "replicas": role.replicas, "minReplicas": role.min_replicas,
            "resize": role.resize, "command": role.command,
            "resources": {"cpu": role.resources.cpu, "memory": role.resources.memory},
        }
    ]  # fmt: skip


async def test_members_that_need_no_gang_come_one_by_one_until_all_were_there(world):
    world.lengths["job"] = 2
    await world.submit("job", 7, cpu="2", placement=run.Placement(gang=False))
    await world.live()
    assert len(await world.pods("job")) == 2
    await world.go(20)
    assert (await world.status("job")).phase == "Succeeded"
    assert len(world.worked["job"]) == 7


# --- failures -------------------------------------------------------------------------------------


async def test_nothing_starts_twice_while_a_silent_node_may_come_back(store):
    world = await laid_out(store, nodes=2)
    world.pace = 40
    await world.submit("job", cpu="3")
    await world.go(2)
    ((_, _, node),) = world.processes.values()
    await world.set_silent(node, silent=True)
    await world.live()
    status = await world.status("job")
    assert (status.phase, status.reason, status.avoid) == ("Stopping", "NodeLost", [node])
    await world.set_silent(node, silent=False)
    await world.go(3)
    status = await world.status("job")
    assert (status.phase, status.attempt, status.retries) == ("Running", 1, 1)
    assert status.assignment is not None
    assert status.assignment.members["worker"][0].node != node
    assert not [step for step in status.history or () if "twice" in step.message]


async def test_what_may_have_run_twice_says_so(store):
    world = await laid_out(store, nodes=2)
    world.pace = 40
    await world.submit("job", cpu="3")
    await world.go(2)
    ((_, _, node),) = world.processes.values()
    await world.set_silent(node, silent=True)
    await world.go(6)
    status = await world.status("job")
    assert (status.phase, status.attempt) == ("Running", 1)
    assert len(world.processes) == 2
    await world.set_silent(node, silent=False)
    await world.turn()
    assert len(world.processes) == 1


@pytest.mark.parametrize(("restart", "again"), [("pod", 1), ("role", 3)])
async def test_members_that_fail_start_again_within_the_attempt(world, restart, again):
    world.lengths["job"] = 6
    await world.submit("job", 3, restart=restart)
    await world.go(2)
    world.failing["job"] = 1
    await world.go(20)
    status = await world.status("job")
    assert (status.phase, status.attempt, status.restarts, status.retries) == ("Succeeded", 0, 1, 0)
    assert len(world.worked["job"]) == 3 + again


deaths = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=14)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(deaths=deaths, resize=st.sampled_from(["live", "restart"]), stubborn=st.booleans())
async def test_whatever_crashes_every_run_is_placed_in_turn_and_none_gets_too_much(
    deaths, resize, stubborn, tmp_path_factory
):
    """Each life dies at one of its writes; World checks capacity and attempts all the time."""
    api = await Api.open(tmp_path_factory.mktemp("crash") / "store.db")
    store = EmbeddedStore(api)
    try:
        await store.create(core.Namespace(metadata=meta.ObjectMeta(name=build.NAMESPACE)))
        world = await laid_out(store, nodes=2)
        world.stubborn = stubborn
        world.lengths = {"wide": 20, "low": 6, "high": 4, "late": 2, "loose": 3}
        await world.submit("wide", 6, min_replicas=2, resize=resize, priority=20)
        await world.submit("low", 2, priority=10)
        for number, (writes, after) in enumerate(deaths):
            if number == 3:
                await world.submit("high", 2, cpu="3", priority=90)
            if number == 6:
                await world.submit("late", cpu="4", priority=95)
                await world.submit("loose", 5, placement=run.Placement(gang=False))
            await world.live(writes=writes, after=after)
            await world.turn()
        await world.go(60)
        for owner in await world.runs():
            assert owner.status.phase == "Succeeded", (owner.name, owner.status)
            assert owner.status.retries == 0
    finally:
        await api.close()


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    deaths=deaths,
    restart=st.sampled_from(["pod", "role", "run"]),
    fails=st.integers(0, 3),
    silent=st.integers(1, 8),
)
async def test_whatever_crashes_no_member_fails_more_often_than_its_run_allows(
    deaths, restart, fails, silent, tmp_path_factory
):
    """Members fail, a node falls silent and comes back, the leader dies all the time."""
    api = await Api.open(tmp_path_factory.mktemp("crash") / "store.db")
    store = EmbeddedStore(api)
    try:
        await store.create(core.Namespace(metadata=meta.ObjectMeta(name=build.NAMESPACE)))
        world = await laid_out(store, nodes=2)
        world.pace, world.lengths["job"] = 25, 5
        retries = run.Retries(limit=4, causes=["NodeLost", "Failed"])
        await world.submit("job", 3, cpu="2", restart=restart, retries=retries)
        for number, (writes, after) in enumerate(deaths):
            if number == 3:
                world.failing["job"] = fails
            if number == silent:
                await world.set_silent("n1", silent=True)
            await world.live(writes=writes, after=after)
            await world.turn()
        await world.go(4)
        await world.set_silent("n1", silent=False)
        await world.go(60)
        status = await world.status("job")
        assert status.phase == "Succeeded", status
        assert not world.processes
        assert status.restarts + status.retries <= fails + 1
    finally:
        await api.close()


def test_only_readers_of_its_namespace_learn_the_name_of_a_preemptor() -> None:
    owner, high = build.a_run("low"), build.a_run("high")
    reason = "preempted by a workload of queue q (priority 90 > 10)"
    eviction = types.Eviction("low", (("worker", 0),), "high", reason)

    def written(preemptor: run.Run | None, why: str = reason) -> str:
        changed = dataclasses.replace(eviction, reason=why)
        owner.status.phase = "Running"
        patch = assignment.evict(owner, changed, times.now(), preemptor)
        return str(patch["eviction"]["reason"])

    assert written(high) == "preempted by run high (priority 90 > 10)"
    assert written(None) == reason
    reclaimed = "reclaimed by queue b, which is guaranteed it"
    assert written(high, reclaimed) == f"{reclaimed}; run high starts there"
    surplus = "its surplus is needed for the minimum of a workload of queue q"
    assert written(high, surplus) == "to make room for run high"
    high.metadata.namespace = "other"
    assert written(high) == "preempted by a run of another team (priority 90 > 10)"
    assert written(high, reclaimed) == reclaimed
    assert written(high, surplus) == "to make room for a run of another team"
