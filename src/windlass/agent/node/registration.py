"""Registers this machine as a Node, reports its status and renews a Lease as its heartbeat."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from windlass.agent.node import inventory, privileges
from windlass.kinds.annotations import HELD
from windlass.kinds.types import core, meta
from windlass.kinds.values import quantity, times
from windlass.store import errors, interface

log = logging.getLogger(__name__)

LEASES = "kube-node-lease"
LEASE_SECONDS = 40
HEARTBEAT_SECONDS = 10.0
STATUS_EVERY = 30
"""Heartbeats between two full status reports, which repair a status that was changed."""


@dataclasses.dataclass(frozen=True, slots=True)
class FakeCapacity:
    """The capacity and labels of a fake node."""

    amounts: Mapping[str, str]
    labels: Mapping[str, str]


class NodeHeartbeat:
    """Registers the node and renews its lease."""

    def __init__(
        self,
        store: interface.Store,
        name: str,
        address: str,
        abilities: privileges.Abilities | None = None,
        fake: FakeCapacity | None = None,
        disk: int = 0,
    ) -> None:
        """`disk`: bytes of the file system with the files of pods; 0: not known."""
        self._fake = fake
        self._disk = disk
        self.abilities = abilities or privileges.Abilities()
        self._store = store
        self._name = name
        self._address = address

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The node is Ready inside the block and not Ready after it."""
        await self._until_registered()
        beat = asyncio.create_task(self._beat(), name="heartbeat")
        try:
            yield
        finally:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)
            with contextlib.suppress(errors.ApiError, TimeoutError):
                async with asyncio.timeout(2.0):
                    await self._report(ready=False)

    async def _until_registered(self) -> None:
        while True:
            try:
                await self.register()
            except errors.ApiError as error:
                log.warning("node %s cannot register yet: %s", self._name, error.message)
                await asyncio.sleep(error.retry_after or 1.0)
            else:
                log.info("node %s is ready", self._name)
                return

    async def register(self) -> None:
        """Creates or updates the Node, the namespace of leases, the Lease and the status."""
        with contextlib.suppress(errors.AlreadyExists):
            await self._store.create(
                core.Node(metadata=meta.ObjectMeta(name=self._name, labels=self._labels()))
            )
        # The token of a node may not create it: the server does, and on Kubernetes it exists.
        with contextlib.suppress(errors.AlreadyExists, errors.Forbidden):
            await self._store.create(
                core.Namespace(metadata=meta.ObjectMeta(name=LEASES))
            )  # fmt: skip
        await self._report(ready=True)
        await self._renew()

    async def _beat(self) -> None:
        count = 0
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            count += 1
            try:
                await self._renew()
                if count % STATUS_EVERY == 0:
                    await self._report(ready=True)
            except errors.NotFound:
                await self._until_registered()
            except errors.ApiError as error:
                log.warning("node %s: heartbeat failed: %s", self._name, error.message)

    async def _renew(self) -> None:
        now = times.micros(times.now())
        spec = {
            "holderIdentity": self._name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now,
        }
        try:
            await self._store.patch(core.Lease, self._name, LEASES, patch={"spec": spec})
        except errors.NotFound:
            node = await self._store.get(core.Node, self._name)
            owner = meta.OwnerReference(
                api_version="v1", kind="Node", name=self._name, uid=node.uid
            )
            await self._store.create(
                core.Lease(
                    metadata=meta.ObjectMeta(
                        name=self._name, namespace=LEASES, owner_references=[owner]
                    ),
                    spec=core.LeaseSpec(
                        holder_identity=self._name,
                        lease_duration_seconds=LEASE_SECONDS,
                        renew_time=now,
                    ),
                )
            )

    async def _report(self, *, ready: bool) -> None:
        known = await self._store.get(core.Node, self._name)
        await self._store.patch(
            core.Node,
            self._name,
            patch={
                "metadata": {"annotations": {HELD: json.dumps(self.abilities.summary())}},
                "status": self._status(known, ready),
            },
            subresource="status",
        )

    def _status(self, known: core.Node, ready: bool) -> dict[str, Any]:
        amounts = {
            "cpu": quantity.of_milli(inventory.cpu_milli()),
            "memory": f"{inventory.memory_bytes() // 1024}Ki",
            "pods": "1000",
            **({"ephemeral-storage": f"{self._disk // 1024}Ki"} if self._disk else {}),
            **{f"windlass.dev/{kind}": str(count) for kind, count in inventory.devices().items()},
        }
        if self._fake is not None:
            amounts = dict(self._fake.amounts)
        return {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": self._name},
            ],
            "daemonEndpoints": None,
            "nodeInfo": inventory.facts(),
            "conditions": [_ready(known, ready), self._limits_enforced(known)],
        }

    def _limits_enforced(self, known: core.Node) -> dict[str, str]:
        """The condition LimitsHeld: whether the kernel enforces the limits of containers."""
        enforced = self.abilities.cgroups is not None
        limits = self.abilities.summary()["limits"]
        return _condition(
            known, "LimitsHeld", "True" if enforced else "False",
            "Cgroups" if enforced else "NoCgroups", f"cpu and memory are {limits}",
        )  # fmt: skip

    def _labels(self) -> dict[str, str]:
        model = "" if self._fake else inventory.gpu_model()
        return {
            **({"windlass.dev/gpu-model": model} if model else {}),
            **(self._fake.labels if self._fake else {}),
            "kubernetes.io/hostname": self._name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": inventory.facts()["architecture"],
        }


def _ready(known: core.Node, ready: bool) -> dict[str, str]:
    if ready:
        return _condition(known, "Ready", "True", "AgentReady", "the agent is running")
    return _condition(known, "Ready", "False", "AgentStopped", "the agent was stopped")


def _condition(
    known: core.Node, kind: str, status: str, reason: str, message: str
) -> dict[str, str]:
    old = next((c for c in known.status.conditions or () if c.type == kind), None)
    now = times.seconds(times.now())
    since = old.last_transition_time if old and old.status == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": since or now,
    }
