"""This machine as a Node: what it has, that it is ready, and a Lease as its heartbeat."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

from windlass.agent import machine, privileges
from windlass.kinds import hostpods, kubernetes, meta, quantity, times
from windlass.store import client, errors

log = logging.getLogger(__name__)

LEASES = "kube-node-lease"
LEASE_SECONDS = 40
BEAT = 10.0
STATUS_EVERY = 30
"""Beats between two full reports of the status, in case somebody changed it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pretended:
    """A node that is not there: what it says it has."""

    amounts: Mapping[str, str]
    labels: Mapping[str, str]


class Heart:
    """Registers the node and keeps saying that it lives."""

    def __init__(
        self,
        store: client.Store,
        name: str,
        address: str,
        port: int,
        abilities: privileges.Abilities | None = None,
        pretended: Pretended | None = None,
    ) -> None:
        self._pretended = pretended
        self.abilities = abilities or privileges.Abilities()
        self._store = store
        self._name = name
        self._address = address
        self._port = port

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Ready inside the block; not ready after it."""
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
                log.info("node %s is ready, logs on port %d", self._name, self._port)
                return

    async def register(self) -> None:
        """Node, namespace of the leases, lease and status: made or brought up to date."""
        with contextlib.suppress(errors.AlreadyExists):
            await self._store.create(
                kubernetes.Node(metadata=meta.ObjectMeta(name=self._name, labels=self._labels()))
            )
        # A node's own token may not make it; the server does, and on Kubernetes it is there.
        with contextlib.suppress(errors.AlreadyExists, errors.Forbidden):
            await self._store.create(
                kubernetes.Namespace(metadata=meta.ObjectMeta(name=LEASES))
            )  # fmt: skip
        await self._report(ready=True)
        await self._renew()

    async def _beat(self) -> None:
        count = 0
        while True:
            await asyncio.sleep(BEAT)
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
            await self._store.patch(kubernetes.Lease, self._name, LEASES, patch={"spec": spec})
        except errors.NotFound:
            node = await self._store.get(kubernetes.Node, self._name)
            owner = meta.OwnerReference(
                api_version="v1", kind="Node", name=self._name, uid=node.uid
            )
            await self._store.create(
                kubernetes.Lease(
                    metadata=meta.ObjectMeta(
                        name=self._name, namespace=LEASES, owner_references=[owner]
                    ),
                    spec=kubernetes.LeaseSpec(
                        holder_identity=self._name,
                        lease_duration_seconds=LEASE_SECONDS,
                        renew_time=now,
                    ),
                )
            )

    async def _report(self, *, ready: bool) -> None:
        known = await self._store.get(kubernetes.Node, self._name)
        await self._store.patch(
            kubernetes.Node,
            self._name,
            patch={
                "metadata": {"annotations": {hostpods.HELD: json.dumps(self.abilities.words())}},
                "status": self._status(known, ready),
            },
            subresource="status",
        )

    def _status(self, known: kubernetes.Node, ready: bool) -> dict[str, Any]:
        amounts = {
            "cpu": quantity.of_milli(machine.cpu_milli()),
            "memory": f"{machine.memory_bytes() // 1024}Ki",
            "pods": "1000",
            **{f"windlass.dev/{kind}": str(count) for kind, count in machine.devices().items()},
        }
        if self._pretended is not None:
            amounts = dict(self._pretended.amounts)
        return {
            "capacity": amounts,
            "allocatable": amounts,
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": self._name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "nodeInfo": machine.facts(),
            "conditions": [_ready(known, ready), self._held(known)],
        }

    def _held(self, known: kubernetes.Node) -> dict[str, str]:
        """Whether limits are held by the kernel, in a condition that people and programs read."""
        held = self.abilities.cgroups is not None
        words = self.abilities.words()
        return _condition(
            known, "LimitsHeld", "True" if held else "False",
            "Cgroups" if held else "NoCgroups", f"cpu and memory are {words['limits']}",
        )  # fmt: skip

    def _labels(self) -> dict[str, str]:
        model = "" if self._pretended else machine.gpu_model()
        return {
            **({"windlass.dev/gpu-model": model} if model else {}),
            **(self._pretended.labels if self._pretended else {}),
            "kubernetes.io/hostname": self._name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": machine.facts()["architecture"],
        }


def _ready(known: kubernetes.Node, ready: bool) -> dict[str, str]:
    if ready:
        return _condition(known, "Ready", "True", "AgentReady", "the agent is running")
    return _condition(known, "Ready", "False", "AgentStopped", "the agent was stopped")


def _condition(
    known: kubernetes.Node, kind: str, status: str, reason: str, message: str
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
