"""What kubelet's pods use, from trees of groups laid out as both drivers and both versions have
them; tests/endtoend reads the groups of a real kubelet."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.agent.metrics import kubelet_cgroups, usage
from windlass.telemetry import usage_rates

UID = "0a1b2c3d-1111-2222-3333-444455556666"
OTHER = "99999999-1111-2222-3333-444455556666"
STATIC = "0123456789abcdef0123456789abcdef"


def v1(root: Path, group: str, seconds: float, memory: int) -> None:
    files = {
        "cpuacct": {"cpuacct.usage": str(int(seconds * 1e9))},
        "memory": {"memory.usage_in_bytes": str(memory), "memory.stat": "total_inactive_file 1000"},
        "pids": {"pids.current": "3"},
        "blkio": {
            "blkio.throttle.io_service_bytes": "8:0 Read 1",
            "blkio.throttle.io_service_bytes_recursive": "8:0 Read 70\n8:0 Write 5",
        },
    }
    for controller, found in files.items():
        folder = root / controller / group
        folder.mkdir(parents=True)
        for name, text in found.items():
            (folder / name).write_text(text)


def v2(root: Path, group: str, seconds: float, memory: int) -> None:
    folder = root / group
    folder.mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu io memory pids")
    (folder / "cpu.stat").write_text(f"usage_usec {int(seconds * 1e6)}")
    (folder / "memory.current").write_text(str(memory))
    (folder / "memory.stat").write_text("inactive_file 1000\nshmem 0")
    (folder / "pids.current").write_text("3")


@pytest.mark.parametrize(
    ("layout", "group"),
    [
        (v1, f"kubepods/pod{UID}"),
        (v1, f"kubepods/burstable/pod{UID}"),
        (v1, f"a-root-of-its-own/kubepods/besteffort/pod{UID}"),
        (v1, f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"),
        (v2, f"kubepods/besteffort/pod{UID}"),
        (
            v2,
            "kubepods.slice/kubepods-burstable.slice/"
            f"kubepods-burstable-pod{UID.replace('-', '_')}.slice",
        ),
        (
            v2,
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
            f"kubelet-kubepods-besteffort-pod{UID.replace('-', '_')}.slice",
        ),
    ],
)
def test_a_pods_group_is_found_wherever_kubelet_put_it(tmp_path: Path, layout, group: str) -> None:
    root, logs = tmp_path / "cgroup", tmp_path / "logs"
    layout(root, group, 1.5, 51000)
    layout(root, group.replace(UID, OTHER).replace("0a1b2c3d", "99999999"), 7, 7000)
    (logs / f"team_job-0_{UID}" / "main").mkdir(parents=True)
    (found,) = kubelet_cgroups.PodMeter("n1", root, logs).measure().containers
    assert (found.namespace, found.pod, found.uid) == ("team", "job-0", UID)
    assert (found.usage.cpu_seconds, found.usage.memory) == (1.5, 50000)
    assert found.usage.processes == 3
    assert found.usage.read_bytes == (70 if layout is v1 else 0)


def test_a_pod_that_kubelet_reads_from_a_file_has_an_id_without_hyphens(tmp_path: Path) -> None:
    v2(tmp_path, f"kubepods/burstable/pod{STATIC}", 1, 1000)
    assert set(kubelet_cgroups.groups(tmp_path)) == {STATIC}


def test_a_machine_without_groups_or_logs_is_measured_all_the_same(tmp_path: Path) -> None:
    measured = kubelet_cgroups.PodMeter("n1", tmp_path / "no", tmp_path / "none").measure()
    assert measured.containers == []
    assert measured.usage.memory > 0


def test_two_looks_make_a_rate(tmp_path: Path) -> None:
    root, logs = tmp_path / "cgroup", tmp_path / "logs"
    v2(root, f"kubepods/pod{UID}", 1.0, 51000)
    (logs / f"team_job-0_{UID}").mkdir(parents=True)
    meter = kubelet_cgroups.PodMeter("n1", root, logs)
    before = usage_rates.UsageSnapshot(100.0, usage.summary(meter.measure()))
    (root / f"kubepods/pod{UID}/cpu.stat").write_text("usage_usec 2000000")
    found = usage_rates.between(
        before, usage_rates.UsageSnapshot(102.0, usage.summary(meter.measure()))
    )
    assert found.window == 2.0
    pod = found.pods[UID]
    assert (pod.namespace, pod.name) == ("team", "job-0")
    assert pod.containers[0].usage == {"cpu": "500000000n", "memory": "48Ki"}
    # A pod that was not there before has used nothing that could be counted for this time.
    first = usage_rates.between(
        usage_rates.UsageSnapshot(100.0, {**before.summary, "pods": []}), before
    )
    assert first.pods[UID].containers[0].usage["cpu"] == "0n"
