"""Reads a container's log: the last lines, since when, with times, and on as it grows.

The shim writes segments of lines `TIME stream F|P text` (`agent.shimlog`); parts (P) belong to one
line. Reading goes from segment to segment by number. Used by `agent.http`.
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

from windlass.agent import changes, shimlog
from windlass.kinds import times

_GATHER = 0.05
"""Seconds in which lines that follow each other closely are gathered."""
_PIECE = 1 << 16
_FIRST_TAIL = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    follow: bool = False
    timestamps: bool = False
    tail_lines: int | None = None
    since: datetime.datetime | None = None
    limit_bytes: int | None = None


async def read(
    folder: Path,
    query: Query,
    running: Callable[[], bool] = lambda: False,
    noticing: changes.Changes | None = None,
) -> AsyncIterator[bytes]:
    """The log as asked for; with `follow`, until `running` says no and all was read. `noticing`
    tells when there is more; without it, it is looked for again and again."""
    left = query.limit_bytes
    async for piece in _pieces(folder, query, running, noticing):
        if left is None:
            yield piece
            continue
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


async def _pieces(
    folder: Path, query: Query, running: Callable[[], bool], noticing: changes.Changes | None
) -> AsyncIterator[bytes]:
    numbers = shimlog.segments(folder)
    place = _end(folder, numbers)
    for piece in await asyncio.to_thread(_past, folder, query, numbers, place):
        yield piece
    if not query.follow:
        return
    shown = _Shown(query)
    watch = noticing.watching(folder) if noticing else contextlib.nullcontext(changes.Watch())
    with contextlib.closing(place), watch as watched:
        async for lines in _grown(folder, place, running, watched):
            for piece in _joined(shown.pieces(lines)):
                yield piece


@dataclasses.dataclass(slots=True)
class _Place:
    """Up to where it was read."""

    number: int
    offset: int
    _file: io.FileIO | None = None
    """Held: what is read stays readable when the pod's folder goes."""

    def more(self, folder: Path) -> bytes:
        if self._file is None:
            try:
                self._file = io.FileIO(shimlog.segment(folder, self.number))
            except FileNotFoundError:
                return b""  # rotated away before it was read: the log is bounded
        data = os.pread(self._file.fileno(), _PIECE, self.offset)
        self.offset += len(data)
        return data

    def go_on(self, number: int) -> None:
        self.close()
        self.number, self.offset = number, 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _end(folder: Path, numbers: list[int]) -> _Place:
    """The end of what there is now."""
    end = _Place(numbers[-1] if numbers else 0, 0)
    with contextlib.suppress(FileNotFoundError):
        size = shimlog.segment(folder, end.number).stat().st_size
        end.offset = _whole_lines(folder, end.number, size)
    return end


def _past(folder: Path, query: Query, numbers: list[int], end: _Place) -> list[bytes]:
    """What there is up to `end`, as asked for."""
    if query.tail_lines is not None and query.since is None:
        blocks: Iterator[bytes] = iter(_last_blocks(folder, numbers, end, query.tail_lines))
    else:
        blocks = _blocks(folder, _since(folder, numbers, query.since), end)
        if numbers and numbers[0] > 0 and query.since is None:
            blocks = itertools.chain((_cut(),), blocks)
    shown = _Shown(query)
    lines = (block.split(b"\n")[:-1] for block in blocks)
    pieces: Iterator[bytes] = (piece for some in lines for piece in shown.pieces(some))
    if query.tail_lines is not None:
        pieces = iter(_tail(pieces, query.tail_lines))
    return list(_joined(pieces))


async def _grown(
    folder: Path, place: _Place, running: Callable[[], bool], watched: changes.Watch
) -> AsyncIterator[list[bytes]]:
    """Whole lines as they come, segment after segment."""
    rest = b""
    while True:
        watched.clear()
        # Looked at before reading: what is written before the end is read after it.
        alive = running()
        later = [number for number in shimlog.segments(folder) if number > place.number]
        data = place.more(folder)
        if data:
            *lines, rest = (rest + data).split(b"\n")
            yield lines
            if len(data) < _PIECE and alive:
                await asyncio.sleep(_GATHER)
        elif later:
            if later[0] > place.number + 1:
                yield [_cut().rstrip(b"\n")]
            place.go_on(later[0])
            rest = b""
        elif not alive:
            return
        else:
            await watched.wait()


def _cut() -> bytes:
    """Stands where lines are missing, as a line of the log."""
    kept = shimlog.SEGMENT_BYTES * shimlog.SEGMENTS >> 20
    told = f"windlass: lines are missing here: only the last {kept} MiB of a log are kept"
    return f"{shimlog.now()} stderr F {told}\n".encode()


def _whole_lines(folder: Path, number: int, size: int) -> int:
    """The end of the last whole line: a line may just be being written."""
    with shimlog.segment(folder, number).open("rb") as file:
        start = max(0, size - 2 * shimlog.LONGEST_LINE)
        file.seek(start)
        data = file.read(size - start)
    return start + data.rfind(b"\n") + 1


def _since(folder: Path, numbers: list[int], since: datetime.datetime | None) -> list[int]:
    """Without segments that were full before that."""
    if since is None:
        return numbers
    kept = []
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):
            if shimlog.segment(folder, number).stat().st_mtime >= since.timestamp() - 1:
                kept.append(number)
    return kept


def _blocks(folder: Path, numbers: list[int], end: _Place) -> Iterator[bytes]:
    """The segments one after the other, each whole (they are small by design)."""
    for number in numbers:
        with contextlib.suppress(FileNotFoundError):
            data = shimlog.segment(folder, number).read_bytes()
            yield data[: end.offset] if number == end.number else data


def _last_blocks(folder: Path, numbers: list[int], end: _Place, lines: int) -> list[bytes]:
    """As much of the end as holds so many whole lines (and the line before: parts belong to it)."""
    kept: list[bytes] = []
    found = 0
    for number in reversed(numbers):
        if found > lines:
            break
        try:
            with shimlog.segment(folder, number).open("rb") as file:
                size = end.offset if number == end.number else os.fstat(file.fileno()).st_size
                data = _enough(file.fileno(), size, lines + 1 - found)
        except FileNotFoundError:
            break
        found += _complete_lines(data)
        kept.append(data)
    return kept[::-1]


def _enough(handle: int, size: int, lines: int) -> bytes:
    room = _FIRST_TAIL
    while True:
        start = max(0, size - room)
        data = os.pread(handle, size - start, start)
        if start:
            data = data[data.find(b"\n") + 1 :]
        if start == 0 or _complete_lines(data) >= lines:
            return data
        room *= 4


def _complete_lines(data: bytes) -> int:
    return sum(1 for line in data.split(b"\n") if line and line.split(b" ", 3)[2:3] != [b"P"])


class _Shown:
    """Lines as they are shown."""

    def __init__(self, query: Query) -> None:
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
