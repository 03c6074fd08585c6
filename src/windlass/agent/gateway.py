"""The API server's way to an agent: pods/log over the agent's HTTP endpoint.

`server` hands this to its pod paths as their `NodeGateway`. The address is the node's own, as its
Node object says; the secret is read from the agent's state folder on this machine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NoReturn, Protocol

import aiohttp

from windlass.agent import http
from windlass.kinds import kubernetes, wire
from windlass.store import client, errors

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

    async def stream(self, kind: str, pod: dict[str, Any], *_: object) -> NoReturn:
        """exec, attach and port-forward: this agent does not do them."""
        name = pod["metadata"]["name"]
        raise errors.MethodNotAllowed(
            f'{kind} into pod "{name}" is not supported by the embedded engine; read its log with '
            f"kubectl logs {name}"
        )

    async def _url(self, pod: dict[str, Any], name: str) -> str:
        node_name = pod.get("spec", {}).get("nodeName")
        if not node_name:
            raise errors.BadRequest(f'pod "{name}" is on no node yet')
        status = wire.to_dict(await self._store.get(kubernetes.Node, node_name)).get("status", {})
        port = status.get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port")
        addresses = {each["type"]: each["address"] for each in status.get("addresses") or ()}
        if not port or "InternalIP" not in addresses:
            raise errors.Unavailable(f"node {node_name} has not said where its agent listens")
        return f"http://{addresses['InternalIP']}:{port}"

    def _secret(self) -> str:
        try:
            return http.secret_file(self._state).read_text()
        except OSError as error:
            raise errors.Unavailable("no agent has been started on this machine") from error


def _container(pod: dict[str, Any], wanted: str) -> str:
    """The container that is meant: the only one, if none is named."""
    names = [container["name"] for container in pod.get("spec", {}).get("containers", ())]
    name = pod["metadata"]["name"]
    if wanted and wanted not in names:
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
