"""The fleet over time: what was held, used, idle, lent and waited for of each device model, and by
whom. What was held and idle is counted from the intervals; the rest are averages of samples."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windlass.kinds import times
from windlass.ledger import accounting, looks, money, reports, samples
from windlass.ledger.book import PRUNED, Book
from windlass.ledger.facts import DAY, MACHINE, WHOLE

MOST_POINTS = 400
STEPS = (60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400)


class Team(msgspec.Struct, rename="camel", omit_defaults=True):
    """A team's part of it. What is absent nobody looked at, or measured."""

    held: float
    used: float | None = None
    borrowed: float | None = None
    lent: float | None = None
    waiting: float | None = None


class Point(msgspec.Struct, rename="camel", omit_defaults=True):
    """One stretch of time, of one device model. Amounts are devices (of `cpu`: cores), on average.
    What is absent nobody looked at, or measured."""

    at: str
    device: str
    """`gpu/a100`; `gpu` for what was asked for or lent whatever the model; `machine`; `cpu`."""
    present: float
    held: float
    idle: float
    """Held by nobody."""
    teams: dict[str, Team]
    used: float | None = None
    """What worked, of those that are measured."""
    measured: float | None = None
    """Devices whose activity was measured."""
    borrowed: float | None = None
    """Held above guarantees."""
    lent: float | None = None
    """Of guarantees, what others held."""
    waiting: float | None = None
    """What runs asked for that had no room."""
    cost_micros: int = 0
    idle_micros: int = 0


class Sample(msgspec.Struct, rename="camel"):
    """What a queue held, lent and waited for, on average, with the queues below it."""

    at: str
    queue: str
    resource: str
    used: float
    borrowed: float
    lent: float
    waiting: float


class Series(msgspec.Struct, rename="camel"):
    since: str
    until: str
    step_seconds: int
    currency: str
    points: list[Point]
    queues: list[Sample]


def series(book: Book, start: int, end: int, now: int, step: int = 0) -> Series:
    """By stretches of `step` seconds; 0: as fine as makes sense. Averages are of the time in which
    there was a fleet: not of days before it."""
    start = _since_there_is_one(book, start, end)
    step = step or next((s for s in STEPS if (end - start) / s <= 60), STEPS[-1])
    step = max(step, -(-(end - start) // MOST_POINTS))
    step = _multiple(step, samples.finest(start, now))
    with book.reading() as connection:
        start, end = accounting.covered(connection, start, end)
    if start < (book.get_mark(PRUNED) or 0):
        step = _multiple(step, DAY)  # of that time only sums of whole days are left
    with book.reading() as connection:
        seen = samples.read(connection, start // step * step, end, step)
    points: list[Point] = []
    for first in range(start // step * step if start < end else end, end, step):
        since, until = max(start, first), min(end, first + step)
        account = accounting.between(book, since, until)
        points += _points(account, seen, first, (since, until - since))
    return Series(
        since=_time(start),
        until=_time(end),
        step_seconds=step,
        currency=book.prices().currency,
        points=points,
        queues=[
            Sample(_time(max(start, at)), name, resource, **amounts)
            for at, cells in sorted(seen.queues.items())
            for (name, resource), amounts in sorted(cells.items())
        ],
    )


def _since_there_is_one(book: Book, start: int, end: int) -> int:
    if book.get_mark(PRUNED):
        return start  # when it all began is forgotten
    with book.reading() as connection:
        began = accounting.began(connection)
    return start if began is None else min(max(start, began), end)


def _points(
    account: accounting.Account, seen: samples.Averages, stretch: int, when: tuple[int, int]
) -> list[Point]:
    """Of one stretch; `when`: since when and for how many seconds it is asked for."""
    found = _counted(account, *when)
    for (team, device), amounts in seen.fleet.get(stretch, {}).items():
        point = found.setdefault(device, _empty(when[0], device))
        told: Point | Team = point.teams.setdefault(team, Team(0.0)) if team else point
        told.borrowed, told.lent, told.waiting = (
            amounts["borrowed"], amounts["lent"], amounts["waiting"]
        )  # fmt: skip
        told.used = amounts["used"] if amounts["measured"] else None
        if isinstance(told, Point):
            told.measured = amounts["measured"]
            if device == looks.CPU:  # the ledger counts machines; how many cores they have is seen
                told.present = amounts["present"]
                told.idle = max(0.0, round(told.present - told.held, 3))
    if stretch in seen.fleet:
        _nothing(found)
    return [found[name] for name in sorted(found)]


def _nothing(found: Mapping[str, Point]) -> None:
    """Of whom nothing was seen while somebody looked, there was nothing to see."""
    for point in found.values():
        listed: list[Point | Team] = [point, *point.teams.values()]
        for told in listed:
            told.borrowed = told.borrowed or 0.0
            told.lent = told.lent or 0.0
            told.waiting = told.waiting or 0.0


def _counted(account: accounting.Account, at: int, seconds: int) -> dict[str, Point]:
    """From the intervals, exactly."""
    found: dict[str, Point] = {}
    costs: dict[str, int] = {}
    held: dict[tuple[str, str], int] = {}
    for (who, kind, model, _), total in account.sums.items():
        device = reports.device_name(kind, model)
        costs[device] = costs.get(device, 0) + total.cost
        held[device, who.team] = held.get((device, who.team), 0) + total.held
        if kind == MACHINE:
            cores = looks.CPU, who.team
            held[cores] = held.get(cores, 0) + total.cpu * (WHOLE // 1000)
    for (kind, model), there in account.hardware.items():
        device = reports.device_name(kind, model)
        paid, idle = money.micros([costs.get(device, 0), there.idle])
        found[device] = Point(
            at=_time(at),
            device=device,
            present=round(there.present / seconds, 3),
            held=round((there.present * WHOLE - there.free) / WHOLE / seconds, 3),
            idle=round(there.free / WHOLE / seconds, 3),
            teams={},
            cost_micros=paid,
            idle_micros=idle,
        )
    for (device, team), amount in held.items():
        point = found.setdefault(device, _empty(at, device))
        part = round(amount / WHOLE / seconds, 3)
        point.teams[team] = Team(held=part)
        point.held = round(point.held + part, 3) if device == looks.CPU else point.held
    return found


def _empty(at: int, device: str) -> Point:
    return Point(_time(at), device, 0.0, 0.0, 0.0, {})


def _multiple(step: int, of: int) -> int:
    return -(-step // of) * of


def _time(moment: int) -> str:
    return times.seconds(times.from_unix(moment))
