"""What nodes of the embedded engine use: the server asks their agents on request.

Agents count seconds of CPU, and a rate needs two snapshots. The last snapshot of each node is kept;
without one, a request takes a moment longer. Nothing is asked of agents unless a request or the
ledger (once a minute) needs it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

import msgspec
from aiohttp import web

from windlass.kinds import codec
from windlass.kinds.types import core
from windlass.server.platform.call import PlatformCall
from windlass.store import errors, interface
from windlass.telemetry.usage_rates import Rates, UsageSnapshot, between

_SHORTEST_WINDOW, _LONGEST_WINDOW = 0.3, 90.0
"""Seconds between two snapshots. The ledger asks every minute: that minute is one window."""


class UsageGateway(Protocol):
    """Reads pages of agents."""

    async def usage(self, node: dict[str, Any], path: str) -> tuple[int, str, bytes]: ...


class PullSource:
    """A `metrics.Source` that asks the agents."""

    def __init__(self, store: interface.Store, gateway: Any) -> None:
        self._store = store
        self._gateway: UsageGateway | None = gateway if hasattr(gateway, "usage") else None
        self._snapshots: dict[str, UsageSnapshot] = {}

    async def rates(self) -> dict[str, Rates]:
        nodes = (await self._store.list(core.Node)).items
        found = await asyncio.gather(*(self._rates(node) for node in nodes))
        pairs = zip(nodes, found, strict=True)
        return {node.name: rates for node, rates in pairs if rates is not None}

    async def resource_metrics(self, call: PlatformCall) -> web.Response:
        return await self._proxy(call, "metrics/resource")

    async def stats_summary(self, call: PlatformCall) -> web.Response:
        return await self._proxy(call, "stats/summary")

    async def _proxy(self, call: PlatformCall, page: str) -> web.Response:
        """A page of the agent's own, as it is."""
        node = await self._store.get(core.Node, call.parameters["node"])
        status, kind, body = await self._page(node, page)
        return web.Response(status=status, body=body, headers={"Content-Type": kind})

    async def _page(self, node: core.Node, page: str) -> tuple[int, str, bytes]:
        if self._gateway is None:
            raise errors.Unavailable("this server has no connection to agents")
        return await self._gateway.usage(codec.to_dict(node), page)

    async def _rates(self, node: core.Node) -> Rates | None:
        """What a node and its pods use now; None if its agent does not answer."""
        try:
            before = self._snapshots.get(node.name)
            if before is None or time.monotonic() - before.at > _LONGEST_WINDOW:
                before = await self._snapshot(node)
            left = _SHORTEST_WINDOW - (time.monotonic() - before.at)
            if left > 0:
                await asyncio.sleep(left)
            return between(before, await self._snapshot(node))
        except errors.ApiError:
            return None

    async def _snapshot(self, node: core.Node) -> UsageSnapshot:
        status, _, body = await self._page(node, "stats/summary")
        if status != 200:
            raise errors.Unavailable("the agent has no metrics")
        snapshot = UsageSnapshot(time.monotonic(), msgspec.json.decode(body))
        self._snapshots[node.name] = snapshot
        return snapshot
