"""The part of SPDY/3.1 that kubectl port-forward uses: frames and streams.

kubectl tunnels SPDY through a WebSocket (protocol `SPDY/3.1+portforward.k8s.io`). Its library uses
neither windows nor settings, so none are sent, and received ones are ignored.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Iterator, Mapping

_WORDS = (
    "options", "head", "post", "put", "delete", "trace", "accept", "accept-charset",
    "accept-encoding", "accept-language", "accept-ranges", "age", "allow", "authorization",
    "cache-control", "connection", "content-base", "content-encoding", "content-language",
    "content-length", "content-location", "content-md5", "content-range", "content-type", "date",
    "etag", "expect", "expires", "from", "host", "if-match", "if-modified-since", "if-none-match",
    "if-range", "if-unmodified-since", "last-modified", "location", "max-forwards", "pragma",
    "proxy-authenticate", "proxy-authorization", "range", "referer", "retry-after", "server", "te",
    "trailer", "transfer-encoding", "upgrade", "user-agent", "vary", "via", "warning",
    "www-authenticate", "method", "get", "status", "200 OK", "version", "HTTP/1.1", "url",
    "public", "set-cookie", "keep-alive", "origin",
)  # fmt: skip
_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Una"
    "uthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service"
    " UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, "
    "Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,applicat"
    "ion/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf"
    "-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = b"".join(struct.pack("!I", len(w)) + w.encode() for w in _WORDS) + _TAIL.encode()
"""The initial compression dictionary of headers (SPDY/3, section 2.6.10.1)."""

SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY = 1, 2, 3, 6, 7
FIN = 1
MAX_HEADERS = 1 << 16


class ProtocolError(Exception):
    """The peer violates SPDY/3.1."""


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """The peer opened a stream."""

    stream: int
    headers: dict[str, str]
    ended: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    """Bytes on a stream; `ended`: the stream ends after them."""

    stream: int
    data: bytes
    ended: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Reset:
    """The peer aborted a stream."""

    stream: int


@dataclasses.dataclass(frozen=True, slots=True)
class Ping:
    """A ping; the answer has the same number."""

    number: int


Event = Opened | Data | Reset | Ping


class SpdyConnection:
    """Turns received bytes into events and builds the frames to send. Does no I/O."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def receive(self, data: bytes) -> Iterator[Event]:
        self._buffer += data
        while len(self._buffer) >= 8:
            size = int.from_bytes(self._buffer[5:8])
            if len(self._buffer) < 8 + size:
                return
            head, body = bytes(self._buffer[:8]), bytes(self._buffer[8 : 8 + size])
            del self._buffer[: 8 + size]
            event = self._event(head, body)
            if event is not None:
                yield event

    def reply(self, stream: int) -> bytes:
        """Accepts a stream."""
        block = self._deflate.compress(struct.pack("!I", 0))
        block += self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control(SYN_REPLY, struct.pack("!I", stream) + block)

    def data(self, stream: int, data: bytes, *, end: bool = False) -> bytes:
        flags = FIN if end else 0
        return struct.pack("!IB", stream, flags) + len(data).to_bytes(3) + data

    def pong(self, number: int) -> bytes:
        return _control(PING, struct.pack("!I", number))

    def open(self, stream: int, headers: Mapping[str, str]) -> bytes:
        """The frame that opens a stream; only clients and tests send it."""
        plain = struct.pack("!I", len(headers))
        for name, value in headers.items():
            for text in (name.encode(), value.encode()):
                plain += struct.pack("!I", len(text)) + text
        block = self._deflate.compress(plain) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _control(SYN_STREAM, struct.pack("!IIBB", stream, 0, 0, 0) + block)

    def _event(self, head: bytes, body: bytes) -> Event | None:
        ended = bool(head[4] & FIN)
        if not head[0] & 0x80:
            return Data(int.from_bytes(head[:4]), body, ended)
        version, kind = int.from_bytes(head[:2]) & 0x7FFF, int.from_bytes(head[2:4])
        if version != 3:
            raise ProtocolError(f"SPDY version {version}")
        try:
            if kind == SYN_STREAM:
                return Opened(int.from_bytes(body[:4]), self._headers(body[10:]), ended)
            if kind == SYN_REPLY:
                self._headers(body[4:])  # read for the state of the decompressor
        except (zlib.error, struct.error, UnicodeDecodeError) as problem:
            raise ProtocolError("the headers are not valid") from problem
        if kind == RST_STREAM:
            return Reset(int.from_bytes(body[:4]))
        if kind == PING:
            return Ping(int.from_bytes(body[:4]))
        return None

    def _headers(self, block: bytes) -> dict[str, str]:
        plain = self._inflate.decompress(block, MAX_HEADERS)
        (count,) = struct.unpack_from("!I", plain)
        offset, texts = 4, []
        for _ in range(2 * min(count, MAX_HEADERS)):
            (size,) = struct.unpack_from("!I", plain, offset)
            texts.append(plain[offset + 4 : offset + 4 + size].decode())
            offset += 4 + size
        return {name.lower(): value for name, value in zip(texts[::2], texts[1::2], strict=True)}


def _control(kind: int, body: bytes) -> bytes:
    return struct.pack("!HHB", 0x8003, kind, 0) + len(body).to_bytes(3) + body
