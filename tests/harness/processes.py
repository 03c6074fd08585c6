"""Server processes that never outlive the program that started them.

Used by `control_plane` and `embedded`. Each process has its own session and log file. A reaper
(this module run as a program) holds the other end of a pipe: when the starting program ends for
any reason, even kill -9, it kills what is left, runs what cleans up, and removes temporary folders.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self


class StartError(Exception):
    """A server did not come up; the message ends with the tail of its log."""


class Stoppable:
    """What a `with` block stops at its end."""

    def stop(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Process:
    """One server process and its log file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=None if self._environment is None else dict(self._environment),
                start_new_session=True,
            )
        _reaper().tell("kill", str(self.pid))

    def wait_ready(self, ready: Callable[[], bool], seconds: float = 240) -> None:
        """Polls `ready` while the process lives; StartError with its log if it does not come."""
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.alive:
                raise StartError(f"{self.name} ended while starting.\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise StartError(f"{self.name} not ready in {seconds:.0f} s.\n{self.log_tail()}")
            time.sleep(0.05)

    def log_tail(self, lines: int = 30) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"{self.log} ends with:\n" + "\n".join(text.splitlines()[-lines:])

    def send(self, number: signal.Signals) -> None:
        """A signal to the process and all it started in its session."""
        os.killpg(self.pid, number)

    def wait(self, seconds: float) -> int:
        """The exit code, once it ended; subprocess.TimeoutExpired if it does not."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.wait(timeout=seconds)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.send(signal.SIGKILL)
        self._process.wait()
        _reaper().tell("done", str(self.pid))

    def stop(self, seconds: float = 5) -> None:
        """Asks it to end; kills it if it does not."""
        if self.alive:
            with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
                self.send(signal.SIGCONT)
                self.send(signal.SIGTERM)
                self.wait(seconds)
        self.kill()


def free_ports(count: int) -> list[int]:
    """Ports that no process listens on now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [int(listener.getsockname()[1]) for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


def remove_at_exit(folder: Path) -> None:
    """Has the folder removed when this program is gone, however it ends."""
    _reaper().tell("remove", str(folder))


def run_at_exit(command: Sequence[str]) -> None:
    """Has a program run when this one is gone and what it started is killed. It must not mind if
    what it cleans up is gone already."""
    _reaper().tell("run", json.dumps([os.getcwd(), *command]))


class _Reaper:
    def __init__(self) -> None:
        self.owner = os.getpid()
        self._pipe = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, start_new_session=True
        ).stdin

    def tell(self, word: str, argument: str) -> None:
        if self._pipe is not None:
            self._pipe.write(f"{word} {argument}\n".encode())
            self._pipe.flush()


_current_reaper: _Reaper | None = None


def _reaper() -> _Reaper:
    global _current_reaper
    if _current_reaper is None or _current_reaper.owner != os.getpid():
        _current_reaper = _Reaper()
    return _current_reaper


def _reap() -> None:
    groups: set[int] = set()
    folders: set[str] = set()
    commands: list[str] = []
    for line in sys.stdin:
        word, _, argument = line.rstrip("\n").partition(" ")
        if word == "kill":
            groups.add(int(argument))
        elif word == "done":
            groups.discard(int(argument))
        elif word == "remove":
            folders.add(argument)
        elif word == "run":
            commands.append(argument)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    for command in commands:
        folder, *words = json.loads(command)
        subprocess.run(words, cwd=folder, check=False)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _reap()
