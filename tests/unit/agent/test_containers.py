"""Containers with real shims and real processes; no agent, no API."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.agent import nodes
from windlass.agent.runtime import containers, procfs, shim
from windlass.agent.runtime.containers import Container, ContainerConfig
from windlass.agent.runtime.zygote import Zygote
from windlass.podlogs import log_format

ZYGOTE = Zygote()


@pytest.fixture
def folder(tmp_path):
    yield tmp_path
    for record in tmp_path.rglob(shim.SHIM):
        process = procfs.ProcessIdentity(**json.loads(record.read_text()))
        if procfs.is_alive(process):
            procfs.kill([process.pid])


@pytest.fixture(scope="module", autouse=True)
def zygote():
    ZYGOTE.warm()
    yield ZYGOTE
    ZYGOTE.close()


async def begin(container: Container, order: ContainerConfig) -> None:
    await container.start(order, ZYGOTE)


def order(script: str, folder: Path, **env: str) -> ContainerConfig:
    return ContainerConfig(["sh", "-c", script], {"PATH": os.environ["PATH"], **env}, str(folder))


async def ended(container: Container) -> containers.Observed:
    async with asyncio.timeout(30):
        await container.ended()
    return container.observe()


async def there(path: Path, least: int = 1) -> None:
    """Waits for a file that a job makes."""
    async with asyncio.timeout(30):
        while not _filled(path, least):
            await asyncio.sleep(0.01)


def lines(container: Container) -> list[tuple[str, str, str]]:
    """(stream, mark, text) of each line of the log."""
    return [tuple(line.split(" ", 3)[1:]) for line in log_text(container).splitlines()]


def log_text(container: Container, previous: bool = False) -> str:
    place = container.log(previous)
    assert place is not None
    numbers = log_format.segments(place)
    return "".join(log_format.segment(place, number).read_text() for number in numbers)


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        ("exit 0", 0, "Completed"),
        ("exit 42", 42, "Error"),
        ("kill -9 $$", 137, "Error"),
        ("kill -TERM $$", 143, "Error"),
    ],
)
async def test_how_it_ended_is_on_the_disk(folder, script, code, reason):
    container = Container(folder, "main")
    assert container.observe().state == "waiting"
    await begin(container, order(script, folder))
    seen = await ended(container)
    assert (seen.state, seen.exit_code, seen.reason) == ("ended", code, reason)
    assert seen.started_at <= seen.finished_at


async def test_output_is_kept_with_its_stream_and_last_words_without_newline(folder):
    container = Container(folder, "main")
    await begin(container, order("echo one; echo two >&2; printf three", folder))
    await ended(container)
    assert sorted(lines(container)) == [
        ("stderr", "F", "two"), ("stdout", "F", "one"), ("stdout", "F", "three"),
    ]  # fmt: skip


async def test_very_long_lines_come_in_parts(folder):
    container = Container(folder, "main")
    script = f"{sys.executable} -c \"print('x' * 40000)\""
    await begin(container, order(script, folder))
    await ended(container)
    assert [(mark, len(text)) for _, mark, text in lines(container)] == [
        ("P", 16384), ("P", 16384), ("F", 40000 - 2 * 16384),
    ]  # fmt: skip


async def test_output_of_many_writers_is_complete(folder):
    container = Container(folder, "main")
    script = "for i in 1 2 3 4; do (seq 1 2000) & done; wait"
    await begin(container, order(script, folder))
    await ended(container)
    assert len(lines(container)) == 8000


@pytest.mark.parametrize(
    ("argv", "code"), [(["no-such-program"], 127), (["/etc/passwd"], 126), (["/tmp"], 126)]
)
async def test_what_cannot_be_started_says_what_and_why(folder, argv, code):
    container = Container(folder, "main")
    await begin(container, ContainerConfig(argv, {"PATH": "/bin"}, str(folder)))
    seen = await ended(container)
    assert (seen.exit_code, seen.reason) == (code, "StartError")
    assert argv[0] in seen.message


async def test_a_working_folder_that_is_not_there_is_named(folder):
    container = Container(folder, "main")
    await begin(container, ContainerConfig(["true"], {"PATH": "/bin:/usr/bin"}, "/no/such/folder"))
    assert "/no/such/folder" in (await ended(container)).message


async def test_the_environment_is_exactly_what_was_ordered(folder):
    container = Container(folder, "main")
    await begin(container, order("env | grep -c SECRET; echo $SECRET", folder, SECRET="a b"))
    await ended(container)
    assert [text for _, _, text in lines(container)] == ["1", "a b"]
    kept = [
        path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("log.")
    ]
    assert not [path for path in kept if b"a b" in path.read_bytes()]


async def test_the_shim_is_not_our_child_and_has_its_own_session(folder):
    container = Container(folder, "main")
    await begin(container, order("while :; do sleep 0.05; done", folder))
    process = container._shim(0)
    assert process is not None
    assert os.getsid(process.pid) == process.pid
    assert process.pid not in procfs.descendants(os.getpid())


async def test_stop_sends_the_signal_and_the_container_may_end_well(folder):
    container = Container(folder, "main")
    trap = "trap 'echo bye; exit 0' USR1; echo > ready; while :; do sleep 0.02; done"
    await begin(container, order(trap, folder))
    await there(folder / "ready")
    container.stop(30, "SIGUSR1")
    seen = await ended(container)
    assert seen.exit_code == 0
    assert lines(container) == [("stdout", "F", "bye")]


STUBBORN = """
trap '' TERM
setsid sh -c 'trap "" TERM; echo $$ > {here}/grandchild; while :; do sleep 0.02; done' &
echo > {here}/ready
while :; do sleep 0.02; done
"""


async def test_after_the_grace_the_whole_tree_is_killed_even_what_left_the_session(folder):
    container = Container(folder, "main")
    await begin(container, order(STUBBORN.format(here=folder), folder))
    await there(folder / "ready")
    await there(folder / "grandchild")
    container.stop(0.1, "SIGTERM")
    assert (await ended(container)).exit_code == 137
    grandchild = int((folder / "grandchild").read_text() or 0)
    assert not _alive(grandchild)


async def test_a_second_stop_with_less_grace_shortens_the_first(folder):
    container = Container(folder, "main")
    await begin(
        container, order("trap '' TERM; echo > ready; while :; do sleep 0.02; done", folder)
    )
    await there(folder / "ready")
    container.stop(3600, "SIGTERM")
    container.stop(0, "SIGTERM")
    assert (await ended(container)).exit_code == 137


async def test_what_the_main_process_leaves_behind_is_killed_when_it_ends(folder):
    container = Container(folder, "main")
    await begin(container, order("setsid sleep 1000 & echo $! > left; exit 4", folder))
    assert (await ended(container)).exit_code == 4
    assert not _alive(int((folder / "left").read_text()))


async def test_another_look_finds_a_running_container_again(folder):
    await begin(Container(folder, "main"), order("while [ ! -e go ]; do sleep 0.02; done", folder))
    found = Container(folder, "main")
    assert found.observe().state == "running"
    (folder / "go").touch()
    assert (await ended(found)).exit_code == 0


async def test_a_killed_shim_takes_its_container_along_and_says_that_it_was_lost(folder):
    container = Container(folder, "main")
    script = "setsid sleep 1000 & echo $! > left; echo $$ > main; echo > ready; wait"
    await begin(container, order(script, folder))
    await there(folder / "ready")
    process = container._shim(0)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    seen = await ended(container)
    assert (seen.exit_code, seen.reason) == (containers.LOST, "ShimLost")
    for name in ("main", "left"):
        pid = int((folder / name).read_text())
        async with asyncio.timeout(30):
            while _alive(pid):
                await asyncio.sleep(0.01)


async def test_a_pid_that_another_process_has_now_is_not_taken_for_the_shim(folder):
    container = Container(folder, "main")
    start = folder / "containers" / "main" / "0"
    start.mkdir(parents=True)
    ours = procfs.this_process()
    procfs.write_durably(start / shim.SHIM, ours._replace(started=ours.started - 1)._asdict())
    seen = container.observe()
    assert (seen.state, seen.reason) == ("ended", "ShimLost")


async def test_a_start_that_never_happened_is_done_again_in_the_same_place(folder):
    (folder / "containers" / "main" / "0").mkdir(parents=True)
    container = Container(folder, "main")
    await begin(container, order("exit 0", folder))
    assert (await ended(container)).restarts == 0


async def test_of_two_shims_for_one_start_only_one_runs(folder):
    start = folder / "containers" / "main" / "0"
    start.mkdir(parents=True)
    body = {
        "argv": ["sh", "-c", "echo once >> starts; while [ ! -e go ]; do sleep 0.02; done"],
        "env": {"PATH": os.environ["PATH"]}, "cwd": str(folder),
    }  # fmt: skip

    async def launch() -> None:
        await ZYGOTE.start(start, body)

    await asyncio.gather(launch(), launch(), launch())
    (folder / "go").touch()
    assert (await ended(Container(folder, "main"))).exit_code == 0
    await launch()
    assert (folder / "starts").read_text() == "once\n"


async def test_a_restart_keeps_the_log_of_the_start_before(folder):
    container = Container(folder, "main")
    for words in ("first", "second"):
        await begin(container, order(f"echo {words}", folder))
        await ended(container)
    assert container.observe().restarts == 1
    assert "second" in log_text(container)
    assert "first" in log_text(container, previous=True)


def _alive(pid: int) -> bool:
    return procfs.is_alive(procfs.identify(pid)) if Path(f"/proc/{pid}").exists() else False


def _filled(path: Path, least: int) -> bool:
    return path.exists() and path.stat().st_size >= least


@pytest.fixture
def small_disk(folder):
    disk = folder / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@nodes.as_root
async def test_how_it_ended_is_reported_once_the_disk_has_space_again(small_disk):
    """The job itself filled it. Without its record it would be taken for lost and run again."""
    container = Container(small_disk, "main")
    await begin(container, order(f"cat /dev/zero > {small_disk}/big; exit 3", small_disk))
    await there(small_disk / "big")
    (start,) = small_disk.rglob(shim.SHIM)
    await there(start.with_name("exit.json.new"), least=0)
    assert container.observe().state == "running"
    (small_disk / "big").unlink()
    assert (await ended(container)).exit_code == 3
