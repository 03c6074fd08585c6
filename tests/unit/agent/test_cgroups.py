"""What the kernel holds pods to: memory, CPU, shared memory; and the words where it cannot."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.unit.agent import nodes
from tests.unit.agent.nodes import ended
from windlass.agent.metrics import usage
from windlass.agent.node import privileges
from windlass.agent.runtime import cgroups, exit_status, job_limits
from windlass.kinds.types import core


@pytest.fixture
async def held(node):
    """A node whose agent may make cgroups; nothing of them is left."""
    try:
        groups = cgroups.find(node.folder)
    except OSError:
        pytest.skip("no cgroups may be made here")
    abilities = privileges.Abilities(mounts=os.geteuid() == 0, cgroups=groups)
    await node.restart(abilities=abilities)
    yield node
    await node.stop()
    for name in groups.names():
        groups.group(name).remove()
    groups.close()
    assert not any(base.exists() for base in groups.bases.values())


def exists(path: str) -> bool:
    return os.path.exists(path)


def limits(**amounts: str) -> core.ResourceRequirements:
    return core.ResourceRequirements(limits=dict(amounts))


EAT = f"exec {sys.executable} -c 'x = bytearray(300 << 20)'"


async def test_a_process_above_its_memory_limit_is_reported_as_out_of_memory(held):
    await held.create(EAT, resources=limits(memory="64Mi"))
    last = ended(await held.phase("Failed"))
    assert (last.reason, last.exit_code) == ("OOMKilled", 137)
    assert "64Mi" in last.message


async def test_a_child_that_ate_too_much_is_recognised_too(held):
    await held.create(EAT.removeprefix("exec ") + " || exit 5", resources=limits(memory="64Mi"))
    last = ended(await held.phase("Failed"))
    assert (last.reason, last.exit_code) == ("OOMKilled", 5)


async def test_a_child_killed_for_memory_is_reported_though_the_container_succeeded(held):
    script = EAT.removeprefix("exec ") + "; echo saved > $WINDLASS_TERMINATION_LOG"
    await held.create(script, resources=limits(memory="64Mi"))
    last = ended(await held.phase("Succeeded"))
    assert (last.reason, last.exit_code) == ("OOMKilled", 0)
    said, warning = last.message.splitlines()
    assert said == "saved"
    assert warning.endswith("exceeded the memory limit of 64Mi and were killed")


async def test_a_process_that_kills_itself_did_not_run_out_of_memory(held):
    await held.create("kill -9 $$", resources=limits(memory="64Mi"))
    assert ended(await held.phase("Failed")).reason == "Error"


async def test_processes_are_in_the_group_and_the_group_goes_with_the_pod(held):
    await held.create("touch {here}/ready; while [ ! -e {here}/go ]; do sleep 0.02; done",
                      resources=limits(cpu="250m", memory="64Mi"))  # fmt: skip
    pod = await held.phase("Running")
    groups = held.means["abilities"].cgroups
    group = groups.group(f"{pod.uid}.c")
    await held.there(held.folder / "ready")
    assert group.pids()
    measured = usage.UsageMeter("n1", held.folder / "pods", groups).measure()
    (one,) = measured.containers
    assert (one.namespace, one.pod, one.container) == ("team", "p", "c")
    assert one.usage.memory > 0
    assert one.usage.processes > 0
    assert 'pod="p"' in usage.exposition(measured)
    await held.store.delete(core.Pod, "p", "team", grace_seconds=0)
    await held.gone(held.folder / "pods" / pod.uid)
    assert not group.exists()


async def test_what_a_killed_shim_left_behind_in_the_group_is_killed(held):
    await held.create("env -i setsid sleep 1000 & echo $! > {here}/left; touch {here}/ready; wait")
    pod = await held.phase("Running")
    await held.there(held.folder / "ready")
    shim = held.folder / "pods" / pod.uid / "containers/c/0/shim.json"
    os.kill(int(__import__("json").loads(shim.read_text())["pid"]), signal.SIGKILL)
    assert ended(await held.phase("Failed")).reason == "ShimLost"
    left = (held.folder / "left").read_text().strip()
    await held.gone(Path(f"/proc/{left}"))


async def test_groups_of_pods_that_are_gone_are_swept_up(held):
    groups = held.means["abilities"].cgroups
    groups.make("nobody.c", cgroups.Limits())
    await held.restart()
    await held.create("exit 0")
    await held.phase("Succeeded")
    assert not groups.group("nobody.c").exists()


# --- shared memory

FILL = (
    f'exec {sys.executable} -c "import mmap,os; '
    "f = os.open('/dev/shm/x', os.O_RDWR | os.O_CREAT); os.ftruncate(f, 64 << 20); "
    "m = mmap.mmap(f, 64 << 20); os.unlink('/dev/shm/x') if {unlink} else None; "
    "[m.write(b'x' * 65536) for _ in range(1024)]\""
)


@nodes.as_root
@pytest.mark.parametrize("unlink", ["False", "True"])
async def test_a_full_shared_memory_is_reported_with_the_size_to_ask_for(node, unlink):
    await node.restart(abilities=privileges.Abilities(mounts=True))
    await node.create(
        FILL.replace("{unlink}", unlink),
        volumes=[{"name": "s", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}],
        volume_mounts=[core.VolumeMount(name="s", mount_path="/dev/shm")],
    )
    last = ended(await node.phase("Failed"))
    assert (last.reason, last.exit_code) == ("OutOfSharedMemory", 128 + signal.SIGBUS)
    assert "16Mi" in last.message
    assert "at least 32Mi" in last.message
    assert not exists("/dev/shm/x")


def test_looks_that_came_too_late_do_not_speak_against_a_full_shared_memory(monkeypatch):
    """Each pipe that closes, and the end itself, wake the shim; all find nothing left."""
    now = [100.0]
    monkeypatch.setattr(exit_status.time, "monotonic", lambda: now[0])
    given = exit_status.SharedMemory({"path": "/dev/shm", "size": 16 << 20, "private": True})
    for passed in (5.0, 0.3, 0.0001, 0.0001, 0.0001):
        now[0] += passed
        given.sample()
    assert exit_status.of(signal.SIGBUS, {}, 1, given)["reason"] == "OutOfSharedMemory"


def test_a_bus_error_without_evidence_is_no_more_than_that():
    given = exit_status.SharedMemory({"path": "/dev/shm", "size": 1 << 40, "private": True})
    ending = exit_status.of(signal.SIGBUS, {}, 1, given)
    assert ending["reason"] == "Error"


# --- where groups are found, on machines of paper


def test_v2_below_our_own_group(tmp_path):
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    own = root / "user.slice/us"
    own.mkdir(parents=True)
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/user.slice/us\n")
    for place in (root, own):
        (place / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        (place / "cgroup.procs").write_text("")
    found = cgroups.find(tmp_path, root, proc)
    assert (found.version, found.enforced) == (2, ("cpu", "memory", "pids"))
    (base,) = found.bases.values()
    assert base.parent == own
    assert (own / "cgroup.subtree_control").read_text() == "+cpu +memory +pids +io"
    group = found.make("a.c", cgroups.Limits(cpu_milli=1500, memory=1 << 20, cpu_request_milli=500))
    (place,) = group.paths.values()
    written = {file.name: file.read_text() for file in place.iterdir()}
    assert written == {
        "cpu.max": "150000 100000", "cpu.weight": "50", "memory.max": str(1 << 20),
        "memory.swap.max": "0", "pids.max": str(job_limits.PROCESSES),
    }  # fmt: skip


def test_v2_usage(tmp_path):
    files = {
        "cpu.stat": "usage_usec 1500000\nuser_usec 1\n", "memory.current": "1000\n",
        "memory.stat": "inactive_file 300\nshmem 50\n", "pids.current": "3\n",
        "io.stat": "8:0 rbytes=10 wbytes=20 rios=1\n8:16 rbytes=1 wbytes=2\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cgroups.Cgroup(2, {"": tmp_path}).usage() == cgroups.CgroupUsage(1.5, 700, 50, 11, 22, 3)


def test_nowhere_is_reported(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("")
    with pytest.raises(OSError, match="create a cgroup"):
        cgroups.find(tmp_path, tmp_path / "none", tmp_path / "proc")


def test_a_tree_of_processes_is_measured_without_groups():
    used = usage.tree_usage(os.getppid())
    assert used.memory > 1 << 20
    assert used.processes >= 1
    assert Path("/proc/stat").exists()
    assert usage.node_usage().cpu_seconds > 0
