"""Connects the API with the node of a pod: logs, exec, attach, port-forward.

The server speaks HTTP and WebSocket with the client; an implementation of `NodeGateway` speaks with
the node. Without one the paths answer with a Status.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal, Protocol

from aiohttp import web

from windlass.kinds.types.resource import Resource
from windlass.podlogs.options import LogOptions, StreamOptions
from windlass.server.http import queries
from windlass.store import errors

StreamKind = Literal["exec", "attach", "portforward"]

PROTOCOLS: dict[str, tuple[str, ...]] = {
    "exec": ("v5.channel.k8s.io", "v4.channel.k8s.io"),
    "attach": ("v5.channel.k8s.io", "v4.channel.k8s.io"),
    "portforward": ("SPDY/3.1+portforward.k8s.io",),
}


class NodeGateway(Protocol):
    """Reaches a pod on its node. `pod` is the object as stored; errors are `store.errors`."""

    def log(self, pod: dict[str, Any], options: LogOptions, /) -> AsyncIterator[bytes]:
        """The log in pieces; with `follow` until the container ends."""
        ...

    async def stream(
        self,
        kind: StreamKind,
        pod: dict[str, Any],
        options: StreamOptions,
        accept: Callable[[], Awaitable[web.WebSocketResponse]],
        /,
    ) -> None:
        """Carries a session; returns when it ends. `accept` opens the WebSocket in the protocol of
        `ws_protocol`: every refusal happens before it."""
        ...

    async def check_binding(
        self, resource: Resource, namespace: str, name: str, change: Any, /
    ) -> None:
        """Invalid if the change of a role binding would let other users into running pods that
        have more rights than theirs."""
        ...


def stream_options(request: web.BaseRequest, *, owner: bool = False) -> StreamOptions:
    query = request.rel_url.query
    ports = []
    for text in ",".join(query.getall("ports", [])).split(","):
        if text:
            if not (text.isascii() and text.isdigit() and len(text) < 6) or not (
                0 < int(text) < 65536
            ):
                raise errors.BadRequest(f"ports: {text[:60]!r} is not a port between 1 and 65535")
            ports.append(int(text))
    return StreamOptions(
        container=query.get("container", ""),
        command=tuple(query.getall("command", [])),
        stdin=queries.flag(query, "stdin"),
        stdout=queries.flag(query, "stdout"),
        stderr=queries.flag(query, "stderr"),
        tty=queries.flag(query, "tty"),
        ports=tuple(ports),
        owner=owner,
    )


class Session:
    """The WebSocket of one exec, attach or port-forward, once it is accepted."""

    def __init__(self, request: web.BaseRequest, kind: StreamKind) -> None:
        self._request = request
        self._kind = kind
        self._socket: web.WebSocketResponse | None = None

    async def accept(self) -> web.WebSocketResponse:
        """Opens it, if the client requests a WebSocket in a supported protocol."""
        spoken = PROTOCOLS[self._kind]
        given = self._request.headers.get("Sec-WebSocket-Protocol", "")
        offered = [name.strip() for name in given.split(",")]
        socket = web.WebSocketResponse(protocols=spoken, max_msg_size=4 << 20)
        if not socket.can_prepare(self._request):
            raise errors.BadRequest(
                f"pods/{self._kind} is served over WebSocket only ({', '.join(spoken)}), not SPDY"
            )
        if not set(offered) & set(spoken):
            raise errors.BadRequest(
                f"pods/{self._kind}: none of the offered protocols ({', '.join(offered)[:200]}) "
                f"is served; use {spoken[0]}"
            )
        await socket.prepare(self._request)
        self._socket = socket
        return socket

    async def close(self) -> web.WebSocketResponse:
        """The response to the request: the closed socket."""
        socket = self._socket or await self.accept()
        await socket.close()
        return socket


def unreachable(what: str, pod: dict[str, Any]) -> errors.Unavailable:
    """The error when no gateway reaches the node."""
    name = pod["metadata"]["name"]
    node = pod.get("spec", {}).get("nodeName")
    where = f"node {node} is not connected" if node else "the pod is on no node yet"
    return errors.Unavailable(f'{what} of pod "{name}" cannot be had: {where}; try again later')
