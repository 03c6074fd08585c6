"""What the pods of a kubelet use, read from the groups that it made for them.

    [ROOT/]kubepods/[burstable|besteffort/]pod<uid>                            cgroupfs
    kubepods.slice/[kubepods-burstable.slice/]kubepods-burstable-pod<uid>.slice        systemd

Whose they are, kubelet's folders of logs say (`<namespace>_<name>_<uid>`): that asks nothing of the
API server, whoever the pod belongs to. A pod is measured as a whole, so that what its containers
that have ended used is in it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from windlass.agent import activity, cgroups, usage
from windlass.kinds import times

WHOLE_POD = "pod"
"""Instead of a container's name."""
_DEEP = 2
"""Levels above kubelet's own group: a root of its own, or a slice."""
_ALL_PODS = re.compile(r"(?:.*-)?kubepods(?:\.slice)?")
_CLASS = re.compile(r"(?:.*-)?(?:burstable|besteffort)(?:\.slice)?")
_POD = re.compile(r"(?:.*-)?pod([0-9a-f][0-9a-f_-]{30,35})(?:\.slice)?")


class PodMeter:
    """Measures when asked; keeps nothing."""

    def __init__(self, node: str, root: Path, logs: Path) -> None:
        """`root`: the machine's /sys/fs/cgroup; `logs`: kubelet's /var/log/pods."""
        self._node = node
        self._root = root
        self._logs = logs

    def measure(self) -> usage.Measured:
        names = _names(self._logs)
        found = [
            usage.ContainerUsage(*names[uid], uid, WHOLE_POD, group.usage())
            for uid, group in sorted(groups(self._root).items())
            if uid in names
        ]
        now = times.micros(times.now())
        return usage.Measured(self._node, now, usage.node_usage(), found, activity.devices())


def groups(root: Path) -> dict[str, cgroups.Group]:
    """Uid of a pod -> its group."""
    tops = cgroups.tops(root)
    if not tops:
        return {}
    version = 2 if "" in tops else 1
    # Every pod has a group of memory, on whichever version.
    leading = tops[""] if version == 2 else tops["memory"]
    found = {}
    for place in _pods(leading, _DEEP):
        match = _POD.fullmatch(place.name)
        if match:
            inner = place.relative_to(leading)
            paths = {controller: top / inner for controller, top in tops.items()}
            found[match[1].replace("_", "-")] = cgroups.Group(version, paths)
    return found


def _pods(folder: Path, deep: int) -> Iterator[Path]:
    """Groups of pods and their neighbours, below wherever kubelet put them."""
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
    """Uid of a pod -> its namespace and name."""
    parts = (each.name.split("_") for each in _folders(logs))
    return {uid: (namespace, name) for namespace, name, uid in (p for p in parts if len(p) == 3)}
