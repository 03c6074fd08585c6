"""One small detached process per container: starts it, writes its log, outlives the agent.

`agent.nursery` forks it with the order in its memory (so that secrets in the environment never
touch the disk). FOLDER afterwards: `shim.json` who runs it, `log.N` what it said, `control` a
socket for exec and attach, `stop.json` (from the agent) how to end it, `exit.json` how it ended,
on the disk before the shim goes. Standard library only.

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

from windlass.agent import endings, procfs, sandbox, shimlog

SHIM, EXIT, STOP, CONTROL = "shim.json", "exit.json", "stop.json", "control"
_PACKET = 1 << 17
_NO_ROOM = 0.5
"""Seconds after which a disk that was full is tried again."""
_STDIN_ROOM = 1 << 20


def launch(folder: Path, order: dict[str, Any], told: int) -> None:
    """In a process of its own, forked for this: runs the order to its end, once.

    `told` is closed when `shim.json` is on the disk, or when another shim has the folder.
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
                os.close(told)
                # By handle: the way to it may be covered by the container's own mounts.
                handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
                Shim(Path(f"/proc/self/fd/{handle}"), order, control).run()
    except BaseException:
        traceback.print_exc()
        raise


class Shim:
    """Runs one command to its end."""

    def __init__(self, folder: Path, order: dict[str, Any], control: socket.socket) -> None:
        self._folder = folder
        self._order = order
        self._control = control
        self._log = shimlog.Log(folder, *order.get("log") or ())
        self._selector = selectors.DefaultSelector()
        self._status: int | None = None
        self._deadline: float | None = None
        self._asked_to_stop = False
        self._main = 0
        self._shm = endings.SharedMemory(order.get("shm"))
        self._outputs: set[int] = set()
        """Where the container's words come from, as long as somebody may still speak."""
        self._attached: set[socket.socket] = set()
        self._executing: dict[int, socket.socket] = {}
        self._stdin = -1
        self._to_stdin = b""
        self._close_stdin = False
        self._terminal = -1

    def run(self) -> None:
        # Orphans of the container come to us instead of to init: we can end the whole tree.
        sandbox.adopt_orphans()
        wakeup, writer = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._watch(wakeup, lambda: _drain(wakeup))
        self._watch(self._control.fileno(), self._accept)
        started = shimlog.now()
        try:
            sandbox.enter(self._order.get("mounts") or ())
            self._main = self._spawn()
        except OSError as problem:
            self._log.close()
            self._record(started, endings.not_started(self._order["argv"][0], problem))
            return
        self._follow()
        self._record(started, endings.of(self._status or 0, self._order, self._main, self._shm))

    def _spawn(self) -> int:
        if self._order.get("tty"):
            self._terminal, slave = pty.openpty()
            ours, theirs = [(self._terminal, "stdout")], (slave, slave, slave)
        else:
            (out, out_end), (err, err_end) = os.pipe(), os.pipe()
            ours, theirs = [(out, "stdout"), (err, "stderr")], (self._input(), out_end, err_end)
        try:
            pid = sandbox.spawn(
                self._order["argv"], self._order["env"], self._order["cwd"], theirs, self._order,
                terminal=bool(self._order.get("tty")),
            )  # fmt: skip
        finally:
            for handle in set(theirs):
                os.close(handle)
        if self._order.get("tty") and self._order.get("stdin"):
            self._stdin = self._terminal
        for handle, stream in ours:
            os.set_blocking(handle, False)
            self._outputs.add(handle)
            self._watch(handle, functools.partial(self._read, handle, stream))
        return pid

    def _input(self) -> int:
        if not self._order.get("stdin"):
            return os.open(os.devnull, os.O_RDONLY)
        theirs, self._stdin = os.pipe()
        os.set_blocking(self._stdin, False)
        return theirs

    # --- until the end

    def _follow(self) -> None:
        """Until the main process has ended, everything below it is gone and the log is read."""
        while self._status is None:
            for key, _ in self._selector.select(self._timeout()):
                key.data()
            self._shm.look()
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
            if self._deadline is None:
                number = getattr(signal, stop.get("signal", "SIGTERM"), signal.SIGTERM)
                procfs.send([self._main], number)
            # Asked again with less grace: the earlier end holds.
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
        """SIGKILL to everything below us, until nothing is left: killing makes orphans."""
        if _childless():
            return  # orphans are ours, so without a child there is nobody; looking at all is dear
        while below := procfs.descendants(os.getpid()):
            procfs.kill(below)
            time.sleep(0.005)
            if self._status is None:
                return  # the loop reaps the main process and comes back

    def _read(self, handle: int, stream: str) -> None:
        try:
            data = os.read(handle, 65536)
        except BlockingIOError:
            return
        except OSError as problem:
            if problem.errno != errno.EIO:  # a terminal whose last user is gone
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
            except OSError:  # gone, or too slow: the job does not wait for it
                self._leave(session)

    def _read_rest(self) -> None:
        """What is still in the pipes; the writers are gone."""
        for key in list(self._selector.get_map().values()):
            if key.fd not in self._outputs:
                self._selector.unregister(key.fd)
        while self._outputs:
            ready = self._selector.select(1.0)
            if not ready:
                break  # somebody outside the tree holds the pipe and says nothing
            for key, _ in ready:
                key.data()
        self._log.close()

    def _record(self, started: str, ending: dict[str, Any]) -> None:
        told = {**ending, "startedAt": started, "finishedAt": shimlog.now()}
        while True:
            try:
                procfs.write_durably(self._folder / EXIT, told)
                break
            except OSError as problem:
                if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # Without a record it would count as lost, and be run again: we wait for room.
                time.sleep(_NO_ROOM)
        with contextlib.suppress(OSError):
            (self._folder / CONTROL).unlink()
        sandbox.leave_groups(self._order.get("cgroups") or ())

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
            self._watch(session.fileno(), lambda: self._hear(session))

    def _execute(self, session: socket.socket, request: dict[str, Any], handles: list[int]) -> None:
        try:
            pid = sandbox.spawn(
                request["exec"], self._order["env"] | request.get("env", {}), self._order["cwd"],
                (handles[0], handles[1], handles[2]), self._order,
                terminal=bool(request.get("tty")),
            )  # fmt: skip
        except (OSError, IndexError) as problem:
            ending = endings.not_started("".join(request["exec"][:1]), problem)
            self._answer(session, {"error": ending["message"], "exitCode": ending["exitCode"]})
            return
        finally:
            for handle in handles:
                os.close(handle)
        self._executing[pid] = session
        # The other end went away: what it started ends too.
        self._watch(session.fileno(), lambda: self._abandon(session, pid))

    def _abandon(self, session: socket.socket, pid: int) -> None:
        self._executing.pop(pid, None)
        self._leave(session)
        procfs.kill([pid, *procfs.descendants(pid)])

    def _hear(self, session: socket.socket) -> None:
        try:
            data = session.recv(_PACKET)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._leave(session)
        elif data[0] == 0 and self._stdin >= 0 and len(self._to_stdin) < _STDIN_ROOM:
            self._to_stdin += data[1:]
            self._feed()
        elif data[0] == 4 and self._terminal >= 0:
            rows, columns = struct.unpack("!HH", data[1:5])
            size = struct.pack("HHHH", rows, columns, 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)
        elif data[0] == 255 and self._order.get("stdinOnce"):
            self._close_stdin = True
            self._feed()

    def _feed(self) -> None:
        """Passes on what was typed, as far as the container takes it."""
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
    """The control socket. Through a handle: paths of sockets are short, state folders may not."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(FileNotFoundError):
        (folder / CONTROL).unlink()
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        made.bind(f"/proc/self/fd/{place}/{CONTROL}")
    finally:
        os.close(place)
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
    """No terminal, no pipe of the agent's; what goes wrong in here is found in `shim.err`."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    problems = os.open(folder / "shim.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, null), (2, problems)):
        os.dup2(source, target)
