"""Limits of containers, held by the kernel: cgroup v2 or v1, wherever we may write.

One group per container, `BASE/<pod uid>.<container>`; BASE is below the agent's own group and
named after its state folder, so that two engines on a machine do not meet. The agent makes, reads
and removes groups; the container's processes write themselves in (`agent.sandbox`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

from windlass.agent import procfs

PERIOD = 100_000
MOST_PROCESSES = 32_768
"""Of one container: a fork bomb stays inside it."""
_V1 = ("cpu", "memory", "cpuacct", "pids", "blkio")
_V2 = ("cpu", "memory", "pids", "io")


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What one container may use; None: as much as there is."""

    cpu_milli: int | None = None
    memory: int | None = None
    cpu_request_milli: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What a group used so far."""

    cpu_seconds: float = 0.0
    memory: int = 0
    """The working set: without what the kernel could take back at once."""
    shm: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    processes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Cgroups:
    """The folders that hold our groups: by controller for v1; under "" for v2."""

    version: int
    bases: dict[str, Path]
    held: tuple[str, ...]
    """Which of cpu, memory and pids are limited."""

    def make(self, name: str, limits: Limits) -> Group:
        """A fresh group with these limits."""
        group = self.group(name)
        group.remove()
        for path in group.paths.values():
            path.mkdir(parents=True, exist_ok=True)
        for controller, file, value in _settings(self.version, limits):
            place = group.paths.get(controller if self.version == 1 else "")
            if place is not None:
                with contextlib.suppress(OSError):
                    (place / file).write_text(value)
        return group

    def group(self, name: str) -> Group:
        return Group(self.version, {key: base / name for key, base in self.bases.items()})

    def names(self) -> list[str]:
        """Groups that exist, of pods that live or are gone."""
        found: set[str] = set()
        for base in self.bases.values():
            with contextlib.suppress(OSError):
                found |= {entry.name for entry in base.iterdir() if entry.is_dir()}
        return sorted(found)

    def close(self) -> None:
        """Takes our own folders away, if nothing lives in them."""
        for base in self.bases.values():
            with contextlib.suppress(OSError):
                base.rmdir()


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """One container's group."""

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
        """Kills what is left in it, then takes it away."""
        for _ in range(200):
            if not self.exists():
                return
            procfs.kill(self.pids())
            for path in self.paths.values():
                with contextlib.suppress(OSError):
                    path.rmdir()
            if self.exists():
                time.sleep(0.005)

    def usage(self) -> Usage:
        return _usage_v2(self.paths[""]) if self.version == 2 else _usage_v1(self.paths)


def find(state: Path, root: Path = Path("/sys/fs/cgroup"), proc: Path = procfs.PROC) -> Cgroups:
    """Where we may make groups; raises OSError with the reason if nowhere."""
    name = f"windlass-{hashlib.sha256(str(state).encode()).hexdigest()[:10]}"
    own = _own(proc)
    if "cpu" in _words(root / "cgroup.controllers"):
        return _find_v2(root, own.get("", "/"), name)
    bases: dict[str, Path] = {}
    for controller in _V1:
        for parent in (root / controller / own.get(controller, "/").lstrip("/"), root / controller):
            with contextlib.suppress(OSError):
                (parent / name).mkdir(exist_ok=True)
                bases[controller] = parent / name
                break
    held = tuple(each for each in ("cpu", "memory", "pids") if each in bases)
    if not {"cpu", "memory"} <= bases.keys():
        found = Cgroups(1, bases, held)
        found.close()
        raise PermissionError("no cgroup with cpu and memory may be made here")
    return Cgroups(1, bases, held)


def tops(root: Path) -> dict[str, Path]:
    """The hierarchies whose groups tell what is used: by controller for v1, under "" for v2; none
    where there is no memory controller."""
    if "memory" in _words(root / "cgroup.controllers"):
        return {"": root}
    found = {each: root / each for each in _V1 if (root / each).is_dir()}
    return found if "memory" in found else {}


def _find_v2(root: Path, own: str, name: str) -> Cgroups:
    """Below our own group if it was delegated to us, else at the top as root."""
    problem: OSError = PermissionError("no cgroup may be made here")
    for parent in dict.fromkeys((root / own.lstrip("/"), root)):
        base = parent / name
        try:
            base.mkdir(exist_ok=True)
            available = [each for each in _V2 if each in _words(parent / "cgroup.controllers")]
            _enable(parent, available)
            _enable(base, available)
        except OSError as error:
            problem = error
            with contextlib.suppress(OSError):
                base.rmdir()
            continue
        held = tuple(each for each in ("cpu", "memory", "pids") if each in available)
        return Cgroups(2, {"": base}, held)
    raise problem


def _enable(folder: Path, controllers: list[str]) -> None:
    """Controllers for the groups below. v2 wants no process beside them: ours move into a leaf."""
    wanted = " ".join(f"+{each}" for each in controllers)
    try:
        (folder / "cgroup.subtree_control").write_text(wanted)
    except OSError:
        leaf = folder / "windlass-engine"
        leaf.mkdir(exist_ok=True)
        for pid in _words(folder / "cgroup.procs"):
            with contextlib.suppress(OSError):
                (leaf / "cgroup.procs").write_text(pid)
        (folder / "cgroup.subtree_control").write_text(wanted)


def _settings(version: int, limits: Limits) -> Iterator[tuple[str, str, str]]:
    """(controller, file, value), in the order they must be written."""
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
    yield "pids", "pids.max", str(MOST_PROCESSES)


def _usage_v2(path: Path) -> Usage:
    cpu, memory = _table(path / "cpu.stat"), _table(path / "memory.stat")
    used = _number(path / "memory.current")
    reads = writes = 0
    for word in _words(path / "io.stat"):
        key, _, value = word.partition("=")
        reads += int(value) if key == "rbytes" else 0
        writes += int(value) if key == "wbytes" else 0
    return Usage(
        cpu.get("usage_usec", 0) / 1e6, max(0, used - memory.get("inactive_file", 0)),
        memory.get("shmem", 0), reads, writes, _number(path / "pids.current"),
    )  # fmt: skip


def _usage_v1(paths: dict[str, Path]) -> Usage:
    memory = _table(paths["memory"] / "memory.stat")
    used = _number(paths["memory"] / "memory.usage_in_bytes")
    sums = {"Read": 0, "Write": 0}
    if "blkio" in paths:
        told = paths["blkio"] / "blkio.throttle.io_service_bytes"
        # Of groups with groups below them only the one counts what those did.
        lines = _text(told.with_name(f"{told.name}_recursive")) or _text(told)
        for line in lines.splitlines():
            words = line.split()
            if len(words) == 3 and words[1] in sums:
                sums[words[1]] += int(words[2])
    cpu = _number(paths["cpuacct"] / "cpuacct.usage") if "cpuacct" in paths else 0
    processes = _number(paths["pids"] / "pids.current") if "pids" in paths else 0
    return Usage(
        cpu / 1e9, max(0, used - memory.get("total_inactive_file", 0)),
        memory.get("total_shmem", memory.get("shmem", 0)), sums["Read"], sums["Write"], processes,
    )  # fmt: skip


def _own(proc: Path) -> dict[str, str]:
    """Controller -> our own group's path; "" for v2."""
    found = {}
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _words(path: Path) -> list[str]:
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
