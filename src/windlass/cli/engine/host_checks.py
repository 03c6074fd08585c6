"""Checks of one machine: each has a finding, its effect on jobs and a remedy.

Called by `windlass doctor`. Every check reads files below `root` (so that tests can build a machine
in a folder) or calls the operating system; no check leaves a change behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

State = Literal["ok", "limited", "missing"]

_GIB = 1 << 30
_SHM = "/dev/shm"  # noqa: S108 - looked at, never written to
_OLDEST_PYTHON = (3, 11)
_OLDEST_SQLITE = (3, 35, 0)
_ENOUGH_FILES = 65_536
_ENOUGH_SHM = 1 * _GIB
_LITTLE_DISK = 2 * _GIB
_FASTEST_REAL_FSYNC = 20e-6
"""No disk or battery-backed cache is faster: below this, fsync did not write."""


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    state: State
    found: str
    meaning: str = ""
    """Its effect on jobs, unless the state is ok."""
    remedy: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """The machine that the checks read."""

    state: Path
    root: Path = Path("/")

    def path(self, *parts: str) -> Path:
        return self.root.joinpath(*(part.lstrip("/") for part in parts))

    def read(self, *parts: str) -> str:
        try:
            return self.path(*parts).read_text(errors="replace")
        except OSError:
            return ""

    def names(self, *parts: str) -> list[str]:
        try:
            return sorted(os.listdir(self.path(*parts)))
        except OSError:
            return []


def checks(machine: Machine) -> Iterator[Check]:
    """All checks of the machine, in the order of the output."""
    yield python()
    yield sqlite()
    yield uv()
    yield cgroups(machine)
    yield shared_memory(machine)
    yield from devices(machine)
    yield fuse(machine)
    yield isolation(machine)
    yield open_files()
    yield disk(machine)
    yield durability(machine)
    yield clock(machine)


def python() -> Check:
    found = platform.python_version()
    if sys.version_info >= _OLDEST_PYTHON:
        return Check("python", "ok", found)
    wanted = ".".join(map(str, _OLDEST_PYTHON))
    return Check(
        "python", "missing", found, f"Windlass needs Python {wanted} or newer.",
        f"Install it: uv python install {wanted}",
    )  # fmt: skip


def sqlite() -> Check:
    try:
        import sqlite3
    except ImportError:
        return Check(
            "sqlite", "missing", "Python was built without it",
            "The embedded engine cannot store its objects.",
            "Use a Python with the sqlite3 module: uv python install 3.12",
        )  # fmt: skip
    if sqlite3.sqlite_version_info >= _OLDEST_SQLITE:
        return Check("sqlite", "ok", sqlite3.sqlite_version)
    return Check(
        "sqlite", "missing", sqlite3.sqlite_version,
        f"The store needs SQLite {'.'.join(map(str, _OLDEST_SQLITE))} or newer.",
        "Use a Python with a newer SQLite: uv python install 3.12",
    )  # fmt: skip


def uv() -> Check:
    beside_python = Path(sys.executable).with_name("uv")
    found = shutil.which("uv") or (str(beside_python) if beside_python.exists() else "")
    if found:
        return Check("uv", "ok", found)
    return Check(
        "uv", "missing", "not on PATH",
        "Windlass cannot build Python environments; jobs use installed packages.",
        "Install it: pip install uv",
    )  # fmt: skip


def cgroups(machine: Machine) -> Check:
    """The cgroup version, and whether this user may set limits."""
    base = machine.path("sys/fs/cgroup")
    controllers = machine.read("sys/fs/cgroup/cgroup.controllers").split()
    if {"cpu", "memory"} <= set(controllers):
        own = base / machine.read("proc/self/cgroup").partition("::")[2].strip().lstrip("/")
        if _may_make_folders(own) or _may_make_folders(base):
            return Check("cgroups", "ok", f"v2 ({' '.join(controllers)}), limits may be set")
        return Check(
            "cgroups", "limited", "v2, read-only for this user",
            "CPU and memory limits of jobs are not enforced: a job can exceed its request.",
            "Run `windlass up` as root, or under systemd with Delegate=yes.",
        )  # fmt: skip
    if (base / "memory").is_dir() and (base / "cpu").is_dir():
        if _may_make_folders(base / "memory") and _may_make_folders(base / "cpu"):
            return Check("cgroups", "ok", "v1, limits may be set")
        return Check(
            "cgroups", "limited", "v1, read-only for this user",
            "CPU and memory limits of jobs are not enforced: a job can exceed its request.",
            "Run `windlass up` as root.",
        )  # fmt: skip
    return Check(
        "cgroups", "missing", "no cpu and memory controllers",
        "CPU and memory limits of jobs are not enforced: a job can exceed its request.",
        "Mount cgroup v2 at /sys/fs/cgroup.",
    )  # fmt: skip


def shared_memory(machine: Machine) -> Check:
    folder = machine.path(_SHM)
    try:
        size = shutil.disk_usage(folder).total
    except OSError:
        return Check(
            "shm", "missing", f"{_SHM} does not exist",
            "PyTorch data loaders with workers and NCCL will fail.",
            "mount -t tmpfs -o size=50% tmpfs /dev/shm",
        )  # fmt: skip
    if size >= _ENOUGH_SHM:
        return Check("shm", "ok", f"{_SHM} has {_gib(size)}")
    return Check(
        "shm", "limited", f"{_SHM} has only {_gib(size)}",
        "Jobs that pass tensors between processes may die with a bus error.",
        "mount -o remount,size=50% /dev/shm (in a container: --shm-size=8g)",
    )  # fmt: skip


def devices(machine: Machine) -> Iterator[Check]:
    """Accelerators and fast networks, from /dev and /sys."""
    dev = machine.names("dev")
    nvidia = [d for d in dev if d.startswith("nvidia") and d[6:].isdigit()]
    kfd = "kfd" in dev
    amd = [n for n in machine.names("sys/class/kfd/kfd/topology/nodes") if _is_gpu(machine, n)]
    npu = [d for d in dev if d.startswith("davinci") and d[7:].isdigit()]
    npu += [d for d in machine.names("dev/accel") if d.startswith("accel")]
    rdma = machine.names("sys/class/infiniband")
    yield _device("nvidia", nvidia, "nvidia" in machine.read("proc/modules"), "NVIDIA GPUs")
    yield _device("amd", amd, kfd, "AMD GPUs")
    yield _device("npu", npu, False, "NPUs")
    yield _device("rdma", rdma, "ib_core" in machine.read("proc/modules"), "RDMA ports")


def fuse(machine: Machine) -> Check:
    device = machine.path("dev/fuse")
    if os.access(device, os.R_OK | os.W_OK):
        return Check("fuse", "ok", "/dev/fuse is usable")
    found = "no permission for /dev/fuse" if device.exists() else "no /dev/fuse"
    return Check(
        "fuse", "missing", found,
        "Object stores cannot be mounted as folders; jobs can still copy data in.",
        "modprobe fuse, and in a container pass --device /dev/fuse.",
    )  # fmt: skip


def isolation(
    machine: Machine, euid: int | None = None, may_mount: Callable[[], bool] | None = None
) -> Check:
    euid = os.geteuid() if euid is None else euid
    if euid == 0:
        from windlass.agent.runtime import sandbox

        if (may_mount or sandbox.may_mount)():
            return Check(
                "isolation", "ok",
                "root: each namespace's jobs run under a user id of their own; those in "
            "`default` run as root, as long as no other user may create runs there",
            )  # fmt: skip
        return Check(
            "isolation", "limited", "root, without permission to mount",
            "All jobs run as root on the same files: teams are isolated by the API only.",
            "In a container: --cap-add SYS_ADMIN, or run the engine outside of it.",
        )  # fmt: skip
    allowed = machine.read("proc/sys/user/max_user_namespaces").strip() not in ("", "0")
    spaces = "user namespaces allowed" if allowed else "no user namespaces"
    return Check(
        "isolation", "limited", f"user {euid}, {spaces}",
        "All jobs run as this user: teams are isolated by the API only and can read each "
        "other's files.",
        "Run `windlass up` as root to isolate teams, or use Kubernetes.",
    )  # fmt: skip


def open_files() -> Check:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _ENOUGH_FILES:
        shown = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
        return Check("open files", "ok", f"up to {shown}")
    return Check(
        "open files", "limited", f"up to {hard}",
        "Many concurrent jobs, watches and log readers may exceed the limit.",
        f"ulimit -Hn {_ENOUGH_FILES} (or LimitNOFILE= in the service file)",
    )  # fmt: skip


def disk(machine: Machine) -> Check:
    folder = _existing(machine.state)
    free = shutil.disk_usage(folder).free
    found = f"{_gib(free)} free for {machine.state}"
    if free >= _LITTLE_DISK:
        return Check("disk", "ok", found)
    return Check(
        "disk", "limited", found, "The store, logs and environments of jobs may fill it.",
        "Free some space, or choose another place: windlass up --state DIR",
    )  # fmt: skip


def durability(machine: Machine) -> Check:
    """Whether fsync reaches a disk: some file systems return without writing."""
    folder = _existing(machine.state)
    try:
        fastest = _fastest_fsync(folder)
    except OSError as problem:
        return Check(
            "fsync", "missing", f"cannot write in {folder}: {problem.strerror}",
            "The engine cannot store its objects there.",
            "Make the folder writable, or choose another one: windlass up --state DIR",
        )  # fmt: skip
    found = f"{fastest * 1e3:.2f} ms at best, on {folder}"
    if fastest >= _FASTEST_REAL_FSYNC:
        return Check("fsync", "ok", found)
    return Check(
        "fsync", "limited", found,
        "Too fast for a disk: a power cut may lose the last changes.",
        "Put the state folder on a local disk: windlass up --state DIR",
    )  # fmt: skip


def clock(machine: Machine) -> Check:
    if machine.path("run/systemd/timesync/synchronized").exists():
        return Check("clock", "ok", "synchronised by systemd-timesyncd")
    for daemon in ("chronyd", "ntpd", "ptp4l", "systemd-timesyn"):
        if _runs(machine, daemon):
            return Check("clock", "ok", f"{daemon} is running")
    return Check(
        "clock", "limited", "no time service found",
        "Schedules and certificates need a correct clock.",
        "timedatectl set-ntp true",
    )  # fmt: skip


def _device(name: str, found: list[str], driver: bool, label: str) -> Check:
    if found:
        return Check(name, "ok", f"{len(found)} {label}: {', '.join(found[:8])}")
    if driver:
        return Check(
            name, "limited", f"driver loaded, no {label} found",
            "Jobs that ask for them will wait.",
            "Load the complete driver; in a container, pass the devices in.",
        )  # fmt: skip
    return Check(name, "missing", f"no {label}", "Jobs that ask for them cannot run here.")


def _is_gpu(machine: Machine, node: str) -> bool:
    """A KFD topology node with SIMD units; the others are the machine's CPUs."""
    for line in machine.read("sys/class/kfd/kfd/topology/nodes", node, "properties").splitlines():
        key, _, value = line.partition(" ")
        if key == "simd_count":
            return value.strip() != "0"
    return False


def _may_make_folders(folder: Path) -> bool:
    """Whether a cgroup can be created here; creates one and removes it."""
    probe = folder / f"windlass-doctor-{os.getpid()}"
    try:
        probe.mkdir()
    except OSError:
        return False
    with contextlib.suppress(OSError):
        probe.rmdir()
    return True


def _fastest_fsync(folder: Path) -> float:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".windlass-doctor-") as file:
        times = []
        for _ in range(8):
            os.write(file.fileno(), b"x" * 4096)
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    return min(times)


def _existing(path: Path) -> Path:
    """The folder itself, or its nearest existing parent."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _runs(machine: Machine, command: str) -> bool:
    return any(
        pid.isdigit() and machine.read("proc", pid, "comm").strip() == command
        for pid in machine.names("proc")
    )


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"
