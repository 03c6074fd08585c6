"""The run controller against the real embedded store; the node is played by the test."""

import asyncio
import contextlib
import dataclasses
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.waiting import until_async
from tests.unit.control import build
from tests.unit.control.faults import Crash, Fragile
from windlass.control.model import attempts, pod_indexes, ports
from windlass.control.model.capabilities import Engine
from windlass.control.runs import controller, pod_template
from windlass.control.runtime import concurrency
from windlass.control.runtime.controller import DONE
from windlass.kinds.types import core, meta, run
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore
from windlass.store.informer import Informer

KEY = (build.NAMESPACE, "job")


@contextlib.asynccontextmanager
async def controlling(store, *, live=True, write_to=None, **more):
    """The reconciler with a pod cache; `live=False`: a cache that sees no more changes."""
    pods = Informer(store, core.Pod, indexes={pod_indexes.BY_RUN: pod_indexes.run_uid})
    async with pods:
        await pods.synced()
        if not live:
            await pods.stop()
        yield controller.Runs(write_to or store, pods, lambda: 1, **more)


async def submit(store, *roles: run.Role, **spec) -> run.Run:
    return await store.create(build.a_run("job", *roles, **spec))


async def assign(store) -> None:
    owner = await store.get(run.Run, "job", build.NAMESPACE)
    members = {r.name: [{"node": "n1"}] * r.replicas for r in owner.spec.roles}
    assignment = {"attempt": owner.status.attempt, "epoch": 1, "members": members}
    await set_status(store, {"assignment": assignment})


async def set_status(store, patch) -> None:
    await store.patch(
        run.Run, "job", build.NAMESPACE, patch={"status": patch}, subresource="status"
    )  # fmt: skip


async def phase(store) -> str:
    return (await store.get(run.Run, "job", build.NAMESPACE)).status.phase


async def all_pods(store) -> list[core.Pod]:
    return (await store.list(core.Pod, build.NAMESPACE)).items


async def report(store, pod: core.Pod, to: str, exit_code: int | None = None) -> None:
    status: dict = {"phase": to}
    if exit_code is not None:
        state = {"terminated": {"exitCode": exit_code, "reason": "Error"}}
        status["containerStatuses"] = [{"name": "worker", "state": state}]
    await store.patch(
        core.Pod, pod.name, pod.namespace, patch={"status": status}, subresource="status"
    )


async def test_a_run_from_submission_to_success(store):
    await submit(store, build.role(replicas=2))
    async with controlling(store, live=False) as made:
        await made.reconcile(KEY)
        await assign(store)
        await made.reconcile(KEY)
        assert await phase(store) == "Starting"
        await made.reconcile(KEY)
    pods = await all_pods(store)
    assert [pod.spec.node_name for pod in pods] == ["n1", "n1"]
    for pod in pods:
        await report(store, pod, "Running")
    async with controlling(store, live=False) as made:
        await made.reconcile(KEY)
    assert await phase(store) == "Running"
    for pod in pods:
        await report(store, pod, "Succeeded", 0)
    async with controlling(store, live=False) as made:
        await made.reconcile(KEY)
    owner = await store.get(run.Run, "job", build.NAMESPACE)
    assert (owner.status.phase, owner.status.exit_code) == ("Succeeded", 0)
    assert [c.type for c in owner.status.conditions if c.status == "True"] == [
        "Admitted", "Started", "Complete",
    ]  # fmt: skip


async def test_a_plain_run_costs_four_writes_of_its_object_and_one_of_each_pod(store):
    """The budget: assignment, Starting, Running, Succeeded; events of the last two."""
    counted = Counted(store)
    await submit(store, build.role(replicas=2))
    embedded = Engine(admission=False)
    async with controlling(store, write_to=counted, engine=lambda: embedded) as made:
        await made.reconcile(KEY)
        await assign(counted)
        await made.reconcile(KEY)
        for to in ("Running", "Succeeded"):
            for pod in await all_pods(store):
                await report(store, pod, to, 0 if to == "Succeeded" else None)
            await until_async(lambda to=to: all(p.status.phase == to for p in made._pods))
            await made.reconcile(KEY)
            await made.reconcile(KEY)
    assert await phase(store) == "Succeeded"
    assert counted.writes == {"patch Run": 4, "create Pod": 2, "create Event": 2}
    told = (await store.list(core.Event, build.NAMESPACE)).items
    assert sorted((event.type, event.reason) for event in told) == [
        ("Normal", "Started"), ("Normal", "Succeeded"),
    ]  # fmt: skip


async def test_with_a_ledger_a_plain_run_costs_no_more_and_says_what_its_members_held(store):
    """It was created with the finalizer, as the API server does; the rest comes along."""
    counted = Counted(store)
    made_of = build.a_run("job", build.role(replicas=2))
    made_of.metadata.finalizers = [run.FINALIZER_LEDGER]
    await store.create(made_of)
    facts = Engine(ledger=True)
    async with controlling(store, write_to=counted, engine=lambda: facts) as made:
        await assign(counted)
        await made.reconcile(KEY)
        for to in ("Running", "Succeeded"):
            for pod in await all_pods(store):
                await report(store, pod, to, 0 if to == "Succeeded" else None)
            await until_async(lambda to=to: [p.status.phase for p in made._pods] == [to, to])
            await made.reconcile(KEY)
    assert counted.writes["patch Run"] == 4
    (held,) = (await store.get(run.Run, "job", build.NAMESPACE)).status.held
    assert (held.attempt, held.role, held.first, held.count) == (0, "worker", 0, 2)
    assert held.until is not None


async def test_a_run_that_came_past_the_door_is_kept_for_the_ledger_before_it_starts(store):
    await submit(store, build.role())
    facts = Engine(ledger=True)
    async with controlling(store, live=False, engine=lambda: facts) as made:
        await assign(store)
        await made.reconcile(KEY)
    owner = await store.get(run.Run, "job", build.NAMESPACE)
    assert owner.metadata.finalizers == [run.FINALIZER_LEDGER]


async def test_without_a_ledger_a_run_that_is_deleted_waits_for_none(store):
    made_of = build.a_run("job", build.role())
    made_of.metadata.finalizers = [run.FINALIZER_LEDGER]
    await store.create(made_of)
    await store.delete(run.Run, "job", build.NAMESPACE)
    async with controlling(store, live=False) as made:
        await made.reconcile(KEY)
        await made.reconcile(KEY)
    with pytest.raises(errors.NotFound):
        await store.get(run.Run, "job", build.NAMESPACE)


class Counted:
    """The real store; counts what is written."""

    def __init__(self, store) -> None:
        self.writes: Counter[str] = Counter()
        self._store = store
        for name in ("get", "list", "watch"):
            setattr(self, name, getattr(store, name))

    def __getattr__(self, name):
        async def write(what, *args, **kwargs):
            kind = what if isinstance(what, type) else type(what)
            self.writes[f"{name} {kind.__name__}"] += 1
            return await getattr(self._store, name)(what, *args, **kwargs)

        return write


async def test_creating_again_what_the_cache_does_not_show_yet_makes_no_second_pod(store):
    await submit(store)
    async with controlling(store, live=False) as made:
        await made.reconcile(KEY)
        await assign(store)
        for _ in range(4):
            assert (await made.reconcile(KEY)).error == ""
    assert len(await all_pods(store)) == 1


async def test_a_pod_of_that_name_of_another_owner_is_waited_for_never_adopted(store):
    owner = await submit(store)
    foreign = build.pod(owner)
    foreign.metadata.owner_references = None
    await store.create(foreign)
    async with controlling(store) as made:
        await made.reconcile(KEY)
        await assign(store)
        await made.reconcile(KEY)
        result = await made.reconcile(KEY)
        assert "of another owner" in result.error
        assert await phase(store) == "Starting"


async def test_a_phase_is_not_left_for_good_while_a_pod_unknown_to_the_cache_runs(store):
    await submit(store)
    async with controlling(store, live=False) as stale:
        await stale.reconcile(KEY)
        await assign(store)
        await stale.reconcile(KEY)
        await stale.reconcile(KEY)
        (pod,) = await all_pods(store)
        await report(store, pod, "Running")
        await set_status(store, {"phase": "Stopping", "reason": "Suspended"})
        await stale.reconcile(KEY)
        assert await phase(store) == "Stopping"
    (pod,) = await all_pods(store)
    assert pod.metadata.deletion_timestamp
    await store.delete(core.Pod, pod.name, pod.namespace, grace_seconds=0)
    async with controlling(store) as made:
        await made.reconcile(KEY)
    owner = await store.get(run.Run, "job", build.NAMESPACE)
    assert (owner.status.phase, owner.status.attempt) == ("Queued", 1)


async def test_a_pod_that_the_api_will_never_take_fails_the_run_with_its_words(store):
    broken = build.role(ports=[run.Port(name="a", port=80), run.Port(name="b", port=80)])
    broken.env = {"X": "1"}
    owner = build.a_run("job", broken, overrides=run.Overrides(labels={"not a label": "x"}))
    await store.create(owner)
    async with controlling(store) as made:
        await made.reconcile(KEY)
        await assign(store)
        for _ in range(3):
            await made.reconcile(KEY)
    owner = await store.get(run.Run, "job", build.NAMESPACE)
    assert (owner.status.phase, owner.status.reason) == ("Failed", "Unsupported")
    assert "not a label" in owner.status.message


async def test_a_run_that_is_gone_needs_nothing(store):
    async with controlling(store) as made:
        assert await made.reconcile((build.NAMESPACE, "never")) == DONE


async def test_a_finished_run_past_its_time_to_live_is_deleted(store):
    await submit(store, ttl_after_finished="0s")
    step = {"at": "2020-01-01T00:00:00Z", "to": "Succeeded"}
    await set_status(store, {"phase": "Succeeded", "history": [step]})
    async with controlling(store) as made:
        await made.reconcile(KEY)
    assert not (await store.list(run.Run, build.NAMESPACE)).items


deaths = st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=10)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(deaths=deaths, fails=st.booleans())
async def test_whatever_crashes_the_run_ends_once_and_nothing_runs_on(
    deaths, fails, tmp_path_factory
):
    """Each life dies at one of its writes; between lives the node does its part."""
    api = await Api.open(tmp_path_factory.mktemp("crash") / "store.db")
    store = EmbeddedStore(api)
    created: dict[str, str] = {}
    try:
        await store.create(core.Namespace(metadata=meta.ObjectMeta(name=build.NAMESPACE)))
        await submit(store, build.role(replicas=2), retries=run.Retries(limit=0))
        for writes, after in [*deaths, *[(10**9, False)] * 12]:
            fragile = Fragile(store)
            fragile.writes_left, fragile.after = writes, after
            async with controlling(store, live=False, write_to=fragile) as made:
                with contextlib.suppress(Crash):
                    await made.reconcile(KEY)
            if await phase(store) == "Queued":
                await assign(store)
            for pod in await all_pods(store):
                assert created.setdefault(pod.name, pod.uid) == pod.uid
                await _play_node(store, pod, fails)
        owner = await store.get(run.Run, "job", build.NAMESPACE)
        assert owner.status.phase == ("Failed" if fails else "Succeeded")
        ends = [s for s in owner.status.history if s.to_phase in run.FINISHED]
        assert len(ends) == 1
        assert not [p for p in await all_pods(store) if p.status.phase in ("Pending", "Running")]
    finally:
        await api.close()


async def _play_node(store, pod: core.Pod, fails: bool) -> None:
    """What a node does next with a pod."""
    last = pod.metadata.labels[run.LABEL_INDEX] == "1"
    if pod.metadata.deletion_timestamp:
        await store.delete(core.Pod, pod.name, pod.namespace, grace_seconds=0)
    elif pod.status.phase == "Pending":
        await report(store, pod, "Running")
    elif pod.status.phase == "Running" and (last or not fails):
        await report(store, pod, "Failed" if fails else "Succeeded", 1 if fails else 0)


async def test_a_run_that_gets_no_ports_says_so_and_starts_when_there_are_some(store):
    engine = [Engine(images=False, addresses="node", ports=(20000, 20002))]
    other = build.assigned(build.a_run("other", build.role(replicas=2)))
    block = dataclasses.replace(ports.layout(other.spec), first=20000)
    context = attempts.AttemptContext(engine[0], block)
    pod = build.pod_of(other, other.spec.roles[0], 0, run.Member(node="n1"), context)
    await store.create(pod)
    await submit(store, build.role(replicas=2))
    await assign(store)
    async with controlling(store, engine=lambda: engine[0]) as made:
        result = await made.reconcile(KEY)
        owner = await store.get(run.Run, "job", build.NAMESPACE)
        assert (owner.status.phase, owner.status.reason) == ("Starting", "WaitingForCapacity")
        assert "2 ports in a row are needed" in owner.status.message
        assert result.after is not None
        await made.reconcile(KEY)
        again = await store.get(run.Run, "job", build.NAMESPACE)
        assert again.metadata.resource_version == owner.metadata.resource_version
        engine[0] = Engine(images=False, addresses="node", ports=(20000, 20009))
        await made.reconcile(KEY)
        await until_async(lambda: len(list(made._pods)) == 3)
    owner = await store.get(run.Run, "job", build.NAMESPACE)
    assert owner.status.reason == "Assigned"


async def test_thousands_of_members_do_not_hold_up_the_others(store, monkeypatch):
    """Pods are made one after the other while others have their turn."""
    await submit(store, build.role(replicas=600))
    await assign(store)
    made_pods, turns = [], []
    render = pod_template._Pod.render

    def counted(pod):
        made_pods.append(pod)
        return render(pod)

    async def others():
        before = 0
        while True:
            await asyncio.sleep(0)
            turns.append(len(made_pods) - before)
            before = len(made_pods)

    monkeypatch.setattr(pod_template._Pod, "render", counted)
    async with controlling(store, live=False) as made:
        beside = asyncio.create_task(others())
        await made.reconcile(KEY)
        beside.cancel()
    assert len(await all_pods(store)) == 600
    assert max(turns) <= 32


async def test_all_calls_are_made_though_some_fail():
    done = []

    async def call(number):
        done.append(number)
        if number % 2:
            raise ValueError(number)
        return number

    with pytest.raises(ValueError, match="1"):
        await concurrency.all_of(call(number) for number in range(100))
    assert sorted(done) == list(range(100))
    assert await concurrency.all_of(call(number) for number in (4, 2)) == [4, 2]
