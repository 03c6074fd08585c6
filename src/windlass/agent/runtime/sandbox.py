"""What a shim does between itself and the command: mounts, cgroup, user id. Linux calls only.

The agent decides (`agent.volumes`, `agent.privileges`); this carries it out inside the shim, where
nothing of it reaches the machine: mounts live in a private mount namespace and end with it.
Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import stat
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Any

_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 32, 4096
_MS_REC, _MS_SLAVE = 16384, 1 << 19
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_libc = ctypes.CDLL(None, use_errno=True)
_TMPFS = b"tmpfs"


def adopt_orphans() -> None:
    """Descendants whose parent ended come to this process instead of to init."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def enter(mounts: Sequence[Mapping[str, Any]]) -> None:
    """A private mount namespace with these mounts, for this process and all it starts.

    Each is `{"kind": "bind", "source", "below", "target", "readOnly"}` or `{"kind": "tmpfs",
    "target", "size", "mode", "user"}` or `{"kind": "proc", "target"}`. A target is made only where
    an earlier tmpfs of ours covers it: nothing appears on the machine.
    """
    if not mounts:
        return
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise _error("unshare", "a mount namespace")
    # What the machine mounts or unmounts later still comes in; nothing goes out.
    _mount(None, "/", None, _MS_REC | _MS_SLAVE)
    # Sources before all mounts: one of them may cover the way to another's source.
    sources = {
        index: open_below(mount["source"], mount.get("below", ""))
        for index, mount in enumerate(mounts)
        if mount["kind"] == "bind"
    }
    covered: list[str] = []
    for index, mount in enumerate(mounts):
        target = mount["target"]
        if mount["kind"] == "tmpfs":
            options = f"mode={mount.get('mode', '0755')}"
            if mount.get("size"):
                options += f",size={mount['size']}"
            if mount.get("user"):
                options += f",uid={mount['user']},gid={mount['user']}"
            _mount("tmpfs", target, _TMPFS, _MS_NOSUID | _MS_NODEV, options)
            covered.append(target.rstrip("/") + "/")
            continue
        if mount["kind"] == "proc":
            _close_proc(target)
            continue
        source = sources[index]
        if any(target.startswith(place) for place in covered):
            _make_target(source, target)
        _mount(f"/proc/self/fd/{source}", target, None, _MS_BIND | _MS_REC)
        if mount.get("readOnly"):
            _mount(None, target, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)
        os.close(source)


def _close_proc(target: str) -> None:
    """A /proc in which other users' processes tell nothing, not even their command lines. Where
    the kernel has one setting for all of the machine (before 5.8), or a container forbids it, the
    machine's own stays."""
    version = tuple(int(part) for part in os.uname().release.split(".")[:2] if part.isdigit())
    if version >= (5, 8):
        with contextlib.suppress(OSError):
            _mount("proc", target, b"proc", _MS_NOSUID | _MS_NODEV, "hidepid=1")


def open_below(base: str, below: str) -> int:
    """A handle on `base`/`below` that no symbolic link inside `base` can lead elsewhere."""
    handle = os.open(base, os.O_PATH | os.O_CLOEXEC)
    for part in [part for part in below.split("/") if part not in ("", ".")]:
        if part == "..":
            os.close(handle)
            raise PermissionError(errno.EPERM, "leads out of its volume", f"{base}/{below}")
        try:
            fresh = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
        finally:
            os.close(handle)
        handle = fresh
    if stat.S_ISLNK(os.fstat(handle).st_mode):
        os.close(handle)
        raise PermissionError(errno.EPERM, "is a symbolic link", f"{base}/{below}")
    return handle


def spawn(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    streams: tuple[int, int, int],
    setting: Mapping[str, Any],
    *,
    terminal: bool = False,
) -> int:
    """Starts a command in the container's setting; its pid, or the OSError that stopped it.

    `setting`: `user` (id, or None), `cgroups` (files to write oneself into).
    """
    failed, tell = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(failed)
            _become(parent, streams, setting, terminal)
            os.chdir(cwd)
            os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606 - no shell, on purpose
        except OSError as problem:
            what = problem.filename if isinstance(problem.filename, str) else argv[0]
            os.write(tell, f"{problem.errno} {what}".encode(errors="replace")[:4000])
        except BaseException as problem:
            os.write(tell, f"0 {problem!r}".encode(errors="replace")[:4000])
        os._exit(127)
    os.close(tell)
    with open(failed, "rb") as pipe:
        told = pipe.read()
    if told:
        os.waitpid(pid, 0)
        number, _, what = told.decode(errors="replace").partition(" ")
        raise OSError(int(number), os.strerror(int(number)), what)
    return pid


def _become(
    parent: int, streams: tuple[int, int, int], setting: Mapping[str, Any], terminal: bool
) -> None:
    os.setsid()
    for target, source in enumerate(streams):
        os.dup2(source, target)
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    for file in setting.get("cgroups") or ():
        handle = os.open(file, os.O_WRONLY)
        os.write(handle, b"0")
        os.close(handle)
    user = setting.get("user")
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        os.umask(0o022)
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # After the change of user, which would undo it: who kills the shim kills the command.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(137)


def leave_groups(files: Sequence[str]) -> None:
    """Takes the container's cgroups away once nothing is in them; what has just been killed may
    take a moment. What stays is the agent's to sweep up."""
    left = [os.path.dirname(file) for file in files]
    for _ in range(20):
        left = [folder for folder in left if not _removed(folder)]
        if not left:
            return
        time.sleep(0.005)


def may_mount() -> bool:
    """Whether a private mount namespace can be had; found out in a child that ends at once."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(OSError):
            enter([{"kind": "tmpfs", "target": "/dev", "size": 4096}])
            code = 0
        os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _make_target(source: int, target: str) -> None:
    if os.path.isdir(f"/proc/self/fd/{source}"):
        os.makedirs(target, exist_ok=True)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644))


def _mount(source: str | None, target: str, kind: bytes | None, flags: int, data: str = "") -> None:
    given = source.encode() if source else None
    if _libc.mount(given, target.encode(), kind, flags, data.encode() or None) != 0:
        raise _error("mount", target)


def _error(call: str, what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}", what)
