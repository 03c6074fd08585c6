"""`windlass ps`: the runs that matter now: running, the first that wait, the last that ended."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import click

from windlass.cli import base, client, live
from windlass.cli.output import Output
from windlass.kinds import ages, times

_COLOURS = {
    "Running": "green", "Starting": "cyan", "Queued": "yellow", "Stopping": "yellow",
    "Failed": "red", "Succeeded": "bright_black", "Stopped": "bright_black",
}  # fmt: skip
_LONGEST = 100


@base.command(
    examples=(
        "windlass ps",
        "windlass ps -A --mine",
        "windlass ps -w",
        "windlass ps --json | jq '.items[] | select(.phase == \"Queued\") | .expectedStart'",
        "windlass ps -q | xargs windlass wait",
    )
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Of all namespaces you may see.")
@click.option("-w", "--watch", is_flag=True, help="Refresh in place until Ctrl-C.")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=2.0, help="Seconds. [default: 2]"
)
@click.option("--limit", type=click.IntRange(0, 1000), help="So many that wait. [default: 50]")
@click.option("--finished", type=click.IntRange(0, 1000), help="So many that ended. [default: 10]")
@click.option("--mine", is_flag=True, help="Only your own.")
@click.option("--user", default="", help="Only of this user.")
@click.option("--queue", default="", help="Only those that name this queue.")
@base.target_options
def ps(
    out: Output,
    all_namespaces: bool,
    watch: bool,
    interval: float,
    limit: int | None,
    finished: int | None,
    mine: bool,
    user: str,
    queue: str,
    target: base.Target,
) -> None:
    """Show runs: those that run, then the first that wait with their place and start, then ended.

    Why one of them waits: windlass why RUN.
    """

    async def work(session: client.Session) -> None:
        who = await me(session) if mine else user
        query = [
            ("limit", "" if limit is None else str(limit)),
            ("finished", "" if finished is None else str(finished)),
            ("user", who),
            ("queue", queue),
        ]
        place = "" if all_namespaces else f"/namespaces/{session.namespace}"
        screen = live.Screen(out)
        while True:
            page = await session.read(f"{client.PLATFORM}{place}/ps", query)
            if watch:
                out.item(page)
                screen.show(lines(out, page, all_namespaces))
                await asyncio.sleep(interval)
                continue
            names = [f"run/{row['name']}" for row in page["items"]]
            out.result(page, names=[name.partition("/")[2] for name in names])
            for line in lines(out, page, all_namespaces):
                out.say(line)
            if not page["items"]:
                out.hint("Start one: windlass run --workdir . -- python train.py")
            return

    client.call(target, work)


async def me(session: client.Session) -> str:
    """Whom the server takes us for."""
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await session.ask("POST", path, kind)
    return str(answer["status"]["userInfo"]["username"])


def lines(out: Output, page: dict[str, Any], everywhere: bool) -> list[str]:
    if not page["items"]:
        return ["No runs."]
    now = times.now()
    header = [*(["NAMESPACE"] if everywhere else []), "NAME", "PHASE", "FOR", "SIZE", "STATE",
              "QUEUE", "USER"]  # fmt: skip
    rows = []
    for item in page["items"]:
        first = [item["namespace"]] if everywhere else []
        rows.append(
            [*first, item["name"], item["phase"], _age(item["since"], now), _size(item),
             _state(item, now), item["queue"], item["user"]]
        )  # fmt: skip
    found = list(out.table_lines(header, rows))
    at = found[0].find("PHASE")
    painted = [found[0]]
    for item, line in zip(page["items"], found[1:], strict=True):
        phase = item["phase"]
        if at >= 0 and line[at : at + len(phase)] == phase:
            colour = out.style(phase, live.stdout(), fg=_COLOURS.get(phase))
            painted.append(line[:at] + colour + line[at + len(phase) :])
        else:
            painted.append(line)
    shown = sum(item["phase"] == "Queued" for item in page["items"])
    if page["waiting"] > shown:
        painted.append(f"... and {page['waiting'] - shown} more wait (--limit shows them)")
    return painted


def _age(since: str | None, now: datetime.datetime) -> str:
    return ages.told(since, now) if since else "-"


def _size(item: dict[str, Any]) -> str:
    devices = [f"{count:g} {kind}" for kind, count in item["devices"].items()]
    return " ".join([f"{item['members']}x", *devices])


def _state(item: dict[str, Any], now: datetime.datetime) -> str:
    """The one thing worth knowing of it, in few words."""
    phase = item["phase"]
    if phase == "Queued":
        place = f"{item['position']}/{item['of']} " if "position" in item else ""
        start = ""
        if "expectedStart" in item:
            start = f"starts {_clock(item['expectedStart'], now)}: "
        return f"{place}{start}{item['message'] or item['reason']}"
    if phase == "Running":
        done = f"{item['progress']:.0%} " if "progress" in item else ""
        end = f"ends ~{_clock(item['expectedEnd'], now)} " if "expectedEnd" in item else ""
        attempt = f"attempt {item['attempt'] + 1} " if item["attempt"] else ""
        nodes = item.get("nodes", [])
        where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes" if nodes else ""
        return (
            f"{done}{end}{attempt}on {where}".strip() if where else f"{done}{end}{attempt}".strip()
        )
    if phase == "Failed":
        return _short(": ".join(part for part in (item["reason"], item["message"]) if part))
    return _short(str(item["message"] or item["reason"]))


def _short(text: str) -> str:
    """Some messages are what a tool printed, pages long: `why` tells all of it."""
    line = text.partition("\n")[0]
    return line if len(line) <= _LONGEST and line == text else f"{line[:_LONGEST].rstrip()} ..."


def _clock(moment: str, now: datetime.datetime) -> str:
    at = times.parse(moment)
    return at.strftime("%H:%M" if abs((at - now).total_seconds()) < 43200 else "%m-%d %H:%M")
