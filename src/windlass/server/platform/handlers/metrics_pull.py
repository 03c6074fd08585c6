"""What nodes of the embedded engine use: their agents are asked, when somebody wants to know.

Agents count seconds of CPU; a rate needs two looks, so the last look of each node is kept, and the
first question takes a moment longer. The ledger asks once a minute; beside that, nothing is asked
of agents unless somebody wants to know.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

import msgspec
from aiohttp import web

from windlass.agent.rates import Look, Rates, between
from windlass.kinds import kubernetes, wire
from windlass.store import client, errors

_SHORTEST_WINDOW, _LONGEST_WINDOW = 0.3, 90.0
"""Seconds between two looks. The ledger asks every minute: that minute is one window."""


class Reaching(Protocol):
    """A gateway that reaches agents' own pages."""

    async def usage(self, node: dict[str, Any], path: str) -> tuple[int, str, bytes]: ...


class Looking:
    """`usage.Source`: asks."""

    def __init__(self, store: client.Store, gateway: Any) -> None:
        self._store = store
        self._gateway: Reaching | None = gateway if hasattr(gateway, "usage") else None
        self._looks: dict[str, Look] = {}

    async def rates(self) -> dict[str, Rates]:
        nodes = (await self._store.list(kubernetes.Node)).items
        found = await asyncio.gather(*(self._rates(node) for node in nodes))
        told = zip(nodes, found, strict=True)
        return {node.name: rated for node, rated in told if rated is not None}

    async def answer(self, name: str, page: str) -> web.Response:
        """What the agent of a node says itself."""
        node = await self._store.get(kubernetes.Node, name)
        status, kind, body = await self._page(node, page)
        return web.Response(status=status, body=body, headers={"Content-Type": kind})

    async def _page(self, node: kubernetes.Node, page: str) -> tuple[int, str, bytes]:
        if self._gateway is None:
            raise errors.Unavailable("nothing reaches the nodes here")
        return await self._gateway.usage(wire.to_dict(node), page)

    async def _rates(self, node: kubernetes.Node) -> Rates | None:
        """What a node and its pods use now; None if its agent does not answer."""
        try:
            before = self._looks.get(node.name)
            if before is None or time.monotonic() - before.at > _LONGEST_WINDOW:
                before = await self._look(node)
            left = _SHORTEST_WINDOW - (time.monotonic() - before.at)
            if left > 0:
                await asyncio.sleep(left)
            return between(before, await self._look(node))
        except errors.ApiError:
            return None

    async def _look(self, node: kubernetes.Node) -> Look:
        status, _, body = await self._page(node, "stats/summary")
        if status != 200:
            raise errors.Unavailable("the agent measures nothing")
        look = Look(time.monotonic(), msgspec.json.decode(body))
        self._looks[node.name] = look
        return look
