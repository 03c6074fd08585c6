"""The controllers do the same on both engines: same code, same store protocol, same outcome.

The node's part is played by the test: what is shown here is what controllers write, and when.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.harness.waiting import until_async
from windlass.control import manager
from windlass.control.cron import controller
from windlass.control.runtime import leader_election
from windlass.kinds.types import core, cronrun, meta, queue, run
from windlass.kinds.values import times
from windlass.store import connect, errors
from windlass.store.interface import Store

PATIENCE = 60.0
QUICK = leader_election.Timing(lease=3.0, renew_deadline=2.0, retry=0.2)
ROLE = run.Role(command=["true"], resources=run.Resources(cpu="100m", memory="16Mi"))


@pytest.fixture
async def store(engine: str, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    plane = "control_plane" if engine == "kubernetes" else "embedded_server"
    made = connect.open_store(str(request.getfixturevalue(plane).kubeconfig))
    yield made
    await made.close()


@pytest.fixture
async def node(store: Store, ns: str) -> str:
    """A node that is ready, and by label and taint only for this test's runs: what other tests
    left in the queue must not take its capacity."""
    name = f"node-{ns}"
    taint = core.Taint(key="case", value=ns, effect="NoSchedule")
    await store.create(
        core.Node(
            metadata=meta.ObjectMeta(name=name, labels={"case": ns}),
            spec=core.NodeSpec(taints=[taint]),
        )
    )
    amounts = {"cpu": "2", "memory": "4Gi", "pods": "10"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "",
             "lastHeartbeatTime": times.seconds(times.now()),
             "lastTransitionTime": times.seconds(times.now())}  # fmt: skip
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    await store.patch(core.Node, name, patch={"status": status}, subresource="status")
    # A cluster marks new nodes until it has seen them; this test's runs accept that.
    return name


@contextlib.asynccontextmanager
async def controllers(store: Store, identity: str) -> AsyncIterator[None]:
    with contextlib.suppress(errors.AlreadyExists):
        await store.create(core.Namespace(metadata=meta.ObjectMeta(name=manager.NAMESPACE)))
    runnable = manager.build(store, identity=identity, timing=QUICK)
    task = asyncio.create_task(runnable.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def a_run(ns: str, name: str, **spec: Any) -> run.Run:
    nodes = run.NodeChoice(
        selector={"case": ns}, tolerations=[run.Toleration(operator="Exists")]
    )  # fmt: skip
    wanted = {"roles": [ROLE], "queue": "default", "placement": run.Placement(nodes=nodes)}
    return run.Run(
        metadata=meta.ObjectMeta(name=name, namespace=ns), spec=run.RunSpec(**(wanted | spec))
    )


async def ensure_queue(store: Store) -> None:
    with contextlib.suppress(errors.AlreadyExists):
        await store.create(queue.Queue(metadata=meta.ObjectMeta(name="default")))


async def report(store: Store, pod: core.Pod, phase: str, exit_code: int | None) -> None:
    status: dict[str, Any] = {"phase": phase}
    if exit_code is not None:
        ended = {"exitCode": exit_code, "reason": "Error"}
        status["containerStatuses"] = [
            {"name": "worker", "image": "x", "imageID": "", "ready": False, "restartCount": 0,
             "state": {"terminated": ended}}
        ]  # fmt: skip
    await store.patch(
        core.Pod, pod.name, pod.namespace, patch={"status": status}, subresource="status"
    )


async def test_a_run_is_assigned_started_and_ended(store: Store, ns: str, node: str) -> None:
    await ensure_queue(store)
    async with controllers(store, f"one-{ns}"):
        await store.create(a_run(ns, "job"))

        async def pods() -> list[core.Pod]:
            return (await store.list(core.Pod, ns)).items

        (pod,) = await until_async(pods, "its pod exists")
        assert pod.spec.node_name == node
        await report(store, pod, "Running", None)
        await until_async(lambda: _in_phase(store, ns, "Running"), "it runs")
        await report(store, pod, "Failed", 9)
        ended = await until_async(lambda: _in_phase(store, ns, "Failed"), "it failed")
    assert (ended.status.exit_code, ended.status.reason) == (9, "CodeFailed")
    assert [step.to_phase for step in ended.status.history] == [
        "Queued", "Starting", "Running", "Failed",
    ]  # fmt: skip
    assert ended.status.assignment.members["worker"][0].node == node


async def test_the_next_leader_goes_on_where_the_last_one_was_cut_off(
    store: Store, ns: str, node: str
) -> None:
    await ensure_queue(store)
    async with controllers(store, f"first-{ns}"):
        await store.create(a_run(ns, "job"))
        started = await until_async(lambda: _in_phase(store, ns, "Starting"), "it starts")
    async with controllers(store, f"second-{ns}"):

        async def pods() -> list[core.Pod]:
            return (await store.list(core.Pod, ns)).items

        (pod,) = await until_async(pods, "its one pod exists")
        await report(store, pod, "Succeeded", None)
        ended = await until_async(lambda: _in_phase(store, ns, "Succeeded"), "it succeeded")
    assert ended.status.assignment == started.status.assignment
    assert len((await store.list(core.Pod, ns)).items) == 1
    assert node


async def test_a_queue_tells_what_it_holds(store: Store, ns: str, node: str) -> None:
    team = meta.ObjectMeta(name=f"queue-{ns}")
    await store.create(queue.Queue(metadata=team, spec=queue.QueueSpec(guarantee={"cpu": "50m"})))

    async def told() -> queue.QueueStatus | None:
        status = (await store.get(queue.Queue, team.name)).status
        return status if status.running else None

    async with controllers(store, f"one-{ns}"):
        await store.create(a_run(ns, "job", queue=team.name))
        status = await until_async(told, "its queue tells that it holds room")
    assert (status.used, status.borrowed) == ({"cpu": "100m", "memory": "16Mi"}, {"cpu": "50m"})
    assert (status.lent, status.pending, status.observed_generation) == ({}, 0, 1)
    assert status.share > 0
    assert {each.type for each in status.conditions} == {"Ready", "OverCommitted"}
    await store.delete(queue.Queue, team.name)
    assert node


async def test_of_two_candidates_one_leads_and_the_other_follows(store: Store, ns: str) -> None:
    first = leader_election.Election(store, "lease", ns, "first", timing=QUICK)
    second = leader_election.Election(store, "lease", ns, "second", timing=QUICK)
    async with first.term() as term:
        waiting = asyncio.create_task(_lead_once(second))
        await until_async(lambda: _renewed(store, ns), "the first renewed its lease")
        assert not waiting.done()
        assert term.remaining() > 0
    assert await waiting == term.epoch + 1


async def test_a_cronrun_makes_its_runs_once_and_they_go_with_it(store: Store, ns: str) -> None:
    template = cronrun.RunTemplate(spec=run.RunSpec(roles=[ROLE], queue="default", suspend=True))
    made = await store.create(
        cronrun.CronRun(
            metadata=meta.ObjectMeta(name="hourly", namespace=ns),
            spec=cronrun.CronRunSpec(schedule="0 * * * *", template=template),
        )
    )
    created = times.parse(made.metadata.creation_timestamp or "")
    for hours in (2, 2, 3):
        reconciler = controller.CronRuns(store, _always(created + datetime.timedelta(hours=hours)))
        await reconciler.reconcile((ns, "hourly"))
    runs = (await store.list(run.Run, ns)).items
    assert len(runs) == 2
    assert {owner.uid for r in runs for owner in r.metadata.owner_references or ()} == {made.uid}
    status = (await store.get(cronrun.CronRun, "hourly", ns)).status
    assert sorted(active.name for active in status.active or ()) == sorted(r.name for r in runs)
    await store.delete(cronrun.CronRun, "hourly", ns)

    async def gone() -> bool:
        return not (await store.list(run.Run, ns)).items

    await until_async(gone, "its runs are collected")


def _always(moment: datetime.datetime) -> Callable[[], datetime.datetime]:
    return lambda: moment


async def _in_phase(store: Store, ns: str, phase: str) -> run.Run | None:
    found = await store.get(run.Run, "job", ns)
    return found if found.status.phase == phase else None


async def _lead_once(election: leader_election.Election) -> int:
    async with election.term() as term:
        return term.epoch


async def _renewed(store: Store, ns: str) -> bool:
    try:
        spec = (await store.get(core.Lease, "lease", ns)).spec
    except errors.NotFound:
        return False
    return spec.renew_time != spec.acquire_time


async def test_a_bookmark_of_a_kind_with_required_fields_is_read(store: Store, ns: str) -> None:
    """An informer that choked on it would list everything again, each time."""
    async for event in store.watch(run.Run, ns, initial_events=True):
        if event.type == "BOOKMARK":
            assert event.initial_end
            assert event.object.metadata.resource_version
            break
