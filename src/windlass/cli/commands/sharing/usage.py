"""`windlass usage`: who held what, and what it cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from windlass.cli import base, client, exits
from windlass.cli.output import Output
from windlass.store import errors

_HEADER = ["DEVICE-H", "MACHINE-H", "CPU-H", "MEMORY-GiB-H", "COST"]
_HOURS = ("deviceHours", "machineHours", "cpuHours", "memoryGibHours")
_AMOUNTS = ("used", "borrowed", "lent", "waiting")


@base.command(
    examples=(
        "windlass usage                                  your team, this month",
        "windlass usage --month 2026-10 --by device,form",
        "windlass usage --all --by team,device           everybody's, for administrators",
        "windlass usage --all --by run,user --top 10     who used most",
        "windlass usage --run train                      what one run held and cost",
        "windlass usage --statement html -o october.html --month 2026-10",
        "windlass usage --fleet --since 2026-11-01T00:00:00Z",
        "windlass usage --fleet --by team                held, used, borrowed, lent, waiting",
        "windlass usage --fleet --statement html -o fleet.html",
        "windlass usage --verify                         does it add up?",
    )
)
@click.option("--team", default="", help="Of this namespace. [default: yours]")
@click.option("--all", "everybody", is_flag=True, help="Of all teams, with what was idle.")
@click.option("--user", default="", help="Only this user's.")
@click.option("--run", default="", metavar="RUN", help="Only this run's.")
@click.option("--queue", default="", help="Only in this queue.")
@click.option("--month", default="", metavar="YYYY-MM", help="[default: this month]")
@click.option("--since", default="", metavar="TIME", help="Not a month: 2026-01-01T10:20:00Z.")
@click.option("--until", default="", metavar="TIME", help="With --since. [default: now]")
@click.option(
    "--by",
    default="",
    metavar="NAMES",
    help="team,user,queue,run,device,form; with --fleet: model or team.",
)
@click.option("--top", type=click.IntRange(1, 10000), default=None, help="Only the largest.")
@click.option(
    "--statement",
    type=click.Choice(("text", "csv", "html")),
    help="The team's month, or the fleet, as a page.",
)
@click.option("-o", "--output", default="", metavar="FILE", help="Write the statement there.")
@click.option("--fleet", is_flag=True, help="All devices over time, for administrators.")
@click.option("--verify", is_flag=True, help="Whether teams and idle add up to the hardware.")
@base.target_options
def usage(
    out: Output,
    team: str,
    everybody: bool,
    statement: str | None,
    output: str,
    fleet: bool,
    verify: bool,
    target: base.Target,
    **asked: Any,
) -> int:
    """Who held what, from when to when, and what it cost."""
    if sum((everybody or bool(team), fleet, verify)) > 1 or (statement and (verify or everybody)):
        raise exits.CliError(
            "These cannot be asked together.", "Use one of --team, --all, --fleet, --verify.",
            exits.USAGE,
        )  # fmt: skip
    by = asked.pop("by") if fleet else ""
    if by not in ("", "model", "team"):
        raise exits.CliError(
            f"The fleet is not told by {by}.", "Use --by model or --by team.", exits.USAGE
        )
    query = [(name, str(value)) for name, value in asked.items() if value]
    what = "fleet" if fleet else "verify" if verify else "statement" if statement else "usage"

    async def work(session: client.Session) -> dict[str, Any] | str:
        place = f"{client.PLATFORM}/namespaces/{team or session.namespace}/{what}"
        if everybody or fleet or verify:
            place = f"{client.PLATFORM}/{what}"
        if statement in (None, "text"):
            return await session.read(place, query)
        told = [*query, ("format", statement)]
        status, _, body = await session.store.raw("GET", place, query=told)
        if status >= 300:
            raise errors.from_status(json.loads(body), status)
        return body.decode()

    told = client.call(target, work)
    if isinstance(told, str):
        _deliver(out, told, output)
    elif verify:
        return _show_verdict(out, told)
    elif fleet:
        _show_fleet(out, told, by)
    elif statement:
        _show_statement(out, told)
    else:
        show(out, told)
    return exits.OK


def _deliver(out: Output, text: str, path: str) -> None:
    if not path:
        out.raw(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as problem:
        raise exits.CliError(
            f"{path} cannot be written: {problem.strerror}.", "Choose another file.", exits.FAILED
        ) from problem
    out.say(f"{path} written")
    out.result({"written": path}, names=[path])


def _show_verdict(out: Output, told: dict[str, Any]) -> int:
    out.result(told, names=["holds" if told["holds"] else "broken"])
    word = "adds up" if told["holds"] else "DOES NOT ADD UP"
    out.say(f"From {told['since']} to {told['until']} the ledger {word}:")
    for name in ("teams", "idle", "wall"):
        out.say(f"  {name:6} {told[f'{name}Micros']:>20,} micro-units")
    out.say(f"  difference {told['difference']} nano-units, {len(told['overlaps'])} overlaps")
    if told.get("observed"):
        out.say(f"  the ledger last looked at the cluster {told['observed']}")
    for name, words in (("ghosts", "held in the ledger only"), ("missing", "not in the ledger")):
        for each in told.get(name, ()):
            out.warn(f"{words}: {each}")
    for gap in told.get("gaps", ()):
        out.warn(
            f"{gap['what']} {gap['subject']} {gap['since']} to {gap['until']}: {gap['detail']}"
        )
    return exits.OK if told["holds"] else exits.FAILED


def _show_fleet(out: Output, told: dict[str, Any], by: str) -> None:
    out.result(told, names=[point["at"] for point in told["points"]])
    if by == "team":
        header = ["FROM", "TEAM", "DEVICE", "HELD", "USED", "BORROWED", "LENT", "WAITING"]
        rows = [
            [point["at"], name, point["device"], *_told(team, "held", *_AMOUNTS)]
            for point in told["points"] for name, team in sorted(point["teams"].items())
        ]  # fmt: skip
    else:
        header = ["FROM", "DEVICE", "THERE", "HELD", "USED", "IDLE", "BORROWED", "LENT", "WAITING"]
        words = ("present", "held", "used", "idle", "borrowed", "lent", "waiting")
        rows = [[point["at"], point["device"], *_told(point, *words)] for point in told["points"]]
    out.table(header, rows)
    dark = {p["device"] for p in told["points"] if p["present"] and "used" not in p}
    dark -= {p["device"] for p in told["points"] if "used" in p}
    if dark:
        out.hint(f"USED is - where nothing measures it: {', '.join(sorted(dark))}.")
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for each in told["queues"]:
        latest[each["queue"], each["resource"]] = each
    if latest:
        out.table(
            ["QUEUE", "RESOURCE", "HELD", "BORROWED", "LENT", "WAITING"],
            [
                [name, resource, *_told(each, *_AMOUNTS)]
                for (name, resource), each in sorted(latest.items())
            ],
        )


def _told(amounts: dict[str, Any], *names: str) -> list[str]:
    return [f"{amounts[name]:g}" if name in amounts else "-" for name in names]


def _show_statement(out: Output, told: dict[str, Any]) -> None:
    out.result(told, names=[f"{told['team']}/{told['month']}"])
    out.say(
        f"{told['team']}, {told['month']}, as of {told['asOf']}: {told['total'].get('cost', '')}"
    )
    for title, rows in told["tables"].items():
        out.say("")
        out.say(f"{title}:")
        by = list(rows[0]["labels"]) if rows else []
        header = [name.upper() for name in by] + _HEADER
        out.table(header, _lines(by, rows, told["currency"]))


def show(out: Output, told: dict[str, Any]) -> None:
    names = [_words(row["labels"]) for row in told["rows"]]
    out.result(told, names=names)
    out.say(f"From {told['since']} to {told['until']}:")
    header = [name.upper() for name in told["by"]]
    header += _HEADER
    blank = dict.fromkeys(told["by"], "")
    rows = list(told["rows"])
    for name in ("total", "idle", "wall"):
        if told.get(name):
            first = told["by"][0] if told["by"] else ""
            rows.append({**told[name], "labels": {**blank, first: f"({name})"}})
    out.table(header, _lines(told["by"], rows, told["currency"]))
    for note in told.get("notes", ()):
        out.warn(note)
    if not told["rows"]:
        out.hint("Nothing was held in this time.")


def _lines(by: list[str], rows: list[dict[str, Any]], currency: str) -> list[list[str]]:
    """Cells; all of a column to the same place, so that they can be added up by eye."""
    columns = [_amounts([row.get(name, 0) for row in rows]) for name in _HOURS]
    costs = _amounts([row.get("costMicros", 0) / 1e6 for row in rows])
    columns.append([each if each == "-" else f"{each} {currency}" for each in costs])
    labels = [[row["labels"].get(name, "") or "-" for name in by] for row in rows]
    return [[*label, *cells] for label, *cells in zip(labels, *columns, strict=True)]


def _amounts(values: list[float]) -> list[str]:
    digits = 2 if max(values, default=0) >= 1 else 6
    return [f"{value:,.{digits}f}" if value else "-" for value in values]


def _words(labels: dict[str, str]) -> str:
    return "/".join(value or "-" for value in labels.values())
