"""Tells people which pods of theirs were placed: one event for all pods of an owner, not one each.

An event per pod would cost an API server as much as placing it. Pods that nobody owns are told of
together, by namespace. Best effort: what cannot be written is not told.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Awaitable, Callable

from windlass.control import events, leader
from windlass.kinds import kubernetes
from windlass.store import client

NAME = "windlass-scheduler"
SETTLE, EVERY = 1.0, 10.0
"""Seconds after the first pod until it is told, and between two times of telling."""
MOST = 50
"""Events at one time; the others are told the next time."""
NODES = 3
"""So many nodes are named in one."""


@dataclasses.dataclass(slots=True)
class _Group:
    about: kubernetes.ObjectReference
    pods: int = 0
    nodes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


class Summaries:
    """One per leader's term."""

    def __init__(
        self, store: client.Store, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._store, self._sleep = store, sleep
        self._groups: dict[str, _Group] = {}
        """By the uid of the owner, or the namespace of pods that have none."""
        self._some = asyncio.Event()

    def note(self, pod: kubernetes.Pod, node: str) -> None:
        """A pod was placed."""
        owners = pod.metadata.owner_references or ()
        owner = next((each for each in owners if each.controller), None)
        key = owner.uid if owner is not None else f"/{pod.namespace}"
        group = self._groups.get(key)
        if group is None:
            about = events.reference(pod)
            if owner is not None:
                about = kubernetes.ObjectReference(
                    owner.api_version, owner.kind, pod.namespace, owner.name, owner.uid
                )
            group = self._groups[key] = _Group(about)
        group.pods += 1
        group.nodes[node] += 1
        self._some.set()

    async def run(self) -> None:
        """Until cancelled or until another leads."""
        while True:
            await self._some.wait()
            await self._sleep(SETTLE)
            try:
                await self.tell()
            except leader.LeadershipLostError:
                return
            await self._sleep(EVERY - SETTLE)

    async def tell(self) -> None:
        for key in list(self._groups)[:MOST]:
            group = self._groups.pop(key)
            await events.tell_of(
                self._store, group.about, events.NORMAL, "Scheduled", _words(key, group), NAME
            )
        if not self._groups:
            self._some.clear()


def _words(key: str, group: _Group) -> str:
    named = ", ".join(name for name, _ in group.nodes.most_common(NODES))
    more = f" and {len(group.nodes) - NODES} more nodes" if len(group.nodes) > NODES else ""
    if group.pods == 1:
        return f"placed on {named}"
    whose = f"pods of namespace {key[1:]}" if key.startswith("/") else "of its pods"
    return f"placed {group.pods} {whose} on {named}{more}"
