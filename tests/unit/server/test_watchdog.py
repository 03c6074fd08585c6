"""A stuck event loop is noticed; a loop that runs, or a process that was stopped, is not."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from tests.harness.waiting import until, until_async
from windlass.server.http import watchdog

STUCK = """
import asyncio, time
from windlass.server.http import watchdog

def block_the_loop():
    while True:
        time.sleep(3600)

async def main():
    with watchdog.watching(timeout=3, interval=0.05):
        block_the_loop()

asyncio.run(main())
"""

RUNS = """
import asyncio, sys
from windlass.server.http import watchdog

async def main():
    with watchdog.watching(timeout=20, interval=0.05):
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

asyncio.run(main())
"""


def test_a_process_whose_loop_is_stuck_exits_and_shows_what_blocked_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK], capture_output=True, text=True, check=False
    )
    assert done.returncode == watchdog.EXIT_CODE
    assert "block_the_loop" in done.stderr


def test_time_in_which_the_process_was_stopped_does_not_count() -> None:
    command = [sys.executable, "-c", RUNS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGSTOP)
        until(lambda: _state(process.pid) == "T", "the process is stopped")
        threading.Event().wait(1.5)  # longer than the timeout, while nothing in it runs
        process.send_signal(signal.SIGCONT)
        process.communicate(b"end\n")
    assert process.returncode == 0


async def test_a_loop_that_runs_is_left_alone() -> None:
    found: list[int] = []
    beats = 0

    def beat() -> bool:
        nonlocal beats
        beats += 1
        return beats > 100

    with watchdog.watching(timeout=10, interval=0.05, on_stuck=found.append):
        await until_async(beat)
    assert found == []


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
