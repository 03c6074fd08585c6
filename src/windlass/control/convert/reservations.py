"""Converts Reservation objects to the windows of the core: a calendar at one moment. Pure.

`control.scheduler.cache` reads the changes. For a recurring reservation the core knows the next
windows, and the following ones when the first of them is over; it is woken at the end of every
window.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Iterator

from windlass.control.convert import quantities, run_workloads
from windlass.control.cron import schedule
from windlass.core.model import types
from windlass.core.snapshot import snapshot
from windlass.kinds.types import reservation
from windlass.kinds.values import duration, times
from windlass.store.informer import Change

MOST_WINDOWS = 8
"""Windows of a recurring reservation that the core knows at a time. The same nodes are reserved in
all of them, so a longer workload collides with the first."""
_MOST_JOINED = 1000
"""The most starts that are joined to one window: a schedule may begin again before the last one
ended."""

BY = "reservation/"
"""The prefix by which an eviction names its reservation."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """An interval in seconds since the epoch."""

    start: float
    end: float


class Reservations:
    """All reservations."""

    def __init__(self) -> None:
        self._objects: dict[str, reservation.Reservation] = {}
        self._spans: dict[str, tuple[reservation.ReservationSpec, list[Span]]] = {}
        self.known: tuple[types.AdvanceReservation, ...] = ()
        """The reservations in the snapshot."""

    def on_change(
        self,
        _: Change,
        before: reservation.Reservation | None,
        after: reservation.Reservation | None,
    ) -> None:
        quantities.put(self._objects, before, after, lambda each: each.name)

    def events(self, now: float) -> list[snapshot.Event]:
        """The changes that the snapshot does not have yet."""
        if not self._objects and not self.known:
            return []
        self._spans = {name: kept for name, kept in self._spans.items() if name in self._objects}
        found = tuple(
            window
            for name, each in sorted(self._objects.items())
            for window in read(each, self._spans_of(name, each.spec, now))
        )
        if found == self.known:
            return []
        self.known = found
        return [snapshot.AdvancePut(found)]

    def existing(self) -> set[str]:
        """The names in evictions of reservations with future windows."""
        return {f"{BY}{window.name}" for window in self.known}

    def _spans_of(self, name: str, spec: reservation.ReservationSpec, now: float) -> list[Span]:
        """Computed again only when a window is over or the object changed."""
        known = self._spans.get(name)
        if known is None or known[0] is not spec or any(span.end <= now for span in known[1]):
            known = self._spans[name] = (spec, spans(spec, now))
        return known[1]


def read(each: reservation.Reservation, windows: list[Span]) -> Iterator[types.AdvanceReservation]:
    """The facts of a reservation in these windows."""
    spec = each.spec
    nodes, named = spec.nodes, spec.beneficiaries or reservation.Beneficiaries()
    for span in windows:
        yield types.AdvanceReservation(
            name=each.name,
            start=span.start,
            end=span.end,
            nodes=frozenset(nodes.names) if nodes is not None and nodes.names else None,
            selector=tuple(sorted((nodes.selector or {}).items())) if nodes is not None else (),
            amounts=run_workloads.read_amounts(spec.amounts),
            queues=frozenset(named.queues or ()),
            namespaces=frozenset(named.namespaces or ()),
            users=frozenset(named.users or ()),
        )


def spans(spec: reservation.ReservationSpec, now: float) -> list[Span]:
    """The windows that have not ended, in order. None if the calendar is invalid: the server
    refuses such an object, but an older one may have accepted it."""
    try:
        found = _all_spans(spec, times.from_unix(now))
        return list(itertools.islice((span for span in found if span.end > now), MOST_WINDOWS))
    except (schedule.ScheduleError, ValueError, OverflowError):
        return []


def last_span(spec: reservation.ReservationSpec) -> Span | None:
    """The window of a reservation that does not recur."""
    if spec.start is None:
        return None
    try:
        return next(_all_spans(spec, times.parse(spec.start)), None)
    except (ValueError, OverflowError):
        return None


def _all_spans(spec: reservation.ReservationSpec, now: datetime.datetime) -> Iterator[Span]:
    """Including one that ended not long before."""
    length = datetime.timedelta(milliseconds=duration.milliseconds(spec.duration or "0s"))
    if spec.start is not None:
        start = times.parse(spec.start)
        end = times.parse(spec.end) if spec.end is not None else start + length
        yield Span(start.timestamp(), end.timestamp())
    elif spec.schedule is not None and length:
        starts = schedule.Starts(spec.schedule, spec.time_zone).after(now - length)
        yield from _joined((start.timestamp() for start in starts), length.total_seconds())


def _joined(starts: Iterator[float], length: float) -> Iterator[Span]:
    """Joins windows that overlap or touch."""
    open_since, end, count = None, 0.0, 0
    for start in starts:
        if open_since is not None and (start > end or count >= _MOST_JOINED):
            yield Span(open_since, end)
            open_since, count = None, 0
        open_since = start if open_since is None else open_since
        end, count = start + length, count + 1
    if open_since is not None:
        yield Span(open_since, end)
