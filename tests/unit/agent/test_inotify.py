"""The kernel wakes a reader that waits for a change in a folder: no reader polls here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from windlass.podlogs import inotify, reader


@pytest.fixture
async def folders(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[inotify.Inotify]:
    monkeypatch.setattr(inotify, "WATCH_SECONDS", 3600.0)
    made = inotify.Inotify()
    yield made
    made.close()


@pytest.mark.parametrize("how", ["appended", "created", "renamed", "removed"])
async def test_what_changes_in_the_folder_wakes(
    folders: inotify.Inotify, tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "watched"
    folder.mkdir()
    (folder / "log.0").touch()
    with folders.watching(folder) as watch, folders.watching(folder) as other:
        watch.clear()
        if how == "appended":
            (folder / "log.0").write_text("more")
        elif how == "created":
            (folder / "log.1").touch()
        elif how == "renamed":
            (tmp_path / "new").write_text("{}")
            (tmp_path / "new").rename(folder / "exit.json")
        else:
            (folder / "log.0").unlink()
            folder.rmdir()
        await watch.wait()
        await other.wait()


async def test_one_reader_that_leaves_does_not_take_the_others_watch(
    folders: inotify.Inotify, tmp_path: Path
) -> None:
    with folders.watching(tmp_path) as stays:
        with folders.watching(tmp_path):
            pass
        (tmp_path / "log.0").touch()
        await stays.wait()


async def test_where_there_is_no_inotify_it_is_time_to_look_after_a_while(
    folders: inotify.Inotify, tmp_path: Path
) -> None:
    folders.close()
    with folders.watching(tmp_path) as watch:
        await watch.wait()


async def test_a_followed_log_is_read_on_when_it_grows_and_ends_with_its_container(
    folders: inotify.Inotify, tmp_path: Path
) -> None:
    (tmp_path / "log.0").touch()
    reading = reader.read(
        tmp_path,
        reader.LogQuery(follow=True),
        lambda: not (tmp_path / "exit.json").exists(),
        folders,
    )
    for word in ("one", "two"):
        more = asyncio.create_task(anext(reading))
        with (tmp_path / "log.0").open("a") as file:
            file.write(f"2026-01-01T00:00:06.000000Z stdout F {word}\n")
        assert await more == f"{word}\n".encode()
    more = asyncio.create_task(anext(reading))
    await asyncio.sleep(0)
    (tmp_path / "exit.json").touch()
    with pytest.raises(StopAsyncIteration):
        await more
