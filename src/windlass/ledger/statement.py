"""A team's monthly statement: what it held and what that cost, as data, CSV or a page to print.

The page stands alone: plots are SVG inside it, nothing is fetched.
"""

from __future__ import annotations

import csv
import html
import io
import string

import msgspec

from windlass.kinds import times
from windlass.ledger import accounting, calendar, money, reports
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
    months: dict[str, int]
    """Micro-units of this month and the five before."""


def make(book: Book, team: str, month: str, now: int) -> Statement:
    start, end = calendar.month(month)
    tables, total = {}, None
    for title, by in TABLES.items():
        top = TOP if "run" in by else 0
        question = reports.Question(start, end, now, by=by, team=team, top=top)
        report = reports.usage(book, question)
        tables[title], total = report.rows, report.total
    assert total is not None, "there are tables"  # noqa: S101
    months = {}
    for each in calendar.months_before(month, 6):
        first, last = calendar.month(each)
        question = reports.Question(first, last, now, by=(), team=team)
        months[each] = reports.usage(book, question).total.cost_micros
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
        # A cell that begins like this would be a formula to a spreadsheet.
        name = " ".join(row.labels.values())
        name = f"'{name}" if name.startswith(("=", "+", "-", "@")) else name
        writer.writerow(
            [statement.team, statement.month, title, name, row.device_hours, row.machine_hours,
             row.cpu_hours, row.memory_gib_hours, money.plain(row.cost_micros * 1000),
             statement.currency]
        )  # fmt: skip
    return out.getvalue()


# --- for people -----------------------------------------------------------------------------------

_PAGE = string.Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; } svg text { fill: currentColor; font-size: 12px; }
svg .axis, svg .grid { stroke: var(--line); } svg path { fill: none; stroke-width: 2; }
svg .s0 { stroke: #2f81f7; } svg .s1 { stroke: #db6d28; }
</style></head><body>
<h1>$title</h1>
<p>$total. Numbers of $as_of, times in UTC.</p>
$plots
$tables
</body></html>
""")


def as_html(statement: Statement) -> str:
    title = f"{statement.team}, {statement.month}"
    total = f"{_hours(statement.total.device_hours)} device hours"
    if statement.currency:
        total += f", {statement.total.cost}"
    tables = {**statement.tables, "Months": _month_rows(statement)}
    return _PAGE.substitute(
        title=html.escape(title),
        total=html.escape(total),
        as_of=html.escape(statement.as_of),
        plots=_plots(statement),
        tables="\n".join(_table(name, rows) for name, rows in tables.items()),
    )


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


def _month_rows(statement: Statement) -> list[reports.Row]:
    return [
        reports.Row({"month": month}, cost_micros=cost,
                    cost=money.text(cost, statement.currency) if statement.currency else "")
        for month, cost in statement.months.items()
    ]  # fmt: skip


def _table(title: str, rows: list[reports.Row]) -> str:
    lines = [
        f"<h2>{html.escape(title)}</h2>",
        "<table><tr><th>name<th>device h<th>machine h<th>cpu h<th>GiB h<th>cost</tr>",
    ]
    for row in rows:
        name = html.escape(" ".join(value or "-" for value in row.labels.values()))
        cells = (row.device_hours, row.machine_hours, row.cpu_hours, row.memory_gib_hours)
        shown = "".join(f"<td>{_hours(each)}" for each in cells)
        lines.append(f"<tr><td>{name}{shown}<td>{html.escape(row.cost or '-')}</tr>")
    return "\n".join([*lines, "</table>"])


def _hours(value: float) -> str:
    return f"{value:,.2f}"
