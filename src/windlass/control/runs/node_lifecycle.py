"""Nodes that fall silent: who marks them, and what that means for their pods.

`Heartbeats` marks a node whose Lease is no longer renewed; on Kubernetes its own node controller
does that, so whether we do is a fact of the engine. It believes no other machine's clock: a lease
is stale when it was seen unchanged for the whole time by the clock here.

`Silence` tells the run controller which nodes are lost. A node that only restarts its agent comes
back before, adopts its pods, and nothing happened.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from windlass.control import runtime, runview
from windlass.kinds import kubernetes, meta, times
from windlass.store import client, errors
from windlass.store.reflector import Change, Reflector

log = logging.getLogger(__name__)

NAME = "nodes"
LEASES = "kube-node-lease"
STALE = 40.0
"""Seconds without a renewal after which a node is marked."""
LOOK = 10.0
LOST = 60.0
"""Seconds that a node may be marked, or say itself that it is not ready, before it counts as lost:
long enough for its agent to be replaced."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""The taint by which somebody vouches that nothing runs on a node any more."""
_MARK = "NodeStatusUnknown"


class Heartbeats:
    """The reconciler of one Node's readiness. A node without a Lease promised no heartbeat."""

    def __init__(
        self,
        store: client.Store,
        is_ours: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._is_ours = is_ours
        """Whether the engine leaves this to us."""
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}
        """By node: what its lease said, and since when we know."""

    async def reconcile(self, key: runtime.Key) -> runtime.Result:
        _, name = key
        if not self._is_ours():
            return runtime.DONE
        try:
            node = await self._store.get(kubernetes.Node, name)
            lease = await self._store.get(kubernetes.Lease, name, LEASES)
        except errors.NotFound:
            self._seen.pop(name, None)
            return runtime.again(LOOK) if await self._exists(name) else runtime.DONE
        now, renewed = self._clock(), lease.spec.renew_time or ""
        known, since = self._seen.setdefault(name, (renewed, now))
        if known != renewed:
            self._seen[name] = (renewed, now)
            if _is_marked(node):
                await self._mark(node, "True", "AgentReady", "the agent renews its lease again")
            return runtime.again(LOOK)
        left = since + STALE - now
        if left > 0:
            return runtime.again(min(LOOK, left + 0.01))
        if _ready(node).status not in ("Unknown", "False"):
            words = f"the agent has not renewed its lease for {STALE:g} s"
            await self._mark(node, "Unknown", _MARK, words)
        return runtime.again(LOOK)

    async def _exists(self, name: str) -> bool:
        try:
            await self._store.get(kubernetes.Node, name)
        except errors.NotFound:
            return False
        return True

    async def _mark(self, node: kubernetes.Node, status: str, reason: str, message: str) -> None:
        ready = meta.Condition(
            type="Ready",
            status=status,
            reason=reason,
            message=message,
            last_transition_time=times.seconds(times.now()),
        )
        others = [c for c in node.status.conditions or () if c.type != "Ready"]
        await self._store.patch(
            kubernetes.Node, node.name, subresource="status",
            patch={
                "metadata": {"resourceVersion": node.metadata.resource_version},
                "status": {"conditions": msgspec.to_builtins([*others, ready])},
            },
        )  # fmt: skip
        log.warning("node %s: Ready is %s: %s", node.name, status, message)


class Silence:
    """Which nodes are lost or gone, as this leader has seen it."""

    def __init__(
        self, nodes: Reflector[kubernetes.Node], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._nodes = nodes
        self._clock = clock
        self._since: dict[str, float] = {}
        nodes.add_handler(self._see)

    def look(self, names: Iterable[str]) -> tuple[dict[str, runview.Node], float | None]:
        """Of these nodes, those that are lost or gone; and when to look again at the others."""
        found: dict[str, runview.Node] = {}
        wake: float | None = None
        for name in names:
            node, since = self._nodes.get(name), self._since.get(name)
            if node is None or _is_out(node):
                found[name] = runview.Node("gone")
            elif since is not None:
                left = since + LOST - self._clock()
                if left <= 0:
                    found[name] = runview.Node("lost", _ready(node).last_transition_time)
                else:
                    wake = left if wake is None else min(left, wake)
        return found, wake

    def _see(
        self, _: Change, before: kubernetes.Node | None, after: kubernetes.Node | None
    ) -> None:
        if after is None:
            assert before is not None, "a change has an object before or after it"  # noqa: S101
            self._since.pop(before.name, None)
        elif after.is_ready:
            self._since.pop(after.name, None)
        else:
            self._since.setdefault(after.name, self._clock())


def matters(before: kubernetes.Node | None, after: kubernetes.Node | None) -> bool:
    """Whether a change of a node may mean something for the Runs on it."""
    if before is None or after is None:
        return True
    return before.is_ready != after.is_ready or _is_out(before) != _is_out(after)


def _is_out(node: kubernetes.Node) -> bool:
    return any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints or ())


def _ready(node: kubernetes.Node) -> meta.Condition:
    found = (c for c in node.status.conditions or () if c.type == "Ready")
    return next(found, meta.Condition(type="Ready", status=""))


def _is_marked(node: kubernetes.Node) -> bool:
    ready = _ready(node)
    return ready.status == "Unknown" and ready.reason == _MARK
