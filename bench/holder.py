"""Holds an engine for a benchmark and accounts for all it starts: `python -m bench.holder STATE`.

It is the subreaper of `windlass up`, so every shim and job, however detached, is waited for here
and counted. SIGUSR1 writes the CPU seconds used so far to STATE/cpu; SIGTERM ends the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from bench import processes

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> int:
    state = Path(sys.argv[1])
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    windlass = [sys.executable, "-m", "windlass.cli.main", "up", "--state", str(state)]
    with (state / "up.log").open("ab") as log:
        up = subprocess.Popen(windlass, stdout=log, stderr=log)
    signal.signal(signal.SIGUSR1, lambda *_: _account(state))
    signal.signal(signal.SIGTERM, lambda *_: up.send_signal(signal.SIGTERM))
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # however the benchmark ends
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return 0


def _account(state: Path) -> None:
    """Those that ended by the kernel's sum, those that live one by one."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            total += processes.cpu_seconds(pid)
    new = state / "cpu.new"
    new.write_text(f"{total:.3f}")
    new.replace(state / "cpu")


def descendants(root: int) -> list[int]:
    """All processes below one."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(folder.name))
    found, todo = [], [root]
    while todo:
        below = parents.get(todo.pop(), [])
        found += below
        todo += below
    return found


if __name__ == "__main__":
    sys.exit(main())
