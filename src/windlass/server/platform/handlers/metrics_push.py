"""What nodes of Kubernetes use: their agents push reports (`agent.metrics.push`).

A report counts for three minutes: a node that stops reporting has no metrics, rather than old ones.
With several servers any of them takes a report and any other needs it, so reports lie in storage
that all of them see.
"""

from __future__ import annotations

import msgspec

from windlass.ledger.ingest import utilization
from windlass.server.auth.identity import Identity
from windlass.server.storage.interfaces import NodeMetricsStore
from windlass.store import errors
from windlass.telemetry.usage_rates import Rates

MOST_BYTES = 1 << 20
"""Of one report: a few hundred bytes for each pod of the node."""
_SOONEST, _LATEST = 10.0, 60.0
_REPORTS_PER_SECOND = 100
"""Of all nodes together: with more nodes each reports less often, but at least once a minute, as
the ledger samples. From 6,000 nodes on there are more reports a second."""


class StoredReports:
    """A `metrics.PushSource`: the latest report of each node counts."""

    def __init__(self, reports: NodeMetricsStore) -> None:
        self._reports = reports

    async def rates(self) -> dict[str, Rates]:
        found = await self._reports.fresh()
        return {node: msgspec.json.decode(body, type=Rates) for node, body in found.items()}

    async def take(self, identity: Identity, node: str, body: bytes) -> float:
        if not node or identity.bound_node != node:
            raise errors.Forbidden(
                f"only the agent of node {node} may report its metrics: this token belongs to a "
                "pod on another node"
            )
        if len(body) > MOST_BYTES:
            raise errors.BadRequest(
                f"a report has at most {MOST_BYTES} bytes and this one has {len(body)}"
            )
        try:
            rates = msgspec.json.decode(body, type=Rates)
            containers = (c.usage for p in rates.pods.values() for c in p.containers)
            for usage in (rates.node, *containers):
                utilization.use([usage])
        except (ValueError, msgspec.MsgspecError) as problem:
            raise errors.BadRequest(f"not a report of a node: {problem}") from problem
        nodes = await self._reports.put(node, body)
        return min(_LATEST, max(_SOONEST, nodes / _REPORTS_PER_SECOND))
