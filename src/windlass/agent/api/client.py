"""The API server's way to an agent: logs, sessions and usage over the agent's HTTP endpoint.

`server` hands this to its pod paths as their `NodeGateway`. The address is the node's own, as its
Node object says; the secret is read from the agent's state folder on this machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import aiohttp
from aiohttp import web

from windlass.agent import http
from windlass.kinds import kubernetes, wire
from windlass.store import client, errors

_USAGE_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5.0, sock_connect=5.0)


class LogOptions(Protocol):
    """What a client of pods/log may ask for."""

    @property
    def container(self) -> str: ...
    @property
    def follow(self) -> bool: ...
    @property
    def previous(self) -> bool: ...
    @property
    def timestamps(self) -> bool: ...
    @property
    def since_seconds(self) -> int | None: ...
    @property
    def since_time(self) -> str: ...
    @property
    def tail_lines(self) -> int | None: ...
    @property
    def limit_bytes(self) -> int | None: ...


class StreamOptions(Protocol):
    """What a client of pods/exec and its kin may ask for."""

    @property
    def container(self) -> str: ...
    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def stdin(self) -> bool: ...
    @property
    def stdout(self) -> bool: ...
    @property
    def stderr(self) -> bool: ...
    @property
    def tty(self) -> bool: ...


class AgentGateway:
    """Reaches the agents whose state folder is on this machine."""

    def __init__(self, store: client.Store, agent_state: Path) -> None:
        self._store = store
        self._state = agent_state

    async def log(self, pod: dict[str, Any], options: LogOptions) -> AsyncIterator[bytes]:
        """The log in pieces; with `follow` until the container ends."""
        name = pod["metadata"]["name"]
        container = _container(pod, options.container)
        url = await self._url(pod, name)
        path = f"{url}/logs/{pod['metadata']['uid']}/{container}"
        headers = {"Authorization": f"Bearer {self._secret()}"}
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as session,
                session.get(path, params=_params(options), headers=headers) as answer,
            ):
                if answer.status != 200:
                    why = await answer.text()
                    raise errors.BadRequest(f'container "{container}" in pod "{name}": {why}')
                async for piece in answer.content.iter_any():
                    yield piece
        except aiohttp.ClientError as error:
            raise errors.Unavailable(f"the agent that runs pod {name} does not answer") from error

    async def stream(
        self,
        kind: str,
        pod: dict[str, Any],
        options: StreamOptions,
        accept: Callable[[], Awaitable[web.WebSocketResponse]],
    ) -> None:
        """exec, attach, port-forward: messages pass through as they are, both ways."""
        name = pod["metadata"]["name"]
        path = f"{await self._url(pod, name)}/{kind}/{pod['metadata']['uid']}"
        protocols: tuple[str, ...] = (http.TUNNEL,)
        if kind != "portforward":
            path += f"/{_container(pod, options.container)}"
            protocols = http.CHANNELS
        headers = {"Authorization": f"Bearer {self._secret()}"}
        session = aiohttp.ClientSession(timeout=_TIMEOUT)
        try:
            node = await session.ws_connect(
                path, params=_session_params(options), headers=headers, protocols=protocols,
                max_msg_size=4 << 20, autoclose=False,
            )  # fmt: skip
        except aiohttp.WSServerHandshakeError as refused:
            await session.close()
            raise errors.BadRequest(f'pod "{name}" cannot be reached: {refused.message}') from None
        except aiohttp.ClientError as error:
            await session.close()
            raise errors.Unavailable(f"the agent that runs pod {name} does not answer") from error
        try:
            await _relay(await accept(), node)
        finally:
            await node.close()
            await session.close()

    async def usage(self, node: dict[str, Any], path: str) -> tuple[int, str, bytes]:
        """What the node's agent answers at `/metrics/resource` or `/stats/summary`: status,
        content type, body."""
        url = f"{self._node_url(node)}/{path}"
        headers = {"Authorization": f"Bearer {self._secret()}"}
        try:
            async with (
                aiohttp.ClientSession(timeout=_USAGE_TIMEOUT) as session,
                session.get(url, headers=headers) as answer,
            ):
                return answer.status, answer.content_type, await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            name = node["metadata"]["name"]
            raise errors.Unavailable(f"the agent of node {name} does not answer") from error

    async def _url(self, pod: dict[str, Any], name: str) -> str:
        node_name = pod.get("spec", {}).get("nodeName")
        if not node_name:
            raise errors.BadRequest(f'pod "{name}" is on no node yet')
        return self._node_url(wire.to_dict(await self._store.get(kubernetes.Node, node_name)))

    def _node_url(self, node: dict[str, Any]) -> str:
        status = node.get("status") or {}
        port = status.get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port")
        addresses = {each["type"]: each["address"] for each in status.get("addresses") or ()}
        if not port or "InternalIP" not in addresses:
            name = node["metadata"]["name"]
            raise errors.Unavailable(f"node {name} has not said where its agent listens")
        return f"http://{addresses['InternalIP']}:{port}"

    def _secret(self) -> str:
        try:
            return http.secret_file(self._state).read_text()
        except OSError as error:
            raise errors.Unavailable("no agent has been started on this machine") from error


async def _relay(client: web.WebSocketResponse, node: aiohttp.ClientWebSocketResponse) -> None:
    """Until either end closes."""

    async def there() -> None:
        async for message in client:
            if message.type == aiohttp.WSMsgType.BINARY:
                await node.send_bytes(message.data)

    async def back() -> None:
        async for message in node:
            if message.type == aiohttp.WSMsgType.BINARY:
                await client.send_bytes(message.data)

    tasks = {asyncio.create_task(there()), asyncio.create_task(back())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _container(pod: dict[str, Any], wanted: str) -> str:
    """The container that is meant: the only one, if none is named."""
    spec = pod.get("spec", {})
    names = [container["name"] for container in spec.get("containers", ())]
    before = [container["name"] for container in spec.get("initContainers", ())]
    name = pod["metadata"]["name"]
    if wanted and wanted not in (*names, *before):
        raise errors.BadRequest(f"container {wanted} is not valid for pod {name}")
    if not wanted and len(names) != 1:
        raise errors.BadRequest(
            f"a container name must be specified for pod {name}, choose one of: {names}"
        )
    return wanted or str(names[0])


def _params(options: LogOptions) -> dict[str, str]:
    asked = {
        "follow": "true" if options.follow else "",
        "previous": "true" if options.previous else "",
        "timestamps": "true" if options.timestamps else "",
        "sinceSeconds": options.since_seconds,
        "sinceTime": options.since_time,
        "tailLines": options.tail_lines,
        "limitBytes": options.limit_bytes,
    }
    return {name: str(value) for name, value in asked.items() if value not in (None, "")}


def _session_params(options: StreamOptions) -> list[tuple[str, str]]:
    flags = ("stdin", "stdout", "stderr", "tty")
    asked = [(name, "true") for name in flags if getattr(options, name)]
    return [*asked, *(("command", word) for word in options.command)]
