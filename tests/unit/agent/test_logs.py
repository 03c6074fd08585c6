import asyncio
import datetime

import pytest

from windlass.agent import logs
from windlass.kinds import times

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
    pieces = [piece async for piece in logs.read(path, logs.Query(**query), running)]
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


async def test_a_line_that_is_written_in_two_goes_is_not_torn(path):
    alive = [True]
    seen: list[bytes] = []

    async def collect() -> None:
        query = logs.Query(follow=True, tail_lines=0)
        async for piece in logs.read(path, query, lambda: alive[0]):
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
