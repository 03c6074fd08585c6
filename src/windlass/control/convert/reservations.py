"""From Reservation objects to windows that the core knows: a calendar read at one moment. Pure.

`control.picture` asks for what changed. Of a reservation that recurs the next windows are told, and
the following ones when the first of them is over; the core is woken at the end of every window.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Iterator

from windlass.control import factparts, schedule, snapshots
from windlass.core import facts, state
from windlass.kinds import duration, reservation, times
from windlass.store.reflector import Change

MOST_WINDOWS = 8
"""Windows of a reservation that recurs which the core knows at a time. The same nodes are reserved
in all of them, so whoever runs longer is kept out by the first."""
_MOST_JOINED = 1000
"""Starts that one window is joined from: a schedule may begin again before the last one ended."""

BY = "reservation/"
"""How an eviction names the reservation that it is for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """From when to when, in seconds since the epoch."""

    start: float
    end: float


class Reservations:
    """All that there are."""

    def __init__(self) -> None:
        self._objects: dict[str, reservation.Reservation] = {}
        self._spans: dict[str, tuple[reservation.ReservationSpec, list[Span]]] = {}
        self.told: tuple[facts.AdvanceReservation, ...] = ()
        """What the snapshot knows."""

    def see(
        self,
        _: Change,
        before: reservation.Reservation | None,
        after: reservation.Reservation | None,
    ) -> None:
        factparts.put(self._objects, before, after, lambda each: each.name)

    def events(self, now: float) -> list[state.Event]:
        """What the snapshot does not know yet."""
        if not self._objects and not self.told:
            return []
        self._spans = {name: kept for name, kept in self._spans.items() if name in self._objects}
        found = tuple(
            window
            for name, each in sorted(self._objects.items())
            for window in read(each, self._spans_of(name, each.spec, now))
        )
        if found == self.told:
            return []
        self.told = found
        return [state.AdvancePut(found)]

    def standing(self) -> set[str]:
        """How evictions name the reservations that have windows to come."""
        return {f"{BY}{window.name}" for window in self.told}

    def _spans_of(self, name: str, spec: reservation.ReservationSpec, now: float) -> list[Span]:
        """Looked up again only when a window is over or the object changed."""
        known = self._spans.get(name)
        if known is None or known[0] is not spec or any(span.end <= now for span in known[1]):
            known = self._spans[name] = (spec, spans(spec, now))
        return known[1]


def read(each: reservation.Reservation, windows: list[Span]) -> Iterator[facts.AdvanceReservation]:
    """What a reservation holds in these windows."""
    spec = each.spec
    nodes, named = spec.nodes, spec.beneficiaries or reservation.Beneficiaries()
    for span in windows:
        yield facts.AdvanceReservation(
            name=each.name,
            start=span.start,
            end=span.end,
            nodes=frozenset(nodes.names) if nodes is not None and nodes.names else None,
            selector=tuple(sorted((nodes.selector or {}).items())) if nodes is not None else (),
            amounts=snapshots.read_amounts(spec.amounts),
            queues=frozenset(named.queues or ()),
            namespaces=frozenset(named.namespaces or ()),
            users=frozenset(named.users or ()),
        )


def spans(spec: reservation.ReservationSpec, now: float) -> list[Span]:
    """The windows that have not ended, the first ones first. None if the calendar cannot be read:
    the server refuses such an object, but an older one may have let it in."""
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
    """With one that ended not long before."""
    length = datetime.timedelta(milliseconds=duration.milliseconds(spec.duration or "0s"))
    if spec.start is not None:
        start = times.parse(spec.start)
        end = times.parse(spec.end) if spec.end is not None else start + length
        yield Span(start.timestamp(), end.timestamp())
    elif spec.schedule is not None and length:
        starts = schedule.Starts(spec.schedule, spec.time_zone).after(now - length)
        yield from _joined((start.timestamp() for start in starts), length.total_seconds())


def _joined(starts: Iterator[float], length: float) -> Iterator[Span]:
    """One window of several that overlap or touch."""
    open_since, end, count = None, 0.0, 0
    for start in starts:
        if open_since is not None and (start > end or count >= _MOST_JOINED):
            yield Span(open_since, end)
            open_since, count = None, 0
        open_since = start if open_since is None else open_since
        end, count = start + length, count + 1
    if open_since is not None:
        yield Span(open_since, end)
