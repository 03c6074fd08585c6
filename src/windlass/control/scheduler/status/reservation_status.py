"""What each reservation holds, and which workloads use it: from the snapshot into its status.

Derived between two decisions, as `queue_status` does for queues: what people read
is what the scheduler goes by. Windows begin and end at moments at which the scheduler decides
again, so a status follows the calendar without a timer of its own.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import msgspec

from windlass.control.convert import reservations
from windlass.control.runtime import leader_election
from windlass.control.scheduler.status import queue_status
from windlass.core.calendar import advance_windows
from windlass.core.cycle import clearing
from windlass.core.model import types
from windlass.core.quota import usage
from windlass.core.snapshot.snapshot import Snapshot
from windlass.core.verdicts import formatting
from windlass.kinds.types import meta, reservation
from windlass.kinds.values import times
from windlass.store import errors, interface
from windlass.store.informer import Change, Informer

log = logging.getLogger(__name__)

NAME = "reservationstatus"
SETTLE, EVERY = queue_status.SETTLE, queue_status.EVERY
_OF_NODES = ("cpu", "memory")

Statuses = dict[str, reservation.ReservationStatus]


class Read(Protocol):
    """Applies a function to the snapshot while no decision is made; None before the first."""

    async def __call__(self, read: Callable[[Snapshot], Statuses]) -> Statuses | None: ...


class ReservationStatuses:
    """One per leader's term."""

    def __init__(
        self,
        store: interface.Store,
        listed: Informer[reservation.Reservation],
        *,
        read: Read,
        decided: asyncio.Event,
        now: Callable[[], datetime.datetime] = times.now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`decided` is set whenever the scheduler has decided; this one clears it."""
        self._store, self._listed, self._read = store, listed, read
        self._due, self._now, self._sleep = decided, now, sleep
        listed.add_handler(self._changed)

    async def run(self) -> None:
        """Writes what differs, until cancelled or until another leads."""
        while True:
            await self._due.wait()
            await self._sleep(SETTLE)
            self._due.clear()
            try:
                await self.write()
            except leader_election.LeadershipLostError:
                return
            except errors.ApiError as error:
                log.warning("the status of a reservation could not be written: %s", error.message)
                self._due.set()
            await self._sleep(EVERY - SETTLE)

    async def write(self) -> None:
        """Derives the statuses from the snapshot, and writes those that differ."""
        listed = list(self._listed)
        if not listed:
            return
        now = self._now()
        found = await self._read(lambda snapshot: derive(snapshot, listed, now.timestamp()))
        for each in listed if found else ():
            patch = changes(each, (found or {})[each.name], now)
            if patch:
                await self._write(each, patch)

    async def _write(self, each: reservation.Reservation, patch: dict[str, Any]) -> None:
        version = {"resourceVersion": each.metadata.resource_version}
        try:
            await self._store.patch(
                reservation.Reservation, each.name, subresource="status",
                patch={"metadata": version, "status": patch},
            )  # fmt: skip
        except (errors.Conflict, errors.NotFound):
            self._due.set()  # it changed since: the next derivation uses the change

    def _changed(
        self,
        _: Change,
        __: reservation.Reservation | None,
        after: reservation.Reservation | None,
    ) -> None:
        if after is not None and after.status.observed_generation != after.metadata.generation:
            self._due.set()


# --- pure ---------------------------------------------------------------------------------------


def derive(snapshot: Snapshot, listed: Iterable[reservation.Reservation], now: float) -> Statuses:
    """What is true of each reservation. Conditions carry no times yet."""
    windows = advance_windows.Windows(snapshot, now)
    windows.hold_back()
    first: dict[str, types.AdvanceReservation] = {}
    for window in windows.listed:
        first.setdefault(window.name, window)
    return {
        each.name: _open(windows, first[each.name]) if each.name in first else _ended(each.spec)
        for each in listed
    }


def changes(
    each: reservation.Reservation, status: reservation.ReservationStatus, now: datetime.datetime
) -> dict[str, Any]:
    """The merge-patch that makes the status this one; empty if it is so already."""
    known = {condition.type: condition for condition in each.status.conditions or ()}
    conditions = []
    for condition in status.conditions or ():
        before = known.get(condition.type)
        same = before is not None and before.status == condition.status
        since = before.last_transition_time if before and same else times.seconds(now)
        conditions.append(msgspec.structs.replace(condition, last_transition_time=since))
    wanted = msgspec.structs.replace(
        status, observed_generation=each.metadata.generation, conditions=conditions
    )
    current = each.status
    if wanted == msgspec.structs.replace(
        current, reserved=current.reserved or None, used=current.used or None
    ):
        return {}
    new: dict[str, Any] = msgspec.to_builtins(wanted)
    old: dict[str, Any] = msgspec.to_builtins(each.status)
    for name in ("reserved", "used"):
        new[name] = {**dict.fromkeys(old.get(name) or ()), **(new.get(name) or {})}
    return {**dict.fromkeys(old), **new}


def _ended(spec: reservation.ReservationSpec) -> reservation.ReservationStatus:
    span = reservations.last_span(spec)
    return reservation.ReservationStatus(
        state="Ended", window=None if span is None else _window(span.start, span.end)
    )


def _open(
    windows: advance_windows.Windows, window: types.AdvanceReservation
) -> reservation.ReservationStatus:
    cluster = windows.snapshot.cluster
    choice = windows.choices.get(window.id)
    nodes = sorted(windows.nodes_of(window) if choice is None else choice.nodes)
    names = sorted(cluster.nodes[i].name for i in nodes)
    return reservation.ReservationStatus(
        state="Active" if window.start <= windows.now else "Scheduled",
        window=_window(window.start, window.end),
        nodes=names[: reservation.MOST_NODES_SHOWN] or None,
        node_count=len(names),
        reserved=queue_status.amounts(_reserved(windows, window, nodes)) or None,
        used=queue_status.amounts(_used(windows, window, set(names))) or None,
        staying=len(clearing.staying(windows, window)),
        conditions=[_satisfied(windows, window), _conflicts(windows, window)],
    )


def _window(start: float, end: float) -> reservation.Window:
    return reservation.Window(
        start=times.seconds(times.from_unix(start)), end=times.seconds(times.from_unix(end))
    )


def _reserved(
    windows: advance_windows.Windows, window: types.AdvanceReservation, nodes: list[int]
) -> dict[str, int]:
    if window.amounts:
        missing = windows.choices[window.id].missing
        return {name: amount - missing.get(name, 0) for name, amount in window.amounts.items()}
    found: dict[str, int] = {}
    for i in nodes:
        node = windows.snapshot.cluster.nodes[i]
        for name in _OF_NODES:
            found[name] = found.get(name, 0) + node.allocatable.get(name, 0)
        for device in node.devices:
            found[device.kind] = found.get(device.kind, 0) + types.WHOLE
    return found


def _used(
    windows: advance_windows.Windows, window: types.AdvanceReservation, names: set[str]
) -> dict[str, int]:
    """What beneficiaries hold: of amounts wherever they run, of nodes on these."""
    snapshot, found = windows.snapshot, dict[str, int]()
    for key, running in snapshot.running.items():
        if not windows.admits(window, running.workload):
            continue
        held = snapshot.usage[key]
        if not window.amounts:
            pods = [pod for pod in running.pods if pod.node in names]
            held = usage.of_pods(snapshot.cluster, running.workload.roles, pods)
        for name, amount in held.items():
            if name in window.amounts if window.amounts else "/" not in name and name != "pods":
                found[name] = found.get(name, 0) + amount
    return found


def _satisfied(
    windows: advance_windows.Windows, window: types.AdvanceReservation
) -> meta.Condition:
    choice = windows.choices.get(window.id)
    problem = ""
    if choice is not None and choice.missing:
        short = [formatting.amount(name, amount) for name, amount in sorted(choice.missing.items())]
        problem = f"{', '.join(short)} cannot be set aside: others that cannot be stopped hold it, "
        problem += "or there is not so much"
    elif choice is None:
        problem = _missing_nodes(windows, window)
    if not problem:
        return meta.Condition(type="Satisfied", status="True", reason="Reserved")
    return meta.Condition(type="Satisfied", status="False", reason="Missing", message=problem)


def _missing_nodes(windows: advance_windows.Windows, window: types.AdvanceReservation) -> str:
    if window.nodes is None:
        return "" if windows.nodes_of(window) else "no node has these labels"
    gone = sorted(window.nodes - windows.snapshot.cluster.index.keys())
    more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
    return f"there is no node {', '.join(gone[:3])}{more}" if gone else ""


def _conflicts(
    windows: advance_windows.Windows, window: types.AdvanceReservation
) -> meta.Condition:
    """Another reservation of the same nodes at the same time, for others."""
    mine = set(windows.nodes_of(window)) if not window.amounts else set()
    found = [
        other.name
        for other in windows.listed
        if other.name != window.name
        and not other.amounts
        and other.overlaps(window.start, window.end)
        and _admitted(other) != _admitted(window)
        and not mine.isdisjoint(windows.nodes_of(other))
    ]
    if not found:
        return meta.Condition(type="Conflicts", status="False", reason="None")
    names = ", ".join(sorted(set(found)))
    return meta.Condition(
        type="Conflicts", status="True", reason="SameNodes",
        message=f"reservation {names} holds the same nodes at the same time; only workloads that "
        "may use both start there",
    )  # fmt: skip


def _admitted(window: types.AdvanceReservation) -> tuple[frozenset[str], ...]:
    return window.queues, window.namespaces, window.users
