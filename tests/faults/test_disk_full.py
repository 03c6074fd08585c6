"""A disk that fills up: writes are refused clearly, reads go on, and it recovers by itself."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import rest
from tests.harness.embedded import EmbeddedServer
from windlass.store.embedded import disk_reserve

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
PIECE = "x" * 200_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Takes all space that is left; removing the file frees it."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for piece in (b"\0" * 65536, b"\0"):
            with contextlib.suppress(OSError):
                while True:
                    file.write(piece)
    return ballast


def create(client: rest.Rest, name: str, piece: str = PIECE) -> rest.Answer:
    return client.post(CONFIGMAPS, {"metadata": {"name": name}, "data": {"piece": piece}})


def names(client: rest.Rest) -> list[str]:
    return [item["metadata"]["name"] for item in client.get(CONFIGMAPS).json["items"]]


def write_until_refused(client: rest.Rest) -> tuple[list[str], rest.Answer]:
    """The names that were acknowledged and the first refusal."""
    acknowledged = []
    for number in range(200):
        answer = create(client, f"filling-{number}")
        if answer.status != 201:
            return acknowledged, answer
        acknowledged.append(f"filling-{number}")
    raise AssertionError("the disk never filled up")


def test_a_full_disk_refuses_writes_serves_reads_and_recovers(small_disk: Path) -> None:
    with EmbeddedServer.start(small_disk / "state") as server:
        client = server.rest()
        assert create(client, "before").status == 201
        ballast = fill(small_disk)
        acknowledged, refusal = write_until_refused(client)
        assert refusal.status in (503, 507), refusal.summary
        assert refusal.json["kind"] == "Status"
        assert "disk space" in refusal.json["message"]
        assert create(client, "again").status == refusal.status

        assert client.get(f"{CONFIGMAPS}/before").status == 200
        assert sorted(names(client)) == sorted(["before", *acknowledged])

        ballast.unlink()
        assert create(client, "after").status == 201
        kept = sorted(["before", *acknowledged, "after"])
        assert sorted(names(client)) == kept
        server.restart()
        assert sorted(names(server.rest())) == kept
        server.stop()
        with contextlib.closing(sqlite3.connect(server.state / "store.db")) as store:
            assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_on_a_full_disk_ends_and_deletions_can_still_be_written(small_disk: Path) -> None:
    """Or nothing that lies on the disk could be removed through the API any more."""
    with EmbeddedServer.start(small_disk / "state") as server:
        client = server.rest()
        for number in range(20):
            assert create(client, f"old-{number}", "x" * 2000).status == 201
        fill(small_disk)
        for number in range(20):
            assert client.delete(f"{CONFIGMAPS}/old-{number}").status == 200
        assert names(client) == []


def test_what_was_set_aside_is_used_once_and_set_aside_again_when_there_is_plenty(
    small_disk: Path,
) -> None:
    kept = disk_reserve.DiskReserve(small_disk / "store.db")
    (file,) = small_disk.iterdir()
    assert 0 < file.stat().st_blocks * 512 <= disk_reserve.MAX_BYTES
    filling = fill(small_disk)
    assert kept.release()
    assert not kept.release()
    kept.refill()
    assert not file.exists(), "it does not take the last"
    filling.unlink()
    kept.refill()
    assert file.exists()


def test_a_server_killed_on_a_full_disk_says_why_it_cannot_start_and_starts_when_it_can(
    small_disk: Path,
) -> None:
    with EmbeddedServer.start(small_disk / "state") as server:
        client = server.rest()
        assert create(client, "before").status == 201
        ballast = fill(small_disk)
        acknowledged, _ = write_until_refused(client)
        server.kill()
        fill(small_disk)
        refused = start_once(server.state)
        ballast.unlink()
        server.launch()
        assert sorted(names(server.rest())) == sorted(["before", *acknowledged])
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "space" in refused.stderr


def test_a_damaged_store_is_refused_in_one_sentence_with_the_remedy(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "store.db").write_bytes(b"not a database at all" * 500)
    refused = start_once(state)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "windlass restore" in refused.stderr


def start_once(state: Path) -> subprocess.CompletedProcess[str]:
    """A server that is expected not to come up."""
    command = [sys.executable, "-m", "windlass.server", "--state", str(state), "--no-controllers"]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
