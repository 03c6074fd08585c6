"""An answer means the same however the network cuts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.store.kubernetes.http import retry
from windlass.store.kubernetes.http.connection import Connection, NotHttpError


class Wire:
    """The other end: the answer is there when the request is sent, in the given pieces."""

    def __init__(self, pieces: list[bytes], *, closes: bool) -> None:
        self._pieces, self._closes = pieces, closes
        self.connection: Connection | None = None

    def write(self, _: bytes) -> None:
        assert self.connection is not None
        loop = self.connection._loop
        for piece in self._pieces:
            loop.call_soon(self.connection.data_received, piece)
        if self._closes:
            loop.call_soon(self.connection.eof_received)

    def abort(self) -> None:
        return

    pause_reading = resume_reading = abort


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False) if a < b]


def chunked(parts: list[bytes], trailer: bytes) -> bytes:
    body = b"".join(b"%x;x=1\r\n%s\r\n" % (len(part), part) for part in parts if part)
    return b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"


async def ask(pieces: list[bytes], *, closes: bool) -> tuple[Connection, bytes]:
    connection, wire = Connection(None), Wire(pieces, closes=closes)
    wire.connection = connection
    connection.connection_made(wire)
    await connection.send(b"GET", has_body=True)
    return connection, await connection.read()


PARTS = st.lists(st.binary(max_size=40) | st.sampled_from([b"\r\n", b"0\r\n\r\n"]), max_size=6)
FRAMES = st.sampled_from(["length", "chunks", "trailer", "end"])


@settings(max_examples=300)
@given(parts=PARTS, frame=FRAMES, places=st.lists(st.integers(0, 400), max_size=30))
async def test_a_body_is_whole_wherever_it_is_cut(
    parts: list[bytes], frame: str, places: list[int]
) -> None:
    body = b"".join(parts)
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nX-A:  b\r\n"
    framed = {
        "length": b"Content-Length: %d\r\n\r\n%s" % (len(body), body),
        "chunks": chunked(parts, b""),
        "trailer": chunked(parts, b"X-T: 1\r\n"),
        "end": b"\r\n" + body,
    }[frame]
    connection, read = await ask(cut(head + framed, places), closes=frame == "end")
    assert (connection.status, connection.headers["x-a"], read) == (201, "b", body)
    assert connection.release() == (frame != "end")
    assert connection.is_usable(None) == (frame != "end")


@given(places=st.lists(st.integers(0, 80), max_size=9), missing=st.integers(1, 30))
async def test_an_answer_that_breaks_off_is_never_taken_for_whole(
    places: list[int], missing: int
) -> None:
    for framed in (b"Content-Length: 20\r\n\r\n" + b"x" * 20, chunked([b"x" * 20], b"")):
        data = (b"HTTP/1.1 200 OK\r\n" + framed)[:-missing]
        with pytest.raises(EOFError):
            await ask(cut(data, places), closes=True)


@pytest.mark.parametrize("said", [b"SSH-2.0-x\r\n", b"HTTP/2 nonsense\r\n\r\n", b"x" * 300_000])
async def test_a_response_that_is_no_http_is_recognized(said: bytes) -> None:
    with pytest.raises(NotHttpError):
        await ask([said], closes=False)


class Clock:
    """Time that passes on command, in place of the loop's."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, Callable[[], None]]] = []
        self.create_future = asyncio.get_running_loop().create_future

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, call: Callable[[], None]) -> Clock:
        self._due.append((at, call))
        return self

    def cancel(self) -> None:
        self._due.clear()

    async def pass_to(self, now: float) -> None:
        self.now = now
        due, self._due = [e for e in self._due if e[0] <= now], [e for e in self._due if e[0] > now]
        for _, call in due:
            call()
        for _ in range(3):
            await asyncio.sleep(0)


class Waiting:
    """A caller that waits for an answer that does not come by itself."""

    def __init__(self) -> None:
        self.clock, self.connection = Clock(), Connection(None)
        wire = Wire([], closes=False)
        wire.connection = self.connection
        self.connection.connection_made(wire)
        self.connection._loop = self.clock

    async def ask(self) -> asyncio.Task[None]:
        asking = asyncio.create_task(self.connection.send(b"GET", has_body=True))
        await self.clock.pass_to(self.clock.now)
        return asking


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"
SILENCE = retry.SILENCE_SECONDS


async def test_a_server_that_falls_silent_is_given_up() -> None:
    told = Waiting()
    asking = await told.ask()
    told.connection.data_received(b"HTTP/1.1 200 OK\r\n")
    await told.clock.pass_to(SILENCE - 1)
    assert not asking.done()
    await told.clock.pass_to(2 * SILENCE)
    with pytest.raises(TimeoutError):
        await asking


async def test_each_answer_of_a_connection_may_pause_as_long_as_the_first() -> None:
    """The alarm that the first answer set rings while the second is waited for."""
    told = Waiting()
    asking = await told.ask()
    await told.clock.pass_to(SILENCE - 5)
    told.connection.data_received(ANSWER)
    await asking
    assert await told.connection.read() == b"one"
    asking = await told.ask()
    for moment in (SILENCE, 2 * SILENCE - 6):
        await told.clock.pass_to(moment)
        assert not asking.done()
    await told.clock.pass_to(2 * SILENCE - 5)
    with pytest.raises(TimeoutError):
        await asking


async def test_a_stream_may_pause_for_as_long_as_it_likes() -> None:
    told = Waiting()
    asking = await told.ask()
    told.connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    await asking
    pieces = told.connection.pieces()
    reading = asyncio.ensure_future(anext(pieces))
    for moment in (SILENCE, 10 * SILENCE):
        await told.clock.pass_to(moment)
    told.connection.data_received(b"late")
    assert await reading == b"late"
