"""Holds the ledger to its law, and to the cluster.

The law: over any time, what teams paid and what was idle is what the hardware cost, to the last
nano-unit. It is counted twice: the wall price straight from what was there, in plain SQL, and the
rest by the way every report goes. Beside it: no interval overlaps itself, and roll-ups say the same
as intervals. `against` compares what the ledger thinks is held with what the cluster shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec
import sqlalchemy as sa

from windlass.kinds import times
from windlass.ledger import accounting, money, schema
from windlass.ledger.book import OBSERVED, PRUNED, SETTLED, Book, device_of
from windlass.ledger.facts import DAY

MOST = 50
"""Overlaps, ghosts and gaps that are told one by one."""


class Verdict(msgspec.Struct, rename="camel", omit_defaults=True):
    """What was found."""

    since: str
    until: str
    holds: bool
    """Whether everything adds up and nothing overlaps."""
    teams_micros: int
    idle_micros: int
    wall_micros: int
    difference: int
    """In nano-units: what teams paid and what was idle, less what the hardware cost."""
    roll_up_difference: int
    """In nano-units: what days that are over were summed up to, less what their intervals give."""
    overlaps: list[str]
    homeless_hours: float = 0.0
    """Held on devices that were not there: counted, and not paid."""
    gaps: list[dict[str, Any]] = []
    """Times of which not everything can be known."""
    ghosts: list[str] = []
    """Held by the ledger, and by nobody in the cluster."""
    missing: list[str] = []
    """Held in the cluster, and not by the ledger."""
    observed: str = ""
    """When the ledger last looked at the cluster."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Live:
    """Something that holds room in the cluster now."""

    uid: str
    attempt: int
    role: str
    index: int
    shown: str = dataclasses.field(compare=False, default="")


def verify(book: Book, start: int, end: int, live: Iterable[Live] | None = None) -> Verdict:
    """`live`: what the cluster shows now; None: it is not compared."""
    prices = book.prices()
    with book.reading() as connection:
        start, end = accounting.covered(connection, start, end)
        account = accounting.Account(by_run=False)
        accounting.counted(connection, prices, start, end, account)
        wall = _wall(connection, book, start, end)
        overlaps = _overlaps(connection, start, end)
        gaps = _gaps(connection, start, end)
        drift = _drift(connection, book, start, end)
        observed = _mark(connection, OBSERVED)
    teams = sum(each.cost for each in account.sums.values())
    idle = sum(each.idle for each in account.hardware.values())
    homeless = sum(each.homeless for each in account.hardware.values())
    shown = money.micros([teams, idle])
    ghosts, missing = against(book, live) if live is not None else (set[Live](), set[Live]())
    return Verdict(
        since=times.seconds(times.from_unix(start)),
        until=times.seconds(times.from_unix(end)),
        holds=teams + idle == wall and not overlaps and not drift,
        teams_micros=shown[0],
        idle_micros=shown[1],
        wall_micros=(wall + money.MICRO // 2) // money.MICRO,
        difference=teams + idle - wall,
        roll_up_difference=drift,
        overlaps=overlaps,
        homeless_hours=round(homeless / 1e6 / 3600, 6),
        gaps=gaps,
        ghosts=named(ghosts),
        missing=named(missing),
        observed=times.seconds(times.from_unix(observed)) if observed else "",
    )


def against(book: Book, live: Iterable[Live]) -> tuple[set[Live], set[Live]]:
    """Ghosts, and what is missing. The ledger writes a moment after the cluster: whoever asks looks
    again, and takes what differs every time."""
    known = {
        Live(each.party.uid, each.member.attempt, each.member.role, each.member.index,
             f"{each.party.team}/{each.party.run or 'pod'} {each.member.role} {each.member.index}")
        for each in book.open_holds()
    }  # fmt: skip
    there = set(live)
    return known - there, there - known


def named(found: Iterable[Live]) -> list[str]:
    return [each.shown or each.uid for each in sorted(found)][:MOST]


def _wall(connection: sa.Connection, book: Book, start: int, end: int) -> int:
    """What the hardware cost: from what was there, and from roll-ups where that is gone."""
    pruned = _mark(connection, PRUNED)
    total = 0
    if start < pruned:
        table = schema.hardware
        days = (-(-start // DAY), min(end, pruned) // DAY)
        query = sa.select(sa.func.sum(table.c.wall)).where(
            table.c.day >= days[0], table.c.day < days[1]
        )
        total += int(connection.execute(query).scalar() or 0)
        start = min(end, pruned)
    table = schema.presence
    begin = sa.case((table.c.started < start, start), else_=table.c.started)
    finish = sa.case((table.c.ended > end, end), else_=table.c.ended)
    query = sa.select(sa.func.sum(table.c.rate * (finish - begin))).where(
        table.c.ended > start, table.c.started < end
    )
    total += int(connection.execute(query).scalar() or 0)
    prices = book.prices()
    here = sa.select(schema.open_presence, schema.device).join(
        schema.device, schema.device.c.id == schema.open_presence.c.device
    )
    for row in connection.execute(here).mappings():
        since = max(start, row["started"])
        if since < end:
            device = device_of(row)
            total += sum(prices.wall(device, a) * (b - a) for a, b in prices.cuts(since, end))
    return total


def _overlaps(connection: sa.Connection, start: int, end: int) -> list[str]:
    """Members that hold the same device twice at a time."""
    one, other = schema.interval.alias("one"), schema.interval.alias("other")
    same = [one.c[n] == other.c[n] for n in ("party", "attempt", "role", "member", "device")]
    query = (
        sa.select(one.c.party, one.c.attempt, one.c.role, one.c.member, one.c.started)
        .join(other, sa.and_(*same, one.c.started < other.c.started))
        .where(other.c.started < one.c.ended, one.c.ended > start, one.c.started < end)
        .limit(MOST)
    )
    return [" ".join(map(str, row)) for row in connection.execute(query)]


def _gaps(connection: sa.Connection, start: int, end: int) -> list[dict[str, Any]]:
    table = schema.gap
    query = (
        sa.select(table)
        .where(table.c.ended > start, table.c.started < end)
        .order_by(table.c.started.desc())
        .limit(MOST)
    )
    return [
        {
            "what": row["what"],
            "subject": row["subject"],
            "since": times.seconds(times.from_unix(row["started"])),
            "until": times.seconds(times.from_unix(row["ended"])),
            "detail": row["detail"],
        }
        for row in connection.execute(query).mappings()
    ]


def _drift(connection: sa.Connection, book: Book, start: int, end: int) -> int:
    """Roll-ups of settled days against their intervals, where those are still there."""
    first = max(-(-start // DAY) * DAY, _mark(connection, PRUNED))
    last = min(end // DAY * DAY, _mark(connection, SETTLED))
    if first >= last:
        return 0
    table = schema.daily
    query = sa.select(sa.func.sum(table.c.cost)).where(
        table.c.day >= first // DAY, table.c.day < last // DAY
    )
    summed = int(connection.execute(query).scalar() or 0)
    counted = accounting.live(connection, book.prices(), first, last)
    return summed - sum(each.cost for each in counted.sums.values())


def _mark(connection: sa.Connection, name: str) -> int:
    query = sa.select(schema.mark.c.value).where(schema.mark.c.name == name)
    return int(connection.execute(query).scalar() or 0)
