"""What every queue and user held, asked for and was entitled to, moment by moment.

The engine reports events here, and one note per moment. What is kept grows with what changes: a
row for the queues at each moment, and for users only their changes. `sim.shares` reads it when the
simulation is over.
"""

from __future__ import annotations

import array
import dataclasses
import heapq
from collections.abc import Iterable, Mapping

from windlass.core import queues, state
from windlass.core.facts import Unit
from windlass.core.queues import Sums
from windlass.core.state import Snapshot


@dataclasses.dataclass(slots=True)
class _User:
    """One user of one queue."""

    queue: str
    name: str
    held: Sums = dataclasses.field(default_factory=dict)
    waiting: Sums = dataclasses.field(default_factory=dict)
    backlog: int = 0
    """Workloads that wait and could be admitted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What a user has from a moment on."""

    moment: int
    """The number of the moment, as in `Usage.times`."""
    held: int
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
        self.held = array.array("q")
        """Row by row, what each queue and those below it hold of the main resource."""
        self.shares = array.array("d")
        """The same as dominant shares of the cluster."""
        self.entitled = array.array("d")
        """The dominant share that each queue is entitled to; 0 while no queue is backlogged."""
        self.backlogged = array.array("b")
        self.changes: dict[tuple[str, str], list[Change]] = {}
        """(queue, user) -> what changed for it."""
        self._waiting: dict[str, tuple[Unit, Sums]] = {}
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
        for unit in snapshot.waiting.values():
            self._waits(unit, snapshot)
        for key, running in snapshot.running.items():
            self._holds(running.unit, snapshot.held[key])

    def happened(self, events: Iterable[state.Event], snapshot: Snapshot) -> None:
        """Events that were just applied to the snapshot."""
        for event in events:
            if isinstance(event, state.Waits):
                self._drop(event.unit.key)
                self._waits(event.unit, snapshot)
            elif isinstance(event, state.Holds):
                self._drop(event.running.unit.key)
                self._holds(event.running.unit, snapshot.held[event.running.unit.key])
            elif isinstance(event, state.Gone):
                self._drop(event.key)

    def note(self, now: float, snapshot: Snapshot) -> None:
        """Everything at this moment was decided: so it stays until the next one."""
        while self._later and self._later[0][0] <= now:
            _, key = heapq.heappop(self._later)
            unit = snapshot.waiting.get(key)
            if unit is not None and key not in self._waiting and unit.not_before <= now:
                self._enter(unit, snapshot)
        tree, resource = snapshot.tree, self.resource
        self.times.append(now)
        self.held.extend([tree.used[name].get(resource, 0) for name in self.queues])
        self.shares.extend([tree.held_share(name) for name in self.queues])
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
        backlog, paused, quotas = self._backlog, snapshot.tree.held, snapshot.user_quotas
        if quotas:
            backlog = dict(backlog)
            permitted = snapshot.demand.by_queue(paused, quotas)
            for name, count in self._own.items():
                if count and quotas.bind(name) and not any(permitted.get(name, {}).values()):
                    self._add(backlog, name, -count)
        return [backlog[name] > 0 and name not in paused for name in self.queues]

    def _note_users(self, snapshot: Snapshot) -> None:
        moment, capacity = len(self.times) - 1, self._capacity
        paused, quotas = snapshot.tree.held, snapshot.user_quotas
        for key in self._changed:
            user = self._users[key]
            asked, waiting = dict(user.held), user.waiting
            if quotas and quotas.bind(user.queue):
                waiting = dict(quotas.permitted(user.queue, user.name, waiting))
            queues.add(asked, waiting)
            change = Change(
                moment,
                user.held.get(self.resource, 0),
                _dominant(user.held, capacity),
                _dominant(asked, capacity),
                user.backlog > 0 and any(waiting.values()) and user.queue not in paused,
            )
            self.changes.setdefault(key, []).append(change)
        self._changed.clear()

    # --- workloads

    def _waits(self, unit: Unit, snapshot: Snapshot) -> None:
        if unit.not_before > 0.0:
            heapq.heappush(self._later, (unit.not_before, unit.key))
        else:
            self._enter(unit, snapshot)

    def _enter(self, unit: Unit, snapshot: Snapshot) -> None:
        """It could be admitted from now on."""
        need = snapshot.demand.of(unit.key)
        if need is None or unit.queue not in self._backlog:
            return
        self._waiting[unit.key] = unit, need
        self._count(unit, need, 1)

    def _holds(self, unit: Unit, held: Sums) -> None:
        user = self._user(unit)
        if user is not None:
            self._running[unit.key] = user, held
            queues.add(user.held, held)

    def _drop(self, key: str) -> None:
        """It neither waits nor holds anything, unless the event says so."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            self._count(*waiting, -1)
        running = self._running.pop(key, None)
        if running is not None:
            user, held = running
            queues.add(user.held, held, -1)
            self._changed[user.queue, user.name] = None

    def _count(self, unit: Unit, need: Sums, sign: int) -> None:
        self._add(self._backlog, unit.queue, sign)
        self._own[unit.queue] = self._own.get(unit.queue, 0) + sign
        user = self._user(unit)
        if user is not None:
            queues.add(user.waiting, need, sign)
            user.backlog += sign

    def _add(self, backlog: dict[str, int], name: str, count: int) -> None:
        """To a queue and all above it."""
        while name:
            backlog[name] += count
            name = self.parents[name]

    def _user(self, unit: Unit) -> _User | None:
        """Who submitted it, marked as changed; None where that is not known."""
        if not unit.user or unit.queue not in self._backlog:
            return None
        key = unit.queue, unit.user
        self._changed[key] = None
        found = self._users.get(key)
        if found is None:
            found = self._users[key] = _User(*key)
        return found


def _dominant(amounts: Sums, capacity: Mapping[str, int]) -> float:
    """The largest part of any resource of the cluster."""
    parts = (amount / capacity[r] for r, amount in amounts.items() if capacity.get(r, 0) > 0)
    return max(parts, default=0.0)
