"""What nodes of Kubernetes use: their agents tell (`agent.reporting`); each one's last word counts.

A report is good for three minutes: a node that falls silent is not measured, rather than measured
as it was. With several servers a report comes to any of them and is asked for at any other, so
reports lie where all of them see them (`places`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from windlass.agent.rates import Rates
from windlass.ledger import activity
from windlass.server.identity import Identity
from windlass.store import errors

FRESH_SECONDS = 180.0
MOST_BYTES = 1 << 20
"""Of one report: some hundred bytes for each of a node's pods."""
_SOONEST, _LATEST = 10.0, 60.0
_A_SECOND = 100
"""Reports that all nodes together send: more nodes tell more rarely. The ledger looks every minute;
from 6,000 nodes on there are more."""
_NODE = "authentication.kubernetes.io/node-name"
"""What the API server says of a pod's token: on which node the pod is."""


class Keeping(Protocol):
    async def put(self, node: str, report: bytes) -> int:
        """How many nodes told something lately."""
        ...

    async def fresh(self) -> dict[str, bytes]:
        """By node."""
        ...


class InMemory:
    """For one server. After a restart every node tells again within a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[str, tuple[float, bytes]] = {}

    async def put(self, node: str, report: bytes) -> int:
        self._reports[node] = (self._clock(), report)
        return len(self._reports)

    async def fresh(self) -> dict[str, bytes]:
        oldest = self._clock() - FRESH_SECONDS
        self._reports = {name: told for name, told in self._reports.items() if told[0] > oldest}
        return {name: report for name, (_, report) in self._reports.items()}


class Reported:
    """`usage.Told`."""

    def __init__(self, kept: Keeping) -> None:
        self._kept = kept

    async def rates(self) -> dict[str, Rates]:
        found = await self._kept.fresh()
        return {node: msgspec.json.decode(body, type=Rates) for node, body in found.items()}

    async def take(self, identity: Identity, node: str, body: bytes) -> float:
        if node not in dict(identity.extra).get(_NODE, ()):
            raise errors.Forbidden(
                f"node {node} is measured by its own agent alone: this token is of a pod elsewhere"
            )
        if len(body) > MOST_BYTES:
            raise errors.BadRequest(f"a report of {len(body)} bytes; {MOST_BYTES} are taken")
        try:
            told = msgspec.json.decode(body, type=Rates)
            for usage in (told.node, *(c.usage for p in told.pods.values() for c in p.containers)):
                activity.use([usage])
        except (ValueError, msgspec.MsgspecError) as problem:
            raise errors.BadRequest(f"this is no report of a node: {problem}") from problem
        nodes = await self._kept.put(node, body)
        return min(_LATEST, max(_SOONEST, nodes / _A_SECOND))
