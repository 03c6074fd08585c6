"""The array controller against the real embedded store; the Runs of indices are played."""

import contextlib
import dataclasses
from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.control import build
from tests.unit.control.build import NAMESPACE, a_run, role
from tests.unit.control.faults import Crash, Fragile
from windlass.control.arrays import controller, plan
from windlass.control.convert import run_workloads
from windlass.control.dependencies import controller as dependency_controller
from windlass.control.model import array_runs
from windlass.control.runtime.informers import InformerFactory
from windlass.kinds.annotations import PINNED
from windlass.kinds.types import core, meta, run
from windlass.kinds.values import index_set, times
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

KEY = (NAMESPACE, "sweep")


@dataclasses.dataclass
class World:
    """One array, and what its indices do."""

    store: EmbeddedStore
    endings: dict[int, tuple[str, str, int | None]] = dataclasses.field(default_factory=dict)
    """How an index ends, if not with success: phase, reason, exit code."""
    worked: Counter[int] = dataclasses.field(default_factory=Counter)
    """How often each index ran to an end."""
    most: int = 0
    """The most Runs of indices that existed at the same time."""

    async def submit(self, indices: str, parallelism: int | None = None, **spec) -> None:
        array = run.Array(indices=indices, parallelism=parallelism)
        await self.store.create(a_run("sweep", role(env={"A": "1"}), array=array, **spec))

    async def live(self, rounds: int = 3, writes: int = 10**9, *, after: bool = False) -> None:
        """One life of the controllers, which may die at any of their writes."""
        fragile = Fragile(self.store)
        fragile.writes_left, fragile.after = writes, after
        seen = InformerFactory(self.store)
        arrays = controller.Arrays(fragile, seen.runs)
        waits = dependency_controller.Dependencies(fragile, seen.runs)
        seen.runs.add_handler(arrays.on_run)
        async with seen:
            with contextlib.suppress(Crash):
                for _ in range(rounds):
                    for owner in await self.runs():
                        await waits.reconcile((NAMESPACE, owner.name))
                    await arrays.reconcile(KEY)
        self.most = max(self.most, sum(not child.finished for child in await self.children()))

    async def turn(self) -> None:
        """Every Run of an index goes one step on; what is deleted and released is gone."""
        for child in await self.children():
            found = array_runs.identity(child)
            assert found is not None
            if child.finished:
                continue
            if child.spec.stop or child.metadata.deletion_timestamp:
                await self.report(child, "Stopped", "UserStopped", None)
            elif child.status.phase == "Queued":
                await self.report(child, "Running", "", None)
            else:
                self.worked[found.index] += 1
                await self.report(child, *self.endings.get(found.index, ("Succeeded", "", 0)))

    async def report(self, child, phase: str, reason: str, code: int | None) -> None:
        status = {"phase": phase, "reason": reason, "exitCode": code}
        await self.store.patch(
            run.Run, child.name, NAMESPACE, patch={"status": status}, subresource="status"
        )

    async def go(self, turns: int = 60) -> run.Run:
        for _ in range(turns):
            await self.live()
            await self.turn()
            if (await self.array()).finished:
                break
        await self.live()
        return await self.array()

    async def change(self, **spec) -> None:
        await self.store.patch(run.Run, "sweep", NAMESPACE, patch={"spec": spec})

    async def array(self) -> run.Run:
        return await self.store.get(run.Run, "sweep", NAMESPACE)

    async def runs(self) -> list[run.Run]:
        return (await self.store.list(run.Run, NAMESPACE)).items

    async def children(self) -> list[run.Run]:
        return [each for each in await self.runs() if array_runs.identity(each) is not None]


@pytest.fixture
def world(store) -> World:
    return World(store)


async def test_an_array_runs_each_index_once_and_keeps_only_the_record(world):
    await world.submit("0-9", 3)
    array = await world.go()
    assert (array.status.phase, array.status.message) == ("Succeeded", "all 10 indices succeeded")
    status = array.status.array
    assert (status.succeeded_indices, status.succeeded, status.total) == ("0-9", 10, 10)
    assert status.active_indices == ""
    assert world.worked == Counter(range(10))
    assert world.most == 3
    assert await world.children() == []


def test_the_record_has_the_nodes_of_indices_that_have_ended():
    """Their agents send the logs of an index after its Run is deleted."""

    def index(node: str, phase: str) -> run.Run:
        held = run.Assignment(attempt=0, epoch=1, members={"worker": [run.Member(node=node)]})
        status = run.RunStatus(phase=phase, assignment=held, past_nodes=["n0"])
        return run.Run(spec=run.RunSpec(roles=[run.Role(command=["true"])]), status=status)

    array = run.Run(
        spec=run.RunSpec(roles=[run.Role(command=["true"])]),
        status=run.RunStatus(past_nodes=["n1"]),
    )
    children = [index("n1", "Succeeded"), index("n2", "Failed"), index("n3", "Running")]
    assert plan.past_nodes(array, children) == {"pastNodes": ["n1", "n0", "n2"]}
    assert plan.past_nodes(array, children[2:]) == {}


async def test_the_run_of_an_index_has_the_job_and_the_index(world):
    await world.submit("3-7:2", 1, priority=30, after=[run.After(run="x", when="any")])
    array = await world.array()
    child = array_runs.run_of(array, 5)
    assert child.name == "sweep-5"
    env = child.spec.roles[0].env
    assert env["A"] == "1"
    assert env["WINDLASS_ARRAY_INDEX"] == env["SLURM_ARRAY_TASK_ID"] == "5"
    assert [env[f"SLURM_ARRAY_TASK_{name}"] for name in ("COUNT", "MIN", "MAX")] == ["3", "3", "7"]
    assert (child.spec.priority, child.spec.array, child.spec.after) == (30, None, None)
    assert array_runs.identity(child) == array_runs.Identity("sweep", array.uid, 5)
    assert array_runs.labels_of(child)[run.LABEL_ARRAY_UID] == array.uid


async def test_only_the_indices_are_workloads(world):
    await world.submit("0-3", 2)
    await world.live()
    assert not run_workloads.waits(await world.array())
    assert all(run_workloads.waits(child) for child in await world.children())


async def test_failures_are_recorded_by_reason_and_exit_code_and_the_others_run(world):
    await world.submit("0-5", 2)
    world.endings = {
        1: ("Failed", "CodeFailed", 3), 4: ("Failed", "CodeFailed", 3),
        5: ("Failed", "OutOfMemory", 137),
    }  # fmt: skip
    array = await world.go()
    status = array.status
    assert (status.phase, status.reason, status.exit_code) == ("Failed", "IndicesFailed", 3)
    assert status.message == "3 of 6 indices failed: 1,4-5"
    assert [(f.reason, f.exit_code, f.indices) for f in status.array.failures] == [
        ("CodeFailed", 3, "1,4"), ("OutOfMemory", 137, "5"),
    ]  # fmt: skip
    assert status.array.succeeded_indices == "0,2-3"


async def test_many_ways_to_fail_fit_into_the_record(world):
    await world.submit("0-199")
    world.endings = {index: ("Failed", "CodeFailed", index) for index in range(200)}
    array = await world.go()
    assert len(array.status.array.failures) <= run.FAILURES
    assert array.status.array.failed == 200


async def test_some_indices_are_stopped_and_those_that_wait_never_start(world):
    await world.submit("0-9", 2)
    await world.live()
    await world.turn()
    await world.change(array={"stop": "0,8-9"})
    await world.live()
    first = next(child for child in await world.children() if child.name == "sweep-0")
    assert first.spec.stop
    array = await world.go()
    assert (array.status.phase, array.status.array.stopped_indices) == ("Stopped", "0,8-9")
    assert world.worked == Counter(range(1, 8))


async def test_a_stopped_array_ends_when_its_indices_have(world):
    await world.submit("0-9", 2)
    await world.live()
    await world.turn()
    await world.change(stop=True)
    await world.live()
    assert not (await world.array()).finished
    await world.turn()
    await world.live()
    status = (await world.array()).status
    assert (status.phase, status.array.stopped) == ("Stopped", 10)
    assert world.worked == Counter()


async def test_suspended_it_starts_nothing_and_goes_on_when_resumed(world):
    await world.submit("0-3", 2, suspend=True)
    await world.live()
    assert await world.children() == []
    assert (await world.array()).status.reason == "Suspended"
    await world.change(suspend=False)
    assert (await world.go()).status.phase == "Succeeded"


async def test_changes_of_a_live_array_reach_its_indices(world):
    await world.submit("0-9", 1)
    await world.live()
    await world.change(priority=20, suspend=True, array={"parallelism": 4})
    await world.live()
    (child,) = await world.children()
    assert (child.spec.priority, child.spec.suspend) == (20, True)
    await world.change(suspend=False)
    await world.live()
    assert len(await world.children()) == 4


async def test_a_limit_that_is_removed_from_an_array_is_removed_from_its_indices(world):
    await world.submit("0", duration=run.Durations(max="1h", start="5m"))
    await world.live()
    await world.change(duration={"max": None})
    await world.live()
    (child,) = await world.children()
    assert child.spec.duration == run.Durations(start="5m")
    await world.change(duration=None)
    await world.live()
    (child,) = await world.children()
    assert child.spec.duration is None


async def test_without_a_limit_only_a_window_waits_in_the_queue(world):
    await world.submit("0-999")
    await world.live()
    assert len(await world.children()) == plan.WINDOW


async def test_an_index_that_is_gone_before_the_answer_comes_is_forgotten(world):
    await world.submit("0")
    await world.live()
    (child,) = await world.children()
    arrays = controller.Arrays(world.store, None)

    class Early:
        """The cache shows the deletion first."""

        async def patch(self, *_args, **_options):
            return

        async def delete(self, *_args, **_options):
            arrays.on_run("DELETED", child, None)

    arrays._store = Early()
    await arrays._remove(child)
    assert not arrays._removed


async def test_a_run_that_has_the_name_already_is_not_taken_for_an_index(world):
    await world.store.create(a_run("sweep-1"))
    await world.submit("0-2")
    array = await world.go()
    assert array.status.phase == "Succeeded"
    assert world.worked == Counter(range(3))
    assert (await world.store.get(run.Run, "sweep-1", NAMESPACE)).status.phase == "Queued"


async def test_long_names_are_cut_and_stay_distinct():
    array = a_run("a" * 40)
    names = {array_runs.name_of(array, index) for index in (1, 11, 111)}
    assert len(names) == 3
    assert all(len(name) <= run.MAX_NAME for name in names)


async def test_an_index_whose_run_is_deleted_is_recorded_as_stopped(world):
    await world.submit("0-2", 1)
    await world.live()
    (child,) = await world.children()
    await world.store.delete(run.Run, child.name, NAMESPACE)
    array = await world.go()
    assert (array.status.phase, array.status.array.stopped_indices) == ("Stopped", "0")


async def test_a_deleted_array_leaves_nothing_behind(world):
    await world.submit("0-4", 2)
    await world.live()
    await world.store.delete(run.Run, "sweep", NAMESPACE)
    for _ in range(4):
        await world.live()
        await world.turn()
    assert await world.children() == []


async def test_an_array_is_deleted_when_its_time_has_come_but_not_before_it_is_noted(world):
    await world.submit("0-1", ttl_after_finished="0s")
    await world.store.create(a_run("next", after=[run.After(run="sweep")]))
    with pytest.raises(errors.NotFound):
        await world.go()
    following = await world.store.get(run.Run, "next", NAMESPACE)
    assert [(each.phase, each.outcome) for each in following.status.after] == [("Succeeded", "Met")]


async def test_a_pinned_array_stays_when_its_time_has_come(world):
    await world.submit("0-1", ttl_after_finished="0s")
    pinned = {"metadata": {"annotations": {PINNED: "true"}}}
    await world.store.patch(run.Run, "sweep", NAMESPACE, patch=pinned)
    assert (await world.go()).status.phase == "Succeeded"
    await world.live()
    await world.store.patch(
        run.Run, "sweep", NAMESPACE, patch={"metadata": {"annotations": {PINNED: None}}}
    )
    await world.live()
    with pytest.raises(errors.NotFound):
        await world.array()


async def test_a_dependency_that_failed_ends_the_array_without_a_start(world):
    await world.store.create(build.in_phase(a_run("prepare"), "Failed"))
    await world.submit("0-4", after=[run.After(run="prepare")])
    await world.store.patch(
        run.Run, "prepare", NAMESPACE, patch={"status": {"phase": "Failed"}}, subresource="status"
    )
    await world.live()
    status = (await world.array()).status
    assert (status.phase, status.reason) == ("Failed", "DependencyFailed")
    assert world.worked == Counter()


async def test_indices_that_no_api_server_would_take_end_the_array(store):
    array = a_run("sweep", array=run.Array(indices="9-3"))
    found = plan.plan(plan.View(array, (), times.now()))
    assert found.move is not None
    assert (found.move.to, found.move.reason) == ("Failed", "Unsupported")


def test_ten_thousand_indices_are_one_small_object():
    array = a_run("sweep", array=run.Array(indices="90000-99999", parallelism=8))
    record = plan.tally(array)
    for index in range(90_000, 100_000):
        ended = build.in_phase(a_run("x"), ("Succeeded", "Failed", "Stopped")[index * 7919 % 3])
        ended.status.exit_code = index * 104729 % 256 if index % 2 else None
        record.add(index, ended)
    array.status.array = plan._status(record, {})
    assert len(msgspec.json.encode(array)) < 64 * 1024
    assert plan.tally(array) == record


@given(
    deaths=st.lists(st.tuples(st.integers(1, 25), st.booleans()), max_size=8),
    parallelism=st.integers(1, 6),
    failing=st.sets(st.integers(0, 11)),
)
@settings(
    max_examples=15, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
async def test_a_controller_that_dies_at_any_write_runs_no_index_twice(
    tmp_path_factory, deaths, parallelism, failing
):
    api = await Api.open(tmp_path_factory.mktemp("store") / "store.db")
    try:
        store = EmbeddedStore(api)
        await store.create(core.Namespace(metadata=meta.ObjectMeta(name=NAMESPACE)))
        world = World(store, dict.fromkeys(failing, ("Failed", "CodeFailed", 1)))
        await world.submit("0-11", parallelism)
        for writes, after in deaths:
            await world.live(writes=writes, after=after)
            await world.turn()
        array = await world.go()
        assert world.worked == Counter(range(12))
        assert index_set.parse(array.status.array.succeeded_indices) == index_set.of(
            set(range(12)) - failing
        )
        assert array.status.array.failed == len(failing)
        assert world.most <= parallelism
        await world.live()
        assert await world.children() == []
    finally:
        await api.close()
