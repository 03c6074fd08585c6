"""What the harness starts never outlives it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.processes import Process, StartError, free_ports
from tests.harness.waiting import until

_STARTER = """
import sys, time
from pathlib import Path
from tests.harness.processes import Process, remove_at_exit
folder = Path(sys.argv[1])
remove_at_exit(folder)
process = Process("sleeper", ["sleep", "1000"], folder / "log")
process.start()
print(process.pid, flush=True)
time.sleep(1000)
"""


def alive(pid: int) -> bool:
    """Whether it runs: one that ended but was not yet waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_killed_starter_takes_its_processes_and_folders_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    starter = subprocess.Popen(
        [sys.executable, "-c", _STARTER, folder], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert alive(pid)
    starter.kill()
    starter.wait()
    until(lambda: not alive(pid), "the process is gone")
    until(lambda: not folder.exists(), "the folder is gone")


def test_process_that_ends_while_starting_shows_its_log(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo the port is taken; exit 3"]
    process = Process("server", command, tmp_path / "log")
    process.start()
    with pytest.raises(StartError, match="the port is taken"):
        process.wait_ready(lambda: False)


def test_stop_ends_a_process_that_ignores_the_signal(tmp_path: Path) -> None:
    command = ["sh", "-c", "trap '' TERM; echo ready; while true; do sleep 0.1; done"]
    process = Process("stubborn", command, tmp_path / "log")
    process.start()
    process.wait_ready(lambda: "ready" in process.log.read_text())
    process.stop(seconds=0.2)
    assert not alive(process.pid)


def test_stop_ends_a_paused_process(tmp_path: Path) -> None:
    process = Process("sleeper", ["sleep", "1000"], tmp_path / "log")
    process.start()
    process.send(signal.SIGSTOP)
    process.stop()
    assert not alive(process.pid)


def test_children_of_a_process_are_killed_with_it(tmp_path: Path) -> None:
    process = Process("parent", ["sh", "-c", "sleep 1000 & echo $!; wait"], tmp_path / "log")
    process.start()
    process.wait_ready(lambda: process.log.read_text().strip().isdigit())
    child = int(process.log.read_text())
    process.kill()
    until(lambda: not alive(child), "the child is gone")


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
