"""Reads a container's log: the last lines, since a time, with timestamps, following it as it grows.

The shim writes segments of lines `TIME stream F|P text` (`podlogs.log_format`); parts (P) belong to
one line. The reader follows segments by number. Used by `agent.api.server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import io
import itertools
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

from windlass.kinds.values import times
from windlass.podlogs import inotify, log_format

_GATHER = 0.05
"""Seconds for which a follower waits to send more lines at once."""
_PIECE = 1 << 16
_FIRST_TAIL = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class LogQuery:
    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: datetime.datetime | None = None
    limit_bytes: int | None = None


async def read(
    folder: Path,
    query: LogQuery,
    running: Callable[[], bool] = lambda: False,
    folders: inotify.Inotify | None = None,
) -> AsyncIterator[bytes]:
    """Yields the log as queried; with `follow`, until `running` returns False and all is read.
    `folders` reports new lines; without it, the reader polls."""
    left = query.limit_bytes
    async for piece in _pieces(folder, query, running, folders):
        if left is None:
            yield piece
            continue
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


async def _pieces(
    folder: Path, query: LogQuery, running: Callable[[], bool], folders: inotify.Inotify | None
) -> AsyncIterator[bytes]:
    numbers = log_format.segments(folder)
    position = _end(folder, numbers)
    for piece in await asyncio.to_thread(_past, folder, query, numbers, position):
        yield piece
    if not query.follow:
        return
    formatter = _Formatter(query)
    watch = folders.watching(folder) if folders else contextlib.nullcontext(inotify.Watch())
    with contextlib.closing(position), watch as watched:
        async for lines in _follow(folder, position, running, watched):
            for piece in _joined(formatter.pieces(lines)):
                yield piece


@dataclasses.dataclass(slots=True)
class _Position:
    """The position up to which the log was read."""

    number: int
    offset: int
    _file: io.FileIO | None = None
    """Kept open: the segment stays readable after the pod's folder is removed."""

    def more(self, folder: Path) -> bytes:
        if self._file is None:
            try:
                self._file = io.FileIO(log_format.segment(folder, self.number))
            except FileNotFoundError:
                return b""  # removed by rotation before it was read
        data = os.pread(self._file.fileno(), _PIECE, self.offset)
        self.offset += len(data)
        return data

    def advance(self, number: int) -> None:
        self.close()
        self.number, self.offset = number, 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _end(folder: Path, numbers: list[int]) -> _Position:
    """The end of the log as of now."""
    end = _Position(numbers[-1] if numbers else 0, 0)
    with contextlib.suppress(FileNotFoundError):
        size = log_format.segment(folder, end.number).stat().st_size
        end.offset = _whole_lines(folder, end.number, size)
    return end


def _past(folder: Path, query: LogQuery, numbers: list[int], end: _Position) -> list[bytes]:
    """The log up to `end`, as queried."""
    if query.tail_lines is not None and query.since is None:
        blocks: Iterator[bytes] = iter(_last_blocks(folder, numbers, end, query.tail_lines))
    else:
        blocks = _blocks(folder, _since(folder, numbers, query.since), end)
        if numbers and numbers[0] > 0 and query.since is None:
            blocks = itertools.chain((_missing_notice(),), blocks)
    formatter = _Formatter(query)
    lines = (block.split(b"\n")[:-1] for block in blocks)
    pieces: Iterator[bytes] = (piece for some in lines for piece in formatter.pieces(some))
    if query.tail_lines is not None:
        pieces = iter(_tail(pieces, query.tail_lines))
    return list(_joined(pieces))


async def _follow(
    folder: Path, position: _Position, running: Callable[[], bool], watched: inotify.Watch
) -> AsyncIterator[list[bytes]]:
    """Yields whole lines as they are written, segment after segment."""
    rest = b""
    while True:
        watched.clear()
        # Checked before reading: lines written before the container's end are read after it.
        alive = running()
        later = [number for number in log_format.segments(folder) if number > position.number]
        data = position.more(folder)
        if data:
            *lines, rest = (rest + data).split(b"\n")
            yield lines
            if len(data) < _PIECE and alive:
                await asyncio.sleep(_GATHER)
        elif later:
            if later[0] > position.number + 1:
                yield [_missing_notice().rstrip(b"\n")]
            position.advance(later[0])
            rest = b""
        elif not alive:
            return
        else:
            await watched.wait()


def _missing_notice() -> bytes:
    """A line of the log that marks where lines are missing."""
    size = log_format.SEGMENT_BYTES * log_format.SEGMENTS >> 20
    notice = f"windlass: lines are missing here: only the last {size} MiB of a log are kept"
    return f"{log_format.now()} stderr F {notice}\n".encode()


def _whole_lines(folder: Path, number: int, size: int) -> int:
    """The offset after the last whole line: the shim may be writing a line."""
    with log_format.segment(folder, number).open("rb") as file:
        start = max(0, size - 2 * log_format.LONGEST_LINE)
        file.seek(start)
        data = file.read(size - start)
    return start + data.rfind(b"\n") + 1


def _since(folder: Path, numbers: list[int], since: datetime.datetime | None) -> list[int]:
    """The segments that were written to since then."""
    if since is None:
        return numbers
    kept = []
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):
            if log_format.segment(folder, number).stat().st_mtime >= since.timestamp() - 1:
                kept.append(number)
    return kept


def _blocks(folder: Path, numbers: list[int], end: _Position) -> Iterator[bytes]:
    """The contents of the segments, one after the other."""
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):
            data = log_format.segment(folder, number).read_bytes()
            yield data[: end.offset] if number == end.number else data


def _last_blocks(folder: Path, numbers: list[int], end: _Position, lines: int) -> list[bytes]:
    """The end of the log with at least so many whole lines, plus the line before, to which parts
    may belong."""
    kept: list[bytes] = []
    found = 0
    for number in reversed(numbers):
        if found > lines:
            break
        try:
            with log_format.segment(folder, number).open("rb") as file:
                size = end.offset if number == end.number else os.fstat(file.fileno()).st_size
                data = _enough(file.fileno(), size, lines + 1 - found)
        except FileNotFoundError:
            break
        found += _complete_lines(data)
        kept.append(data)
    return kept[::-1]


def _enough(handle: int, size: int, lines: int) -> bytes:
    """The end of a segment with at least so many lines, read in growing steps."""
    step = _FIRST_TAIL
    while True:
        start = max(0, size - step)
        data = os.pread(handle, size - start, start)
        if start:
            data = data[data.find(b"\n") + 1 :]
        if start == 0 or _complete_lines(data) >= lines:
            return data
        step *= 4


def _complete_lines(data: bytes) -> int:
    return sum(1 for line in data.split(b"\n") if line and line.split(b" ", 3)[2:3] != [b"P"])


class _Formatter:
    """Formats stored lines for the client: with or without timestamps, since a time."""

    def __init__(self, query: LogQuery) -> None:
        self._since = times.micros(query.since).encode() if query.since else b""
        self._timestamps = query.timestamps
        self._continued = False

    def pieces(self, lines: list[bytes]) -> Iterator[bytes]:
        for line in lines:
            if not line:
                continue
            moment, _, mark, text = (*line.split(b" ", 3), b"", b"", b"")[:4]
            ends = mark != b"P"
            if moment >= self._since:
                head = moment + b" " if self._timestamps and not self._continued else b""
                yield head + text + (b"\n" if ends else b"")
            self._continued = not ends


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
    """Joins pieces into fewer, larger ones."""
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
