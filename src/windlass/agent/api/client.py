"""The API server's client of an agent: logs, exec sessions and usage over the agent's endpoint.

`server` uses it as the `NodeGateway` of the pod subresources. An agent's Unix socket is in the
agents' state folder on this machine. Agents of nodes that are not ready are not asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from windlass.agent.api import server, unix_socket
from windlass.agent.api.owner_rights import OwnerRights
from windlass.kinds import codec
from windlass.kinds.types import core
from windlass.kinds.types.resource import Resource
from windlass.podlogs.options import LogOptions, StreamOptions
from windlass.store import errors, interface

_BASE = "http://agent"
_USAGE_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=5.0, sock_connect=5.0)


class AgentGateway:
    """Reaches the agents whose state folder is on this machine."""

    def __init__(self, store: interface.Store, agent_state: Path) -> None:
        self._store = store
        self._state = agent_state
        self._rights = OwnerRights(store, agent_state)

    async def log(self, pod: dict[str, Any], options: LogOptions) -> AsyncIterator[bytes]:
        """Yields the log in pieces; with `follow`, until the container ends."""
        name = pod["metadata"]["name"]
        container = _container(pod, options.container)
        node = (await self._node_of(pod)).name
        path = f"{_BASE}/logs/{pod['metadata']['uid']}/{container}"
        try:
            async with (
                self._session(node, _TIMEOUT) as session,
                session.get(path, params=_params(options)) as answer,
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
        """exec, attach, port-forward: relays the messages of both sides unchanged."""
        name = pod["metadata"]["name"]
        path = f"{_BASE}/{kind}/{pod['metadata']['uid']}"
        protocols: tuple[str, ...] = (server.TUNNEL,)
        if kind != "portforward":
            path += f"/{_container(pod, options.container)}"
            protocols = server.CHANNELS
        node = await self._node_of(pod)
        if not options.owner:
            await self._rights.check_session(pod, node)
        async with self._session(node.name, _TIMEOUT) as session:
            try:
                agent = await session.ws_connect(
                    path, params=_session_params(options), protocols=protocols,
                    max_msg_size=4 << 20, autoclose=False,
                )  # fmt: skip
            except aiohttp.WSServerHandshakeError as refused:
                raise errors.BadRequest(
                    f'pod "{name}" cannot be reached: {refused.message}'
                ) from None
            except aiohttp.ClientError as error:
                raise errors.Unavailable(
                    f"the agent that runs pod {name} does not answer"
                ) from error
            try:
                await _relay(await accept(), agent)
            finally:
                await agent.close()

    async def usage(self, node: dict[str, Any], path: str) -> tuple[int, str, bytes]:
        """Status, content type and body of the agent's `/metrics/resource` or `/stats/summary`."""
        name = node["metadata"]["name"]
        _check_ready(codec.from_dict(core.Node, node))
        try:
            async with (
                self._session(name, _USAGE_TIMEOUT) as session,
                session.get(f"{_BASE}/{path}") as answer,
            ):
                return answer.status, answer.content_type, await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise errors.Unavailable(f"the agent of node {name} does not answer") from error

    async def check_binding(self, resource: Resource, namespace: str, name: str, to: Any) -> None:
        """Invalid if the change of a binding would let other users into pods of the owner."""
        await self._rights.check_binding(resource, namespace, name, to)

    async def files(self, pod: dict[str, Any], path: str, *, owner: bool) -> bytes:
        """What is at a path of the pod and below it, as the agent's JSON. `owner`: the caller has
        the rights of the engine's owner, as for sessions."""
        where = f"{_BASE}/files/{pod['metadata']['uid']}"
        async with self._answer(pod, where, {"path": path}, owner) as answer:
            return await answer.read()

    async def file_content(
        self, pod: dict[str, Any], path: str, offset: int, size: int, *, owner: bool
    ) -> AsyncIterator[bytes]:
        """Bytes of a file of the pod, in pieces."""
        where = f"{_BASE}/filecontent/{pod['metadata']['uid']}"
        asked = {"path": path, "offset": str(offset), "size": str(size)}
        async with self._answer(pod, where, asked, owner) as answer:
            async for piece in answer.content.iter_any():
                yield piece

    @contextlib.asynccontextmanager
    async def _answer(
        self, pod: dict[str, Any], path: str, query: dict[str, str], owner: bool
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        name = pod["metadata"]["name"]
        node = await self._node_of(pod)
        if not owner:
            await self._rights.check_session(pod, node)
        try:
            async with (
                self._session(node.name, _TIMEOUT) as session,
                session.get(path, params=query) as answer,
            ):
                if answer.status != 200:
                    raise errors.BadRequest(await answer.text())
                yield answer
        except aiohttp.ClientError as error:
            raise errors.Unavailable(f"the agent that ran pod {name} does not answer") from error

    async def _node_of(self, pod: dict[str, Any]) -> core.Node:
        """The pod's node, which is ready."""
        name = pod.get("spec", {}).get("nodeName")
        if not name:
            raise errors.BadRequest(f'pod "{pod["metadata"]["name"]}" is on no node yet')
        node = await self._store.get(core.Node, name)
        _check_ready(node)
        return node

    @contextlib.asynccontextmanager
    async def _session(
        self, node: str, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientSession]:
        with contextlib.ExitStack() as stack:
            try:
                path = stack.enter_context(unix_socket.address(self._state, node))
            except OSError as error:
                raise errors.Unavailable(
                    f"the agent of node {node} does not run on this machine; try again later"
                ) from error
            connector = aiohttp.UnixConnector(path=path)
            async with aiohttp.ClientSession(connector=connector, timeout=limits) as session:
                yield session


def _check_ready(node: core.Node) -> None:
    if not node.is_ready:
        raise errors.Unavailable(f"node {node.name} is not ready; try again later")


async def _relay(client: web.WebSocketResponse, node: aiohttp.ClientWebSocketResponse) -> None:
    """Relays messages until either side closes."""

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
    """The name of the requested container; the only one if none is named."""
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
