"""Pods of a node: real store, real processes, the agent's loop in the test's own process."""

import asyncio
import os
import socket
import sys

import pytest

from tests.unit.agent.nodes import ended
from windlass.agent.pods import worker as pods_worker
from windlass.agent.runtime import containers
from windlass.kinds import annotations
from windlass.kinds.types import core, meta
from windlass.store import errors

LOOP = "echo $$$$ > {here}/.pid; mv {here}/.pid {here}/pid; while :; do sleep 0.02; done"


@pytest.mark.parametrize(
    ("script", "phase", "code"), [("exit 0", "Succeeded", 0), ("exit 6", "Failed", 6)]
)
async def test_a_pod_runs_and_its_end_is_reported(node, script, phase, code):
    await node.create(script)
    pod = await node.phase(phase)
    assert ended(pod).exit_code == code
    assert (pod.status.pod_ip, pod.status.host_ip) == ("127.0.0.1", "127.0.0.1")
    assert pod.status.start_time


async def test_a_pod_with_an_image_is_refused_and_nothing_starts(node):
    await node.create("exit 0", image="busybox")
    pod = await node.phase("Failed")
    assert pod.status.reason == "ImageNotSupported"
    assert "busybox" in pod.status.message
    assert not (node.folder / "pods" / pod.uid).exists()


async def test_a_pod_with_another_runtime_is_refused_and_nothing_starts(node):
    await node.create("exit 0", runtime_class_name="kata")
    pod = await node.phase("Failed")
    assert pod.status.reason == "PodNotSupported"
    assert "runtimeClassName kata" in pod.status.message
    assert not (node.folder / "pods" / pod.uid).exists()


async def test_a_pod_waits_for_its_secret_and_then_starts(node):
    source = core.EnvFrom(secret_ref=core.EnvFromRef(name="late"))
    await node.create('test "$KEY" = v', env_from=[source])

    def waits(pod: core.Pod) -> bool:
        statuses = pod.status.container_statuses or []
        waiting = statuses[0].state.waiting if statuses else None
        return waiting is not None and waiting.reason == "CreateContainerConfigError"

    await node.until(waits)
    name = meta.ObjectMeta(name="late", namespace="team")
    await node.store.create(core.Secret(metadata=name, string_data={"KEY": "v"}))
    await node.phase("Succeeded")


async def test_deleting_a_pod_stops_it_and_then_lets_the_object_go(node):
    await node.create(LOOP)
    pid = await node.said("pid")  # Running means that it was started, not how far it has come
    pod = await node.phase("Running")
    await node.store.delete(core.Pod, "p", "team")
    await node.gone(node.folder / "pods" / pod.uid)
    assert not (await node.store.list(core.Pod, "team")).items
    assert not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240


async def test_a_pod_that_is_deleted_by_force_is_killed_and_cleaned_up(node):
    await node.create(f"trap '' TERM; {LOOP}")
    pid = await node.said("pid")
    pod = await node.phase("Running")
    await node.store.delete(core.Pod, "p", "team", grace_seconds=0)
    await node.gone(node.folder / "pods" / pod.uid)
    assert not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made anew by the same name"])
async def test_what_was_deleted_while_the_agent_was_away_is_killed_by_the_next_one(node, again):
    await node.create(LOOP)
    pid = await node.said("pid")
    pod = await node.phase("Running")
    await node.stop()
    await node.store.delete(core.Pod, "p", "team", grace_seconds=0)
    assert (node.folder / "pods" / pod.uid).exists()
    assert os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240
    if again:
        await node.create("exit 0")
    node.start()
    await node.gone(node.folder / "pods" / pod.uid)
    assert not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240
    if again:
        await node.phase("Succeeded")


async def test_what_was_deleted_while_the_agent_could_not_see_it_is_killed(node, monkeypatch):
    """A node that was cut off: its agent lives, and its pod was given up and made anew."""
    await node.create(LOOP)
    pid = await node.said("pid")
    pod = await node.phase("Running")
    cut, watch, listing = asyncio.Event(), node.store.watch, node.store.list

    async def no_watch(*args, **where):
        async for event in watch(*args, **where):
            if cut.is_set() and where.get("field_selector"):
                raise errors.Gone("history was compacted")
            yield event

    async def no_list(*args, **where):
        if cut.is_set() and where.get("field_selector"):
            raise errors.Unavailable("cut off")
        return await listing(*args, **where)

    await node.stop()
    monkeypatch.setattr(node.store, "watch", no_watch)
    monkeypatch.setattr(node.store, "list", no_list)
    node.start()
    await asyncio.sleep(0.1)
    cut.set()
    await node.store.delete(core.Pod, "p", "team", grace_seconds=0)
    await node.create("exit 0")
    await asyncio.sleep(0.2)
    assert os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240
    cut.clear()
    await node.gone(node.folder / "pods" / pod.uid)
    assert not os.path.exists(f"/proc/{pid}")  # noqa: ASYNC240
    await node.phase("Succeeded")


async def test_a_pod_whose_record_is_lost_is_not_run_twice(node):
    await node.stop()
    pod = await node.create("echo again > {here}/again")
    await node.store.patch(
        core.Pod, "p", "team", patch={"status": {"phase": "Running"}}, subresource="status"
    )
    node.start()
    pod = await node.phase("Failed")
    assert pod.status.reason == "ContainerStatusUnknown"
    assert not (node.folder / "again").exists()


async def test_a_container_that_failed_is_started_again_if_its_policy_says_so(node):
    script = "if [ -e {here}/second ]; then exit 0; fi; touch {here}/second; exit 1"
    await node.create(script, restart_policy="OnFailure")
    pod = await node.phase("Succeeded")
    (status,) = pod.status.container_statuses
    assert status.restart_count == 1


async def test_one_status_is_written_once(node):
    await node.create("while [ ! -e {here}/go ]; do sleep 0.02; done")
    running = await node.phase("Running")
    for value in ("1", "2"):
        patch = {"metadata": {"labels": {"touched": value}}}
        await node.store.patch(core.Pod, "p", "team", patch=patch)
    (node.folder / "go").touch()
    done = await node.phase("Succeeded")
    changes = int(done.metadata.resource_version) - int(running.metadata.resource_version)
    assert changes == 3


async def test_a_container_that_ends_just_before_its_worker_sleeps_is_not_missed(node, monkeypatch):
    real = pods_worker.PodWorker._sleep

    async def sleep(worker, delay):
        for container in containers.all_in(worker._folder):
            (node.folder / "go").touch()
            await container.ended()
        worker.wake.clear()
        await real(worker, delay)

    monkeypatch.setattr(pods_worker.PodWorker, "_sleep", sleep)
    await node.create("while [ ! -e {here}/go ]; do sleep 0.02; done; exit 4")
    assert ended(await node.phase("Failed")).exit_code == 4


async def test_pods_of_other_nodes_are_left_alone(node):
    container = core.Container(name="c", image="x", command=["true"])
    spec = core.PodSpec(node_name="n2", containers=[container])
    other = meta.ObjectMeta(name="other", namespace="team")
    await node.store.create(core.Pod(metadata=other, spec=spec))
    await node.create("exit 0")
    await node.phase("Succeeded")
    other = await node.store.get(core.Pod, "other", "team")
    assert other.status.phase == "Pending"


async def test_an_api_that_is_away_costs_time_but_no_status(node, monkeypatch):
    real, failures = node.store.patch, [3]

    async def patch(*args, **kwargs):
        if failures[0]:
            failures[0] -= 1
            raise pods_worker.errors.Unavailable("nobody answers")
        return await real(*args, **kwargs)

    monkeypatch.setattr(node.store, "patch", patch)
    await node.create("exit 5")
    assert ended(await node.phase("Failed")).exit_code == 5
    assert failures == [0]


async def test_folders_that_a_job_closed_to_itself_go_with_the_pod(node):
    await node.create("mkdir -p a/b/c && touch a/b/f && chmod 500 a/b && chmod 0 a; ln -s / a0")
    pod = await node.phase("Succeeded")
    await node.store.delete(core.Pod, "p", "team", grace_seconds=0)
    await node.gone(node.folder / "pods" / pod.uid)
    assert os.stat("/").st_mode & 0o077


LISTEN = (
    "import socket, time; s = socket.create_server(('127.0.0.1', {port})); "
    "open('{here}/listens', 'w'); time.sleep(300)"
)


async def test_a_port_of_another_process_is_reported_and_nothing_starts(node):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        block = {annotations.PORTS: f"{port}-{port + 3}"}
        await node.create("touch {here}/ran", annotations=block)
        pod = await node.phase("Failed")
    assert pod.status.reason == "PortTaken"
    assert str(port) in pod.status.message
    assert not (node.folder / "ran").exists()


async def test_a_port_that_another_member_of_the_attempt_has_is_its_own(node):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    block = {annotations.PORTS: f"{port}-{port}"}
    script = LISTEN.replace("{port}", str(port))
    await node.create(f'exec {sys.executable} -c "{script}"', "one", annotations=block)
    await node.there(node.folder / "listens")
    await node.create("exit 0", "two", annotations=block)
    await node.phase("Succeeded", "two")
