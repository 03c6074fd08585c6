"""Files of runs are copied from and to replicas, running and ended, whatever a job does with
names and links."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.endtoend.engines import Embedded, only_on_the_machine, said
from tests.harness.waiting import until
from windlass.sdk.files.places import PathError
from windlass.store import errors

SMALL: dict[str, Any] = {"cpus": "100m", "memory": "64Mi"}
MAKE = (
    "mkdir -p out/deep; head -c 300000 /dev/urandom > out/big; echo one > out/deep/1.txt; "
    "echo two > out/deep/2.log; : > out/empty; chmod 755 out/empty; echo s > 'out/a b'; "
    "ln -s deep/1.txt out/inside; ln -s /etc/passwd out/absolute; ln -s ../../x out/outside; "
    "sha256sum < out/big; echo ready; "
)


def checksums_when_ready(handle: windlass.RunHandle) -> dict[int, str]:
    """By replica, what it printed of its large file."""
    found: dict[int, str] = {}
    ready = set()
    for line in handle.logs(follow=True):
        if line.text == "ready":
            ready.add(line.index)
            if len(ready) == 2:
                until(lambda: handle.status.phase == "Running", "both run")
                return found
        else:
            found[line.index] = line.text.split()[0]
    raise AssertionError(f"it ended: {handle.why()} {found}")


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def running(client: windlass.Client, tmp_path: Path) -> Any:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "here").touch()
    handle = client.run(
        ["sh", "-c", MAKE + "while [ ! -e go/now ]; do sleep 0.1; done; cat go/now"],
        workdir=folder, workers=2, **SMALL,
    )  # fmt: skip
    yield handle
    handle.delete(wait=True)


def test_files_of_a_running_replica_are_copied_and_others_into_it(
    running: windlass.RunHandle, tmp_path: Path
) -> None:
    printed = checksums_when_ready(running)
    into = tmp_path / "into"
    into.mkdir()
    report = running.download("out", into)
    copied = into / "out"
    assert checksum(copied / "big") == printed[0]
    assert (copied / "deep/1.txt").read_text() == "one\n"
    assert (copied / "a b").read_text() == "s\n"
    assert (copied / "empty").stat().st_mode & 0o777 == 0o755
    assert os.readlink(copied / "inside") == "deep/1.txt"
    assert not os.path.lexists(copied / "absolute")
    assert not os.path.lexists(copied / "outside")
    assert sorted(report.left_out) == ["out/absolute", "out/outside"]
    assert (report.files, report.unchanged) == (5, 0)
    assert running.download("out", into).unchanged == 5, "nothing is sent twice"

    chosen = tmp_path / "chosen"
    running.download("out/**/*.txt", chosen, replica="worker-1")
    assert [str(path.relative_to(chosen)) for path in chosen.rglob("*.txt")] == ["deep/1.txt"]
    single = tmp_path / "other name"
    running.download("out/deep/2.log", single)
    assert single.read_text() == "two\n"
    with pytest.raises(PathError, match="there is no nothing"):
        running.download("nothing", into)
    with pytest.raises(PathError, match="no replica 'boss-0'"):
        running.download("out", into, replica="boss-0")

    source = tmp_path / "go"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "data").write_bytes(os.urandom(400_000))
    for replica in ("worker-0", "worker-1"):
        running.upload(source, replica=replica)
    back = tmp_path / "back"
    running.download("go", back, replica="worker-1")
    assert (back / "sub" / "data").read_bytes() == (source / "sub" / "data").read_bytes()
    assert running.upload(source, replica="worker-1").unchanged == 1
    (source / "now").write_text("it goes on\n")
    for replica in ("worker-0", "worker-1"):
        running.upload(source / "now", "go/", replica=replica)
    assert "it goes on" in said(running)


def test_an_interrupted_copy_goes_on_where_it_stopped(
    running: windlass.RunHandle, tmp_path: Path
) -> None:
    checksums_when_ready(running)
    whole = tmp_path / "whole"
    running.download("out/big", whole)
    content = whole.read_bytes()
    # As an interruption leaves it: a part under another name, which says of what.
    from windlass.sdk.files import local_folder, places

    entry = places.Entry("", "file", len(content), int(whole.stat().st_mtime))
    part = tmp_path / local_folder.part_name("again", entry)
    part.write_bytes(b"\0" * 100_000)
    running.download("out/big", tmp_path / "again")
    again = (tmp_path / "again").read_bytes()
    assert again[:100_000] == b"\0" * 100_000, "these bytes were not sent again"
    assert again[100_000:] == content[100_000:]
    assert not part.exists()


def test_files_of_an_ended_run_are_there_until_it_is_deleted(
    engine: Embedded, client: windlass.Client, tmp_path: Path
) -> None:
    only_on_the_machine(engine, "pods of Kubernetes lose their folders when they end")
    code = tmp_path / "code"
    code.mkdir()
    (code / "x").touch()
    script = (
        MAKE + "ln -s / out/root; ln -s ../../../../pod.json out/up; "
        "ln out/big out/twin; mkfifo out/pipe; exit 3"
    )
    handle = client.run(["sh", "-c", script], workdir=code, **SMALL)
    assert handle.wait(60).status.exit_code == 3
    into = tmp_path / "ended"
    report = handle.download("out", into)
    assert (into / "deep/1.txt").read_text() == "one\n"
    assert (into / "twin").read_bytes() == (into / "big").read_bytes()
    assert os.readlink(into / "inside") == "deep/1.txt"
    left = {"out/absolute", "out/outside", "out/root", "out/up", "out/pipe"}
    assert set(report.left_out) == left
    handle.download("/windlass/code/out/deep/*.log", tmp_path / "logs")
    assert (tmp_path / "logs" / "2.log").exists()
    for path in ("/etc/passwd", "out/../../../pod.json", "/windlass/token/token"):
        with pytest.raises(errors.BadRequest, match=r"own folder|leave out|cannot be read"):
            handle.download(path, tmp_path / "never")
    for path in ("out/root/etc/passwd", "out/up/x"):
        with pytest.raises((PathError, errors.BadRequest), match="there is no"):
            handle.download(path, tmp_path / "never")
    with pytest.raises(errors.Conflict, match="needs a running replica"):
        handle.upload(code)


def test_a_destination_with_links_is_not_written_through(
    running: windlass.RunHandle, tmp_path: Path
) -> None:
    checksums_when_ready(running)
    outside = tmp_path / "outside"
    outside.mkdir()
    into = tmp_path / "into"
    (into / "out").mkdir(parents=True)
    (into / "out" / "deep").symlink_to(outside)
    (into / "out" / "a b").symlink_to(outside / "target")
    with pytest.raises(PathError, match="nothing is written through links"):
        running.download("out", into)
    assert not list(outside.iterdir())
    (into / "out" / "deep").unlink()
    running.download("out", into)
    assert not list(outside.iterdir())
    assert not (into / "out" / "a b").is_symlink()
