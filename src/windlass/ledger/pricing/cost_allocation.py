"""Who pays how much of a device: the one place where money is divided. Pure.

At every second a device costs its wall price. Each holder owes its claim: the rate of its form
times its dominant part. As long as the claims together are no more than the wall price, each pays
its claim and the rest is idle. Where they are more (one holds most of the memory, another most of
the compute) they are scaled down to the wall price, the last nano-units by largest remainder. So
at every second the sum of what holders pay and what is idle is the wall price, exactly; and because
all of it is integers by the second, over any time too, however it is cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from windlass.ledger.facts import WHOLE

K = TypeVar("K", bound=Hashable)


def claim(rate: int, part: int) -> int:
    """What a holder of a part of a device owes in a second."""
    return rate * part // WHOLE


def split(wall: int, claims: Sequence[int]) -> list[int]:
    """What each pays of a device's price in a second: never more in all than the price."""
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
    """From when to when somebody holds a part of a device."""

    key: K
    started: int
    ended: int
    claim: int
    part: int
    order: tuple[Any, ...] = ()
    """Where what is left after dividing goes first to whoever is first: the same for the same
    holders however time is cut and whoever asks."""


@dataclasses.dataclass(slots=True)
class Share:
    """What one holder had of one device over a time."""

    held: int = 0
    """Millionths of the device times seconds, as asked for."""
    cost: int = 0


@dataclasses.dataclass(slots=True)
class Bill(Generic[K]):
    """One device over a time."""

    shares: dict[K, Share] = dataclasses.field(default_factory=dict)
    wall: int = 0
    """What the hardware cost."""
    idle: int = 0
    """What nobody paid for."""
    present: int = 0
    """Seconds that it was there."""
    free: int = 0
    """Millionths times seconds that nobody held."""
    homeless: int = 0
    """Millionths times seconds that were held while it was not there: cost nothing."""


def bill(
    presence: Iterable[tuple[int, int, int]], spans: Iterable[Span[K]], start: int, end: int
) -> Bill[K]:
    """Divides the price of one device between `start` and `end`. `presence`: (from, to, rate), not
    overlapping.

    Where claims fit, everybody pays his own, whoever else is there: these seconds are counted for
    all at once (`fitting`), and a holder's cost is the difference between two counts. Only where
    they do not fit are holders looked at one by one.
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
        begun, done = marks.get(moment, ((), ()))
        for span in done:
            del active[id(span)]
            claims, parts = claims - span.claim, parts - span.part
            made.shares[span.key].cost += span.claim * (fitting - entered.pop(id(span)))
        for span in begun:
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
    """One stretch in which nothing changes; how many of its seconds everybody pays his claim."""
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
