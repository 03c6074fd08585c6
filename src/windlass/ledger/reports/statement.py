"""A team's monthly statement: what it held and what that cost, as data, CSV or a page to print.

The page stands alone: plots are SVG inside it, nothing is fetched.
"""

from __future__ import annotations

import csv
import io

import msgspec

from windlass.kinds import times
from windlass.ledger import accounting, calendar, money, page, reports
from windlass.ledger.book import Book
from windlass.ledger.facts import DAY, MACHINE, WHOLE
from windlass.sim import charts

TOP = 10
TABLES = {
    "By device and form": ("device", "form"),
    "By user": ("user",),
    "By queue": ("queue",),
    "Largest runs": ("run", "user"),
}


class Day(msgspec.Struct, rename="camel"):
    """One day of the month."""

    day: str
    device_hours: float
    machine_hours: float
    cost_micros: int


class Statement(msgspec.Struct, rename="camel"):
    """Everything the page shows."""

    team: str
    month: str
    as_of: str
    currency: str
    total: reports.Row
    tables: dict[str, list[reports.Row]]
    days: list[Day]
    months: list[reports.Row]
    """This month and the five before."""


def make(book: Book, team: str, month: str, now: int) -> Statement:
    start, end = calendar.month(month)
    tables, total = {}, None
    for title, by in TABLES.items():
        top = TOP if "run" in by else 0
        question = reports.Question(start, end, now, by=by, team=team, top=top)
        report = reports.usage(book, question)
        tables[title], total = report.rows, report.total
    assert total is not None, "there are tables"  # noqa: S101
    months = []
    for each in calendar.months_before(month, 6):
        first, last = calendar.month(each)
        question = reports.Question(first, last, now, by=(), team=team)
        whole = reports.usage(book, question).total
        months.append(msgspec.structs.replace(whole, labels={"month": each}))
    return Statement(
        team=team,
        month=month,
        as_of=times.seconds(times.from_unix(now)),
        currency=book.prices().currency,
        total=total,
        tables=tables,
        days=_days(book, team, start, min(end, max(start, now))),
        months=months,
    )


def _days(book: Book, team: str, start: int, end: int) -> list[Day]:
    found = []
    for first in range(start, end, DAY):
        account = accounting.between(book, first, min(end, first + DAY))
        held = {True: 0, False: 0}
        cost = 0
        for (who, kind, *_), total in account.sums.items():
            if who.team == team:
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
    for title, row in rows:
        name = page.cell(" ".join(row.labels.values()))
        writer.writerow(
            [statement.team, statement.month, title, name, row.device_hours, row.machine_hours,
             row.cpu_hours, row.memory_gib_hours, money.plain(row.cost_micros * 1000),
             statement.currency]
        )  # fmt: skip
    return out.getvalue()


# --- for people -----------------------------------------------------------------------------------


def as_html(statement: Statement) -> str:
    title = f"{statement.team}, {statement.month}"
    total = f"{_hours(statement.total.device_hours)} device hours"
    if statement.currency:
        total += f", {statement.total.cost}"
    tables = {**statement.tables, "Months": statement.months}
    words = f"{total}. Numbers of {statement.as_of}, times in UTC."
    parts = [_plots(statement), *(_table(name, rows) for name, rows in tables.items())]
    return page.make(title, words, parts)


def _plots(statement: Statement) -> str:
    if not statement.days:
        return ""
    x = [float(number) * DAY for number in range(len(statement.days))]
    across = charts.time_axis(max(DAY, len(statement.days) * DAY), "day of the month")
    hours = [
        charts.Line("devices", x, [day.device_hours for day in statement.days]),
        charts.Line("machines", x, [day.machine_hours for day in statement.days]),
    ]
    most = max((value for line in hours for value in line.y), default=0.0)
    up = charts.plain_axis(most or 1.0, "hours a day")
    parts = ["<h2>Hours by day</h2>", charts.lines(hours, across, up, "hours by day")]
    if statement.currency:
        cost = [day.cost_micros / money.UNIT for day in statement.days]
        line = charts.Line(statement.currency, x, cost)
        up = charts.plain_axis(max(cost) or 1.0, f"{statement.currency} a day")
        parts += ["<h2>Cost by day</h2>", charts.lines([line], across, up, "cost by day")]
    return "\n".join(parts)


def _table(title: str, rows: list[reports.Row]) -> str:
    header = ["name", "device h", "machine h", "cpu h", "GiB h", "cost"]
    lines = []
    for row in rows:
        name = " ".join(value or "-" for value in row.labels.values())
        cells = (row.device_hours, row.machine_hours, row.cpu_hours, row.memory_gib_hours)
        lines.append([name, *map(_hours, cells), row.cost or "-"])
    return page.table(title, header, lines)


def _hours(value: float) -> str:
    return f"{value:,.2f}"
