"""The status of queues: sums over the tree, what is borrowed and lent, and how often."""

import asyncio
import contextlib
import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.control import build
from tests.unit.control.test_scheduler import scheduling, set_status
from windlass.control.scheduler.status import queue_metrics, queue_status
from windlass.core.model import types
from windlass.core.quota import quota_tree
from windlass.core.snapshot import snapshot
from windlass.core.snapshot.snapshot import Snapshot
from windlass.kinds.types import core, meta, queue
from windlass.store.informer import Informer
from windlass.telemetry import prometheus

WHOLE = 1000
ROOM = 4


def tree(capacity: int, *made: types.Queue, **used: int) -> quota_tree.QuotaTree:
    """Amounts in whole devices; `used` by queue."""
    found = quota_tree.QuotaTree(made, {"gpu": capacity * WHOLE})
    for name, amount in used.items():
        found.add(name, {"gpu": amount * WHOLE}, non_preemptible=False)
    return found


def node(name: str, guarantee: int = 0, parent: str = "", lend: int | None = None) -> types.Queue:
    own = {"gpu": guarantee * WHOLE} if guarantee else {}
    return types.Queue(
        name, parent, guarantee=own, lend={} if lend is None else {"gpu": lend * WHOLE}
    )


def lent(found: quota_tree.QuotaTree) -> dict[str, int]:
    told = queue_status.lending(found)
    return {name: sums["gpu"] // WHOLE for name, sums in told.items() if sums.get("gpu")}


def borrowed(found: quota_tree.QuotaTree) -> dict[str, int]:
    told = {name: queue_status.borrowing(found, name)["gpu"] for name in found.queues}
    return {name: amount // WHOLE for name, amount in told.items() if amount > 0}


# --- borrowing and lending


def test_what_one_queue_borrows_another_lends():
    found = tree(8, node("a", 4), node("b", 4), a=6, b=1)
    assert (borrowed(found), lent(found)) == ({"a": 2}, {"b": 2})


def test_capacity_that_is_not_guaranteed_is_borrowed_but_lent_by_no_queue():
    found = tree(8, node("a"), node("b", 4), a=4)
    assert (borrowed(found), lent(found)) == ({"a": 4}, {})
    found = tree(8, node("a"), node("b", 4), a=5)
    assert lent(found) == {"b": 1}


def test_a_queue_that_does_not_lend_has_lent_nothing():
    found = tree(12, node("a"), node("b", 4, lend=0), node("c", 4), a=6)
    assert lent(found) == {"c": 2}


def test_several_lend_in_proportion_and_in_whole_devices():
    found = tree(9, node("a"), node("b", 3), node("c", 3), node("d", 3), a=4)
    told = lent(found)
    assert sum(told.values()) == 4
    assert sorted(told.values()) == [1, 1, 2]


def test_what_a_branch_lends_is_lent_by_those_below_it():
    found = tree(8, node("top", 4), node("low", 3, "top"), node("other", 4), other=6)
    assert lent(found) == {"top": 2, "low": 1}


def test_siblings_lend_to_each_other_inside_a_branch():
    found = tree(8, node("top", 8), node("a", 4, "top"), node("b", 4, "top"), a=7)
    assert (borrowed(found), lent(found)) == ({"a": 3}, {"b": 3})


QUEUES = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 8)), min_size=1, max_size=5
)


@given(QUEUES, st.integers(1, 30))
def test_lent_capacity_is_borrowed_and_never_more_than_idle(drawn, capacity):
    names = [f"q{i}" for i in range(len(drawn))]
    made = [
        node(name, own, lend=min(own, lend))
        for name, (own, _, lend) in zip(names, drawn, strict=True)
    ]
    used, left = {}, capacity
    for name, (_, wanted, _) in zip(names, drawn, strict=True):
        used[name] = min(wanted, left)
        left -= used[name]
    found = tree(capacity, *made, **used)
    told = queue_status.lending(found)
    if not found.guaranteed:
        assert not any(told.values())
        return
    gave = sum(sums["gpu"] for sums in told.values())
    took = sum(max(0, queue_status.borrowing(found, name)["gpu"]) for name in names)
    assert gave <= took
    for name in names:
        own, mine = found.guarantee[name].get("gpu", 0), told[name]["gpu"]
        assert 0 <= mine <= max(0, own - found.used[name].get("gpu", 0))
        assert mine <= found.queues[name].lend["gpu"]


# --- what is written


def a_queue(name: str, **spec) -> queue.Queue:
    return queue.Queue(metadata=meta.ObjectMeta(name=name), spec=queue.QueueSpec(**spec))


async def told(store, name: str) -> queue.QueueStatus:
    return (await store.get(queue.Queue, name)).status


class Counting:
    """The store, counting writes of queues."""

    def __init__(self, store) -> None:
        self._store = store
        self.writes: list[str] = []

    async def patch(self, kind, name, *args, **more):
        self.writes.append(name)
        return await self._store.patch(kind, name, *args, **more)


@contextlib.asynccontextmanager
async def keeping(store, **more):
    """A scheduler, and the writer of the status of queues."""
    counting = Counting(store)
    async with scheduling(store) as made, Informer(store, queue.Queue) as listed:
        await listed.synced()
        keeper = queue_status.QueueStatuses(
            counting, listed, read=made.read, decided=made.decided, **more
        )
        yield made, keeper, counting


async def until(made, name: str, **counts: int) -> None:
    """Decides until this is true of the queue by the scheduler's own picture."""
    async with asyncio.timeout(30):
        while True:
            await made.cycle()
            status = (await made.read(queue_status.derive))[name]
            if all(getattr(status, field) == count for field, count in counts.items()):
                return
            await asyncio.sleep(0)


async def caught_up(store, keeper, name: str) -> None:
    """The keeper has seen its own write."""
    version = (await store.get(queue.Queue, name)).metadata.resource_version
    async with asyncio.timeout(30):
        while keeper._listed.get(name).metadata.resource_version != version:
            await asyncio.sleep(0)


async def test_a_queue_tells_what_it_holds_borrows_and_lends(store):
    await store.create(build.node(cpu="8"))
    await store.create(a_queue("company"))
    half = {"cpu": "4"}
    await store.create(a_queue("vision", parent="company", guarantee=half, weight=2))
    await store.create(a_queue("speech", parent="company", guarantee=half))
    await store.create(build.a_run("small", build.role(cpu="1"), queue="speech"))
    await store.create(build.a_run("large", build.role(cpu="6"), queue="vision"))
    await store.create(build.a_run("late", build.role(cpu="5"), queue="vision", priority=10))
    async with keeping(store) as (made, keeper, _):
        await until(made, "company", running=2, pending=1)
        await keeper.write()
    vision = await told(store, "vision")
    assert vision.used == {"cpu": "6", "memory": "1Gi"}
    assert (vision.borrowed, vision.lent) == ({"cpu": "2"}, {})
    assert (vision.running, vision.pending) == (1, 1)
    assert vision.share == 0.375
    assert vision.observed_generation == 1
    assert [(c.type, c.status) for c in vision.conditions] == [
        ("Ready", "True"), ("OverCommitted", "False"),
    ]  # fmt: skip
    assert all(c.last_transition_time for c in vision.conditions)
    assert (await told(store, "speech")).lent == {"cpu": "2"}
    company = await told(store, "company")
    assert (company.used["cpu"], company.running, company.pending) == ("7", 2, 1)


async def test_prometheus_has_series_of_each_queue_as_long_as_this_process_leads(store):
    await store.create(build.node(cpu="8"))
    await store.create(a_queue("company"))
    await store.create(a_queue("vision", parent="company", guarantee={"cpu": "4"}))
    await store.create(build.a_run("large", build.role(cpu="6"), queue="vision"))
    await store.create(build.a_run("late", build.role(cpu="5"), queue="vision", priority=10))
    registry = prometheus.Registry()
    metrics = queue_metrics.QueueMetrics(registry)
    async with (
        scheduling(store, registry=registry) as made,
        Informer(store, queue.Queue) as listed,
    ):
        await listed.synced()
        keeper = queue_status.QueueStatuses(
            store, listed, read=made.read, decided=made.decided, metrics=metrics
        )
        await until(made, "vision", running=1, pending=1)
        running = asyncio.create_task(keeper.run())
        async with asyncio.timeout(30):
            while "windlass_queue_used{" not in registry.render():
                await asyncio.sleep(0.01)
        page = registry.render().splitlines()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    for line in (
        'windlass_queue_waiting_workloads{queue="vision"} 1',
        'windlass_queue_waiting_workloads{queue="company"} 0',
        'windlass_queue_admitted_workloads{queue="vision"} 1',
        'windlass_queue_used{queue="company",resource="cpu"} 6',
        'windlass_queue_used{queue="vision",resource="memory"} 1073741824',
        'windlass_queue_guarantee{queue="vision",resource="cpu"} 4',
        'windlass_queue_share{queue="vision"} 0.75',
        'windlass_queue_wait_seconds_count{queue="vision"} 1',
    ):
        assert line in page
    left = registry.render()
    assert "windlass_queue_waiting_workloads{" not in left, "another process leads now"
    assert "windlass_queue_wait_seconds_count{" in left, "what was counted stays"


def test_a_first_start_has_a_wait_and_a_restart_and_an_eviction_are_counted():
    role = types.Role("w", 1, 1, {"cpu": 1000})
    first = types.Workload("first", "default", (role,), submitted=40.0)
    again = dataclasses.replace(first, key="again", attained=5.0)
    held = types.PodAssignment("w", 0, "n1")
    victim = types.Running(dataclasses.replace(first, key="victim"), (held,), 0.0)
    facts = types.ClusterFacts(
        nodes=(types.Node("n1", {"cpu": 4000}),),
        queues=(types.Queue("default"),),
        running=(victim,),
        waiting=(first, again),
    )
    decision = types.Decision(
        placements=tuple(types.Placement(key, (held,)) for key in ("first", "again", "victim")),
        evictions=(types.Eviction("victim", (("w", 0),), "first", "it is first"),) * 2,
    )
    found = queue_metrics.decided(Snapshot(facts), decision, 100.0)
    assert found == queue_metrics.Decided((("default", 60.0),), ("default",), ("default",))


async def test_usage_that_ended_is_no_longer_reported(store):
    await store.create(build.node(cpu="8"))
    await store.create(a_queue("default"))
    await store.create(build.a_run("job"))
    async with keeping(store) as (made, keeper, counting):
        await until(made, "default", running=1)
        await keeper.write()
        assert (await told(store, "default")).running == 1
        await set_status(store, {"phase": "Succeeded"})
        await until(made, "default", running=0)
        await caught_up(store, keeper, "default")
        await keeper.write()
        now = await told(store, "default")
        assert (now.running, now.used, now.share) == (0, {}, 0.0)
        await caught_up(store, keeper, "default")
        before = len(counting.writes)
        await keeper.write()
        assert len(counting.writes) == before == 2


async def test_an_uncovered_guarantee_and_a_missing_parent_are_reported(store):
    await store.create(build.node(cpu="4"))
    await store.create(a_queue("big", guarantee={"cpu": "8"}))
    await store.create(a_queue("lost", parent="nowhere"))
    async with keeping(store) as (made, keeper, _):
        await made.cycle()
        await keeper.write()
    big = {c.type: c for c in (await told(store, "big")).conditions}
    assert big["OverCommitted"].status == "True"
    assert "8 cpu is guaranteed and counts as 4 cpu" in big["OverCommitted"].message
    lost = {c.type: c for c in (await told(store, "lost")).conditions}
    assert (lost["Ready"].status, lost["Ready"].reason) == ("False", "BadParent")
    assert "nowhere" in lost["Ready"].message


async def test_a_storm_of_decisions_makes_few_writes_and_the_last_state_is_written(store):
    await store.create(build.node(cpu=str(ROOM)))
    await store.create(a_queue("default"))
    gate: asyncio.Queue[float] = asyncio.Queue()
    go = asyncio.Semaphore(0)

    async def sleep(seconds: float) -> None:
        gate.put_nowait(seconds)
        await go.acquire()

    async with keeping(store, sleep=sleep) as (made, keeper, counting):
        task = asyncio.create_task(keeper.run())
        for number in range(40):
            await store.create(build.a_run(f"job-{number}"))
            await until(
                made, "default", running=min(number + 1, ROOM), pending=max(0, number + 1 - ROOM)
            )
        assert await gate.get() == queue_status.SETTLE
        assert counting.writes == []
        go.release()
        assert await gate.get() == queue_status.EVERY - queue_status.SETTLE
        assert counting.writes == ["default"]
        now = await told(store, "default")
        assert (now.running, now.pending) == (ROOM, 40 - ROOM)
        task.cancel()


async def test_a_change_that_no_decision_depends_on_is_observed(store):
    await store.create(build.node())
    await store.create(a_queue("default"))
    async with keeping(store) as (made, keeper, counting):
        await made.cycle()
        await keeper.write()
        await caught_up(store, keeper, "default")
        made.decided.clear()
        await store.patch(queue.Queue, "default", patch={"spec": {"namespaces": ["team"]}})
        async with asyncio.timeout(10):
            await made.decided.wait()
        await keeper.write()
        assert (await told(store, "default")).observed_generation == 2
        assert counting.writes == ["default", "default"]


async def test_another_writer_in_between_makes_it_write_again(store):
    await store.create(build.node())
    await store.create(a_queue("default"))
    async with keeping(store) as (made, keeper, _):
        await made.cycle()
        made.decided.clear()
        stale = keeper._listed.get("default")
        await store.patch(queue.Queue, "default", patch={"metadata": {"labels": {"a": "b"}}})
        await keeper._write(stale, queue.QueueStatus(pending=3))
        assert made.decided.is_set()
        assert (await told(store, "default")).pending == 0


async def test_pods_that_no_run_owns_count_for_no_run(store):
    await store.create(build.node())
    await store.create(a_queue("default"))
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name="kube-system")))
    pod = build.external_pod(cpu="1")
    pod.spec.containers[0].image = "x"
    await store.create(pod)
    async with keeping(store) as (made, keeper, _):
        await made.cycle()
        await keeper.write()
    now = await told(store, "default")
    assert (now.running, now.used) == (0, {})


def test_external_pods_are_counted_in_their_queue_and_those_of_other_schedulers_in_none():
    def held(key: str, queue_name: str) -> types.Running:
        made = types.Workload(key, queue_name, (types.Role("pod", 1, 1, {"cpu": 1000}),))
        return types.Running(made, (types.PodAssignment("pod", 0, "n1"),), 0.0)

    facts = types.ClusterFacts(
        (types.Node("n1", {"cpu": 8000}),), (types.Queue("q"),),
        (held("run", "q"), held("pod/a", "q"), held("gang/b", "q"), held("pod/other", "")),
    )  # fmt: skip
    assert queue_status.derive(snapshot.build(facts))["q"].running == 3
