"""Limits of containers, enforced by the kernel through cgroup v2 or v1.

One cgroup per container, `BASE/<pod uid>.<container>`. BASE is below the agent's own cgroup and
named after its state folder, so that two engines on one machine do not collide. The agent creates,
reads and removes cgroups; a container's process adds itself (`agent.runtime.sandbox`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

from windlass.agent.runtime import job_limits, procfs

PERIOD = 100_000
_V1 = ("cpu", "memory", "cpuacct", "pids", "blkio")
_V2 = ("cpu", "memory", "pids", "io")


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one container; None: no limit."""

    cpu_milli: int | None = None
    memory: int | None = None
    cpu_request_milli: int | None = None
    processes: int = job_limits.PROCESSES
    """Processes and threads: it contains a fork bomb."""


@dataclasses.dataclass(frozen=True, slots=True)
class CgroupUsage:
    """What a cgroup has used so far."""

    cpu_seconds: float = 0.0
    memory: int = 0
    """The working set: without page cache that the kernel can reclaim at once."""
    shm: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    processes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Cgroups:
    """The parent folders of the containers' cgroups: by controller for v1; under "" for v2."""

    version: int
    bases: dict[str, Path]
    enforced: tuple[str, ...]
    """Which of cpu, memory and pids are limited."""

    def make(self, name: str, limits: Limits) -> Cgroup:
        """Creates a cgroup with these limits, in place of an old one of that name."""
        group = self.group(name)
        group.remove()
        for path in group.paths.values():
            path.mkdir(parents=True, exist_ok=True)
        for controller, file, value in _settings(self.version, limits):
            folder = group.paths.get(controller if self.version == 1 else "")
            if folder is not None:
                with contextlib.suppress(OSError):
                    (folder / file).write_text(value)
        return group

    def group(self, name: str) -> Cgroup:
        return Cgroup(self.version, {key: base / name for key, base in self.bases.items()})

    def names(self) -> list[str]:
        """The names of the cgroups that exist, including those of deleted pods."""
        found: set[str] = set()
        for base in self.bases.values():
            with contextlib.suppress(OSError):
                found |= {entry.name for entry in base.iterdir() if entry.is_dir()}
        return sorted(found)

    def limit_all(self, processes: int) -> None:
        """Limits the processes of all containers together."""
        base = self.bases.get("pids" if self.version == 1 else "")
        if base is not None:
            with contextlib.suppress(OSError):
                (base / "pids.max").write_text(str(processes))

    def close(self) -> None:
        """Removes the parent folders if they are empty."""
        for base in self.bases.values():
            with contextlib.suppress(OSError):
                base.rmdir()


@dataclasses.dataclass(frozen=True, slots=True)
class Cgroup:
    """The cgroup of one container."""

    version: int
    paths: dict[str, Path]

    @property
    def procs_files(self) -> list[str]:
        return [str(path / "cgroup.procs") for path in self.paths.values()]

    @property
    def oom_file(self) -> str:
        if self.version == 2:
            return str(self.paths[""] / "memory.events")
        return str(self.paths["memory"] / "memory.oom_control") if "memory" in self.paths else ""

    def exists(self) -> bool:
        return any(path.exists() for path in self.paths.values())

    def pids(self) -> set[int]:
        found: set[int] = set()
        for file in self.procs_files:
            with contextlib.suppress(OSError):
                found |= {int(word) for word in Path(file).read_text().split()}
        return found

    def remove(self) -> None:
        """Kills the processes that are left in it, then removes it."""
        for _ in range(200):
            if not self.exists():
                return
            procfs.kill(self.pids())
            for path in self.paths.values():
                with contextlib.suppress(OSError):
                    path.rmdir()
            if self.exists():
                time.sleep(0.005)

    def usage(self) -> CgroupUsage:
        return _usage_v2(self.paths[""]) if self.version == 2 else _usage_v1(self.paths)


def find(state: Path, root: Path = Path("/sys/fs/cgroup"), proc: Path = procfs.PROC) -> Cgroups:
    """The cgroups that the agent may create; raises OSError with the reason if it may not."""
    name = f"windlass-{hashlib.sha256(str(state).encode()).hexdigest()[:10]}"
    own = _own(proc)
    if "cpu" in _fields(root / "cgroup.controllers"):
        return _find_v2(root, own.get("", "/"), name)
    bases: dict[str, Path] = {}
    for controller in _V1:
        for parent in (root / controller / own.get(controller, "/").lstrip("/"), root / controller):
            with contextlib.suppress(OSError):
                (parent / name).mkdir(exist_ok=True)
                bases[controller] = parent / name
                break
    enforced = tuple(each for each in ("cpu", "memory", "pids") if each in bases)
    if not {"cpu", "memory"} <= bases.keys():
        found = Cgroups(1, bases, enforced)
        found.close()
        raise PermissionError("no permission to create a cgroup with cpu and memory")
    return Cgroups(1, bases, enforced)


def tops(root: Path) -> dict[str, Path]:
    """The cgroup hierarchies that account for usage: by controller for v1, under "" for v2; empty
    without a memory controller."""
    if "memory" in _fields(root / "cgroup.controllers"):
        return {"": root}
    found = {each: root / each for each in _V1 if (root / each).is_dir()}
    return found if "memory" in found else {}


def _find_v2(root: Path, own: str, name: str) -> Cgroups:
    """Below the agent's own cgroup if that is delegated, else at the top, as root."""
    problem: OSError = PermissionError("no permission to create a cgroup")
    for parent in dict.fromkeys((root / own.lstrip("/"), root)):
        base = parent / name
        try:
            base.mkdir(exist_ok=True)
            available = [each for each in _V2 if each in _fields(parent / "cgroup.controllers")]
            _enable(parent, available)
            _enable(base, available)
        except OSError as error:
            problem = error
            with contextlib.suppress(OSError):
                base.rmdir()
            continue
        enforced = tuple(each for each in ("cpu", "memory", "pids") if each in available)
        return Cgroups(2, {"": base}, enforced)
    raise problem


def _enable(folder: Path, controllers: list[str]) -> None:
    """Enables controllers for the child cgroups. v2 allows no process beside them, so processes
    move into a leaf."""
    wanted = " ".join(f"+{each}" for each in controllers)
    try:
        (folder / "cgroup.subtree_control").write_text(wanted)
    except OSError:
        leaf = folder / "windlass-engine"
        leaf.mkdir(exist_ok=True)
        for pid in _fields(folder / "cgroup.procs"):
            with contextlib.suppress(OSError):
                (leaf / "cgroup.procs").write_text(pid)
        (folder / "cgroup.subtree_control").write_text(wanted)


def _settings(version: int, limits: Limits) -> Iterator[tuple[str, str, str]]:
    """Controller, file and value of each setting, in the order of writing."""
    cpu, memory = limits.cpu_milli, limits.memory
    request = limits.cpu_request_milli
    if version == 2:
        if cpu:
            yield "cpu", "cpu.max", f"{max(1000, cpu * PERIOD // 1000)} {PERIOD}"
        if request:
            yield "cpu", "cpu.weight", str(max(1, min(10_000, request // 10)))
        if memory:
            yield "memory", "memory.swap.max", "0"
            yield "memory", "memory.max", str(memory)
    else:
        if cpu:
            yield "cpu", "cpu.cfs_period_us", str(PERIOD)
            yield "cpu", "cpu.cfs_quota_us", str(max(1000, cpu * PERIOD // 1000))
        if request:
            yield "cpu", "cpu.shares", str(max(2, request * 1024 // 1000))
        if memory:
            yield "memory", "memory.limit_in_bytes", str(memory)
            yield "memory", "memory.memsw.limit_in_bytes", str(memory)
    yield "pids", "pids.max", str(limits.processes)


def _usage_v2(path: Path) -> CgroupUsage:
    cpu, memory = _table(path / "cpu.stat"), _table(path / "memory.stat")
    used = _number(path / "memory.current")
    reads = writes = 0
    for word in _fields(path / "io.stat"):
        key, _, value = word.partition("=")
        reads += int(value) if key == "rbytes" else 0
        writes += int(value) if key == "wbytes" else 0
    return CgroupUsage(
        cpu.get("usage_usec", 0) / 1e6, max(0, used - memory.get("inactive_file", 0)),
        memory.get("shmem", 0), reads, writes, _number(path / "pids.current"),
    )  # fmt: skip


def _usage_v1(paths: dict[str, Path]) -> CgroupUsage:
    memory = _table(paths["memory"] / "memory.stat")
    used = _number(paths["memory"] / "memory.usage_in_bytes")
    sums = {"Read": 0, "Write": 0}
    if "blkio" in paths:
        counters = paths["blkio"] / "blkio.throttle.io_service_bytes"
        # The plain file does not include child cgroups.
        lines = _text(counters.with_name(f"{counters.name}_recursive")) or _text(counters)
        for line in lines.splitlines():
            fields = line.split()
            if len(fields) == 3 and fields[1] in sums:
                sums[fields[1]] += int(fields[2])
    cpu = _number(paths["cpuacct"] / "cpuacct.usage") if "cpuacct" in paths else 0
    processes = _number(paths["pids"] / "pids.current") if "pids" in paths else 0
    return CgroupUsage(
        cpu / 1e9, max(0, used - memory.get("total_inactive_file", 0)),
        memory.get("total_shmem", memory.get("shmem", 0)), sums["Read"], sums["Write"], processes,
    )  # fmt: skip


def _own(proc: Path) -> dict[str, str]:
    """Controller -> the path of the agent's own cgroup; "" for v2."""
    found = {}
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _fields(path: Path) -> list[str]:
    return _text(path).split()


def _table(path: Path) -> dict[str, int]:
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
