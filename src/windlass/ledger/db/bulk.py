"""Bulk inserts: one statement for a whole batch of rows.

SQLite runs one prepared statement for all rows; PostgreSQL gets each column as one array. Rows are
plain tuples: the work of SQLAlchemy for each row of a list costs more than the row itself.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa


def insert(
    connection: sa.Connection,
    table: sa.Table,
    names: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
) -> int:
    """Inserts the rows that do not exist yet; returns how many."""
    if not rows:
        return 0
    arrays = connection.dialect.name != "sqlite"
    statement = _statement(table, tuple(names), connection.dialect, arrays)
    parameters = tuple(map(list, zip(*rows, strict=True))) if arrays else list(rows)
    return int(connection.exec_driver_sql(statement, parameters).rowcount)


def insert_named(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]
) -> int:
    """The same for rows as mappings with equal keys."""
    names = list(rows[0]) if rows else []
    return insert(connection, table, names, [tuple(row[name] for name in names) for row in rows])


@functools.cache
def _statement(table: sa.Table, names: tuple[str, ...], dialect: sa.Dialect, arrays: bool) -> str:
    # Only names of the project's own tables and columns are put together here.
    quote = dialect.identifier_preparer.quote
    columns = ", ".join(quote(name) for name in names)
    if arrays:
        types = [table.c[name].type.compile(dialect) for name in names]
        listed = ", ".join(f"%s::{each}[]" for each in types)
        values = f"SELECT * FROM unnest({listed})"  # noqa: S608
    else:
        values = f"VALUES ({', '.join('?' * len(names))})"
    return f"INSERT INTO {quote(table.name)} ({columns}) {values} ON CONFLICT DO NOTHING"
