"""The fleet over time: what was held and idle of each device model, by whom, and what queues lent
and waited for."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa

from windlass.kinds import times
from windlass.ledger import accounting, money, reports, schema
from windlass.ledger.book import PRUNED, Book
from windlass.ledger.facts import DAY, WHOLE

MOST_POINTS = 400
STEPS = (300, 900, 3600, 6 * 3600, 86400, 7 * 86400)


class Point(msgspec.Struct, rename="camel", omit_defaults=True):
    """One stretch of time, of one device model. Amounts are devices, on average."""

    at: str
    device: str
    present: float
    held: float
    idle: float
    teams: dict[str, float]
    """What each team held."""
    cost_micros: int = 0
    idle_micros: int = 0


class Sample(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a queue held, lent and waited for at one moment."""

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


def series(book: Book, start: int, end: int, step: int = 0) -> Series:
    """By stretches of `step` seconds; 0: as fine as makes sense."""
    step = step or next((s for s in STEPS if (end - start) / s <= 60), STEPS[-1])
    step = max(step, -(-(end - start) // MOST_POINTS))
    with book.reading() as connection:
        start, end = accounting.covered(connection, start, end)
    if start < (book.get_mark(PRUNED) or 0):
        step = -(-step // DAY) * DAY  # of that time only sums of whole days are left
    points: list[Point] = []
    for first in range(start // step * step, end, step):
        since, until = max(start, first), min(end, first + step)
        points += _points(accounting.between(book, since, until), since, until - since)
    return Series(
        since=_time(start),
        until=_time(end),
        step_seconds=step,
        currency=book.prices().currency,
        points=points,
        queues=_samples(book, start, end, step),
    )


def _points(account: accounting.Account, at: int, seconds: int) -> list[Point]:
    found = []
    for (kind, model), there in sorted(account.hardware.items()):
        teams: dict[str, int] = {}
        cost = 0
        for (who, its_kind, its_model, _), total in account.sums.items():
            if (its_kind, its_model) == (kind, model):
                teams[who.team] = teams.get(who.team, 0) + total.held
                cost += total.cost
        paid, idle = money.micros([cost, there.idle])
        found.append(
            Point(
                at=_time(at),
                device=reports.device_name(kind, model),
                present=round(there.present / seconds, 3),
                held=round((there.present * WHOLE - there.free) / WHOLE / seconds, 3),
                idle=round(there.free / WHOLE / seconds, 3),
                teams={name: round(held / WHOLE / seconds, 3) for name, held in teams.items()},
                cost_micros=paid,
                idle_micros=idle,
            )
        )
    return found


def _samples(book: Book, start: int, end: int, step: int) -> list[Sample]:
    """The last of each stretch."""
    table = schema.sample
    query = sa.select(table).where(table.c.at >= start, table.c.at < end).order_by(table.c.at)
    last: dict[tuple[int, str, str], Sample] = {}
    with book.engine.connect() as connection:
        for row in connection.execute(query).mappings():
            key = row["at"] // step, row["queue"], row["resource"]
            amounts = {n: row[n] / 1000 for n in ("used", "borrowed", "lent", "waiting")}
            last[key] = Sample(
                at=_time(row["at"]), queue=row["queue"], resource=row["resource"], **amounts
            )
    return [last[key] for key in sorted(last)]


def _time(moment: int) -> str:
    return times.seconds(times.from_unix(moment))
