import asyncio
import datetime
import shutil

import pytest

from windlass.kinds.values import times
from windlass.podlogs import log_format, reader

LINES = """\
2026-01-01T00:00:01.000000Z stdout F one
2026-01-01T00:00:02.000000Z stderr F two
2026-01-01T00:00:03.000000Z stdout P thr
2026-01-01T00:00:03.500000Z stdout F ee
2026-01-01T00:00:04.000000Z stdout F\x20
2026-01-01T00:00:05.000000Z stdout F four words of text
"""


@pytest.fixture
def path(tmp_path):
    """The folder of a start whose log has one segment."""
    (tmp_path / "log.0").write_text(LINES)
    return tmp_path


async def text(path, running=lambda: False, **query) -> str:
    pieces = [piece async for piece in reader.read(path, reader.LogQuery(**query), running)]
    return b"".join(pieces).decode()


CASES = {
    "all": ({}, "one\ntwo\nthree\n\nfour words of text\n"),
    "the last two lines": ({"tail_lines": 2}, "\nfour words of text\n"),
    "a line in parts is one line": ({"tail_lines": 3}, "three\n\nfour words of text\n"),
    "no lines": ({"tail_lines": 0}, ""),
    "more lines than there are": (
        {"tail_lines": 99}, "one\ntwo\nthree\n\nfour words of text\n",
    ),
    "since": ({"since": times.parse("2026-01-01T00:00:04Z")}, "\nfour words of text\n"),
    "bytes": ({"limit_bytes": 6}, "one\ntw"),
    "with times": (
        {"timestamps": True, "tail_lines": 3},
        "2026-01-01T00:00:03.000000Z three\n2026-01-01T00:00:04.000000Z \n"
        "2026-01-01T00:00:05.000000Z four words of text\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("query", "expected"), CASES.values(), ids=CASES)
async def test_what_is_shown(path, query, expected):
    assert await text(path, **query) == expected


async def test_following_reads_on_until_the_container_has_ended(path):
    alive = [True]

    async def collect() -> str:
        return await text(path, lambda: alive[0], follow=True, tail_lines=0)

    reading = asyncio.create_task(collect())
    await asyncio.sleep(0)
    with (path / "log.0").open("a") as file:
        for word in ("five", "six"):
            file.write(f"2026-01-01T00:00:06.000000Z stdout F {word}\n")
            file.flush()
    alive[0] = False
    assert await reading == "five\nsix\n"


async def test_what_was_written_just_before_the_folder_goes_is_read(path):
    alive = [True]
    query = reader.LogQuery(follow=True, tail_lines=1)
    reading = reader.read(path, query, lambda: alive[0])
    seen = [await anext(reading)]
    more = asyncio.create_task(anext(reading))
    await asyncio.sleep(0)
    with (path / "log.0").open("a") as file:
        file.write("2026-01-01T00:00:06.000000Z stdout F last words\n")
    shutil.rmtree(path)
    alive[0] = False
    seen.append(await more)
    seen += [piece async for piece in reading]
    assert b"".join(seen) == b"four words of text\nlast words\n"


async def test_a_line_that_is_written_in_two_goes_is_not_torn(path):
    alive = [True]
    seen: list[bytes] = []

    async def collect() -> None:
        query = reader.LogQuery(follow=True, tail_lines=0)
        async for piece in reader.read(path, query, lambda: alive[0]):
            seen.append(piece)
            alive[0] = False

    with (path / "log.0").open("a") as file:
        reading = asyncio.create_task(collect())
        await asyncio.sleep(0)
        file.write("2026-01-01T00:00:06.000000Z stdout F ha")
        file.flush()
        await asyncio.sleep(0)
        file.write("lf\n")
        file.flush()
        await reading
    assert b"".join(seen) == b"half\n"


async def test_an_empty_log_is_empty(tmp_path):
    (tmp_path / "log.0").touch()
    assert await text(tmp_path, since=datetime.datetime.now(datetime.UTC)) == ""


# --- rotation


def numbers(said: str) -> list[int]:
    return [int(line.split()[0]) for line in said.splitlines() if "windlass:" not in line]


def talked(folder, count: int, size: int = 2000, kept: int = 3) -> log_format.LogWriter:
    log = log_format.LogWriter(folder, size, kept)
    for number in range(count):
        log.add("stdout", f"{number} {'x' * 50}\n".encode())
    return log


async def test_a_log_keeps_its_last_segments_and_no_more(tmp_path):
    talked(tmp_path, 500).close()
    assert len(log_format.segments(tmp_path)) == 3
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3 * 2000
    shown = numbers(await text(tmp_path))
    assert shown == list(range(shown[0], 500))


@pytest.mark.parametrize("lines", [0, 1, 7, 40, 10_000])
async def test_the_last_lines_come_from_as_many_segments_as_they_need(tmp_path, lines):
    talked(tmp_path, 500).close()
    whole = numbers(await text(tmp_path))
    assert numbers(await text(tmp_path, tail_lines=lines)) == (whole[-lines:] if lines else [])


async def test_since_passes_over_segments_that_were_full_before(tmp_path):
    log = talked(tmp_path, 100, kept=9)
    await asyncio.sleep(0.01)
    moment = times.now()
    for number in range(100, 103):
        log.add("stderr", f"{number} late\n".encode())
    log.close()
    assert numbers(await text(tmp_path, since=moment)) == [100, 101, 102]


async def test_following_goes_from_segment_to_segment_and_misses_nothing(tmp_path):
    log = log_format.LogWriter(tmp_path, 3000, 50)
    alive = [True]

    async def speak() -> None:
        for number in range(1000):
            log.add("stdout", f"{number} {'x' * 50}\n".encode())
            if number % 20 == 0:
                await asyncio.sleep(0.001)
        log.add("stdout", b"1000 last words without an end")
        log.close()
        alive[0] = False

    speaking = asyncio.create_task(speak())
    said = await text(tmp_path, lambda: alive[0], follow=True)
    await speaking
    assert numbers(said) == list(range(1001))


def test_a_log_goes_on_where_the_one_before_it_ended(tmp_path):
    talked(tmp_path, 100, kept=9).close()
    before = log_format.segments(tmp_path)
    talked(tmp_path, 1, kept=9).close()
    assert log_format.segments(tmp_path) == before


async def test_where_lines_are_missing_the_log_says_so(tmp_path):
    log = log_format.LogWriter(tmp_path, size=100, count=2)
    for number in range(20):
        log.add("stdout", f"line {number}\n".encode())
    log.close()
    first, *rest = (await text(tmp_path)).splitlines()
    assert "lines are missing here" in first
    assert rest[-1] == "line 19"
    assert await text(tmp_path, tail_lines=1) == "line 19\n"


async def test_the_last_of_the_disk_is_left_to_others(tmp_path, monkeypatch):
    log = log_format.LogWriter(tmp_path)
    full = [True]
    monkeypatch.setattr(log, "_is_full", lambda: full[0])
    log.add("stdout", b"lost\n")
    full[0] = False
    log.add("stdout", b"kept\n")
    log.close()
    first, last = (await text(tmp_path)).splitlines()
    assert "the disk was full" in first
    assert last == "kept"
