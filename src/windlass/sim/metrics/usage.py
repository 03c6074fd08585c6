"""What every queue and user held, asked for and was entitled to, moment by moment.

The engine reports events here, and one note per moment. What is kept grows with what changes: a row
for the queues at each moment, and for users only their changes. `sim.metrics.shares` reads it when
the simulation is over.
"""

from __future__ import annotations

import array
import dataclasses
import heapq
from collections.abc import Iterable, Mapping

from windlass.core.model.types import Workload
from windlass.core.quota import quota_tree
from windlass.core.quota.quota_tree import Sums
from windlass.core.snapshot.snapshot import Event, RunningPut, Snapshot, WaitingPut, WorkloadGone


@dataclasses.dataclass(slots=True)
class _User:
    """One user of one queue."""

    queue: str
    name: str
    allocated: Sums = dataclasses.field(default_factory=dict)
    waiting: Sums = dataclasses.field(default_factory=dict)
    backlog: int = 0
    """Workloads that wait and could be admitted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What a user has from a moment on."""

    moment: int
    """The number of the moment, as in `Usage.times`."""
    allocated: int
    """Of the main resource."""
    share: float
    """The dominant share that it holds."""
    demand: float
    """The dominant share of what it holds and waits for."""
    backlogged: bool


class Usage:
    def __init__(self, snapshot: Snapshot, resource: str) -> None:
        self.resource = resource
        self.queues = tuple(sorted(snapshot.queues))
        known = snapshot.queues
        self.parents = {
            name: known[name].parent if known[name].parent in known else "" for name in self.queues
        }
        self.times: list[float] = []
        self.allocated = array.array("q")
        """Row by row, what each queue and those below it hold of the main resource."""
        self.shares = array.array("d")
        """The same as dominant shares of the cluster."""
        self.entitled = array.array("d")
        """The dominant share that each queue is entitled to; 0 while no queue is backlogged."""
        self.backlogged = array.array("b")
        self.changes: dict[tuple[str, str], list[Change]] = {}
        """(queue, user) -> what changed for it."""
        self._waiting: dict[str, tuple[Workload, Sums]] = {}
        """Workloads that wait and could be admitted, and what each asks for."""
        self._later: list[tuple[float, str]] = []
        """When workloads that may not start yet may."""
        self._backlog = dict.fromkeys(self.queues, 0)
        """Queue -> workloads that wait in it or below it and could be admitted."""
        self._own: dict[str, int] = {}
        """The same without those below it."""
        self._users: dict[tuple[str, str], _User] = {}
        self._running: dict[str, tuple[_User, Sums]] = {}
        self._changed: dict[tuple[str, str], None] = {}
        self._capacity: Mapping[str, int] = {}
        self._zeros = [0.0] * len(self.queues)
        for workload in snapshot.waiting.values():
            self._waits(workload, snapshot)
        for key, running in snapshot.running.items():
            self._allocate(running.workload, snapshot.usage[key])

    def happened(self, events: Iterable[Event], snapshot: Snapshot) -> None:
        """Events that were just applied to the snapshot."""
        for event in events:
            if isinstance(event, WaitingPut):
                self._drop(event.workload.key)
                self._waits(event.workload, snapshot)
            elif isinstance(event, RunningPut):
                self._drop(event.running.workload.key)
                self._allocate(event.running.workload, snapshot.usage[event.running.workload.key])
            elif isinstance(event, WorkloadGone):
                self._drop(event.key)

    def note(self, now: float, snapshot: Snapshot) -> None:
        """Everything at this moment was decided: so it stays until the next one."""
        while self._later and self._later[0][0] <= now:
            _, key = heapq.heappop(self._later)
            workload = snapshot.waiting.get(key)
            if workload is not None and key not in self._waiting and workload.not_before <= now:
                self._enter(workload, snapshot)
        tree, resource = snapshot.tree, self.resource
        self.times.append(now)
        self.allocated.extend([tree.used[name].get(resource, 0) for name in self.queues])
        self.shares.extend([tree.used_share(name) for name in self.queues])
        rows = self._rows(snapshot)
        self.backlogged.extend(rows)
        if any(rows):
            entitled = snapshot.entitlements()
            self.entitled.extend([entitled[name] for name in self.queues])
        else:
            self.entitled.extend(self._zeros)
        if tree.capacity is not self._capacity and tree.capacity != self._capacity:
            self._changed = dict.fromkeys(self._users)
        self._capacity = tree.capacity
        self._note_users(snapshot)

    def _rows(self, snapshot: Snapshot) -> list[bool]:
        """Of each queue, whether it is backlogged. What limits of users forbid is no backlog."""
        backlog, paused, quotas = self._backlog, snapshot.tree.paused, snapshot.user_quotas
        if quotas:
            backlog = dict(backlog)
            permitted = snapshot.demand.by_queue(paused, quotas)
            for name, count in self._own.items():
                if count and quotas.bind(name) and not any(permitted.get(name, {}).values()):
                    self._add(backlog, name, -count)
        return [backlog[name] > 0 and name not in paused for name in self.queues]

    def _note_users(self, snapshot: Snapshot) -> None:
        moment, capacity = len(self.times) - 1, self._capacity
        paused, quotas = snapshot.tree.paused, snapshot.user_quotas
        for key in self._changed:
            user = self._users[key]
            asked, waiting = dict(user.allocated), user.waiting
            if quotas and quotas.bind(user.queue):
                waiting = dict(quotas.permitted(user.queue, user.name, waiting))
            quota_tree.add(asked, waiting)
            change = Change(
                moment,
                user.allocated.get(self.resource, 0),
                _dominant(user.allocated, capacity),
                _dominant(asked, capacity),
                user.backlog > 0 and any(waiting.values()) and user.queue not in paused,
            )
            self.changes.setdefault(key, []).append(change)
        self._changed.clear()

    # --- workloads

    def _waits(self, workload: Workload, snapshot: Snapshot) -> None:
        if workload.not_before > 0.0:
            heapq.heappush(self._later, (workload.not_before, workload.key))
        else:
            self._enter(workload, snapshot)

    def _enter(self, workload: Workload, snapshot: Snapshot) -> None:
        """It could be admitted from now on."""
        need = snapshot.demand.of(workload.key)
        if need is None or workload.queue not in self._backlog:
            return
        self._waiting[workload.key] = workload, need
        self._count(workload, need, 1)

    def _allocate(self, workload: Workload, allocated: Sums) -> None:
        user = self._user(workload)
        if user is not None:
            self._running[workload.key] = user, allocated
            quota_tree.add(user.allocated, allocated)

    def _drop(self, key: str) -> None:
        """Removes a workload, which neither waits nor runs until its next event."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            self._count(*waiting, -1)
        running = self._running.pop(key, None)
        if running is not None:
            user, allocated = running
            quota_tree.add(user.allocated, allocated, -1)
            self._changed[user.queue, user.name] = None

    def _count(self, workload: Workload, need: Sums, sign: int) -> None:
        self._add(self._backlog, workload.queue, sign)
        self._own[workload.queue] = self._own.get(workload.queue, 0) + sign
        user = self._user(workload)
        if user is not None:
            quota_tree.add(user.waiting, need, sign)
            user.backlog += sign

    def _add(self, backlog: dict[str, int], name: str, count: int) -> None:
        """To a queue and all above it."""
        while name:
            backlog[name] += count
            name = self.parents[name]

    def _user(self, workload: Workload) -> _User | None:
        """The user who submitted it, marked as changed; None where that is not known."""
        if not workload.user or workload.queue not in self._backlog:
            return None
        key = workload.queue, workload.user
        self._changed[key] = None
        found = self._users.get(key)
        if found is None:
            found = self._users[key] = _User(*key)
        return found


def _dominant(amounts: Sums, capacity: Mapping[str, int]) -> float:
    """The largest part of any resource of the cluster."""
    parts = (amount / capacity[r] for r, amount in amounts.items() if capacity.get(r, 0) > 0)
    return max(parts, default=0.0)
