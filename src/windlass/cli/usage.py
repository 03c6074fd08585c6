"""`windlass usage`: who held what, and what it cost."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli import base, client
from windlass.cli.output import Output


@base.command(
    examples=(
        "windlass usage                                  your team, this month",
        "windlass usage --month 2026-10 --by device,form",
        "windlass usage --all --by team,device           everybody's, for administrators",
        "windlass usage --run train                      what one run held and cost",
    )
)
@click.option("--team", default="", help="Of this namespace. [default: yours]")
@click.option("--all", "everybody", is_flag=True, help="Of all teams, with what was idle.")
@click.option("--user", default="", help="Only this user's.")
@click.option("--run", "run_name", default="", metavar="RUN", help="Only this run's.")
@click.option("--queue", default="", help="Only in this queue.")
@click.option("--month", default="", metavar="YYYY-MM", help="[default: this month]")
@click.option("--since", default="", metavar="TIME", help="Instead of a month: 2026-01-01T10:20Z.")
@click.option("--until", default="", metavar="TIME", help="With --since. [default: now]")
@click.option("--by", default="", metavar="NAMES", help="team,user,queue,run,device,form.")
@click.option("--top", type=click.IntRange(1, 10000), default=None, help="Only the largest.")
@base.target_options
def usage(
    out: Output, team: str, everybody: bool, run_name: str, target: base.Target, **asked: Any
) -> None:
    """Who held what, from when to when, and what it cost."""
    query = [(name, str(value)) for name, value in asked.items() if value]
    query += [("run", run_name)] if run_name else []

    async def work(session: client.Session) -> dict[str, Any]:
        if everybody:
            return await session.read(f"{client.PLATFORM}/usage", query)
        namespace = team or session.namespace
        return await session.read(f"{client.PLATFORM}/namespaces/{namespace}/usage", query)

    told = client.call(target, work)
    show(out, told)


def show(out: Output, told: dict[str, Any]) -> None:
    names = [_words(row["labels"]) for row in told["rows"]]
    out.result(told, names=names)
    out.say(f"From {told['since']} to {told['until']}:")
    header = [name.upper() for name in told["by"]]
    header += ["DEVICE-H", "MACHINE-H", "CPU-H", "MEMORY-GiB-H", "COST"]
    blank = dict.fromkeys(told["by"], "")
    rows = [_cells(told["by"], row) for row in told["rows"]]
    for name in ("total", "idle", "wall"):
        if told.get(name):
            first = told["by"][0] if told["by"] else ""
            rows.append(_cells(told["by"], {**told[name], "labels": {**blank, first: f"({name})"}}))
    out.table(header, rows)
    if not told["rows"]:
        out.hint("Nothing was held in this time.")


def _cells(by: list[str], row: dict[str, Any]) -> list[str]:
    return [
        *(row["labels"].get(name, "") or "-" for name in by),
        _hours(row.get("deviceHours", 0)),
        _hours(row.get("machineHours", 0)),
        _hours(row.get("cpuHours", 0)),
        _hours(row.get("memoryGibHours", 0)),
        row.get("cost") or "-",
    ]


def _hours(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.01 or not value else f"{value:.6f}"


def _words(labels: dict[str, str]) -> str:
    return "/".join(value or "-" for value in labels.values())
