"""A request sent ahead of the rest: what comes back, and when it is left to the ordinary way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from windlass.store import errors
from windlass.store.kubernetes.config.model import Access, Cluster, ExecPlugin, User
from windlass.store.kubernetes.http import early_request


@contextlib.contextmanager
def serving(reply: bytes) -> Iterator[tuple[Access, list[bytes]]]:
    """A server for one connection that says `reply`, whatever it is asked."""
    heard: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(1 << 16))
            connection.sendall(reply)

    thread = threading.Thread(target=work)
    thread.start()
    port = listener.getsockname()[1]
    try:
        yield Access(Cluster(server=f"http://127.0.0.1:{port}"), User(token="t")), heard
    finally:
        thread.join()
        listener.close()


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}", (201, b"{}")),
        (
            b"HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            (409, b"{}"),
        ),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", None),
        (b"HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n", None),
        (b"HTTP/1.1 503 Away\r\nContent-Length: 2\r\n\r\n{}", (503, b"{}")),
        (
            b"HTTP/1.1 503 Away\r\nContent-Length: 62\r\n\r\n"
            b'{"message":"before all known HTTP paths have been installed "}',
            None,
        ),
    ],
)
def test_the_answer_or_nothing_if_it_may_be_sent_again(
    reply: bytes, answer: tuple[int, bytes] | None
) -> None:
    with serving(reply) as (access, heard):
        sent = early_request.send(access, "POST", "/apis/x", b"{}")
        assert sent is not None
        assert sent.response() == answer
    assert heard[0].startswith(b"POST /apis/x HTTP/1.1\r\n")
    assert b"Authorization: Bearer t\r\n" in heard[0]


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 201 Created\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{}",
    ],
)
def test_half_an_answer_is_none(reply: bytes) -> None:
    with serving(reply) as (access, _):
        sent = early_request.send(access, "POST", "/apis/x", b"{}")
        assert sent is not None
        with pytest.raises(errors.Unavailable, match="cannot reach"):
            sent.response()


def test_what_is_not_plain_is_left_to_the_ordinary_way() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as closed:
        port = closed.getsockname()[1]
    nobody = Access(Cluster(server=f"http://127.0.0.1:{port}"), User())
    plugin = Access(nobody.cluster, User(exec=ExecPlugin(api_version="v1", command="x")))
    proxied = Access(Cluster(server="http://10.0.0.1", proxy_url="http://p"), User())
    unusable = Access(nobody.cluster, User(token_file="/nowhere"))
    for access in (nobody, plugin, proxied, unusable):
        assert early_request.send(access, "POST", "/", b"{}") is None
