"""The facts that the snapshot has, and the events that bring it up to date.

A part of `cache`. An object that changed gives an event only where the facts read
from it differ from those that the snapshot has: a heartbeat costs next to nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from windlass.control.convert import pod_workloads, quantities
from windlass.control.volumes import attach_limits
from windlass.core.model import types
from windlass.core.snapshot.snapshot import (
    Event,
    NodeGone,
    NodePut,
    Nominated,
    NominationGone,
    QueueGone,
    QueuePut,
    RunningPut,
    WaitingPut,
    WorkloadGone,
)

Fact = types.Workload | types.Running


class KnownFacts:
    def __init__(self, attachments: attach_limits.Attachments) -> None:
        self.nodes: dict[str, types.Node] = {}
        self.queues: dict[str, types.Queue] = {}
        self.workloads: dict[str, Fact] = {}
        self.nominations: dict[str, types.Nomination] = {}
        self._attachments = attachments
        self._unnamed: dict[str, dict[str, types.Running]] = {}
        """Node -> bound pods that hold devices without naming them, by key."""
        self._named: dict[str, set[str]] = {}
        """Node -> keys of workloads that name the devices that they hold there."""
        self._touched: set[str] = set()
        """Nodes that changed, or on which a workload with devices changed, since `take`."""
        self._events: list[Event] = []
        self._workload_events: dict[str, Event] = {}
        self._nomination_events: list[Event] = []

    def add(self, events: Iterable[Event]) -> None:
        """Events about objects whose facts are kept elsewhere."""
        self._events += events

    def put_node(self, name: str, fact: types.Node | None) -> None:
        """None: the node is gone."""
        if fact == self.nodes.get(name):
            return
        self._touched.add(name)
        if fact is None:
            del self.nodes[name]
            self._events.append(NodeGone(name))
        else:
            self.nodes[name] = fact
            self._events.append(NodePut(fact))

    def put_queue(self, name: str, fact: types.Queue | None) -> bool:
        """None: the queue is gone. Returns whether anything changed."""
        if fact == self.queues.get(name):
            return False
        if fact is None:
            del self.queues[name]
            self._events.append(QueueGone(name))
        else:
            self.queues[name] = fact
            self._events.append(QueuePut(fact))
        return True

    def put_workload(self, key: str, fact: Fact | None, ran: float | None = None) -> None:
        """None: the workload is gone, and `ran` the seconds it ran if it ended by itself."""
        known = self.workloads.get(key)
        if fact == known:
            return
        self._attachments.replace(known, fact)
        for node in quantities.nodes_with_devices(known):
            self._named[node].discard(key)
            self._touched.add(node)
        for node in quantities.nodes_with_devices(fact):
            self._named.setdefault(node, set()).add(key)
            self._touched.add(node)
        if fact is None:
            del self.workloads[key]
            self._workload_events[key] = WorkloadGone(key, ran)
            return
        self.workloads[key] = fact
        event = WaitingPut(fact) if isinstance(fact, types.Workload) else RunningPut(fact)
        self._workload_events[key] = event

    def put_pod(self, key: str, fact: Fact | None) -> None:
        """The same for a pod that is a workload of its own. One that holds devices without naming
        them waits for `fill_in`."""
        known = self.workloads.get(key)
        if isinstance(known, types.Running):
            self._forget_unnamed(known.pods[0].node, key)
        if pod_workloads.has_unnamed_devices(fact):
            assert isinstance(fact, types.Running), "only a bound pod has devices"  # noqa: S101
            node = fact.pods[0].node
            self._unnamed.setdefault(node, {})[key] = fact
            self._touched.add(node)
            if node in self.nodes:
                return
        self.put_workload(key, fact)

    def put_nomination(self, key: str, nomination: types.Nomination | None) -> None:
        """None: the workload has none, or none any more."""
        if nomination == self.nominations.get(key):
            return
        if nomination is None:
            del self.nominations[key]
            self._nomination_events.append(NominationGone(key))
        else:
            self.nominations[key] = nomination
            self._nomination_events.append(Nominated(nomination))

    def fill_in(self) -> None:
        """Chooses devices for pods that hold some without naming them, on nodes that changed."""
        for node in sorted(self._touched & self._unnamed.keys()):
            pods = self._unnamed[node]
            taken = {
                grant.device
                for key in self._named.get(node, set()) - pods.keys()
                for grant in quantities.grants(self.workloads[key], node)
            }
            for each in _with_devices(self.nodes.get(node), taken, list(pods.values())):
                self.put_workload(each.workload.key, each)

    def take(self) -> tuple[Event, ...]:
        """The events since the last call, in the order in which they must be applied."""
        found = (*self._events, *self._workload_events.values(), *self._nomination_events)
        self._events, self._workload_events, self._nomination_events = [], {}, []
        self._touched = set()
        return found

    def _forget_unnamed(self, node: str, key: str) -> None:
        there = self._unnamed.get(node, {})
        there.pop(key, None)
        if not there:
            self._unnamed.pop(node, None)


def _with_devices(
    node: types.Node | None, taken: Collection[str], pods: Sequence[types.Running]
) -> list[types.Running]:
    """Pods of one node that hold devices without naming them, each with devices that no other
    workload names. The device plug-in may have chosen others; what counts is how many are left."""
    left: dict[str, list[str]] = {}
    for device in node.devices if node else ():
        if device.id not in taken:
            left.setdefault(device.kind, []).append(device.id)
    filled = []
    for each in sorted(pods, key=lambda pod: pod.workload.key):
        grants = []
        for request in each.workload.roles[0].devices:
            free = left.get(request.kind, [])
            grants += [types.Grant(free.pop()) for _ in range(min(request.count, len(free)))]
        assigned = dataclasses.replace(each.pods[0], grants=tuple(grants))
        filled.append(dataclasses.replace(each, pods=(assigned,)))
    return filled
