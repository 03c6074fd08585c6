"""Sums usage and cost between two moments, from intervals or from roll-ups.

`live` divides the price of every device over a time, from the intervals themselves. `settle` does
that for finished days and stores the sums. `between` takes whole settled days from there and
computes the rest from the intervals. Both ways give the same numbers, because all amounts are
integers per second: `ledger.accounting.reconciliation` checks it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import sqlalchemy as sa

from windlass.ledger.db import bulk, schema
from windlass.ledger.db.repository import (
    FORGOTTEN,
    PRUNED,
    SETTLED,
    LedgerRepository,
    device_of,
    party_of,
)
from windlass.ledger.model import DAY, Device, Party
from windlass.ledger.pricing import cost_allocation
from windlass.ledger.pricing.price_list import Prices

Group = tuple[Party, str, str, str]
"""(party, kind, model, form)"""
Row = Any
"""A row of a query, by the names of its columns."""


@dataclasses.dataclass(slots=True)
class Sum:
    """The usage of a party and its cost."""

    held: int = 0
    """Millionths of devices times seconds."""
    cpu: int = 0
    """Thousandths of cores times seconds."""
    memory: int = 0
    """MiB times seconds."""
    cost: int = 0
    """In nano (billionths of the currency)."""

    def add(self, other: Sum | Row) -> None:
        self.held += other.held
        self.cpu += other.cpu
        self.memory += other.memory
        self.cost += other.cost

    def values(self) -> tuple[int, int, int, int]:
        return self.held, self.cpu, self.memory, self.cost


@dataclasses.dataclass(slots=True)
class Hardware:
    """The presence of one device model and its cost."""

    present: int = 0
    """Device seconds."""
    free: int = 0
    """Unused millionths of devices times seconds."""
    homeless: int = 0
    """Usage while the device was absent: counted, and not charged."""
    wall: int = 0
    idle: int = 0

    def add(self, other: Hardware | cost_allocation.Bill[Any] | Row) -> None:
        self.present += other.present
        self.free += other.free
        self.homeless += other.homeless
        self.wall += other.wall
        self.idle += other.idle


@dataclasses.dataclass(slots=True)
class Account:
    """All sums between two moments."""

    sums: dict[Group, Sum] = dataclasses.field(default_factory=dict)
    hardware: dict[tuple[str, str], Hardware] = dataclasses.field(default_factory=dict)
    by_run: bool = True
    """Whether Runs are counted one by one; else only teams, users and queues are."""
    only: dict[str, str] = dataclasses.field(default_factory=dict)
    """A filter of parties by `team`, `user`, `queue`, `run`; hardware is not filtered."""
    top: int = 0
    """Only the largest Runs of settled days, and all of unsettled days; 0: all."""
    numbers: dict[Party, int] = dataclasses.field(default_factory=dict)
    """The ids of the parties in the database."""
    since: int = 0
    until: int = 0
    """The end of the time that the sums cover: whole days where intervals are pruned."""
    runs_since: int = 0
    """Costs of single Runs before this time are pruned."""

    def party_of_row(self, row: Row, number: int) -> Party:
        if not self.by_run:
            return Party("", row["team"], row["user"], "", row["queue"])
        party = party_of(row)
        self.numbers[party] = number
        return party

    def sum_of(self, group: Group) -> Sum:
        return self.sums.setdefault(group, Sum())

    def hardware_of(self, kind: str, model: str) -> Hardware:
        return self.hardware.setdefault((kind, model), Hardware())


@dataclasses.dataclass(slots=True)
class _Timeline:
    """The intervals of one device."""

    device: Device
    presence: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    spans: list[cost_allocation.Span[tuple[Party, str]]] = dataclasses.field(default_factory=list)


def live(
    connection: sa.Connection, prices: Prices, start: int, end: int, account: Account | None = None
) -> Account:
    """From the intervals; open intervals count until `end`."""
    intervals = _IntervalQuery(account or Account(), start, end, _devices(connection))
    table = schema.interval
    # An interval that ended in the second in which it began has no usage, and is still reported.
    inside = [table.c.ended >= start, table.c.started < end]
    intervals.meet(connection, table, inside)
    query = sa.select(*_interval_columns(table), table.c.ended, table.c.claim).where(*inside)
    for *held, ended, owed in connection.execute(query):
        intervals.add(held, ended, owed)
    table = schema.open_interval
    inside = [table.c.started < end]
    intervals.meet(connection, table, inside)
    for *held, device, form, part, started in connection.execute(
        sa.select(*_interval_columns(table)).where(*inside)
    ):
        for a, b in prices.cuts(started, end):
            owed = cost_allocation.claim(prices.rate(intervals.devices[device], form, a), part)
            intervals.add([*held, device, form, part, a], b, owed)
    _presence(connection, prices, intervals)
    for line in intervals.lines.values():
        _bill(intervals.account, line, start, end)
    return intervals.account


def between(
    repository: LedgerRepository,
    start: int,
    end: int,
    *,
    by_run: bool = False,
    only: dict[str, str] | None = None,
    top: int = 0,
) -> Account:
    """From roll-ups where days are settled, else from the intervals. With `top`, the result
    contains at least that many of the largest Runs; others may be missing."""
    account = Account(by_run=by_run, only=only or {}, top=top)
    with repository.reading() as connection:
        return counted(connection, repository.prices(), start, end, account)


def counted(
    connection: sa.Connection, prices: Prices, start: int, end: int, account: Account
) -> Account:
    """The same within a transaction of the caller."""
    start, end = account.since, account.until = covered(connection, start, end)
    account.runs_since = _mark(connection, FORGOTTEN) if account.by_run else 0
    settled = _mark(connection, SETTLED)
    first, last = -(-start // DAY) * DAY, min(end // DAY * DAY, settled)
    if first >= last:
        return live(connection, prices, start, end, account)
    # Unsettled days first: a Run that is still running may become one of the largest.
    if start < first:
        live(connection, prices, start, first, account)
    if last < end:
        live(connection, prices, last, end, account)
    _from_roll_ups(connection, account, first // DAY, last // DAY)
    return account


def covered(connection: sa.Connection, start: int, end: int) -> tuple[int, int]:
    """The interval that can be computed: only whole days where intervals are pruned."""
    pruned = _mark(connection, PRUNED)
    first = start // DAY * DAY if start < pruned else start
    return first, -(-end // DAY) * DAY if end < pruned else end


def settle(repository: LedgerRepository, until: int, most_days: int = 31) -> int:
    """Sums up days that ended before `until`; returns how many. A settled day about which new data
    arrived is summed up again: the mark was put back."""
    prices, done = repository.prices(), 0
    while done < most_days:
        with repository.engine.begin() as connection:
            settled = _mark(connection, SETTLED) or _first_day(connection)
            if settled is None or settled + DAY > until:
                return done
            _store(connection, live(connection, prices, settled, settled + DAY), settled // DAY)
            _put_mark(connection, SETTLED, settled + DAY)
        done += 1
    return done


def prune(repository: LedgerRepository, intervals_before: int, charges_before: int) -> None:
    """Deletes old intervals and old costs of single Runs; the sums per day stay."""
    with repository.engine.begin() as connection:
        settled = _mark(connection, SETTLED)
        cut = min(intervals_before, settled) // DAY * DAY
        if cut > _mark(connection, PRUNED):
            for table in (schema.interval, schema.presence):
                connection.execute(table.delete().where(table.c.ended <= cut))
            _put_mark(connection, PRUNED, cut)
        day = min(charges_before, settled) // DAY
        if day * DAY > _mark(connection, FORGOTTEN):
            connection.execute(schema.charge.delete().where(schema.charge.c.day < day))
            _put_mark(connection, FORGOTTEN, day * DAY)


# --- parts ----------------------------------------------------------------------------------------


def _devices(connection: sa.Connection) -> dict[int, Device]:
    rows = connection.execute(sa.select(schema.device)).mappings()
    return {row["id"]: device_of(row) for row in rows}


def _interval_columns(table: sa.Table) -> list[Any]:
    """The columns that `_IntervalQuery.add` takes, in its order."""
    names = ("party", "attempt", "role", "member", "cpu", "memory",
             "device", "form", "part", "started")  # fmt: skip
    return [table.c[name] for name in names]


@dataclasses.dataclass(slots=True)
class _IntervalQuery:
    """The intervals of a time, device by device."""

    account: Account
    start: int
    end: int
    devices: dict[int, Device]
    lines: dict[int, _Timeline] = dataclasses.field(default_factory=dict)
    parties: dict[int, tuple[Party, str]] = dataclasses.field(default_factory=dict)
    """By database id: the party of the account, and its uid."""

    def meet(self, connection: sa.Connection, table: sa.Table, where: list[Any]) -> None:
        """Reads the parties of these rows."""
        named = sa.select(table.c.party).where(*where)
        query = sa.select(schema.party).where(schema.party.c.id.in_(named))
        for row in connection.execute(query).mappings():
            self.parties[row["id"]] = self.account.party_of_row(row, row["id"]), row["uid"]

    def line(self, number: int) -> _Timeline:
        found = self.lines.get(number)
        if found is None:
            found = self.lines[number] = _Timeline(self.devices[number])
        return found

    def add(self, values: list[Any], ended: int, owed: int) -> None:
        party, attempt, role, member, cpu, memory, device, form, part, started = values
        seconds = min(ended, self.end) - max(started, self.start)
        if seconds < 0 or (seconds == 0 and started < self.start):
            return
        holder, uid = self.parties[party]
        line = self.line(device)
        order = uid, attempt, role, member, device
        line.spans.append(cost_allocation.Span((holder, form), started, ended, owed, part, order))
        if cpu or memory or not seconds:
            kind, model = line.device.kind, line.device.model
            total = self.account.sum_of((holder, kind, model, form))
            total.cpu += cpu * seconds
            total.memory += (memory >> 20) * seconds


def _presence(connection: sa.Connection, prices: Prices, intervals: _IntervalQuery) -> None:
    table = schema.presence
    ended = sa.select(table.c.device, table.c.started, table.c.ended, table.c.rate).where(
        table.c.ended > intervals.start, table.c.started < intervals.end
    )
    for number, *spell in connection.execute(ended):
        intervals.line(number).presence.append((spell[0], spell[1], spell[2]))
    table = schema.open_presence
    here = sa.select(table.c.device, table.c.started).where(table.c.started < intervals.end)
    for number, started in connection.execute(here):
        line = intervals.line(number)
        line.presence += [
            (a, b, prices.wall(line.device, a)) for a, b in prices.cuts(started, intervals.end)
        ]


def _bill(account: Account, line: _Timeline, start: int, end: int) -> None:
    made = cost_allocation.bill(line.presence, line.spans, start, end)
    kind, model = line.device.kind, line.device.model
    for (holder, form), share in made.shares.items():
        total = account.sum_of((holder, kind, model, form))
        total.held += share.held
        total.cost += share.cost
    account.hardware_of(kind, model).add(made)


def _store(connection: sa.Connection, account: Account, day: int) -> None:
    for table in (schema.charge, schema.daily, schema.hardware):
        connection.execute(table.delete().where(table.c.day == day))
    days: dict[tuple[str, ...], Sum] = {}
    charges = []
    for (holder, kind, model, form), total in account.sums.items():
        charges.append((day, account.numbers[holder], kind, model, form, *total.values()))
        key = holder.team, holder.user, holder.queue, kind, model, form
        days.setdefault(key, Sum()).add(total)
    daily = [(day, *key, *total.values()) for key, total in days.items()]
    there = [
        (day, *key, each.present, each.free, each.homeless, each.wall, each.idle)
        for key, each in account.hardware.items()
    ]
    for table, rows in ((schema.charge, charges), (schema.daily, daily), (schema.hardware, there)):
        bulk.insert(connection, table, table.c.keys(), rows)


def _from_roll_ups(connection: sa.Connection, account: Account, first: int, last: int) -> None:
    table = schema.charge if account.by_run else schema.daily
    what = [table.c.kind, table.c.model, table.c.form]
    sums = [
        sa.cast(sa.func.sum(table.c[name]), sa.BigInteger).label(name)
        for name in ("held", "cpu", "memory", "cost")
    ]
    by_team = [schema.daily.c.team, schema.daily.c.user, schema.daily.c.queue]
    groups = [table.c.party] if account.by_run else by_team
    days = [table.c.day >= first, table.c.day < last]
    if account.by_run:
        chosen = sa.select(schema.party.c.id).where(*_only(schema.party, account))
        days += [table.c.party.in_(chosen)] if account.only else []
        days += [table.c.party.in_(_largest(connection, account, days))] if account.top else []
    else:
        days += _only(table, account)
    query = sa.select(*groups, *what, *sums).where(*days).group_by(*groups, *what)
    if account.by_run:
        inner = query.subquery()
        query = sa.select(inner, schema.party).join(
            schema.party, schema.party.c.id == inner.c.party
        )
    for row in connection.execute(query):
        number = row.party if account.by_run else 0
        group = account.party_of_row(row._mapping, number), row.kind, row.model, row.form
        account.sum_of(group).add(row)
    there = sa.select(schema.hardware).where(
        schema.hardware.c.day >= first, schema.hardware.c.day < last
    )
    for row in connection.execute(there):
        account.hardware_of(row.kind, row.model).add(row)


def _only(table: sa.Table, account: Account) -> list[Any]:
    return [table.c[name] == value for name, value in account.only.items() if name in table.c]


def _largest(connection: sa.Connection, account: Account, where: list[Any]) -> list[int]:
    """The Runs with the largest cost or usage in these days, and all that are known already."""
    table = schema.charge
    order = [sa.func.sum(table.c.cost).desc(), sa.func.sum(table.c.held).desc()]
    query = (
        sa.select(table.c.party).where(*where).group_by(table.c.party).order_by(*order)
        .limit(account.top)
    )  # fmt: skip
    found = {int(row[0]) for row in connection.execute(query)}
    # Unsettled days have few parties; SQLite allows lists of some thousands.
    return sorted(found | set(list(account.numbers.values())[:20_000]))


def began(connection: sa.Connection) -> int | None:
    """When the first interval that still exists began."""
    tables = (schema.interval, schema.presence, schema.open_interval, schema.open_presence)
    found = [connection.execute(sa.select(sa.func.min(t.c.started))).scalar() for t in tables]
    return min((int(each) for each in found if each is not None), default=None)


def _first_day(connection: sa.Connection) -> int | None:
    """The day of the first interval."""
    first = began(connection)
    return None if first is None else first // DAY * DAY


def _mark(connection: sa.Connection, name: str) -> int:
    query = sa.select(schema.mark.c.value).where(schema.mark.c.name == name)
    return int(connection.execute(query).scalar() or 0)


def _put_mark(connection: sa.Connection, name: str, value: int) -> None:
    table = schema.mark
    changed = connection.execute(table.update().where(table.c.name == name).values(value=value))
    if not changed.rowcount:
        connection.execute(table.insert().values(name=name, value=value))
