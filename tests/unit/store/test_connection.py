"""An answer means the same however the network cuts it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.store.kubernetes.connection import Connection, NotHttpError


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
    connection.connection_made(wire)  # type: ignore[arg-type]
    await connection.ask(b"GET", has_body=True)
    return connection, await connection.whole()


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
    assert connection.rest() == (frame != "end")
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
async def test_what_is_no_http_is_told_apart(said: bytes) -> None:
    with pytest.raises(NotHttpError):
        await ask([said], closes=False)
