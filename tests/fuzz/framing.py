"""HTTP that no client sends, as rows: what goes over the wire, and which answers are allowed.

A new attack is one row. `TOKEN` stands for a valid token, `PATH` for a list that it may read.
"""

from __future__ import annotations

import dataclasses

_HOST = b"Host: localhost\r\n"
_SIGNED = _HOST + b"Authorization: Bearer TOKEN\r\n"
_JSON = b"Content-Type: application/json\r\n"
_SMUGGLED = b"GET /version HTTP/1.1\r\n" + _HOST + b"\r\n"
ANSWER_OF_SMUGGLED = b"gitVersion"
REFUSED = frozenset({400, 401, 403, 404, 405, 408, 411, 413, 414, 415, 426, 429, 431, 501, 505})


@dataclasses.dataclass(frozen=True)
class Attack:
    sent: bytes
    allowed: frozenset[int] = REFUSED
    """Codes of the first response. The connection may also be closed without one."""
    tls: bool = True
    ends: bool = True
    """The attacker closes its side afterwards; else the server must answer or close by itself."""


def _post(*headers: bytes, body: bytes = b"") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"POST PATH HTTP/1.1\r\n" + _SIGNED + _JSON + lines + b"\r\n" + body


def _get(*headers: bytes, target: bytes = b"PATH", version: bytes = b"HTTP/1.1") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"GET %b %b\r\n" % (target, version) + _SIGNED + lines + b"\r\n"


_CHUNKED = b"Transfer-Encoding: chunked"
_UPGRADE = b"Connection: Upgrade"
_OK = REFUSED | {200, 422}

ATTACKS: dict[str, Attack] = {
    # --- which request ends where
    "length and chunks": Attack(
        _post(b"Content-Length: 6", _CHUNKED, body=b"0\r\n\r\nX" + _SMUGGLED)
    ),
    "chunks and length": Attack(
        _post(_CHUNKED, b"Content-Length: 4", body=b"0\r\n\r\n" + _SMUGGLED)
    ),
    "two lengths": Attack(
        _post(b"Content-Length: 0", b"Content-Length: %d" % len(_SMUGGLED), body=_SMUGGLED)
    ),
    "two equal lengths": Attack(
        _post(b"Content-Length: 0", b"Content-Length: 0", body=_SMUGGLED)
    ),
    "a list of lengths": Attack(_post(b"Content-Length: 0, 40", body=_SMUGGLED)),
    "a signed length": Attack(_post(b"Content-Length: +40", body=_SMUGGLED)),
    "a negative length": Attack(_post(b"Content-Length: -1", body=_SMUGGLED)),
    "a hexadecimal length": Attack(_post(b"Content-Length: 0x10", body=_SMUGGLED)),
    "a huge length": Attack(_post(b"Content-Length: 99999999999999999999", body=b"{}")),
    "a length with a space in its name": Attack(_post(b"Content-Length : 40", body=_SMUGGLED)),
    "an obfuscated coding": Attack(_post(b"Transfer-Encoding: xchunked", body=_SMUGGLED)),
    "a coding with a tab": Attack(_post(b"Transfer-Encoding:\tchunked", b"Content-Length: 4",
                                        body=b"0\r\n\r\n" + _SMUGGLED)),
    "two codings": Attack(_post(_CHUNKED, b"Transfer-Encoding: identity",
                                body=b"0\r\n\r\n" + _SMUGGLED)),
    "a coding in HTTP/1.0": Attack(
        b"POST PATH HTTP/1.0\r\n" + _SIGNED + _CHUNKED + b"\r\n\r\n0\r\n\r\n" + _SMUGGLED
    ),
    "a folded header": Attack(_post(b"Transfer-Encoding:\r\n chunked", b"Content-Length: 4",
                                    body=b"0\r\n\r\n" + _SMUGGLED)),
    "lines that end in LF": Attack(
        b"POST PATH HTTP/1.1\n" + _SIGNED.replace(b"\r", b"") + b"Content-Length: 0\n\n", _OK
    ),
    "a bare CR in a header": Attack(_get(b"X-A: b\rX-C: d")),
    # --- chunks
    "a chunk without a size": Attack(_post(_CHUNKED, body=b"\r\n{}\r\n0\r\n\r\n")),
    "a chunk of a wrong size": Attack(_post(_CHUNKED, body=b"1\r\n{}\r\n0\r\n\r\n")),
    "a chunk of a huge size": Attack(
        _post(_CHUNKED, body=b"FFFFFFFFFFFFFFFFFF\r\n{}\r\n0\r\n\r\n")
    ),
    "a negative chunk": Attack(_post(_CHUNKED, body=b"-2\r\n{}\r\n0\r\n\r\n")),
    "a huge extension of a chunk": Attack(
        _post(_CHUNKED, body=b"2;" + b"x" * 100_000 + b"\r\n{}\r\n0\r\n\r\n"), _OK
    ),
    "huge trailers": Attack(
        _post(_CHUNKED, body=b"2\r\n{}\r\n0\r\n" + b"X-T: y\r\n" * 50_000 + b"\r\n")
    ),
    "chunks that break off": Attack(_post(_CHUNKED, body=b"5\r\n{}")),
    "a million tiny chunks": Attack(_post(_CHUNKED, body=b"1\r\n \r\n" * 200_000 + b"0\r\n\r\n")),
    # --- heads
    "a huge header": Attack(_get(b"X-Big: " + b"x" * 1_000_000)),
    "very many headers": Attack(_get(*(b"X-%d: y" % number for number in range(20_000)))),
    "a huge target": Attack(_get(target=b"/" + b"a" * 1_000_000)),
    "a huge method": Attack(b"A" * 1_000_000 + b" / HTTP/1.1\r\n\r\n"),
    "a null byte in the target": Attack(_get(target=b"/api/v1/namespaces/def\0ault/configmaps")),
    "a null byte in a header": Attack(_get(b"X-A: b\0c")),
    "an escaped null byte": Attack(
        _get(target=b"/api/v1/namespaces/default/configmaps/a%00b"), _OK
    ),
    "bytes that are not text": Attack(_get(target=b"/\xff\xfe\xfd"), _OK),
    "no host": Attack(b"GET /healthz HTTP/1.1\r\n\r\n", _OK),
    "two hosts": Attack(_get(b"Host: other"), _OK),
    "two authorizations": Attack(_get(b"Authorization: Bearer wl_other_x"), _OK),
    "an absolute URI": Attack(_get(target=b"http://169.254.169.254/latest/meta-data"), _OK),
    "an absolute URI with a user": Attack(_get(target=b"https://admin@localhost/healthz"), _OK),
    "an authority": Attack(b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + _SIGNED + b"\r\n"),
    "an asterisk": Attack(b"OPTIONS * HTTP/1.1\r\n" + _SIGNED + b"\r\n"),
    "dots in the path": Attack(_get(target=b"/healthz/../../../../etc/passwd"), REFUSED),
    "escaped dots in the path": Attack(_get(target=b"/healthz/%2e%2e/%2e%2e/etc/passwd"), REFUSED),
    "an unknown version": Attack(_get(version=b"HTTP/9.9")),
    "HTTP/0.9": Attack(b"GET /healthz\r\n"),
    "no version and headers": Attack(b"GET /healthz\r\n" + _SIGNED + b"\r\n"),
    "nonsense": Attack(b"\x00\x01\x02\x03" * 1000),
    "only line ends": Attack(b"\r\n" * 100_000, _OK),
    "an unknown expectation": Attack(_get(b"Expect: the-unexpected"), _OK | {417}),
    "a body that is said to be compressed": Attack(
        _post(b"Content-Encoding: gzip", b"Content-Length: 4", body=b"nope")
    ),
    "a hundred pipelined requests": Attack(_get() * 100, _OK),
    # --- other protocols
    "HTTP/2 with prior knowledge": Attack(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 100
    ),
    "an upgrade to HTTP/2": Attack(
        _get(_UPGRADE + b", HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk"), _OK
    ),
    "a websocket to a list": Attack(
        _get(_UPGRADE, b"Upgrade: websocket", b"Sec-WebSocket-Version: 13",
             b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), _OK
    ),
    "a websocket without a key": Attack(_get(_UPGRADE, b"Upgrade: websocket"), _OK),
    "a websocket to a pod that is not there": Attack(
        _get(_UPGRADE, b"Upgrade: websocket", b"Sec-WebSocket-Version: 13",
             b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
             target=b"/api/v1/namespaces/default/pods/none/exec?command=id")
        + b"\x81\xff" + b"\xff" * 8 + b"x" * 100_000
    ),
    "an upgrade to something else": Attack(_get(_UPGRADE, b"Upgrade: TLS/1.3, SPDY/3.1"), _OK),
    "plain HTTP": Attack(_get(), tls=False),
    "an SSH banner": Attack(b"SSH-2.0-OpenSSH_9.9\r\n", tls=False),
    "a TLS record of a wrong size": Attack(b"\x16\x03\x01\xff\xff" + b"\x00" * 70_000, tls=False),
    "a TLS alert first": Attack(b"\x15\x03\x01\x00\x02\x02\x28", tls=False),
    # --- that do not end; the server ends them
    "no byte at all": Attack(b"", tls=False, ends=False),
    "half a TLS record": Attack(b"\x16\x03\x01\x02\x00\x01", tls=False, ends=False),
    "no byte after the handshake": Attack(b"", ends=False),
    "half a head": Attack(b"GET /healthz HTTP/1.1\r\nHost: loc", ends=False),
    "half a body": Attack(_post(b"Content-Length: 1000", body=b'{"metadata":'), ends=False),
    "half a chunked body": Attack(_post(_CHUNKED, body=b"10\r\n{}"), ends=False),
}  # fmt: skip
