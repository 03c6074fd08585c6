"""One small detached process per container: starts it, writes its log, outlives the agent.

The agent starts `python -m windlass.agent.shim FOLDER` with the order on stdin (so that secrets in
the environment never touch the disk) and waits until the starter returns; by then the shim runs in
a session of its own and has written `shim.json`, or another shim already had the folder.

FOLDER afterwards: `shim.json` who runs it, `log` what it said, `stop.json` (from the agent) how to
end it, `exit.json` how it ended, on the disk before the shim goes. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from windlass.agent import procfs

SHIM, EXIT, STOP, LOG = "shim.json", "exit.json", "stop.json", "log"
LONGEST_LINE = 16384
"""Longer lines are written in parts, marked P, as container runtimes do."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


def main(argv: list[str] | None = None) -> int:
    """The starter: returns when the shim has recorded itself."""
    folder = Path((argv or sys.argv[1:])[0])
    order = json.load(sys.stdin)
    ready, told = os.pipe()
    if os.fork() > 0:
        os.close(told)
        os.read(ready, 1)
        return 0
    os.close(ready)
    os.setsid()
    _detach(folder)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        if not (folder / SHIM).exists():
            procfs.write_durably(folder / SHIM, procfs.this_process()._asdict())
            os.close(told)
            Shim(folder, order).run()
    return 0


class Shim:
    """Runs one command to its end."""

    def __init__(self, folder: Path, order: dict[str, Any]) -> None:
        self._folder = folder
        self._order = order
        self._log = Log(folder / LOG)
        self._selector = selectors.DefaultSelector()
        self._status: int | None = None
        self._deadline: float | None = None
        self._asked_to_stop = False

    def run(self) -> None:
        # Orphans of the container come to us instead of to init: we can end the whole tree.
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        wakeup, writer = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(wakeup, selectors.EVENT_READ, None)
        started = _now()
        try:
            process = self._spawn()
        except OSError as error:
            self._record(started, _start_failure(self._order["argv"][0], error))
            return
        self._follow(process.pid, wakeup)
        process.returncode = 0  # reaped below by waitpid: Popen must not look for it
        self._record(started, _ending(self._status or 0))

    def _spawn(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._order["argv"],
            cwd=self._order["cwd"],
            env=self._order["env"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_shim,  # noqa: PLW1509 - the shim has one thread
        )
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert pipe is not None  # noqa: S101 - both were asked for
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, name)
        return process

    def _follow(self, main_pid: int, wakeup: int) -> None:
        """Until the main process has ended, everything below it is gone and the log is read."""
        while self._status is None:
            for key, _ in self._selector.select(self._timeout()):
                if key.data is not None:
                    self._read(key)
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup, 4096)
            self._stop_if_asked(main_pid)
            self._reap(main_pid)
        self._kill_tree()
        self._read_rest()

    def _timeout(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _on_stop(self, *_: object) -> None:
        self._asked_to_stop = True

    def _stop_if_asked(self, main_pid: int) -> None:
        if self._asked_to_stop:
            self._asked_to_stop = False
            stop = procfs.read_json(self._folder / STOP) or {}
            until = time.monotonic() + float(stop.get("grace", 30))
            if self._deadline is None:
                procfs.send([main_pid], getattr(signal, stop.get("signal", "SIGTERM")))
            # Asked again with less grace: the earlier end holds.
            self._deadline = until if self._deadline is None else min(until, self._deadline)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._kill_tree()

    def _reap(self, main_pid: int) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == main_pid:
                self._status = status

    def _kill_tree(self) -> None:
        """SIGKILL to everything below us, until nothing is left: killing makes orphans."""
        while below := procfs.descendants(os.getpid()):
            procfs.kill(below)
            time.sleep(0.005)
            if self._status is None:
                return  # the loop reaps the main process and comes back

    def _read(self, key: selectors.SelectorKey) -> None:
        try:
            data = os.read(key.fd, 65536)
        except BlockingIOError:
            return
        if data:
            self._log.add(key.data, data)
        else:
            self._selector.unregister(key.fileobj)

    def _read_rest(self) -> None:
        """What is still in the pipes; the writers are gone."""
        while any(key.data for key in self._selector.get_map().values()):
            ready = [key for key, _ in self._selector.select(1.0) if key.data]
            if not ready:
                break  # somebody outside the tree holds the pipe and says nothing
            for key in ready:
                self._read(key)
        self._log.close()

    def _record(self, started: str, ending: dict[str, Any]) -> None:
        times = {"startedAt": started, "finishedAt": _now()}
        procfs.write_durably(self._folder / EXIT, {**ending, **times})


class Log:
    """Lines with time and stream, in the format of container runtimes: `TIME stdout F text`."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._partial: dict[str, bytes] = {}

    def add(self, stream: str, data: bytes) -> None:
        *lines, rest = (self._partial.pop(stream, b"") + data).split(b"\n")
        head = f"{_now()} {stream} ".encode()
        out = [piece for line in lines for piece in _pieces(head, line)]
        while len(rest) > LONGEST_LINE:
            out.append(head + b"P " + rest[:LONGEST_LINE] + b"\n")
            rest = rest[LONGEST_LINE:]
        if rest:
            self._partial[stream] = rest
        self._write(b"".join(out))

    def close(self) -> None:
        """Last words without a newline are written too; then all is on the disk."""
        for stream, rest in self._partial.items():
            self._write(b"".join(_pieces(f"{_now()} {stream} ".encode(), rest)))
        with contextlib.suppress(OSError):
            os.fsync(self._fd)
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        # A full disk costs log lines, never the job: it must not block on its own output.
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._fd, data) :]


def _pieces(head: bytes, line: bytes) -> list[bytes]:
    pieces = []
    while len(line) > LONGEST_LINE:
        pieces.append(head + b"P " + line[:LONGEST_LINE] + b"\n")
        line = line[LONGEST_LINE:]
    return [*pieces, head + b"F " + line + b"\n"]


def _detach(folder: Path) -> None:
    """No terminal, no pipe of the agent's; what goes wrong in here is found in `shim.err`."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    errors = os.open(folder / "shim.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target, source in ((0, null), (1, null), (2, errors)):
        os.dup2(source, target)


def _die_with_shim() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _ending(status: int) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return {"exitCode": 128 - code, "signal": -code, "reason": "Error", "message": ""}
    return {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": ""}


def _start_failure(program: str, error: OSError) -> dict[str, Any]:
    code = 127 if isinstance(error, FileNotFoundError) else 126
    what = error.filename if isinstance(error.filename, str) else program
    message = f"cannot start {program!r}: {what}: {error.strerror}"
    return {"exitCode": code, "reason": "StartError", "message": message}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


if __name__ == "__main__":
    sys.exit(main())
