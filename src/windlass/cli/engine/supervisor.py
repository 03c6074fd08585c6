"""Supervises the engine's two processes: starts them, restarts them with back-off, stops them.

`windlass up` starts this as a process of its own. It has no objects and no HTTP client, so it
stays small. Jobs are not its children: their shims are detached and outlive it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from windlass.cli.lib import exit_codes
from windlass.cli.lib import state_dir as states

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0
_HEALTHY = 10.0
"""A child that lived this long was healthy: the back-off begins anew with its next exit."""
_STOP_SECONDS = 20.0
_LOG_BYTES = 16 << 20
"""A larger log is rotated when its process is restarted."""
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "-500"


@dataclasses.dataclass(slots=True)
class Child:
    """One supervised process, its restarts and its last exit code."""

    name: str
    argv: list[str]
    log: Path
    ready: Callable[[], bool] = lambda: True
    """Whether it may be started now."""
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    due: float = 0.0
    """When to start it (monotonic)."""
    restarts: int = 0
    quick_failures: int = 0
    last_exit: int | None = None
    exited_at: float | None = None
    """When it last exited (seconds since the epoch)."""

    def facts(self) -> dict[str, Any]:
        pid = self.process.pid if self.process else 0
        return {
            "pid": pid,
            "startTime": states.start_time(pid),
            "restarts": self.restarts,
            "lastExit": self.last_exit,
            "exitedAt": self.exited_at,
        }


class Supervisor:
    """Runs its children until a signal stops it."""

    def __init__(
        self, children: list[Child], changed: Callable[[dict[str, dict[str, Any]]], None]
    ) -> None:
        self._children = children
        self._changed = changed
        self._selector = selectors.DefaultSelector()
        self._stopping = False

    def run(self) -> None:
        """Runs until SIGTERM, SIGINT or SIGHUP; then stops the children and returns."""
        with self._signals():
            while not self._stopping:
                self._start_due()
                self._wait(self._until_next_start())
            self._stop_all()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Wakes the selector for each signal; handlers only set flags."""
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        old_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        stop_signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        old = {number: signal.signal(number, self._on_signal) for number in stop_signals}
        self._selector.register(reader, selectors.EVENT_READ, None)
        try:
            yield
        finally:
            self._selector.unregister(reader)
            for number, handler in old.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_fd)
            reader.close()
            writer.close()

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._stopping = True

    def _start_due(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.process is None and child.due <= now and child.ready():
                self._start(child)

    def _start(self, child: Child) -> None:
        child.log.parent.mkdir(parents=True, exist_ok=True)
        if child.log.exists() and child.log.stat().st_size > _LOG_BYTES:
            child.log.replace(child.log.with_suffix(".log.old"))
        with child.log.open("ab") as log:
            child.process = subprocess.Popen(
                child.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Own session: Ctrl-C reaches only the supervisor, which stops them in order.
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - single-threaded by design
            )
        child.started_at = time.monotonic()
        pidfd = os.pidfd_open(child.process.pid)
        self._selector.register(pidfd, selectors.EVENT_READ, child)
        self._changed(self._facts())

    def _wait(self, timeout: float) -> None:
        for key, _ in self._selector.select(max(0.0, timeout)):
            if isinstance(key.data, Child):
                self._reap(key.data, key.fd)
            else:
                with contextlib.suppress(BlockingIOError):
                    key.fileobj.recv(4096)  # type: ignore[union-attr]

    def _reap(self, child: Child, pidfd: int) -> None:
        assert child.process is not None  # noqa: S101 - registered only while it runs
        child.last_exit = child.process.wait()
        child.process = None
        self._selector.unregister(pidfd)
        os.close(pidfd)
        lived = time.monotonic() - child.started_at
        child.quick_failures = 1 if lived >= _HEALTHY else child.quick_failures + 1
        child.restarts += 1
        child.exited_at = time.time()
        child.due = time.monotonic() + backoff(child.quick_failures)
        self._changed(self._facts())

    def _until_next_start(self) -> float:
        now = time.monotonic()
        waiting = [child for child in self._children if child.process is None]
        if not waiting:
            return _LONGEST_DELAY
        # A child that is due but not ready waits for another one: check again soon.
        return min(child.due - now if child.due > now else 0.05 for child in waiting)

    def _stop_all(self) -> None:
        """Stops the children, last started first; kills those that exceed the timeout."""
        for child in reversed(self._children):
            process = child.process
            if process is None:
                continue
            process.terminate()
            try:
                child.last_exit = process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                child.last_exit = process.wait()

    def _facts(self) -> dict[str, dict[str, Any]]:
        return {child.name: child.facts() for child in self._children}


def backoff(failures: int) -> float:
    """Seconds before the next start after this many exits in a row; one exit is no loop."""
    if failures <= 1:
        return 0.0
    return min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** (failures - 2))


def die_with_parent() -> None:
    """In the child: exit when the parent is killed, so that it does not run unsupervised."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def main(argv: list[str] | None = None) -> int:
    """`python -m windlass.cli.engine.supervisor`: started by `windlass up`, never by hand."""
    parser = argparse.ArgumentParser(prog="windlass.cli.engine.supervisor")
    parser.add_argument("--state", required=True)
    parser.add_argument("--listen", default="")
    parser.add_argument("--isolation", default="auto")
    parser.add_argument("--host-mounts", action="append", default=[])
    parser.add_argument("--job-limit", action="append", default=[])
    parser.add_argument("--fake", nargs=3, type=int, metavar=("NODES", "GPUS", "RACKS"))
    parser.add_argument("--with-parent", action="store_true", help="end when `up` ends")
    options = parser.parse_args(argv)
    if options.with_parent:
        die_with_parent()
    folder = states.folder(options.state)
    lock = folder.lock()
    if lock is None:
        return exit_codes.ALREADY_RUNNING
    # The lock file stays open until this process exits, however it exits.
    os.environ["WINDLASS_ISOLATION"] = (
        options.isolation
    )  # the server publishes it, the agent applies it
    _spare_from_oom_killer()
    children = engine(folder, options.listen, options.host_mounts, options.job_limit)
    if options.fake:
        children.append(fakes(folder, children[0], *options.fake))
    Supervisor(children, folder.write_supervisor).run()
    folder.forget_supervisor()
    return exit_codes.OK


def _spare_from_oom_killer() -> None:
    """The kernel ends other processes before the engine and its shims, which inherit this. Jobs set
    a value of their own (`agent.runtime.sandbox`)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def engine(
    folder: states.StateFolder, listen: str, host_mounts: Sequence[str] = (),
    job_limits: Sequence[str] = (),
) -> list[Child]:  # fmt: skip
    """The two processes of the embedded engine, in the order in which they start."""
    python = [sys.executable, "-m"]
    server = Child(
        "server",
        [*python, "windlass.server", "--state", str(folder.path)]
        + (["--listen", listen] if listen else []),
        folder.logs / "server.log",
    )

    agent = Child(
        "agent",
        [
            *(*python, "windlass.agent"),
            # A token of its own, written by the server, with the permissions of one node's agent.
            *("--kubeconfig", str(folder.path / "agent" / "kubeconfig")),
            *("--state", str(folder.path / "agent")),
            *(word for each in host_mounts for word in ("--host-mounts", each)),
            *(word for each in job_limits for word in ("--job-limit", each)),
        ],
        folder.logs / "agent.log",
        ready=lambda: _answers(folder, server),
    )
    return [server, agent]


def fakes(folder: states.StateFolder, server: Child, nodes: int, gpus: int, racks: int) -> Child:
    """The process that simulates nodes. It runs no jobs, so it may have the admin's token, which it
    needs to act for many nodes."""
    argv = [
        sys.executable,
        "-m",
        "windlass.agent.fake_nodes",
        "--kubeconfig",
        str(folder.kubeconfig),
    ]
    argv += ["--state", str(folder.path / "agent"), "--nodes", str(nodes)]
    argv += ["--gpus", str(gpus), "--racks", str(racks)]
    log = folder.logs / "fake.log"
    return Child("fake", argv, log, ready=lambda: _answers(folder, server))


def _answers(folder: states.StateFolder, server: Child) -> bool:
    """Whether the server that runs now is ready."""
    running = folder.server()
    return (
        running is not None
        and server.process is not None
        and running.pid == server.process.pid
        and folder.kubeconfig.exists()
    )


if __name__ == "__main__":
    sys.exit(main())
