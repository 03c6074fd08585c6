"""Measures the usage of pods that kubelet runs, from the cgroups that kubelet creates.

    [ROOT/]kubepods/[burstable|besteffort/]pod<uid>                            cgroupfs
    kubepods.slice/[kubepods-burstable.slice/]kubepods-burstable-pod<uid>.slice        systemd

The names of kubelet's log folders (`<namespace>_<name>_<uid>`) map a uid to its pod; the API server
is not involved. A pod is measured as a whole, so that the usage of its ended containers is
included.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from windlass.agent.metrics import usage
from windlass.agent.node import device_utilization
from windlass.agent.runtime import cgroups
from windlass.kinds.values import times

WHOLE_POD = "pod"
"""The container name of a measurement of a whole pod."""
_DEEP = 2
"""Levels above kubelet's cgroup: a cgroup root or a slice."""
_ALL_PODS = re.compile(r"(?:.*-)?kubepods(?:\.slice)?")
_CLASS = re.compile(r"(?:.*-)?(?:burstable|besteffort)(?:\.slice)?")
_POD = re.compile(r"(?:.*-)?pod([0-9a-f][0-9a-f_-]{30,35})(?:\.slice)?")


class PodMeter:
    """Measures on demand; stateless."""

    def __init__(self, node: str, root: Path, logs: Path) -> None:
        """`root`: the machine's /sys/fs/cgroup; `logs`: kubelet's /var/log/pods."""
        self._node = node
        self._root = root
        self._logs = logs

    def measure(self) -> usage.NodeMeasurement:
        names = _names(self._logs)
        found = [
            usage.ContainerUsage(*names[uid], uid, WHOLE_POD, group.usage())
            for uid, group in sorted(groups(self._root).items())
            if uid in names
        ]
        now = times.micros(times.now())
        return usage.NodeMeasurement(
            self._node, now, usage.node_usage(), found, device_utilization.devices()
        )


def groups(root: Path) -> dict[str, cgroups.Cgroup]:
    """Uid of a pod -> its cgroup."""
    tops = cgroups.tops(root)
    if not tops:
        return {}
    version = 2 if "" in tops else 1
    # Every pod has a memory cgroup, in both versions.
    leading = tops[""] if version == 2 else tops["memory"]
    found = {}
    for folder in _pods(leading, _DEEP):
        match = _POD.fullmatch(folder.name)
        if match:
            inner = folder.relative_to(leading)
            paths = {controller: top / inner for controller, top in tops.items()}
            found[match[1].replace("_", "-")] = cgroups.Cgroup(version, paths)
    return found


def _pods(folder: Path, deep: int) -> Iterator[Path]:
    """The cgroups of pods and their siblings, below kubelet's cgroup at any of these levels."""
    for each in _folders(folder):
        if _ALL_PODS.fullmatch(each.name):
            for inner in _folders(each):
                yield from _folders(inner) if _CLASS.fullmatch(inner.name) else (inner,)
        elif deep:
            yield from _pods(each, deep - 1)


def _folders(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [each for each in folder.iterdir() if each.is_dir()]
    return []


def _names(logs: Path) -> dict[str, tuple[str, str]]:
    """Uid of a pod -> namespace and name."""
    parts = (each.name.split("_") for each in _folders(logs))
    return {uid: (namespace, name) for namespace, name, uid in (p for p in parts if len(p) == 3)}
