"""Nodes that stop renewing their leases, and the consequences for their pods.

`Heartbeats` marks a node whose Lease is no longer renewed. On Kubernetes the node controller does
that; a capability of the engine decides. Clocks of other machines are not trusted: a lease is stale
when it did not change for the whole time by the local clock.

`NodeStates` has the lost nodes for the run controller. A node that only restarts its agent is ready
again before that, and adopts its pods.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import msgspec

from windlass.control.model import run_view
from windlass.control.runtime import controller
from windlass.kinds.types import core, meta
from windlass.kinds.values import times
from windlass.store import errors, interface
from windlass.store.informer import Change, Informer

log = logging.getLogger(__name__)

NAME = "nodes"
LEASES = "kube-node-lease"
STALE = 40.0
"""Seconds without a renewal after which a node is marked."""
CHECK_EVERY = 10.0
"""Seconds between two checks of a lease."""
LOST = 60.0
"""Seconds that a node may be marked, or report itself as not ready, before it counts as lost: long
enough for its agent to be replaced."""
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""The taint by which an administrator confirms that nothing runs on a node any more."""
_MARK = "NodeStatusUnknown"


class Heartbeats:
    """The reconciler of one Node's readiness. A node without a Lease sends no heartbeats."""

    def __init__(
        self,
        store: interface.Store,
        is_ours: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._is_ours = is_ours
        """Whether this controller marks the nodes of the engine."""
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}
        """Node -> the renewal time in its lease, and its first observation by the local clock."""

    async def reconcile(self, key: controller.Key) -> controller.Result:
        _, name = key
        if not self._is_ours():
            return controller.DONE
        try:
            node = await self._store.get(core.Node, name)
            lease = await self._store.get(core.Lease, name, LEASES)
        except errors.NotFound:
            self._seen.pop(name, None)
            return controller.again(CHECK_EVERY) if await self._exists(name) else controller.DONE
        now, renewed = self._clock(), lease.spec.renew_time or ""
        known, since = self._seen.setdefault(name, (renewed, now))
        if known != renewed:
            self._seen[name] = (renewed, now)
            if _is_marked(node):
                await self._mark(node, "True", "AgentReady", "the agent renews its lease again")
            return controller.again(CHECK_EVERY)
        left = since + STALE - now
        if left > 0:
            return controller.again(min(CHECK_EVERY, left + 0.01))
        if _ready(node).status not in ("Unknown", "False"):
            message = f"the agent has not renewed its lease for {STALE:g} s"
            await self._mark(node, "Unknown", _MARK, message)
        return controller.again(CHECK_EVERY)

    async def _exists(self, name: str) -> bool:
        try:
            await self._store.get(core.Node, name)
        except errors.NotFound:
            return False
        return True

    async def _mark(self, node: core.Node, status: str, reason: str, message: str) -> None:
        ready = meta.Condition(
            type="Ready",
            status=status,
            reason=reason,
            message=message,
            last_transition_time=times.seconds(times.now()),
        )
        others = [c for c in node.status.conditions or () if c.type != "Ready"]
        await self._store.patch(
            core.Node, node.name, subresource="status",
            patch={
                "metadata": {"resourceVersion": node.metadata.resource_version},
                "status": {"conditions": msgspec.to_builtins([*others, ready])},
            },
        )  # fmt: skip
        log.warning("node %s: Ready is %s: %s", node.name, status, message)


class NodeStates:
    """Lost and deleted nodes, as this leader has observed them."""

    def __init__(
        self, nodes: Informer[core.Node], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._nodes = nodes
        self._clock = clock
        self._since: dict[str, float] = {}
        nodes.add_handler(self._on_node)

    def lost(
        self, names: Iterable[str], within: float = LOST
    ) -> tuple[dict[str, run_view.Node], float | None]:
        """The lost or deleted ones of these nodes, and the seconds until another one may be
        lost. `within`: seconds after which a Run gives its replicas up; shorter than usual, its
        nodes count as lost then."""
        found: dict[str, run_view.Node] = {}
        wake: float | None = None
        for name in names:
            node, since = self._nodes.get(name), self._since.get(name)
            if node is None or _is_out(node):
                found[name] = run_view.Node("gone")
            elif since is not None:
                silent = self._clock() - since
                left = min(LOST, within) - silent
                if left <= 0:
                    since_when = _ready(node).last_transition_time or ""
                    found[name] = run_view.Node("lost", silent, since_when)
                else:
                    wake = left if wake is None else min(left, wake)
        return found, wake

    def address(self, name: str) -> str:
        """The address at which other nodes reach a node; "" if it is unknown."""
        node = self._nodes.get(name)
        listed = (node.status.addresses if node else None) or ()
        return next((each.address for each in listed if each.type == "InternalIP"), "")

    def _on_node(self, _: Change, before: core.Node | None, after: core.Node | None) -> None:
        if after is None:
            assert before is not None, "a change has an object before or after it"  # noqa: S101
            self._since.pop(before.name, None)
        elif after.is_ready:
            self._since.pop(after.name, None)
        else:
            self._since.setdefault(after.name, self._clock())


def matters(before: core.Node | None, after: core.Node | None) -> bool:
    """Whether a change of a node may affect the Runs on it."""
    if before is None or after is None:
        return True
    return before.is_ready != after.is_ready or _is_out(before) != _is_out(after)


def _is_out(node: core.Node) -> bool:
    return any(taint.key == OUT_OF_SERVICE for taint in node.spec.taints or ())


def _ready(node: core.Node) -> meta.Condition:
    found = (c for c in node.status.conditions or () if c.type == "Ready")
    return next(found, meta.Condition(type="Ready", status=""))


def _is_marked(node: core.Node) -> bool:
    ready = _ready(node)
    return ready.status == "Unknown" and ready.reason == _MARK
