"""Divides the price of a device among its users: the only place where money is divided. Pure.

At every second a device costs its wall price. Each holder owes its claim: the rate of its form
times its dominant part. While the sum of the claims is within the wall price, each pays its claim
and the rest is idle. Where it exceeds the wall price (one uses most of the memory, another most of
the compute), claims are scaled down to it, the last nanos by largest remainder. So at every second
the payments and the idle cost add up to the wall price, exactly; and because all amounts are
integers per second, they add up over any interval, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from windlass.ledger.model import WHOLE

K = TypeVar("K", bound=Hashable)


def claim(rate: int, part: int) -> int:
    """The cost per second of a part of a device."""
    return rate * part // WHOLE


def split(wall: int, claims: Sequence[int]) -> list[int]:
    """The payments of all claims per second: their sum never exceeds the price."""
    total = sum(claims)
    if total <= wall:
        return list(claims)
    found = [wall * each // total for each in claims]
    order = sorted(range(len(claims)), key=lambda i: (-(wall * claims[i] % total), i))
    for index in order[: wall - sum(found)]:
        found[index] += 1
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Span(Generic[K]):
    """The interval in which a party uses a part of a device."""

    key: K
    started: int
    ended: int
    claim: int
    part: int
    order: tuple[Any, ...] = ()
    """The order in which the remainder of a division is distributed: equal for the same holders,
    whatever the interval of the query."""


@dataclasses.dataclass(slots=True)
class Share:
    """The usage of one device by one holder over an interval."""

    held: int = 0
    """Millionths of the device times seconds, as requested."""
    cost: int = 0


@dataclasses.dataclass(slots=True)
class Bill(Generic[K]):
    """One device over an interval."""

    shares: dict[K, Share] = dataclasses.field(default_factory=dict)
    wall: int = 0
    """The cost of the hardware."""
    idle: int = 0
    """The part of the cost that no holder paid."""
    present: int = 0
    """Seconds in which the device existed."""
    free: int = 0
    """Unused millionths times seconds."""
    homeless: int = 0
    """Millionths times seconds of usage while the device was absent: not charged."""


def bill(
    presence: Iterable[tuple[int, int, int]], spans: Iterable[Span[K]], start: int, end: int
) -> Bill[K]:
    """Divides the price of one device between `start` and `end`. `presence`: (from, to, rate), not
    overlapping.

    Where claims fit, each holder pays its own, independent of the others: these seconds are counted
    for
    all at once (`fitting`), and a holder's cost is the difference between two counts. Only where
    they
    do not fit are holders processed one by one.
    """
    made: Bill[K] = Bill()
    clipped = [(max(a, start), min(b, end), rate) for a, b, rate in presence]
    holds = [span for span in spans if max(span.started, start) < min(span.ended, end)]
    marks: dict[int, tuple[list[Span[K]], list[Span[K]]]] = {}
    for span in holds:
        since, until = max(span.started, start), min(span.ended, end)
        marks.setdefault(since, ([], []))[0].append(span)
        marks.setdefault(until, ([], []))[1].append(span)
        made.shares.setdefault(span.key, Share()).held += span.part * (until - since)
    rates: dict[int, int | None] = {}
    for a, b, rate in sorted(clipped):
        if a < b:
            rates[a] = rate
            rates.setdefault(b, None)
    _sweep(made, marks, rates, sorted({*marks, *rates}))
    return made


def _sweep(
    made: Bill[K],
    marks: Mapping[int, tuple[list[Span[K]], list[Span[K]]]],
    rates: Mapping[int, int | None],
    moments: Sequence[int],
) -> None:
    active: dict[int, Span[K]] = {}
    entered: dict[int, int] = {}
    wall: int | None = None
    claims = parts = fitting = 0
    for position, moment in enumerate(moments):
        wall = rates.get(moment, wall)
        starting, done = marks.get(moment, ((), ()))
        for span in done:
            del active[id(span)]
            claims, parts = claims - span.claim, parts - span.part
            made.shares[span.key].cost += span.claim * (fitting - entered.pop(id(span)))
        for span in starting:
            active[id(span)] = span
            entered[id(span)] = fitting
            claims, parts = claims + span.claim, parts + span.part
        if position + 1 == len(moments):
            break
        seconds = moments[position + 1] - moment
        fitting += _segment(made, active, wall, claims, parts, seconds)


def _order(span: Span[Any]) -> tuple[Any, ...]:
    return span.order


def _segment(
    made: Bill[K],
    active: Mapping[int, Span[K]],
    wall: int | None,
    claims: int,
    parts: int,
    seconds: int,
) -> int:
    """One span without changes; returns the seconds in which each holder pays its full claim."""
    if wall is None:
        made.homeless += parts * seconds
        return 0
    made.wall += wall * seconds
    made.present += seconds
    made.free += max(0, WHOLE - parts) * seconds
    fits = claims <= wall
    if not fits:
        spans = sorted(active.values(), key=_order)
        for span, paid in zip(spans, split(wall, [s.claim for s in spans]), strict=True):
            made.shares[span.key].cost += paid * seconds
    else:
        made.idle += (wall - claims) * seconds
    return seconds if fits else 0
