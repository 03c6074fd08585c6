"""Reads a container's log: the last lines, since when, with times, and on as it grows.

The shim writes `TIME stream F|P text`; parts (P) belong to one line. Used by `agent.http`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from windlass.kinds import times

_POLL = 0.1
_PIECE = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: datetime.datetime | None = None
    limit_bytes: int | None = None


async def read(path: Path, query: Query, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The log as asked for; with `follow`, until `running` says no and all was read."""
    left = query.limit_bytes
    async for piece in _pieces(path, query, running):
        if left is None:
            yield piece
            continue
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


async def _pieces(path: Path, query: Query, running: Callable[[], bool]) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        old = _shown(_records(file.read(os.fstat(file.fileno()).st_size)), query)
        if query.tail_lines is not None:
            old = iter(_tail(old, query.tail_lines))
        for piece in _joined(old):
            yield piece
        rest = b""
        while query.follow:
            # Looked at before reading: what is written before the end is read after it.
            alive = running()
            data = file.read(_PIECE)
            if not data:
                if not alive:
                    return
                await asyncio.sleep(_POLL)
                continue
            *lines, rest = (rest + data).split(b"\n")
            for piece in _joined(_shown((_split(line) for line in lines), query)):
                yield piece


def _records(data: bytes) -> Iterator[tuple[bytes, bool, bytes]]:
    for line in data.split(b"\n"):
        if line:
            yield _split(line)


def _split(line: bytes) -> tuple[bytes, bool, bytes]:
    """(time, whether the line ends here, text)"""
    moment, _, mark, text = (*line.split(b" ", 3), b"", b"", b"")[:4]
    return moment, mark != b"P", text


def _shown(records: Iterator[tuple[bytes, bool, bytes]], query: Query) -> Iterator[bytes]:
    since = times.micros(query.since).encode() if query.since else b""
    continued = False
    for moment, ends, text in records:
        if moment >= since:
            head = moment + b" " if query.timestamps and not continued else b""
            yield head + text + (b"\n" if ends else b"")
        continued = not ends


def _tail(pieces: Iterator[bytes], lines: int) -> list[bytes]:
    """The pieces of the last `lines` whole lines."""
    kept: deque[list[bytes]] = deque(maxlen=lines)
    current: list[bytes] = []
    for piece in pieces:
        current.append(piece)
        if piece.endswith(b"\n"):
            kept.append(current)
            current = []
    return [piece for line in kept for piece in line] + (current if lines else [])


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Fewer, larger pieces."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece)
        if size >= _PIECE:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)
