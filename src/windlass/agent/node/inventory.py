"""The resources of this machine: cores, memory, devices; reduced by the limits of its cgroup."""

from __future__ import annotations

import os
import platform
import re
import socket
from pathlib import Path

_UNLIMITED = 1 << 60
"""cgroup v1 writes a number near 2**63 for no limit."""


def cpu_milli(root: Path = Path("/")) -> int:
    """Millicores that this process may use: its CPU affinity, or its cgroup's quota if smaller."""
    cores = len(os.sched_getaffinity(0)) * 1000
    quota = _cpu_quota(root)
    return cores if quota is None else min(cores, quota)


def memory_bytes(root: Path = Path("/")) -> int:
    """The machine's memory, or the cgroup's limit if smaller."""
    text = (root / "proc/meminfo").read_text()
    match = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    assert match is not None, "/proc/meminfo has MemTotal on every Linux"  # noqa: S101
    total = int(match[1]) * 1024
    limits = [
        _number(root / "sys/fs/cgroup/memory.max"),
        _number(root / "sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ]
    return min([total, *(limit for limit in limits if limit is not None and limit < _UNLIMITED)])


def devices(root: Path = Path("/")) -> dict[str, int]:
    """Device kind -> count, from the device files: NVIDIA and AMD GPUs, Ascend NPUs."""
    names = os.listdir(root / "dev") if (root / "dev").is_dir() else []
    gpus = sum(bool(re.fullmatch(r"nvidia\d+", name)) for name in names)
    for properties in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"):
        simd = re.search(r"^simd_count (\d+)", _text(properties), re.MULTILINE)
        gpus += bool(simd and int(simd[1]))
    npus = sum(bool(re.fullmatch(r"davinci\d+", name)) for name in names)
    return {kind: count for kind, count in (("gpu", gpus), ("npu", npus)) if count}


def gpu_model(root: Path = Path("/")) -> str:
    """The model of the first NVIDIA GPU as a label's value: `a100-sxm4-80gb`; "" if unknown."""
    for file in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        match = re.search(r"^Model:\s*(.+)$", _text(file), re.MULTILINE)
        if match:
            label = re.sub(r"[^a-z0-9.]+", "-", match[1].lower()).removeprefix("nvidia-")
            return label.strip("-.")[:63]
    return ""


def node_name() -> str:
    """The host name as a valid object name."""
    name = re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower()).strip("-.")
    return name or "node"


def facts() -> dict[str, str]:
    """`status.nodeInfo` of the Node."""
    return {
        "machineID": _text(Path("/etc/machine-id")),
        "bootID": _text(Path("/proc/sys/kernel/random/boot_id")),
        "kernelVersion": platform.release(),
        "osImage": platform.platform(),
        "operatingSystem": "linux",
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(
            platform.machine(), platform.machine()
        ),
        "containerRuntimeVersion": "windlass://processes",
    }


def _cpu_quota(root: Path) -> int | None:
    """The quota of cgroup v2 (`cpu.max`: quota and period) or v1, in millicores; None if none."""
    fields = _text(root / "sys/fs/cgroup/cpu.max").split()
    if len(fields) == 2 and fields[0] != "max":
        return int(fields[0]) * 1000 // int(fields[1])
    quota = _number(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = _number(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    return quota * 1000 // period if quota and quota > 0 and period else None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
