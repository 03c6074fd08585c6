"""Looks at the fleet, kept as a series: written once a minute, put together as they get older.

A sample stands for the seconds since the one before, and amounts are kept times these seconds, so
samples can be added: minutes become hours after a day, hours become days after two months. So the
series stays small however long the platform lives. Each step is one transaction; a moment is in
one row only, whatever dies in between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from windlass.ledger import looks, schema
from windlass.ledger.book import Book
from windlass.ledger.facts import DAY

MINUTE, HOUR = 60, 3600
KEPT = ((MINUTE, DAY, HOUR), (HOUR, 60 * DAY, DAY))
"""Span of samples in seconds, how long they are kept so, and the span they are put into then."""
_KEYS = {
    schema.queue_sample: ("queue", "resource"),
    schema.fleet_sample: ("team", "device"),
}


def write(book: Book, look: looks.Look, at: int, seconds: int) -> None:
    """What was seen, standing for so many seconds."""
    with book.engine.begin() as connection:
        _add(connection, schema.queue_sample, look.queues, at, seconds)
        _add(connection, schema.fleet_sample, look.cells, at, seconds)


def put_together(book: Book, now: int) -> None:
    """Samples that are old enough become fewer."""
    for table, keys in _KEYS.items():
        for span, kept, larger in KEPT:
            cut = (now - kept) // larger * larger
            with book.engine.begin() as connection:
                _merge(connection, table, keys, (span, larger, cut))


def finest(start: int, now: int) -> int:
    """The shortest stretch, in seconds, of which something is known since then."""
    return next((larger for _, kept, larger in reversed(KEPT) if start < now - kept), MINUTE)


@dataclasses.dataclass(frozen=True, slots=True)
class Averages:
    """Of the stretches of a time."""

    observed: Mapping[int, int]
    """By stretch, how many seconds of it somebody looked."""
    fleet: Mapping[int, Mapping[tuple[str, str], Mapping[str, float]]]
    """By stretch, by team and device."""
    queues: Mapping[int, Mapping[tuple[str, str], Mapping[str, float]]]
    """By stretch, by queue and resource."""


def read(connection: sa.Connection, start: int, end: int, step: int) -> Averages:
    """By stretches of `step` seconds, which are named by when they begin."""
    fleet = _sums(connection, schema.fleet_sample, start, end, step)
    queues = _sums(connection, schema.queue_sample, start, end, step)
    observed = {
        at: int(amounts["seconds"])
        for (at, team, device), amounts in fleet.items()
        if (team, device) == (looks.ALL, looks.CPU)
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
    """An INSERT that adds to what is there for the same time and key."""
    dialect: Any = sqlite if connection.dialect.name == "sqlite" else postgresql
    made = fill(dialect.insert(table))
    sums = {name: table.c[name] + made.excluded[name] for name in _amounts(table)}
    return made.on_conflict_do_update(index_elements=table.primary_key.columns, set_=sums)


def _amounts(table: sa.Table) -> list[str]:
    return [column.name for column in table.c if not column.primary_key]
