"""Nodes that are not there: their pods pretend."""

import asyncio

import pytest

from windlass.agent import fake_nodes
from windlass.kinds import annotations
from windlass.kinds.types import core, meta


def made(name: str = "p", pretend: str = "", node: str = "fake-0", **container) -> core.Pod:
    first = {"name": "c", "image": "x", "command": ["python", "train.py"], **container}
    return core.Pod(
        metadata=meta.ObjectMeta(
            name=name, namespace="team",
            annotations={annotations.PRETEND: pretend} if pretend else None,
        ),
        spec=core.PodSpec(
            node_name=node, restart_policy="Never", containers=[core.Container(**first)]
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (made(), (None, 0)),
        (made(pretend="2.5"), (2.5, 0)),
        (made(pretend="3:7"), (3.0, 7)),
        (made(pretend="soon"), (None, 0)),
        (made(command=["sleep", "30"]), (30.0, 0)),
        (made(command=["/bin/sleep"], args=["4"]), (4.0, 0)),
        (made(command=["sh", "-c", "sleep 30"]), (None, 0)),
    ],
)
def test_how_long_a_pod_pretends(pod, expected):
    assert fake_nodes.plan(pod) == expected


def test_racks_are_filled_one_after_the_other():
    nodes = fake_nodes.nodes_of(16, 8, 4, "a100")
    assert list(nodes)[:2] == ["fake-00", "fake-01"]
    racks = [node.labels["windlass.dev/rack"] for node in nodes.values()]
    assert racks == [f"rack-{number}" for number in range(4) for _ in range(4)]
    assert nodes["fake-00"].amounts["windlass.dev/gpu"] == "8"


@pytest.fixture
async def fakes(node):
    task = asyncio.create_task(
        fake_nodes.FakePods(node.store, ["fake-0", "fake-1"], "127.0.0.1").run()
    )
    yield node
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_pod_runs_at_once_and_ends_as_specified(fakes):
    await fakes.store.create(made("good", "0.1"))
    await fakes.store.create(made("bad", "0.1:7", "fake-1"))
    await fakes.phase("Succeeded", "good")
    pod = await fakes.phase("Failed", "bad")
    assert pod.status.container_statuses[0].state.terminated.exit_code == 7


async def test_a_pod_without_an_end_runs_until_it_is_deleted(fakes):
    await fakes.store.create(made())
    await fakes.phase("Running")
    await fakes.store.delete(core.Pod, "p", "team")
    async with asyncio.timeout(30):
        while (await fakes.store.list(core.Pod, "team")).items:
            await asyncio.sleep(0.01)


async def test_pods_of_real_nodes_are_left_to_them(fakes):
    await fakes.store.create(made("other", "0", node="elsewhere"))
    await fakes.store.create(made("mine", "0"))
    await fakes.phase("Succeeded", "mine")
    other = await fakes.store.get(core.Pod, "other", "team")
    assert other.status.phase == "Pending"
