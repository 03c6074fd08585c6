"""Nodes that fall silent: the mark, and what it means for Runs on them."""

import contextlib

import pytest

from tests.unit.control import build
from windlass.control.model import pod_indexes
from windlass.control.runs import controller, node_lifecycle
from windlass.kinds.types import core, meta, run
from windlass.store.informer import Informer

KEY = ("", "n1")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def register(store, renewed="2020-01-01T00:00:00.000000Z") -> None:
    await store.create(core.Namespace(metadata=meta.ObjectMeta(name=node_lifecycle.LEASES)))
    await store.create(build.node())
    await store.create(
        core.Lease(
            metadata=meta.ObjectMeta(name="n1", namespace=node_lifecycle.LEASES),
            spec=core.LeaseSpec(holder_identity="n1", renew_time=renewed),
        )
    )


async def renew(store, at: str) -> None:
    await store.patch(
        core.Lease, "n1", node_lifecycle.LEASES, patch={"spec": {"renewTime": at}}
    )  # fmt: skip


async def ready(store) -> str:
    node = await store.get(core.Node, "n1")
    return next(c.status for c in node.status.conditions if c.type == "Ready")


async def test_a_node_is_marked_when_its_lease_was_seen_unchanged_for_long_enough(store):
    await register(store)
    clock = Clock()
    made = node_lifecycle.Heartbeats(store, lambda: True, clock)
    for seconds in (0, 10, 29):
        clock.now += seconds
        assert (await made.reconcile(KEY)).after is not None
    assert await ready(store) == "True", "however old the time in the lease is"
    clock.now += 1
    await made.reconcile(KEY)
    assert await ready(store) == "Unknown"
    node = await store.get(core.Node, "n1")
    assert node.status.conditions[-1].reason == "NodeStatusUnknown"


async def test_a_node_whose_lease_is_renewed_stays_ready_and_one_that_comes_back_is_again(store):
    await register(store)
    clock = Clock()
    made = node_lifecycle.Heartbeats(store, lambda: True, clock)
    for number in range(10):
        clock.now += 30
        await renew(store, f"2020-01-01T00:00:{number:02}.000000Z")
        await made.reconcile(KEY)
    assert await ready(store) == "True"
    clock.now += 40
    await made.reconcile(KEY)
    assert await ready(store) == "Unknown"
    await renew(store, "2020-01-01T00:01:00.000000Z")
    await made.reconcile(KEY)
    assert await ready(store) == "True"


async def test_what_a_node_says_of_itself_is_not_overruled(store):
    await register(store)
    status = {"conditions": [{"type": "Ready", "status": "False", "reason": "AgentStopped"}]}
    await store.patch(core.Node, "n1", patch={"status": status}, subresource="status")
    clock = Clock()
    made = node_lifecycle.Heartbeats(store, lambda: True, clock)
    await made.reconcile(KEY)
    clock.now += 100
    await made.reconcile(KEY)
    assert await ready(store) == "False"
    await renew(store, "2020-01-01T00:01:00.000000Z")
    await made.reconcile(KEY)
    assert await ready(store) == "False"


async def test_a_node_without_a_lease_is_not_overdue(store):
    await store.create(build.node())
    clock = Clock()
    made = node_lifecycle.Heartbeats(store, lambda: True, clock)
    await made.reconcile(KEY)
    clock.now += 1000
    assert (await made.reconcile(KEY)).after is not None
    assert await ready(store) == "True"
    await store.delete(core.Node, "n1")
    assert (await made.reconcile(KEY)).after is None


async def test_where_another_controller_marks_nodes_ours_does_not(store):
    await register(store)
    clock = Clock()
    made = node_lifecycle.Heartbeats(store, lambda: False, clock)
    await made.reconcile(KEY)
    clock.now += 1000
    assert (await made.reconcile(KEY)).after is None
    assert await ready(store) == "True"


# --- what it means for Runs -----------------------------------------------------------------------


@contextlib.asynccontextmanager
async def controlling(store, clock):
    """The run controller with a Run on n1, whose pod runs."""
    pods = Informer(store, core.Pod, indexes={pod_indexes.BY_RUN: pod_indexes.run_uid})
    known = Informer(store, core.Node)
    async with pods, known:
        await pods.synced()
        await known.synced()
        yield (
            controller.Runs(store, pods, lambda: 1, nodes=node_lifecycle.NodeStates(known, clock)),
            known,
        )


async def running(store, lost_after: str = "5m") -> None:
    await store.create(build.node())
    owner = build.a_run()
    owner.spec.retries.lost_after = lost_after
    owner = await store.create(owner)
    build.assigned(build.in_phase(owner, "Running"))
    status = {
        "phase": "Running", "members": {"worker": 1},
        "history": [{"at": build.START, "to": "Running"}],
        "assignment": {"attempt": 0, "epoch": 1, "members": {"worker": [{"node": "n1"}]}},
    }  # fmt: skip
    await store.patch(
        run.Run, "job", build.NAMESPACE, patch={"status": status}, subresource="status"
    )
    pod = build.pod(owner)
    pod.metadata.uid = ""
    await store.create(pod)
    await store.patch(
        core.Pod, pod.name, build.NAMESPACE, subresource="status",
        patch={"status": {"phase": "Running"}},
    )  # fmt: skip


async def phase(store) -> tuple[str, str]:
    owner = await store.get(run.Run, "job", build.NAMESPACE)
    return owner.status.phase, owner.status.reason


async def set_ready(store, known, to: str) -> None:
    status = {"conditions": [{"type": "Ready", "status": to}]}
    node = await store.patch(core.Node, "n1", patch={"status": status}, subresource="status")
    before = known.get("n1")
    known._put(("", "n1"), node)  # as the watch would
    assert before is not None


async def test_an_agent_that_is_replaced_costs_no_run_anything(store):
    await running(store)
    clock = Clock()
    async with controlling(store, clock) as (made, known):
        await set_ready(store, known, "False")
        result = await made.reconcile((build.NAMESPACE, "job"))
        assert result.after is not None
        assert node_lifecycle.LOST - 1 < result.after <= node_lifecycle.LOST + 1
        clock.now += node_lifecycle.LOST - 1
        await set_ready(store, known, "True")
        clock.now += 1000
        await made.reconcile((build.NAMESPACE, "job"))
    assert (await phase(store))[0] == "Running"


async def test_a_run_on_a_node_that_stays_silent_stops_and_waits_for_its_pods(store):
    await running(store)
    clock = Clock()
    async with controlling(store, clock) as (made, known):
        await set_ready(store, known, "Unknown")
        await made.reconcile((build.NAMESPACE, "job"))
        clock.now += node_lifecycle.LOST
        result = await made.reconcile((build.NAMESPACE, "job"))
    assert await phase(store) == ("Stopping", "NodeLost")
    assert result.after is not None
    assert result.after == pytest.approx(300 - node_lifecycle.LOST, abs=1)
    owner = await store.get(run.Run, "job", build.NAMESPACE)
    assert owner.status.avoid == ["n1"]


async def test_a_short_lost_after_counts_from_when_the_node_was_not_ready(store):
    await running(store, "20s")
    clock = Clock()
    async with controlling(store, clock) as (made, known):
        await set_ready(store, known, "Unknown")
        result = await made.reconcile((build.NAMESPACE, "job"))
        assert result.after == pytest.approx(20, abs=1)
        clock.now += 20
        await made.reconcile((build.NAMESPACE, "job"))
        await made.reconcile((build.NAMESPACE, "job"))
    owner = await store.get(run.Run, "job", build.NAMESPACE)
    assert (owner.status.phase, owner.status.attempt) == ("Queued", 1)
    assert "may have run twice" in owner.status.message


async def test_a_run_on_a_node_that_is_gone_starts_anew_at_once(store):
    await running(store)
    clock = Clock()
    await store.delete(core.Node, "n1")
    async with controlling(store, clock) as (made, _):
        await made.reconcile((build.NAMESPACE, "job"))
        await made.reconcile((build.NAMESPACE, "job"))
    assert await phase(store) == ("Queued", "NodeLost")
    assert not (await store.list(core.Pod, build.NAMESPACE)).items
