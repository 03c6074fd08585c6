"""The isolation of a container's command: mounts, cgroup, user id.

The agent decides (`agent.pods.volumes`, `agent.node.privileges`) and the shim applies it here.
Mounts are in a private mount namespace: they are not visible on the machine and end with the
namespace. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import stat
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from windlass.agent.runtime import mount_calls

_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND = 1, 2, 4, 32, 4096
_MS_REC, _MS_SLAVE = 16384, 1 << 19
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_libc = ctypes.CDLL(None, use_errno=True)
_TMPFS = b"tmpfs"
_OF_THE_KERNEL = ("proc", "sysfs")
_OOM_SCORE = b"500"
"""Of every job: when the machine runs out of memory, the kernel ends jobs before the engine."""
_NO_CORE = 1
"""Bytes of a core dump. With 0 the kernel would still pipe it to a program of the machine."""


def adopt_orphans() -> None:
    """Makes this process the new parent of orphaned descendants, in place of init."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def enter(mounts: Sequence[Mapping[str, Any]]) -> None:
    """Enters a private mount namespace with these mounts, for this process and its children.

    Each mount is `{"kind": "bind", "source", "below", "user", "target", "readOnly"}` or `{"kind":
    "tmpfs", "target", "size", "mode", "user"}` or `{"kind": "proc", "target"}`. `source` is a path
    of the agent's; symbolic links in `below` and in targets are refused, because a job may have
    made them. With `user` the source is opened with the rights of that user. A target is created
    only below an earlier tmpfs of the list, so that nothing appears on the machine.
    """
    if not mounts:
        return
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise _error("unshare", "a mount namespace")
    # Later mounts and unmounts of the machine propagate into the namespace, not out of it.
    _mount(None, "/", None, _MS_REC | _MS_SLAVE)
    # Sources are opened before any mount: a mount may hide the path of another's source.
    sources = {
        index: _open_source(mount) for index, mount in enumerate(mounts) if mount["kind"] == "bind"
    }
    by_handle = mount_calls.available()
    covered: list[str] = []
    for index, mount in enumerate(mounts):
        target = mount["target"]
        if mount["kind"] == "tmpfs":
            _mount_tmpfs(mount, by_handle=by_handle)
            covered.append(target.rstrip("/") + "/")
        elif mount["kind"] == "proc":
            _mount_private_proc(target, by_handle=by_handle)
        else:
            if any(target.startswith(prefix) for prefix in covered):
                _make_target(sources[index], target)
            bind = _bind_by_handle if by_handle else _bind
            bind(sources[index], target, read_only=bool(mount.get("readOnly")))
            os.close(sources[index])


def _open_source(mount: Mapping[str, Any]) -> int:
    user = mount.get("user")
    with _file_rights_of(user):
        handle = open_below(mount["source"], mount.get("below", ""))
    if user is not None and _shows_processes(handle, mount):
        os.close(handle)
        path = os.path.join(mount["source"], mount.get("below", ""))
        raise PermissionError(errno.EPERM, "shows processes and settings of the machine", path)
    return handle


def _shows_processes(handle: int, mount: Mapping[str, Any]) -> bool:
    """Whether a folder of the machine is on, or has below it, a /proc or /sys."""
    device = os.fstat(handle).st_dev
    here = f"{os.major(device)}:{os.minor(device)}"
    path = os.path.normpath(os.path.join(mount["source"], mount.get("below", "")))
    prefix = path.rstrip("/") + "/"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split()
            kind = fields[fields.index("-") + 1]
            if kind in _OF_THE_KERNEL and (fields[2] == here or fields[4].startswith(prefix)):
                return True
    return False


@contextlib.contextmanager
def _file_rights_of(user: int | None) -> Iterator[None]:
    """Inside the block the kernel checks access to files as for this user. None: no change."""
    if user is None:
        yield
        return
    os.setgroups([])
    _libc.setfsgid(user)
    _libc.setfsuid(user)
    try:
        yield
    finally:
        _libc.setfsuid(os.geteuid())
        _libc.setfsgid(os.getegid())


def _mount_tmpfs(mount: Mapping[str, Any], *, by_handle: bool) -> None:
    options = {"mode": str(mount.get("mode", "0755"))}
    if mount.get("size"):
        options["size"] = str(mount["size"])
    if mount.get("user"):
        options |= {"uid": str(mount["user"]), "gid": str(mount["user"])}
    if by_handle:
        attributes = mount_calls.NO_SUID | mount_calls.NO_DEVICES
        _attach(mount_calls.file_system("tmpfs", options, attributes), mount["target"])
        return
    text = ",".join(f"{name}={value}" for name, value in options.items())
    with _opened(mount["target"]) as target:
        _mount("tmpfs", target, _TMPFS, _MS_NOSUID | _MS_NODEV, text)


def _bind_by_handle(source: int, path: str, *, read_only: bool) -> None:
    tree = mount_calls.tree_of(source)
    if read_only:
        mount_calls.set_attributes(tree, mount_calls.READ_ONLY)
    _attach(tree, path)


def _attach(tree: int, path: str) -> None:
    try:
        target = open_below("/", path)
        try:
            mount_calls.attach(tree, target, path)
        finally:
            os.close(target)
    finally:
        os.close(tree)


def _bind(source: int, path: str, *, read_only: bool) -> None:
    """As `_bind_by_handle`, on older kernels. There only the mount itself becomes read-only, so
    mounts below it are left out."""
    with _opened(path) as target:
        below = 0 if read_only else _MS_REC
        _mount(f"/proc/self/fd/{source}", target, None, _MS_BIND | below)
    if read_only:
        with _opened(path) as mounted:
            _mount(None, mounted, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[str]:
    """A name for what is at `path` now, which a link put in its place does not change."""
    handle = open_below("/", path)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _mount_private_proc(target: str, *, by_handle: bool) -> None:
    """Mounts a /proc that hides the details of other users' processes. Before Linux 5.8 the option
    would apply to the whole machine, and a container may forbid the mount: then /proc stays."""
    version = tuple(int(part) for part in os.uname().release.split(".")[:2] if part.isdigit())
    if version >= (5, 8):
        with contextlib.suppress(OSError):
            if by_handle:
                attributes = mount_calls.NO_SUID | mount_calls.NO_DEVICES
                made = mount_calls.file_system("proc", {"hidepid": "1"}, attributes)
                _attach(made, target)
            else:
                _mount("proc", target, b"proc", _MS_NOSUID | _MS_NODEV, "hidepid=1")


def open_below(base: str, below: str) -> int:
    """A file descriptor of `base`/`below`; symbolic links inside of `base` are not followed."""
    if ".." in below.split("/"):
        raise PermissionError(errno.EPERM, "leads out of its volume", f"{base}/{below}")
    handle = os.open(base, os.O_PATH | os.O_CLOEXEC)
    if mount_calls.available():
        try:
            return mount_calls.open_below(handle, below)
        except OSError as problem:
            if problem.errno in (errno.ELOOP, errno.EXDEV):
                what = f"{base}/{below}"
                raise PermissionError(errno.EPERM, "is a symbolic link", what) from problem
            raise
    for part in [part for part in below.split("/") if part not in ("", ".")]:
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
    """Starts a command with the isolation in `setting` and returns its pid. Raises the OSError that
    prevented the start.

    `setting`: `user` (id or None), `cgroups` (cgroup.procs files to join), `files` (open files).
    """
    failed, report = os.pipe()
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
            os.write(report, f"{problem.errno} {what}".encode(errors="replace")[:4000])
        except BaseException as problem:
            os.write(report, f"0 {problem!r}".encode(errors="replace")[:4000])
        os._exit(127)
    os.close(report)
    with open(failed, "rb") as pipe:
        error = pipe.read()
    if error:
        os.waitpid(pid, 0)
        number, _, what = error.decode(errors="replace").partition(" ")
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
    _limit(setting)
    user = setting.get("user")
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        os.umask(0o022)
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # After the change of user, which resets it: the command dies with the shim.
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(137)


def _limit(setting: Mapping[str, Any]) -> None:
    """Limits that the kernel has per process. Called with the rights of the engine, so that the
    command cannot raise them again."""
    with contextlib.suppress(OSError):
        handle = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(handle, _OOM_SCORE)
        os.close(handle)
    resource.setrlimit(resource.RLIMIT_CORE, (_NO_CORE, _NO_CORE))
    if setting.get("files"):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = setting["files"] if hard == resource.RLIM_INFINITY else min(setting["files"], hard)
        fewer = most if soft == resource.RLIM_INFINITY else min(soft, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (fewer, most))


def leave_groups(files: Sequence[str]) -> None:
    """Removes the container's cgroups. Killed processes may take a moment to leave; the agent
    removes what is left later."""
    left = [os.path.dirname(file) for file in files]
    for _ in range(20):
        left = [folder for folder in left if not _removed(folder)]
        if not left:
            return
        time.sleep(0.005)


def may_mount() -> bool:
    """Whether this process may enter a private mount namespace; tried in a child process."""
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
