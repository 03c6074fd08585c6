"""The supervisor with real processes: restarts, order, and never an orphan."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import until
from windlass.cli.engine.supervisor import Child, Supervisor, backoff
from windlass.cli.lib import state_dir as states

SUPERVISE = """
import sys
from pathlib import Path
from windlass.cli.lib import state_dir as state
from windlass.cli.engine.supervisor import Child, Supervisor
folder = state.folder(sys.argv[1])
lock = folder.lock()
if lock is None:
    sys.exit(8)
script = sys.argv[2]
children = [
    Child("first", [sys.executable, "-c", script, "first"], folder.logs / "first.log"),
    Child("second", [sys.executable, "-c", script, "second"], folder.logs / "second.log",
          ready=lambda: (folder.path / "first.ready").exists()),
]
Supervisor(children, folder.write_supervisor).run()
folder.forget_supervisor()
"""

CHILD = """
import os, pathlib, signal, sys, time
name = sys.argv[1]
here = pathlib.Path(os.environ["HERE"])
def end(*_):
    with open(here / "ended", "a") as file: file.write(name + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
with open(here / "started", "a") as file: file.write(f"{name} {os.getpid()}\\n")
(here / f"{name}.ready").touch()
while True: time.sleep(60)
"""


@pytest.fixture
def supervised(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, str(tmp_path), CHILD],
        env={**os.environ, "HERE": str(tmp_path)},
        start_new_session=True,
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()


def test_children_start_in_order_and_stop_in_reverse(
    tmp_path: Path, supervised: subprocess.Popen[bytes]
) -> None:
    until(lambda: len(started(tmp_path)) == 2)
    assert [name for name, _ in started(tmp_path)] == ["first", "second"]
    supervised.terminate()
    assert supervised.wait(30) == 0
    assert (tmp_path / "ended").read_text().split() == ["second", "first"]
    assert states.folder(str(tmp_path)).supervisor() is None


def test_a_child_that_is_killed_comes_back_and_is_counted(
    tmp_path: Path, supervised: subprocess.Popen[bytes]
) -> None:
    until(lambda: len(started(tmp_path)) == 2)
    folder = states.folder(str(tmp_path))
    os.kill(started(tmp_path)[0][1], signal.SIGKILL)
    until(lambda: len(started(tmp_path)) == 3)
    until(lambda: alive(folder, "first"))
    assert started(tmp_path)[2][0] == "first"
    facts = folder.children()["first"]
    assert (facts.restarts, facts.last_exit) == (1, -signal.SIGKILL)
    assert folder.children()["second"].restarts == 0


def test_children_do_not_outlive_a_supervisor_that_is_killed(
    tmp_path: Path, supervised: subprocess.Popen[bytes]
) -> None:
    until(lambda: len(started(tmp_path)) == 2)
    supervised.kill()
    supervised.wait()
    for _, pid in started(tmp_path):
        until(lambda pid=pid: states.start_time(pid) == 0)


def test_a_state_folder_has_one_supervisor(
    tmp_path: Path, supervised: subprocess.Popen[bytes]
) -> None:
    until(lambda: len(started(tmp_path)) == 2)
    second = subprocess.run([sys.executable, "-c", SUPERVISE, str(tmp_path), CHILD], check=False)
    assert second.returncode == 8
    assert len(started(tmp_path)) == 2


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 0.0), (1, 0.0), (2, 0.5), (3, 1.0), (4, 2.0), (8, 30.0), (1000, 30.0)],
)
def test_backoff_doubles_up_to_half_a_minute(failures: int, seconds: float) -> None:
    assert backoff(failures) == seconds


def test_a_stretch_of_health_ends_the_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kill hits a child that was healthy, so each restart is immediate."""
    monkeypatch.setattr("windlass.cli.engine.supervisor._HEALTHY", 0.2)
    # With a back-off that continues, the second restart would exceed the test's time limit.
    monkeypatch.setattr("windlass.cli.engine.supervisor._FIRST_DELAY", 3600.0)
    monkeypatch.setattr("windlass.cli.engine.supervisor._LONGEST_DELAY", 3600.0)
    child = Child("only", [sys.executable, "-c", "import time; time.sleep(0.3)"], tmp_path / "log")
    seen: list[int] = []

    def changed(facts: dict[str, dict[str, Any]]) -> None:
        seen.append(facts["only"]["restarts"])
        if facts["only"]["restarts"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    Supervisor([child], changed).run()
    assert max(seen) == 3
    assert child.exited_at is not None


def test_a_process_is_known_by_pid_and_start_time() -> None:
    own = states.Process(os.getpid(), states.start_time(os.getpid()))
    assert own.alive()
    assert not states.Process(os.getpid(), own.start_time + 1).alive()
    ended = subprocess.Popen(["sleep", "600"])
    known = states.Process(ended.pid, states.start_time(ended.pid))
    assert known.alive()
    known.terminate()
    ended.wait()
    assert not known.alive()
    known.terminate()
    assert not states.Process(ended.pid, 0).alive()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}'])
def test_a_broken_server_file_means_no_server(tmp_path: Path, text: str) -> None:
    (tmp_path / "server.json").write_text(text)
    assert states.folder(str(tmp_path)).server() is None


def alive(folder: states.StateFolder, child: str) -> bool:
    return folder.children()[child].process.alive()


def started(folder: Path) -> list[tuple[str, int]]:
    try:
        lines = (folder / "started").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(line.split()[0], int(line.split()[1])) for line in lines]


def test_a_large_log_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.cli.engine.supervisor._LOG_BYTES", 10)
    log = tmp_path / "only.log"
    log.write_text("a line that is long enough\n")
    child = Child("only", [sys.executable, "-c", "print('fresh')"], log)
    ended = lambda facts: facts["only"]["lastExit"] == 0 and os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    Supervisor([child], ended).run()
    assert log.read_text() == "fresh\n"
    assert (tmp_path / "only.log.old").read_text() == "a line that is long enough\n"


def test_supervisor_reports_every_change(tmp_path: Path) -> None:
    seen = []
    child = Child("only", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log")
    supervisor: Supervisor

    def changed(facts: dict[str, dict[str, object]]) -> None:
        seen.append(facts["only"]["lastExit"])
        if facts["only"]["lastExit"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    supervisor = Supervisor([child], changed)
    supervisor.run()
    assert seen == [None, 3]
