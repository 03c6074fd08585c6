"""The monthly statement of a team, or of all: usage and cost, as data, CSV or a page to print.

The page is self-contained: plots are inline SVG, nothing is fetched.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import msgspec

from windlass.kinds.values import times
from windlass.ledger.accounting import rollups
from windlass.ledger.db.repository import LedgerRepository
from windlass.ledger.model import DAY, MACHINE, WHOLE
from windlass.ledger.pricing import money, periods
from windlass.ledger.reports import usage
from windlass.reporting import html, svg

TOP = 10
TABLES = {
    "By device and form": ("device", "form"),
    "By user": ("user",),
    "By queue": ("queue",),
    "Largest runs": ("run", "user"),
}
TABLES_OF_ALL = {
    "By team": ("team",),
    "By device and form": ("device", "form"),
    "By user": ("user",),
    "By queue": ("queue",),
    "Largest runs": ("team", "run", "user"),
}


class Day(msgspec.Struct, rename="camel"):
    """One day of the month."""

    day: str
    device_hours: float
    machine_hours: float
    cost_micros: int


class Statement(msgspec.Struct, rename="camel", omit_defaults=True):
    """All data of the page."""

    team: str
    """Empty: of all teams."""
    month: str
    as_of: str
    currency: str
    total: usage.Row
    tables: dict[str, list[usage.Row]]
    days: list[Day]
    months: list[usage.Row]
    """This month and the five before."""
    idle: usage.Row | None = None
    """Hardware that was not allocated; of all teams only."""
    wall: usage.Row | None = None
    """All hardware; of all teams only."""


def make(repository: LedgerRepository, team: str, month: str, now: int) -> Statement:
    """Of a team; with an empty name of the whole platform, for administrators."""
    start, end = periods.month(month)
    tables, report = {}, None
    for title, by in (TABLES if team else TABLES_OF_ALL).items():
        top = TOP if "run" in by else 0
        query = usage.UsageQuery(start, end, now, by=by, team=team, top=top, everything=not team)
        report = usage.usage(repository, query)
        tables[title] = report.rows
    assert report is not None, "there are tables"  # noqa: S101
    months = []
    for each in periods.months_before(month, 6):
        first, last = periods.month(each)
        query = usage.UsageQuery(first, last, now, by=(), team=team)
        whole = usage.usage(repository, query).total
        months.append(msgspec.structs.replace(whole, labels={"month": each}))
    return Statement(
        team=team,
        month=month,
        as_of=times.seconds(times.from_unix(now)),
        currency=repository.prices().currency,
        total=report.total,
        tables=tables,
        days=_days(repository, team, start, min(end, max(start, now))),
        months=months,
        idle=report.idle,
        wall=report.wall,
    )


def _days(repository: LedgerRepository, team: str, start: int, end: int) -> list[Day]:
    found = []
    for first in range(start, end, DAY):
        account = rollups.between(repository, first, min(end, first + DAY))
        held = {True: 0, False: 0}
        cost = 0
        for (party, kind, *_), total in account.sums.items():
            if not team or party.team == team:
                held[kind == MACHINE] += total.held
                cost += total.cost
        hours = {key: round(value / WHOLE / 3600, 6) for key, value in held.items()}
        day = times.seconds(times.from_unix(first))[:10]
        found.append(Day(day, hours[False], hours[True], money.micros([cost])[0]))
    return found


# --- for spreadsheets -----------------------------------------------------------------------------


def as_csv(statement: Statement) -> str:
    """One line for each row of each table; amounts without separators."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["team", "month", "table", "name", "device_hours", "machine_hours", "cpu_hours",
         "memory_gib_hours", "cost", "currency"]
    )  # fmt: skip
    rows = [("total", statement.total), *(
        (title, row) for title, listed in statement.tables.items() for row in listed
    )]  # fmt: skip
    rows += [(name, row) for name, row in _hardware(statement) if row is not statement.total]
    for title, row in rows:
        name = html.cell(" ".join(row.labels.values()))
        writer.writerow(
            [statement.team, statement.month, title, name, row.device_hours, row.machine_hours,
             row.cpu_hours, row.memory_gib_hours, money.plain(row.cost_micros * 1000),
             statement.currency]
        )  # fmt: skip
    return out.getvalue()


# --- the page -------------------------------------------------------------------------------------


def as_html(statement: Statement) -> str:
    title = f"{statement.team or 'All teams'}, {statement.month}"
    total = f"{_hours(statement.total.device_hours)} device hours"
    if statement.currency:
        total += f", {statement.total.cost}"
    tables = {**statement.tables, "Months": statement.months}
    summary = f"{total}. Numbers of {statement.as_of}, times in UTC."
    parts = [*_plots(statement), *(_table(name, rows) for name, rows in tables.items())]
    hardware = _hardware(statement)
    if hardware:
        rows = [msgspec.structs.replace(row, labels={"": name}) for name, row in hardware]
        parts.append(_table("Hardware", rows))
    return html.make(title, summary, parts)


def _hardware(statement: Statement) -> list[tuple[str, usage.Row]]:
    """Where all hardware is known: the part of the teams, the rest, and the whole."""
    if statement.idle is None or statement.wall is None:
        return []
    return [
        ("allocated", statement.total),
        ("not allocated", statement.idle),
        ("all hardware", statement.wall),
    ]


def _plots(statement: Statement) -> Iterator[str]:
    """Bars for each day; the axis has all days of the month, also those to come."""
    hours = [
        svg.Bars("device hours", [day.device_hours for day in statement.days]),
        svg.Bars("machine hours", [day.machine_hours for day in statement.days]),
    ]
    yield from _plot(statement.month, "Hours by day", "hours", hours)
    if statement.currency:
        cost = [day.cost_micros / money.UNIT for day in statement.days]
        bars = svg.Bars(statement.currency, cost)
        yield from _plot(statement.month, "Cost by day", statement.currency, [bars])


def _plot(month: str, title: str, unit: str, series: list[svg.Bars]) -> Iterator[str]:
    yield f"<h2>{title}</h2>"
    shown = [each for each in series if any(each.values)]
    if not shown:
        yield "<p>None in this month.</p>"
        return
    start, end = periods.month(month)
    days = [str(number + 1) for number in range((end - start) // DAY)]
    up = svg.plain_axis(max(max(each.values) for each in shown), unit)
    yield html.legend([each.name for each in shown])
    name = times.from_unix(start).strftime("%B %Y")
    yield html.wide(svg.bars(shown, days, up, title.lower(), f"day of {name}, UTC"))


def _table(title: str, rows: list[usage.Row]) -> str:
    header = ["name", "device h", "machine h", "cpu h", "GiB h", "cost"]
    lines = []
    for row in rows:
        name = " ".join(value or "-" for value in row.labels.values())
        cells = (row.device_hours, row.machine_hours, row.cpu_hours, row.memory_gib_hours)
        lines.append([name, *map(_hours, cells), row.cost or "-"])
    return html.table(title, header, lines)


def _hours(value: float) -> str:
    return f"{value:,.2f}"
