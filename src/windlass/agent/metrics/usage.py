"""What pods and the node use, measured: cgroups where there are any, else the process trees.

`/metrics/resource` in Prometheus' words and `/stats/summary` in kubelet's, so that what reads a
kubelet reads this. `server.usage` turns it into metrics.k8s.io for `kubectl top`.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

from windlass.agent import activity, cgroups, containers, procfs
from windlass.agent.cgroups import Usage
from windlass.agent.orders import RECORD
from windlass.kinds import times

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SHM = "/dev/shm"  # noqa: S108 - looked at, never written to


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerUsage:
    """One running container."""

    namespace: str
    pod: str
    uid: str
    container: str
    usage: Usage


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """The node at one moment."""

    node: str
    at: str
    usage: Usage
    containers: list[ContainerUsage]
    devices: dict[str, float] = dataclasses.field(default_factory=dict)
    """How much of the time each worked; only those whose driver says so."""


class Meter:
    """Measures when asked; keeps nothing."""

    def __init__(self, node: str, pods: Path, groups: cgroups.Cgroups | None) -> None:
        self._node = node
        self._pods = pods
        self._groups = groups

    def measure(self) -> Measured:
        found = []
        for folder in sorted(self._pods.iterdir()) if self._pods.exists() else ():
            record = procfs.read_json(folder / RECORD)
            for container in containers.all_in(folder) if record else ():
                shim = container.running_pid()
                if record is not None and shim is not None:
                    used = self._of(folder, container.name, shim)
                    key = (record["namespace"], record["name"], folder.name, container.name)
                    found.append(ContainerUsage(*key, used))
        now = times.micros(times.now())
        return Measured(self._node, now, node_usage(), found, activity.devices())

    def _of(self, folder: Path, name: str, shim: int) -> Usage:
        if self._groups is not None:
            group = self._groups.group(containers.group_name(folder, name))
            if group.exists():
                return group.usage()
        return tree_usage(shim)


def tree_usage(root: int) -> Usage:
    """Of the processes below one: what those that live used, and those they waited for."""
    pids = procfs.descendants(root)
    cpu = 0.0
    memory = shm = reads = writes = 0
    for pid in pids:
        place = procfs.PROC / str(pid)
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            pages = (place / "statm").read_text().split()
        except OSError:
            continue
        cpu += sum(int(fields[index]) for index in (11, 12, 13, 14)) / _TICK
        memory += int(pages[1]) * _PAGE
        status = _pairs(place / "status", ":")
        shm += int(status.get("RssShmem", "0").split()[0]) * 1024
        io = _pairs(place / "io", ":")
        reads += int(io.get("read_bytes", 0))
        writes += int(io.get("write_bytes", 0))
    return Usage(cpu, memory, shm, reads, writes, len(pids))


def node_usage() -> Usage:
    """Of the whole machine, from /proc."""
    words = (procfs.PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
    idle = int(words[3]) + int(words[4])
    cpu = (sum(int(word) for word in words) - idle) / _TICK
    memory = {name: int(text.split()[0]) * 1024 for name, text in _memory().items()}
    used = memory.get("MemTotal", 0) - memory.get("MemAvailable", 0)
    disks = _disks()
    shm = shutil.disk_usage(_SHM).used if os.path.isdir(_SHM) else 0
    return Usage(cpu, used, shm, disks[0], disks[1], sum(n.isdigit() for n in os.listdir("/proc")))


def exposition(measured: Measured) -> str:
    """The text of `/metrics/resource`."""
    node = measured.usage
    lines = [
        "# TYPE node_cpu_usage_seconds_total counter",
        f"node_cpu_usage_seconds_total {node.cpu_seconds:.3f}",
        "# TYPE node_memory_working_set_bytes gauge",
        f"node_memory_working_set_bytes {node.memory}",
    ]
    if measured.devices:
        lines.append("# TYPE windlass_device_active_ratio gauge")
        lines += [
            f'windlass_device_active_ratio{{device="{name}"}} {part}'
            for name, part in sorted(measured.devices.items())
        ]
    columns = (
        ("container_cpu_usage_seconds_total", "counter", lambda u: f"{u.cpu_seconds:.3f}"),
        ("container_memory_working_set_bytes", "gauge", lambda u: u.memory),
        ("windlass_container_shm_bytes", "gauge", lambda u: u.shm),
        ("windlass_container_read_bytes_total", "counter", lambda u: u.read_bytes),
        ("windlass_container_written_bytes_total", "counter", lambda u: u.written_bytes),
        ("windlass_container_processes", "gauge", lambda u: u.processes),
    )
    for name, kind, value in columns:
        lines.append(f"# TYPE {name} {kind}")
        for each in measured.containers:
            labels = f'container="{each.container}",namespace="{each.namespace}",pod="{each.pod}"'
            lines.append(f"{name}{{{labels}}} {value(each.usage)}")
    return "\n".join(lines) + "\n"


def summary(measured: Measured) -> dict[str, Any]:
    """The body of `/stats/summary`."""
    pods: dict[str, dict[str, Any]] = {}
    for each in measured.containers:
        ref = {"name": each.pod, "namespace": each.namespace, "uid": each.uid}
        pod = pods.setdefault(each.uid, {"podRef": ref, "containers": []})
        pod["containers"].append({"name": each.container, **_stats(each.usage, measured.at)})
    node = {"nodeName": measured.node, **_stats(measured.usage, measured.at)}
    node["windlass"]["devices"] = measured.devices
    return {"node": node, "pods": list(pods.values())}


def _stats(used: Usage, at: str) -> dict[str, Any]:
    return {
        "cpu": {"time": at, "usageCoreNanoSeconds": int(used.cpu_seconds * 1e9)},
        "memory": {"time": at, "workingSetBytes": used.memory},
        "process_stats": {"process_count": used.processes},
        "windlass": {
            "shmBytes": used.shm, "readBytes": used.read_bytes, "writtenBytes": used.written_bytes,
        },
    }  # fmt: skip


def _memory() -> dict[str, str]:
    return _pairs(procfs.PROC / "meminfo", ":")


def _disks() -> tuple[int, int]:
    """Bytes read and written by whole disks: sectors are of 512 bytes there."""
    reads = writes = 0
    try:
        lines = (procfs.PROC / "diskstats").read_text().splitlines()
    except OSError:
        return 0, 0
    for line in lines:
        fields = line.split()
        if os.path.isdir(f"/sys/block/{fields[2]}"):
            reads += int(fields[5]) * 512
            writes += int(fields[9]) * 512
    return reads, writes


def _pairs(path: Path, separator: str) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    split = (line.partition(separator) for line in lines)
    return {name: value.strip() for name, _, value in split if value}
