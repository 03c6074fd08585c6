"""Checks the invariants of the ledger, and compares it with the cluster.

The main invariant: over any interval, the cost of teams plus the idle cost equals the cost of the
hardware, exactly. Both sides are computed independently: the hardware cost from presence in plain
SQL, the rest by the code of the reports. Further invariants: no interval overlaps itself, none
begins before its device, and roll-ups equal their intervals, in cost and in amounts. `against`
compares open intervals with the cluster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec
import sqlalchemy as sa

from windlass.kinds.values import times
from windlass.ledger.accounting import rollups
from windlass.ledger.db import schema
from windlass.ledger.db.repository import OBSERVED, PRUNED, SETTLED, LedgerRepository, device_of
from windlass.ledger.model import DAY
from windlass.ledger.pricing import money

MOST = 50
"""The most overlaps, ghosts and gaps that a report lists."""


class ReconciliationReport(msgspec.Struct, rename="camel", omit_defaults=True):
    """The result of a reconciliation."""

    since: str
    until: str
    holds: bool
    """Whether everything adds up and nothing overlaps."""
    teams_micros: int
    idle_micros: int
    wall_micros: int
    difference: int
    """In nano: the cost of teams plus idle cost, minus the cost of the hardware."""
    roll_up_difference: int
    """In nano: the roll-ups of finished days, minus the sums of their intervals."""
    overlaps: list[str]
    early: list[str] = []
    """Intervals that begin before the ledger knows of their device: usage without hardware."""
    roll_up_amounts: int = 0
    """In millionths of devices times seconds: the same difference of amounts."""
    homeless_hours: float = 0.0
    """Usage of devices that were absent: counted, and not charged."""
    gaps: list[dict[str, Any]] = []
    """Intervals that the ledger did not observe completely."""
    ghosts: list[str] = []
    """Open in the ledger, and absent in the cluster."""
    missing: list[str] = []
    """Running in the cluster, and not open in the ledger."""
    observed: str = ""
    """When the ledger last observed the cluster."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Live:
    """A run or pod that occupies capacity in the cluster now."""

    uid: str
    attempt: int
    role: str
    index: int
    shown: str = dataclasses.field(compare=False, default="")


def verify(
    repository: LedgerRepository, start: int, end: int, live: Iterable[Live] | None = None
) -> ReconciliationReport:
    """`live`: the state of the cluster now; None skips the comparison."""
    prices = repository.prices()
    with repository.reading() as connection:
        start, end = rollups.covered(connection, start, end)
        account = rollups.Account(by_run=False)
        rollups.counted(connection, prices, start, end, account)
        wall = _wall(connection, repository, start, end)
        overlaps = _overlaps(connection, start, end)
        gaps = _gaps(connection, start, end)
        drift, amounts = _drift(connection, repository, start, end)
        early = _early(connection, start, end)
        observed = _mark(connection, OBSERVED)
    teams = sum(each.cost for each in account.sums.values())
    idle = sum(each.idle for each in account.hardware.values())
    homeless = sum(each.homeless for each in account.hardware.values())
    shown = money.micros([teams, idle])
    ghosts, missing = against(repository, live) if live is not None else (set[Live](), set[Live]())
    return ReconciliationReport(
        since=times.seconds(times.from_unix(start)),
        until=times.seconds(times.from_unix(end)),
        holds=teams + idle == wall and not (overlaps or drift or amounts or early),
        teams_micros=shown[0],
        idle_micros=shown[1],
        wall_micros=(wall + money.MICRO // 2) // money.MICRO,
        difference=teams + idle - wall,
        roll_up_difference=drift,
        overlaps=overlaps,
        early=early,
        roll_up_amounts=amounts,
        homeless_hours=round(homeless / 1e6 / 3600, 6),
        gaps=gaps,
        ghosts=named(ghosts),
        missing=named(missing),
        observed=times.seconds(times.from_unix(observed)) if observed else "",
    )


def against(repository: LedgerRepository, live: Iterable[Live]) -> tuple[set[Live], set[Live]]:
    """Ghosts and missing intervals. The ledger lags behind the cluster: the caller repeats the
    comparison and keeps the differences that persist."""
    known = {
        Live(each.party.uid, each.member.attempt, each.member.role, each.member.index,
             f"{each.party.team}/{each.party.run or 'pod'} {each.member.role} {each.member.index}")
        for each in repository.open_holds()
    }  # fmt: skip
    there = set(live)
    return known - there, there - known


def named(found: Iterable[Live]) -> list[str]:
    return [each.shown or each.uid for each in sorted(found)][:MOST]


def _wall(connection: sa.Connection, repository: LedgerRepository, start: int, end: int) -> int:
    """The cost of the hardware: from presence, and from roll-ups where presence is pruned."""
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
    prices = repository.prices()
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
    """Replicas that use the same device twice at the same time."""
    one, other = schema.interval.alias("one"), schema.interval.alias("other")
    same = [one.c[n] == other.c[n] for n in ("party", "attempt", "role", "member", "device")]
    query = (
        sa.select(one.c.party, one.c.attempt, one.c.role, one.c.member, one.c.started)
        .join(other, sa.and_(*same, one.c.started < other.c.started))
        .where(other.c.started < one.c.ended, one.c.ended > start, one.c.started < end)
        .limit(MOST)
    )
    return [" ".join(map(str, row)) for row in connection.execute(query)]


def _early(connection: sa.Connection, start: int, end: int) -> list[str]:
    """Intervals of which a part lies before the first presence of their device, with team and
    node. Money does not show them where nothing has a price."""
    first: dict[int, int] = {}
    for table in (schema.presence, schema.open_presence):
        query = sa.select(table.c.device, sa.func.min(table.c.started)).group_by(table.c.device)
        for device, since in connection.execute(query):
            first[device] = min(since, first.get(device, since))
    found: list[str] = []
    for table, ended in (
        (schema.interval, schema.interval.c.ended > start),
        (schema.open_interval, sa.true()),
    ):
        query = (
            sa.select(
                schema.party.c.team, schema.party.c.run, schema.device.c.node,
                schema.device.c.name, table.c.device, table.c.started,
            )
            .join(schema.party, schema.party.c.id == table.c.party)
            .join(schema.device, schema.device.c.id == table.c.device)
            .where(ended, table.c.started < end)
        )  # fmt: skip
        for row in connection.execute(query).mappings():
            since, there = int(row["started"]), first.get(int(row["device"]), 0)
            if since < there and there > start:
                what = f"{row['team']}/{row['run'] or 'pod'} on {row['node']} {row['name']}"
                found.append(f"{what} from {times.seconds(times.from_unix(since))}")
        if len(found) >= MOST:
            break
    return found[:MOST]


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


def _drift(
    connection: sa.Connection, repository: LedgerRepository, start: int, end: int
) -> tuple[int, int]:
    """The difference between roll-ups and intervals of settled days, where intervals still
    exist: of cost and of amounts."""
    first = max(-(-start // DAY) * DAY, _mark(connection, PRUNED))
    last = min(end // DAY * DAY, _mark(connection, SETTLED))
    if first >= last:
        return 0, 0
    table = schema.daily
    query = sa.select(sa.func.sum(table.c.cost), sa.func.sum(table.c.held)).where(
        table.c.day >= first // DAY, table.c.day < last // DAY
    )
    cost, held = (int(each or 0) for each in connection.execute(query).one())
    sums = rollups.live(connection, repository.prices(), first, last).sums.values()
    return cost - sum(each.cost for each in sums), held - sum(each.held for each in sums)


def _mark(connection: sa.Connection, name: str) -> int:
    query = sa.select(schema.mark.c.value).where(schema.mark.c.name == name)
    return int(connection.execute(query).scalar() or 0)
