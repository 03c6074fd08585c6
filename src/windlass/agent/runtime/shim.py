"""The shim: one small detached process per container that starts it, writes its log and records
its exit. It outlives the agent.

`agent.runtime.zygote` forks it with the container's configuration in memory, so that secrets in the
environment are never written to disk. Files in FOLDER: `shim.json` (the shim's process), `log.N`
(the output), `control` (a socket for exec and attach), `stop.json` (written by the agent: signal
and grace period), `exit.json` (the exit status, synced before the shim exits). Standard library
only.

On `control` each message is one packet. The first is JSON: `{"exec": [...], "tty": bool}` with
stdin, stdout and stderr as file handles, answered by `{"exitCode": n}` or `{"error": ...}`; or
`{"attach": true}`, answered by packets whose first byte is the stream (1, 2), which takes packets
of stdin (0), window sizes (4: rows, columns) and the end of stdin (255).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import pty
import selectors
import signal
import socket
import struct
import termios
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.agent.runtime import exit_status, procfs, sandbox
from windlass.podlogs import log_format

SHIM, EXIT, STOP, CONTROL = "shim.json", "exit.json", "stop.json", "control"
_PACKET = 1 << 17
_FULL_DISK_RETRY = 0.5
"""Seconds between two attempts to write to a full disk."""
_STDIN_BUFFER = 1 << 20


def launch(folder: Path, config: dict[str, Any], ready: int) -> None:
    """Runs a container to its end, once; called in a process that was forked for it.

    Closes the file descriptor `ready` when `shim.json` is on disk, or when another shim has locked
    the folder.
    """
    os.setsid()
    _detach(folder)
    try:
        with (folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if not (folder / SHIM).exists():
                control = _listen(folder)
                procfs.write_durably(folder / SHIM, procfs.this_process()._asdict())
                os.close(ready)
                # By file descriptor: a mount of the container may hide the path.
                handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
                Shim(Path(f"/proc/self/fd/{handle}"), config, control).run()
    except BaseException:
        traceback.print_exc()
        raise


class Shim:
    """Runs one command to its end."""

    def __init__(self, folder: Path, config: dict[str, Any], control: socket.socket) -> None:
        self._folder = folder
        self._config = config
        self._control = control
        self._log = log_format.LogWriter(folder, *config.get("log") or ())
        self._selector = selectors.DefaultSelector()
        self._status: int | None = None
        self._deadline: float | None = None
        self._asked_to_stop = False
        self._ending: dict[str, Any] = {}
        """Why the agent stopped it, if that is the reason of its end."""
        self._main = 0
        self._shm = exit_status.SharedMemory(config.get("shm"))
        self._outputs: set[int] = set()
        """Pipes or terminal with the container's output that are still open."""
        self._attached: set[socket.socket] = set()
        self._executing: dict[int, socket.socket] = {}
        self._stdin = -1
        self._to_stdin = b""
        self._close_stdin = False
        self._terminal = -1

    def run(self) -> None:
        # Orphans of the container become children of the shim, so that it can kill the whole tree.
        sandbox.adopt_orphans()
        wakeup, writer = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._watch(wakeup, lambda: _drain(wakeup))
        self._watch(self._control.fileno(), self._accept)
        started = log_format.now()
        try:
            sandbox.enter(self._config.get("mounts") or ())
            self._main = self._spawn()
        except OSError as problem:
            self._log.close()
            self._record(started, exit_status.not_started(self._config["argv"][0], problem))
            return
        self._follow()
        ending = exit_status.of(self._status or 0, self._config, self._main, self._shm)
        self._record(started, ending | self._ending)

    def _spawn(self) -> int:
        if self._config.get("tty"):
            self._terminal, slave = pty.openpty()
            ours, theirs = [(self._terminal, "stdout")], (slave, slave, slave)
        else:
            (out, out_end), (err, err_end) = os.pipe(), os.pipe()
            ours, theirs = [(out, "stdout"), (err, "stderr")], (self._input(), out_end, err_end)
        try:
            config = self._config
            pid = sandbox.spawn(
                config["argv"], config["env"], config["cwd"], theirs, config,
                terminal=bool(config.get("tty")),
            )  # fmt: skip
        finally:
            for handle in set(theirs):
                os.close(handle)
        if self._config.get("tty") and self._config.get("stdin"):
            self._stdin = self._terminal
        for handle, stream in ours:
            os.set_blocking(handle, False)
            self._outputs.add(handle)
            self._watch(handle, functools.partial(self._read, handle, stream))
        return pid

    def _input(self) -> int:
        if not self._config.get("stdin"):
            return os.open(os.devnull, os.O_RDONLY)
        theirs, self._stdin = os.pipe()
        os.set_blocking(self._stdin, False)
        return theirs

    # --- the main loop

    def _follow(self) -> None:
        """Returns when the main process has ended, its descendants are killed and the output is
        read to its end."""
        while self._status is None:
            for key, _ in self._selector.select(self._timeout()):
                key.data()
            self._shm.sample()
            self._stop_if_asked()
            self._reap()
        self._kill_tree()
        self._reap()
        self._read_rest()

    def _watch(self, handle: int, call: Callable[[], None]) -> None:
        self._selector.register(handle, selectors.EVENT_READ, call)

    def _timeout(self) -> float | None:
        waits = [self._deadline - time.monotonic()] if self._deadline is not None else []
        waits += [self._shm.interval] if self._shm.interval is not None else []
        return max(0.0, min(waits)) if waits else None

    def _on_stop(self, *_: object) -> None:
        self._asked_to_stop = True

    def _stop_if_asked(self) -> None:
        if self._asked_to_stop:
            self._asked_to_stop = False
            stop = procfs.read_json(self._folder / STOP) or {}
            until = time.monotonic() + float(stop.get("grace", 30))
            self._ending = self._ending or stop.get("ending") or {}
            if self._deadline is None:
                number = getattr(signal, stop.get("signal", "SIGTERM"), signal.SIGTERM)
                procfs.send([self._main], number)
            # A second request may shorten the grace period, never extend it.
            self._deadline = until if self._deadline is None else min(until, self._deadline)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._kill_tree()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._main:
                self._status = status
            elif (session := self._executing.pop(pid, None)) is not None:
                code = os.waitstatus_to_exitcode(status)
                self._answer(session, {"exitCode": code if code >= 0 else 128 - code})

    def _kill_tree(self) -> None:
        """Sends SIGKILL to all descendants until none is left: a kill may create new orphans."""
        if _childless():
            return  # orphans are children, so nothing is left; reading all of /proc is expensive
        while below := procfs.descendants(os.getpid()):
            procfs.kill(below)
            time.sleep(0.005)
            if self._status is None:
                return  # the main loop reaps the main process and calls this again

    def _read(self, handle: int, stream: str) -> None:
        try:
            data = os.read(handle, 65536)
        except BlockingIOError:
            return
        except OSError as problem:
            if problem.errno != errno.EIO:  # the last process has closed the terminal
                raise
            data = b""
        if not data:
            self._selector.unregister(handle)
            self._outputs.discard(handle)
            return
        self._log.add(stream, data.replace(b"\r\n", b"\n") if self._terminal >= 0 else data)
        head = b"\x01" if stream == "stdout" else b"\x02"
        for session in list(self._attached):
            try:
                session.send(head + data)
            except OSError:  # closed or too slow: the job does not wait for a client
                self._leave(session)

    def _read_rest(self) -> None:
        """Reads what is left in the pipes after the writers have exited."""
        for key in list(self._selector.get_map().values()):
            if key.fd not in self._outputs:
                self._selector.unregister(key.fd)
        while self._outputs:
            ready = self._selector.select(1.0)
            if not ready:
                break  # a process outside of the tree keeps the pipe open without writing
            for key, _ in ready:
                key.data()
        self._log.close()

    def _record(self, started: str, ending: dict[str, Any]) -> None:
        record = {**ending, "startedAt": started, "finishedAt": log_format.now()}
        while True:
            try:
                procfs.write_durably(self._folder / EXIT, record)
                break
            except OSError as problem:
                if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # Without a record the container would count as lost and run again: wait for space.
                time.sleep(_FULL_DISK_RETRY)
        with contextlib.suppress(OSError):
            (self._folder / CONTROL).unlink()
        sandbox.leave_groups(self._config.get("cgroups") or ())

    # --- exec and attach

    def _accept(self) -> None:
        session, _ = self._control.accept()
        session.setblocking(True)
        session.settimeout(1.0)
        try:
            data, handles, _, _ = socket.recv_fds(session, _PACKET, 3)
            request = json.loads(data)
        except (OSError, ValueError):
            session.close()
            return
        session.setblocking(False)
        for handle in handles:
            os.set_inheritable(handle, False)
        if "exec" in request:
            self._execute(session, request, handles)
        else:
            self._attached.add(session)
            self._watch(session.fileno(), lambda: self._receive(session))

    def _execute(self, session: socket.socket, request: dict[str, Any], handles: list[int]) -> None:
        try:
            pid = sandbox.spawn(
                request["exec"], self._config["env"] | request.get("env", {}), self._config["cwd"],
                (handles[0], handles[1], handles[2]), self._config,
                terminal=bool(request.get("tty")),
            )  # fmt: skip
        except (OSError, IndexError) as problem:
            ending = exit_status.not_started("".join(request["exec"][:1]), problem)
            self._answer(session, {"error": ending["message"], "exitCode": ending["exitCode"]})
            return
        finally:
            for handle in handles:
                os.close(handle)
        self._executing[pid] = session
        # When the client disconnects, the command it started is killed.
        self._watch(session.fileno(), lambda: self._abandon(session, pid))

    def _abandon(self, session: socket.socket, pid: int) -> None:
        self._executing.pop(pid, None)
        self._leave(session)
        procfs.kill([pid, *procfs.descendants(pid)])

    def _receive(self, session: socket.socket) -> None:
        try:
            data = session.recv(_PACKET)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave(session)
        elif data[0] == 0 and self._stdin >= 0 and len(self._to_stdin) < _STDIN_BUFFER:
            self._to_stdin += data[1:]
            self._feed()
        elif data[0] == 4 and self._terminal >= 0:
            rows, columns = struct.unpack("!HH", data[1:5])
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)
        elif data[0] == 255 and self._config.get("stdinOnce"):
            self._close_stdin = True
            self._feed()

    def _feed(self) -> None:
        """Writes buffered stdin, as much as the container's pipe takes."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._to_stdin:
                self._to_stdin = self._to_stdin[os.write(self._stdin, self._to_stdin) :]
        if self._close_stdin and not self._to_stdin and self._stdin not in (-1, self._terminal):
            os.close(self._stdin)
            self._stdin = -1

    def _answer(self, session: socket.socket, answer: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            session.send(json.dumps(answer).encode())
        self._leave(session)

    def _leave(self, session: socket.socket) -> None:
        self._attached.discard(session)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(session.fileno())
        session.close()


def _listen(folder: Path) -> socket.socket:
    """The control socket, bound through a file descriptor: socket paths have a length limit that
    the state folder may exceed."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(FileNotFoundError):
        (folder / CONTROL).unlink()
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        made.bind(f"/proc/self/fd/{handle}/{CONTROL}")
    finally:
        os.close(handle)
    made.listen(16)
    return made


def _childless() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _drain(handle: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(handle, 4096)


def _detach(folder: Path) -> None:
    """Closes the agent's terminal and pipes; errors of the shim go to `shim.err`."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    problems = os.open(folder / "shim.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, null), (2, problems)):
        os.dup2(source, target)
