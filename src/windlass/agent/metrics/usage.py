"""Measures the usage of pods and of the node: from cgroups if there are any, else from the process
trees.

Served like kubelet's `/metrics/resource` (Prometheus text) and `/stats/summary`, so that tools for
kubelet work. `server.platform.handlers.metrics` converts it to metrics.k8s.io for `kubectl top`.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

from windlass.agent.node import device_utilization
from windlass.agent.pods.container_config import RECORD
from windlass.agent.runtime import cgroups, containers, procfs
from windlass.agent.runtime.cgroups import CgroupUsage
from windlass.kinds.values import times

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SHM = "/dev/shm"  # noqa: S108 - only read


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerUsage:
    """The usage of one running container."""

    namespace: str
    pod: str
    uid: str
    container: str
    usage: CgroupUsage


@dataclasses.dataclass(frozen=True, slots=True)
class NodeMeasurement:
    """The usage of the node and its containers at one moment."""

    node: str
    at: str
    usage: CgroupUsage
    containers: list[ContainerUsage]
    devices: dict[str, float] = dataclasses.field(default_factory=dict)
    """Utilization from 0 to 1 of the devices whose driver reports it."""


class UsageMeter:
    """Measures on demand; stateless."""

    def __init__(self, node: str, pods: Path, groups: cgroups.Cgroups | None) -> None:
        self._node = node
        self._pods = pods
        self._groups = groups

    def measure(self) -> NodeMeasurement:
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
        return NodeMeasurement(self._node, now, node_usage(), found, device_utilization.devices())

    def _of(self, folder: Path, name: str, shim: int) -> CgroupUsage:
        if self._groups is not None:
            group = self._groups.group(containers.group_name(folder, name))
            if group.exists():
                return group.usage()
        return tree_usage(shim)


def tree_usage(root: int) -> CgroupUsage:
    """The usage of the descendants of a process, including that of children they waited for."""
    pids = procfs.descendants(root)
    cpu = 0.0
    memory = shm = reads = writes = 0
    for pid in pids:
        folder = procfs.PROC / str(pid)
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            pages = (folder / "statm").read_text().split()
        except OSError:
            continue
        cpu += sum(int(fields[index]) for index in (11, 12, 13, 14)) / _TICK
        memory += int(pages[1]) * _PAGE
        status = _pairs(folder / "status", ":")
        shm += int(status.get("RssShmem", "0").split()[0]) * 1024
        io = _pairs(folder / "io", ":")
        reads += int(io.get("read_bytes", 0))
        writes += int(io.get("write_bytes", 0))
    return CgroupUsage(cpu, memory, shm, reads, writes, len(pids))


def node_usage() -> CgroupUsage:
    """The usage of the whole machine, from /proc."""
    ticks = (procfs.PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
    idle = int(ticks[3]) + int(ticks[4])
    cpu = (sum(int(count) for count in ticks) - idle) / _TICK
    memory = {name: int(text.split()[0]) * 1024 for name, text in _memory().items()}
    used = memory.get("MemTotal", 0) - memory.get("MemAvailable", 0)
    shm = shutil.disk_usage(_SHM).used if os.path.isdir(_SHM) else 0
    processes = sum(name.isdigit() for name in os.listdir("/proc"))
    return CgroupUsage(cpu, used, shm, *_disks(), processes)


def exposition(measured: NodeMeasurement) -> str:
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


def summary(measured: NodeMeasurement) -> dict[str, Any]:
    """The body of `/stats/summary`."""
    pods: dict[str, dict[str, Any]] = {}
    for each in measured.containers:
        ref = {"name": each.pod, "namespace": each.namespace, "uid": each.uid}
        pod = pods.setdefault(each.uid, {"podRef": ref, "containers": []})
        pod["containers"].append({"name": each.container, **_stats(each.usage, measured.at)})
    node = {"nodeName": measured.node, **_stats(measured.usage, measured.at)}
    node["windlass"]["devices"] = measured.devices
    return {"node": node, "pods": list(pods.values())}


def _stats(used: CgroupUsage, at: str) -> dict[str, Any]:
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
    """Bytes read from and written to whole disks; /proc/diskstats counts sectors of 512 bytes."""
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
