"""Nodes that fall silent: the mark, and what it means for Runs on them."""

import contextlib

from tests.unit.control import build
from windlass.control import nodes, runs
from windlass.kinds import kubernetes, meta, run
from windlass.store.reflector import Reflector

KEY = ("", "n1")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def register(store, renewed="2020-01-01T00:00:00.000000Z") -> None:
    await store.create(kubernetes.Namespace(metadata=meta.ObjectMeta(name=nodes.LEASES)))
    await store.create(build.node())
    await store.create(
        kubernetes.Lease(
            metadata=meta.ObjectMeta(name="n1", namespace=nodes.LEASES),
            spec=kubernetes.LeaseSpec(holder_identity="n1", renew_time=renewed),
        )
    )


async def renew(store, at: str) -> None:
    await store.patch(
        kubernetes.Lease, "n1", nodes.LEASES, patch={"spec": {"renewTime": at}}
    )  # fmt: skip


async def ready(store) -> str:
    node = await store.get(kubernetes.Node, "n1")
    return next(c.status for c in node.status.conditions if c.type == "Ready")


async def test_a_node_is_marked_when_its_lease_was_seen_unchanged_for_long_enough(store):
    await register(store)
    clock = Clock()
    made = nodes.Heartbeats(store, lambda: True, clock)
    for seconds in (0, 10, 29):
        clock.now += seconds
        assert (await made.reconcile(KEY)).after is not None
    assert await ready(store) == "True", "however old the time in the lease is"
    clock.now += 1
    await made.reconcile(KEY)
    assert await ready(store) == "Unknown"
    node = await store.get(kubernetes.Node, "n1")
    assert node.status.conditions[-1].reason == "NodeStatusUnknown"


async def test_a_node_whose_lease_is_renewed_stays_ready_and_one_that_comes_back_is_again(store):
    await register(store)
    clock = Clock()
    made = nodes.Heartbeats(store, lambda: True, clock)
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
    await store.patch(kubernetes.Node, "n1", patch={"status": status}, subresource="status")
    clock = Clock()
    made = nodes.Heartbeats(store, lambda: True, clock)
    await made.reconcile(KEY)
    clock.now += 100
    await made.reconcile(KEY)
    assert await ready(store) == "False"
    await renew(store, "2020-01-01T00:01:00.000000Z")
    await made.reconcile(KEY)
    assert await ready(store) == "False"


async def test_a_node_without_a_lease_promised_nothing(store):
    await store.create(build.node())
    clock = Clock()
    made = nodes.Heartbeats(store, lambda: True, clock)
    await made.reconcile(KEY)
    clock.now += 1000
    assert (await made.reconcile(KEY)).after is not None
    assert await ready(store) == "True"
    await store.delete(kubernetes.Node, "n1")
    assert (await made.reconcile(KEY)).after is None


async def test_where_somebody_else_marks_nodes_we_do_not(store):
    await register(store)
    clock = Clock()
    made = nodes.Heartbeats(store, lambda: False, clock)
    await made.reconcile(KEY)
    clock.now += 1000
    assert (await made.reconcile(KEY)).after is None
    assert await ready(store) == "True"


# --- what it means for Runs -----------------------------------------------------------------------


@contextlib.asynccontextmanager
async def controlling(store, clock):
    """The run controller with a Run on n1, whose pod runs."""
    pods = Reflector(store, kubernetes.Pod, indexes={runs.POD_INDEX: runs.pod_index})
    known = Reflector(store, kubernetes.Node)
    async with pods, known:
        await pods.synced()
        await known.synced()
        yield runs.Runs(store, pods, lambda: 1, silence=nodes.Silence(known, clock)), known


async def running(store) -> None:
    await store.create(build.node())
    owner = await store.create(build.a_run())
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
        kubernetes.Pod, pod.name, build.NAMESPACE, subresource="status",
        patch={"status": {"phase": "Running"}},
    )  # fmt: skip


async def phase(store) -> tuple[str, str]:
    owner = await store.get(run.Run, "job", build.NAMESPACE)
    return owner.status.phase, owner.status.reason


async def set_ready(store, known, to: str) -> None:
    status = {"conditions": [{"type": "Ready", "status": to}]}
    node = await store.patch(kubernetes.Node, "n1", patch={"status": status}, subresource="status")
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
        assert nodes.LOST - 1 < result.after <= nodes.LOST + 1
        clock.now += nodes.LOST - 1
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
        clock.now += nodes.LOST
        result = await made.reconcile((build.NAMESPACE, "job"))
    assert await phase(store) == ("Stopping", "NodeLost")
    assert result.after is not None
    assert 290 < result.after < 301
    owner = await store.get(run.Run, "job", build.NAMESPACE)
    assert owner.status.avoid == ["n1"]


async def test_a_run_on_a_node_that_is_gone_starts_anew_at_once(store):
    await running(store)
    clock = Clock()
    await store.delete(kubernetes.Node, "n1")
    async with controlling(store, clock) as (made, _):
        await made.reconcile((build.NAMESPACE, "job"))
        await made.reconcile((build.NAMESPACE, "job"))
    assert await phase(store) == ("Queued", "NodeLost")
    assert not (await store.list(kubernetes.Pod, build.NAMESPACE)).items
