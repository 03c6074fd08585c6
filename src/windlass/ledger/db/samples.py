"""Samples of the fleet as a time series: one per minute, aggregated as they get older.

A sample covers the seconds since the one before, and amounts are stored times these seconds, so
samples can be added: minutes become hours after a day, hours become days after two months. So the
series stays small for any age of the platform. Each step is one transaction, so a moment is in
exactly one row even after a crash.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from windlass.ledger.db import schema
from windlass.ledger.db.repository import LedgerRepository
from windlass.ledger.model import ALL, CPU, DAY, FleetSample

MINUTE, HOUR = 60, 3600
KEPT = ((MINUTE, DAY, HOUR), (HOUR, 60 * DAY, DAY))
"""Span of samples in seconds, how long they are kept, and the span into which they are merged."""
_KEYS = {
    schema.queue_sample: ("queue", "resource"),
    schema.fleet_sample: ("team", "device"),
}


def write(repository: LedgerRepository, sample: FleetSample, at: int, seconds: int) -> None:
    """Stores a sample that covers this many seconds."""
    with repository.engine.begin() as connection:
        _add(connection, schema.queue_sample, sample.queues, at, seconds)
        _add(connection, schema.fleet_sample, sample.cells, at, seconds)


def compact(repository: LedgerRepository, now: int) -> None:
    """Merges samples that are old enough."""
    for table, keys in _KEYS.items():
        for span, kept, larger in KEPT:
            cut = (now - kept) // larger * larger
            with repository.engine.begin() as connection:
                _merge(connection, table, keys, (span, larger, cut))


def finest(start: int, now: int) -> int:
    """The shortest span, in seconds, of the samples since then."""
    return next((larger for _, kept, larger in reversed(KEPT) if start < now - kept), MINUTE)


@dataclasses.dataclass(frozen=True, slots=True)
class Averages:
    """Averages per span of an interval."""

    observed: Mapping[int, int]
    """By span, the seconds that samples cover."""
    fleet: Mapping[int, Mapping[tuple[str, str], Mapping[str, float]]]
    """By span, by team and device."""
    queues: Mapping[int, Mapping[tuple[str, str], Mapping[str, float]]]
    """By span, by queue and resource."""


def read(connection: sa.Connection, start: int, end: int, step: int) -> Averages:
    """Averages per span of `step` seconds; the key is the start of the span."""
    fleet = _sums(connection, schema.fleet_sample, start, end, step)
    queues = _sums(connection, schema.queue_sample, start, end, step)
    observed = {
        at: int(amounts["seconds"])
        for (at, team, device), amounts in fleet.items()
        if (team, device) == (ALL, CPU)
    }

    def averages(sums: Mapping[tuple[int, str, str], Mapping[str, int]]) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for (at, *key), amounts in sums.items():
            seconds = 1000 * (observed.get(at) or amounts["seconds"])
            found.setdefault(at, {})[tuple(key)] = {
                name: round(amount / seconds, 3)
                for name, amount in amounts.items() if name != "seconds"
            }  # fmt: skip
        return found

    return Averages(observed, averages(fleet), averages(queues))


def _sums(
    connection: sa.Connection, table: sa.Table, start: int, end: int, step: int
) -> dict[tuple[int, str, str], dict[str, int]]:
    keys = [table.c[name] for name in _KEYS[table]]
    stretch = (table.c.at - table.c.at % step).label("stretch")
    names = _amounts(table)
    sums = [sa.cast(sa.func.sum(table.c[name]), sa.BigInteger).label(name) for name in names]
    query = (
        sa.select(stretch, *keys, *sums)
        .where(table.c.at >= start, table.c.at < end)
        .group_by(stretch, *keys)
    )
    found = {}
    for at, first, second, *amounts in connection.execute(query):
        found[at, first, second] = dict(zip(names, amounts, strict=True))
    return found


def _merge(
    connection: sa.Connection, table: sa.Table, keys: Iterable[str], how: tuple[int, int, int]
) -> None:
    span, larger, cut = how
    old = [table.c.span == span, table.c.at < cut]
    at = (table.c.at - table.c.at % larger).label("at")
    named = [table.c[name] for name in keys]
    sums = [sa.func.sum(table.c[name]).label(name) for name in _amounts(table)]
    chosen = sa.select(sa.literal(larger), at, *named, *sums).where(*old).group_by(at, *named)
    columns = ["span", "at", *keys, *_amounts(table)]
    connection.execute(_adding(connection, table, lambda made: made.from_select(columns, chosen)))
    connection.execute(table.delete().where(*old))


def _add(
    connection: sa.Connection, table: sa.Table, cells: Mapping[tuple[str, str], Any], at: int,
    seconds: int,
) -> None:  # fmt: skip
    rows = [
        {"span": MINUTE, "at": at, **dict(zip(_KEYS[table], key, strict=True)),
         "seconds": seconds,
         **{name: getattr(cell, name) * seconds for name in _amounts(table)[1:]}}
        for key, cell in cells.items()
    ]  # fmt: skip
    if rows:
        connection.execute(_adding(connection, table, lambda made: made), rows)


def _adding(connection: sa.Connection, table: sa.Table, fill: Any) -> Any:
    """An INSERT that adds to an existing row of the same time and key."""
    dialect: Any = sqlite if connection.dialect.name == "sqlite" else postgresql
    made = fill(dialect.insert(table))
    sums = {name: table.c[name] + made.excluded[name] for name in _amounts(table)}
    return made.on_conflict_do_update(index_elements=table.primary_key.columns, set_=sums)


def _amounts(table: sa.Table) -> list[str]:
    return [column.name for column in table.c if not column.primary_key]
