"""`windlass usage`: resource usage by team, user, queue or run, and its cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes
from windlass.cli.lib.output import Output
from windlass.store import errors

_HEADER = ["DEVICE-H", "MACHINE-H", "CPU-H", "MEMORY-GiB-H", "COST"]
_HOURS = ("deviceHours", "machineHours", "cpuHours", "memoryGibHours")
_AMOUNTS = ("used", "borrowed", "lent", "waiting")


@base.command(
    examples=(
        "windlass usage                                  your team, this month",
        "windlass usage --month 2026-10 --by device,form",
        "windlass usage --all --by team,device           of all teams, for administrators",
        "windlass usage --all --by run,user --top 10     the largest users",
        "windlass usage --run train                      usage and cost of one run",
        "windlass usage --statement html -o october.html --month 2026-10",
        "windlass usage --all --statement html -o all.html",
        "windlass usage --fleet --since 2026-11-01T00:00:00Z",
        "windlass usage --fleet --by team                allocated, used, borrowed, lent, waiting",
        "windlass usage --fleet --statement html -o fleet.html",
        "windlass usage --verify                         does it add up?",
    )
)
@click.option("--team", default="", help="Usage of this namespace. [default: yours]")
@click.option("--all", "all_teams", is_flag=True, help="Usage of all teams, and idle capacity.")
@click.option("--user", default="", help="Only usage of this user.")
@click.option("--run", default="", metavar="RUN", help="Only usage of this run.")
@click.option("--queue", default="", help="Only usage in this queue.")
@click.option("--month", default="", metavar="YYYY-MM", help="[default: this month]")
@click.option(
    "--since", default="", metavar="TIME", help="Start, instead of a month: 2026-01-01T10:20:00Z."
)
@click.option("--until", default="", metavar="TIME", help="End, with --since. [default: now]")
@click.option(
    "--by",
    default="",
    metavar="NAMES",
    help="Group by team,user,queue,run,device,form; with --fleet: model or team.",
)
@click.option("--top", type=click.IntRange(1, 10000), default=None, help="Only the N largest rows.")
@click.option(
    "--statement",
    type=click.Choice(("text", "csv", "html")),
    help="A monthly statement: of the team, of --all, or of --fleet.",
)
@click.option("-o", "--output", default="", metavar="FILE", help="File for the statement.")
@click.option("--fleet", is_flag=True, help="All devices over time (administrators).")
@click.option(
    "--verify", is_flag=True, help="Check that usage and idle time add up to the capacity."
)
@base.target_options
def usage(
    out: Output,
    team: str,
    all_teams: bool,
    statement: str | None,
    output: str,
    fleet: bool,
    verify: bool,
    target: base.Target,
    **asked: Any,
) -> int:
    """Show resource usage over a time, and its cost."""
    _check_combination(team, all_teams, statement, output, fleet, verify, asked)
    by = asked.pop("by") if fleet else ""
    if by not in ("", "model", "team"):
        raise _usage_error(f"--fleet cannot be grouped by {by}.", "Use --by model or --by team.")
    query = [(name, str(value)) for name, value in asked.items() if value]
    what = "fleet" if fleet else "verify" if verify else "statement" if statement else "usage"

    async def work(session: client_session.Session) -> dict[str, Any] | str:
        place = f"{client_session.PLATFORM}/namespaces/{team or session.namespace}/{what}"
        if all_teams or fleet or verify:  # the whole platform
            place = f"{client_session.PLATFORM}/{what}"
        if statement in (None, "text"):
            return await session.read(place, query)
        report = [*query, ("format", statement)]
        status, _, body = await session.store.raw("GET", place, query=report)
        if status >= 300:
            raise errors.from_status(json.loads(body), status)
        return body.decode()

    report = client_session.call(target, work)
    if isinstance(report, str):
        _deliver(out, report, output)
    elif verify:
        return _show_verdict(out, report)
    elif fleet:
        _show_fleet(out, report, by)
    elif statement:
        _show_statement(out, report)
    else:
        show(out, report)
    return exit_codes.OK


_COVERED = {
    "--statement": {"month"},
    "--fleet": {"month", "since", "until", "by"},
    "--verify": {"month", "since", "until"},
}
"""The options that choose what a report is about, for reports that cannot be about everything."""


def _check_combination(
    team: str,
    all_teams: bool,
    statement: str | None,
    output: str,
    fleet: bool,
    verify: bool,
    asked: dict[str, Any],
) -> None:
    """Refuses options that the chosen report would ignore, by name."""
    flags = {"--team": team, "--all": all_teams, "--fleet": fleet, "--verify": verify}
    given = [flag for flag, value in flags.items() if value]
    if verify and statement:
        given.append("--statement")
    if len(given) > 1:
        raise _usage_error(f"{' and '.join(given)} cannot be combined.", f"Use only {given[0]}.")
    if output and statement not in ("csv", "html"):
        raise _usage_error(
            "-o is the file of a statement.",
            f"Add --statement html or csv, or leave out -o {output}.",
        )
    if asked["month"] and (asked["since"] or asked["until"]):
        raise _usage_error(
            "--month cannot be combined with --since and --until.", "Give a month or two times."
        )
    if asked["until"] and not asked["since"]:
        raise _usage_error("--until is used with --since.", "Add --since TIME.")
    report = next((flag for flag in ("--fleet", "--verify") if flags[flag]), "")
    report = report or ("--statement" if statement else "")
    if not report:
        return
    for name, value in asked.items():
        if value and name not in _COVERED[report]:
            allowed = ", ".join(f"--{each}" for each in sorted(_COVERED[report]))
            raise _usage_error(
                f"{report} cannot be combined with --{name}.",
                f"Leave out --{name}; {report} covers everything of its time ({allowed}).",
            )


def _usage_error(message: str, remedy: str) -> exit_codes.CliError:
    return exit_codes.CliError(message, remedy, exit_codes.USAGE)


def _deliver(out: Output, text: str, path: str) -> None:
    if not path:
        out.raw(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as problem:
        raise exit_codes.CliError(
            f"{path} cannot be written: {problem.strerror}.",
            "Choose another file.",
            exit_codes.FAILED,
        ) from problem
    out.say(f"{path} written")
    out.result({"written": path}, names=[path])


def _show_verdict(out: Output, report: dict[str, Any]) -> int:
    out.result(report, names=["holds" if report["holds"] else "broken"])
    word = "adds up" if report["holds"] else "does NOT add up"
    out.say(f"From {report['since']} to {report['until']} the ledger {word}:")
    for name in ("teams", "idle", "wall"):
        out.say(f"  {name:6} {report[f'{name}Micros']:>20,} micro-units")
    out.say(f"  difference {report['difference']} nano-units, {len(report['overlaps'])} overlaps")
    for each in report.get("early", ()):
        out.warn(f"usage before the ledger knew of the device: {each}")
    if report.get("rollUpAmounts"):
        out.warn("daily sums of amounts differ from their intervals")
    if report.get("homelessHours"):
        out.say(f"  {report['homelessHours']:g} device hours were used while the device was absent")
    if report.get("observed"):
        out.say(f"  last observation of the cluster at {report['observed']}")
    for name, label in (("ghosts", "only in the ledger"), ("missing", "not in the ledger")):
        for each in report.get(name, ()):
            out.warn(f"{label}: {each}")
    for gap in report.get("gaps", ()):
        out.warn(
            f"{gap['what']} {gap['subject']} {gap['since']} to {gap['until']}: {gap['detail']}"
        )
    return exit_codes.OK if report["holds"] else exit_codes.FAILED


def _show_fleet(out: Output, report: dict[str, Any], by: str) -> None:
    out.result(report, names=[point["at"] for point in report["points"]])
    if by == "team":
        header = ["FROM", "TEAM", "DEVICE", "ALLOCATED", "USED", "BORROWED", "LENT", "WAITING"]
        rows = [
            [point["at"], name, point["device"], *_amounts_of(team, "held", *_AMOUNTS)]
            for point in report["points"] for name, team in sorted(point["teams"].items())
        ]  # fmt: skip
    else:
        header = [
            "FROM",
            "DEVICE",
            "PRESENT",
            "ALLOCATED",
            "USED",
            "IDLE",
            "BORROWED",
            "LENT",
            "WAITING",
        ]
        columns = ("present", "held", "used", "idle", "borrowed", "lent", "waiting")
        rows = [
            [point["at"], point["device"], *_amounts_of(point, *columns)]
            for point in report["points"]
        ]
    out.table(header, rows)
    dark = {p["device"] for p in report["points"] if p["present"] and "used" not in p}
    dark -= {p["device"] for p in report["points"] if "used" in p}
    if dark:
        out.hint(f"USED is - for devices without measurements: {', '.join(sorted(dark))}.")
    latest: dict[tuple[str, str], dict[str, Any]] = {}
    for each in report["queues"]:
        latest[each["queue"], each["resource"]] = each
    if latest:
        out.table(
            ["QUEUE", "RESOURCE", "ALLOCATED", "BORROWED", "LENT", "WAITING"],
            [
                [name, resource, *_amounts_of(each, *_AMOUNTS)]
                for (name, resource), each in sorted(latest.items())
            ],
        )


def _amounts_of(amounts: dict[str, Any], *names: str) -> list[str]:
    return [f"{amounts[name]:g}" if name in amounts else "-" for name in names]


def _show_statement(out: Output, report: dict[str, Any]) -> None:
    out.result(report, names=[f"{report['team']}/{report['month']}"])
    cost = report["total"].get("cost", "")
    whose = report["team"] or "All teams"
    out.say(f"{whose}, {report['month']}, as of {report['asOf']}: {cost or 'no prices are set'}")
    for title, rows in report["tables"].items():
        out.say("")
        out.say(f"{title}:")
        by = list(rows[0]["labels"]) if rows else []
        header = [name.upper() for name in by] + _HEADER
        out.table(header, _lines(by, rows, report["currency"]), numbers=_HEADER)


def show(out: Output, report: dict[str, Any]) -> None:
    names = [_label_text(row["labels"]) for row in report["rows"]]
    out.result(report, names=names)
    out.say(f"From {report['since']} to {report['until']}:")
    header = [name.upper() for name in report["by"]]
    header += _HEADER
    blank = dict.fromkeys(report["by"], "")
    rows = list(report["rows"])
    for name in ("total", "idle", "wall"):
        if report.get(name):
            first = report["by"][0] if report["by"] else ""
            rows.append({**report[name], "labels": {**blank, first: f"({name})"}})
    out.table(header, _lines(report["by"], rows, report["currency"]), numbers=_HEADER)
    for note in report.get("notes", ()):
        out.warn(note)
    if not report["rows"]:
        out.hint("No usage in this time.")


def _lines(by: list[str], rows: list[dict[str, Any]], currency: str) -> list[list[str]]:
    """Cells; the numbers of a column have the same number of decimals."""
    columns = [_amounts([row.get(name, 0) for row in rows]) for name in _HOURS]
    costs = _amounts([row.get("costMicros", 0) / 1e6 for row in rows])
    columns.append([each if each == "-" else f"{each} {currency}" for each in costs])
    labels = [[row["labels"].get(name, "") or "-" for name in by] for row in rows]
    return [[*label, *cells] for label, *cells in zip(labels, *columns, strict=True)]


def _amounts(values: list[float]) -> list[str]:
    digits = 2 if max(values, default=0) >= 1 else 6
    return [f"{value:,.{digits}f}" if value else "-" for value in values]


def _label_text(labels: dict[str, str]) -> str:
    return "/".join(value or "-" for value in labels.values())
