"""Events about placed pods: one for all pods of an owner, not one for each pod.

An event per pod would cost an API server as much as binding it. Pods without an owner are counted
by namespace. Best effort: an event that cannot be written is dropped.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Awaitable, Callable

from windlass.control.runtime import event_recorder, leader_election
from windlass.kinds.types import core
from windlass.kinds.values import times
from windlass.store import interface

NAME = "windlass-scheduler"
SETTLE, EVERY = 1.0, 10.0
"""Seconds from the first pod to its event, and between two batches of events."""
MOST = 50
"""Events in one batch, at most; the others follow in the next."""
NODES = 3
"""So many nodes are named in one."""


@dataclasses.dataclass(slots=True)
class _Group:
    about: core.ObjectReference
    at: str
    """When the first of them was placed: other events about it may be written before this one."""
    pods: int = 0
    nodes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


class Summaries:
    """One per leader's term."""

    def __init__(
        self, store: interface.Store, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._store, self._sleep = store, sleep
        self._groups: dict[str, _Group] = {}
        """By the uid of the owner, or the namespace of pods that have none."""
        self._some = asyncio.Event()

    def note(self, pod: core.Pod, node: str) -> None:
        """A pod was placed."""
        owners = pod.metadata.owner_references or ()
        owner = next((each for each in owners if each.controller), None)
        key = owner.uid if owner is not None else f"/{pod.namespace}"
        group = self._groups.get(key)
        if group is None:
            about = event_recorder.reference(pod)
            if owner is not None:
                about = core.ObjectReference(
                    owner.api_version, owner.kind, pod.namespace, owner.name, owner.uid
                )
            group = self._groups[key] = _Group(about, times.seconds(times.now()))
        group.pods += 1
        group.nodes[node] += 1
        self._some.set()

    async def run(self) -> None:
        """Until cancelled or until another leads."""
        while True:
            await self._some.wait()
            await self._sleep(SETTLE)
            try:
                await self.publish()
            except leader_election.LeadershipLostError:
                return
            await self._sleep(EVERY - SETTLE)

    async def publish(self) -> None:
        for key in list(self._groups)[:MOST]:
            group = self._groups.pop(key)
            await event_recorder.record_for(
                self._store,
                group.about,
                event_recorder.NORMAL,
                "Scheduled",
                _message(key, group),
                NAME,
                at=group.at,
            )
        if not self._groups:
            self._some.clear()


def _message(key: str, group: _Group) -> str:
    named = ", ".join(name for name, _ in group.nodes.most_common(NODES))
    more = f" and {len(group.nodes) - NODES} more nodes" if len(group.nodes) > NODES else ""
    if group.pods == 1:
        return f"placed on {named}"
    pods_of = f"pods of namespace {key[1:]}" if key.startswith("/") else "of its pods"
    return f"placed {group.pods} {pods_of} on {named}{more}"
