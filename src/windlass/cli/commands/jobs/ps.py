"""`windlass ps`: running runs, the first that wait, the last that ended."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes, live
from windlass.cli.lib.output import Output
from windlass.kinds.values import ages, times

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
        "windlass ps --pods             # pods of other controllers that Windlass places",
    )
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Runs of all namespaces you may see.")
@click.option("-w", "--watch", is_flag=True, help="Refresh in place until Ctrl-C.")
@click.option(
    "--interval", type=click.FloatRange(min=0.2), default=2.0, help="Seconds. [default: 2]"
)
@click.option(
    "--limit", type=click.IntRange(0, 1000), help="Show at most N waiting runs. [default: 50]"
)
@click.option(
    "--finished", type=click.IntRange(0, 1000), help="Show at most N ended runs. [default: 10]"
)
@click.option("--mine", is_flag=True, help="Only your own runs.")
@click.option("--user", default="", help="Only runs of this user.")
@click.option("--queue", default="", help="Only runs in this queue.")
@click.option("--pods", is_flag=True, help="External pods instead of runs.")
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
    pods: bool,
    target: base.Target,
) -> None:
    """List running runs, then waiting runs with their position and expected start, then ended runs.

    `windlass why RUN` explains why a run waits. --pods lists the pods with schedulerName: windlass
    that other controllers created; `windlass why pod/NAME` explains why one waits.
    """
    if pods:
        refused = {"--finished": finished is not None, "--mine": mine, "--user": bool(user)}
        for option in (name for name, given in refused.items() if given):
            raise exit_codes.CliError(
                f"{option} is about runs; --pods lists pods of other controllers.",
                f"Leave out {option} or --pods.",
                exit_codes.USAGE,
            )

    async def work(session: client_session.Session) -> None:
        owner = await me(session) if mine else user
        query = [
            ("limit", "" if limit is None else str(limit)),
            ("finished", "" if finished is None else str(finished)),
            ("user", owner),
            ("queue", queue),
        ]
        place = "" if all_namespaces else f"/namespaces/{session.namespace}"
        screen, shown = live.Screen(out), pod_lines if pods else lines
        while True:
            if pods:
                path = f"{client_session.PLATFORM}{place}/externalpods"
                page = await session.read(path, [(key, value) for key, value in query if value])
            else:
                page = await session.read(f"{client_session.PLATFORM}{place}/ps", query)
            if watch:
                out.item(page)
                screen.show(shown(out, page, all_namespaces))
                await asyncio.sleep(interval)
                continue
            out.result(page, names=[f"{'pod/' if pods else ''}{r['name']}" for r in page["items"]])
            for line in shown(out, page, all_namespaces):
                out.say(line)
            if not page["items"] and not pods:
                out.hint("Start one: windlass run --workdir . -- python train.py")
            return

    client_session.call(target, work)


async def me(session: client_session.Session) -> str:
    """The user name that the server derives from our credentials."""
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
        painted.append(f"... and {page['waiting'] - shown} more waiting (use --limit to show them)")
    return painted


def pod_lines(out: Output, page: dict[str, Any], everywhere: bool) -> list[str]:
    """External pods as a table: those that are placed, then those that wait."""
    if not page["items"]:
        return ["No external pods: no pod has schedulerName: windlass."]
    now = times.now()
    header = [*(["NAMESPACE"] if everywhere else []), "NAME", "PHASE", "FOR", "STATE", "QUEUE",
              "GANG"]  # fmt: skip
    rows = []
    for item in page["items"]:
        waits = item["phase"] in ("Queued", "Gated")
        state = item["message"] or item["reason"] if waits else f"on {item['node']}"
        first = [item["namespace"]] if everywhere else []
        rows.append(
            [*first, item["name"], item["phase"], _age(item["since"], now), state, item["queue"],
             item["gang"] or "-"]
        )  # fmt: skip
    found = list(out.table_lines(header, rows))
    more = page["placed"] + page["waiting"] - len(page["items"])
    return [*found, f"... and {more} more (use --limit to show them)"] if more else found


def _age(since: str | None, now: datetime.datetime) -> str:
    return ages.age(since, now) if since else "-"


def _size(item: dict[str, Any]) -> str:
    """`4x`; of an array `37/100`, the indices that have ended; of an elastic run its range, `1..4`,
    and while it is active its present replicas before it, `2/1..4`."""
    devices = [f"{count:g} {kind}" for kind, count in item["devices"].items()]
    if "array" in item:
        counts = item["array"]
        ended = counts["succeeded"] + counts["failed"] + counts["stopped"]
        return f"{ended}/{counts['total']}"
    most, least = item["replicas"], item["minReplicas"]
    size = f"{most}x" if least == most else f"{least}..{most}"
    if item["members"] and (least != most or item["members"] != most):
        size = f"{item['members']}/{size}"
    return " ".join([size, *devices])


def _state(item: dict[str, Any], now: datetime.datetime) -> str:
    """The STATE column: start or end, attempt and node, or the reason."""
    phase = item["phase"]
    if phase == "Queued":
        place = f"{item['position']}/{item['of']} " if "position" in item else ""
        start = ""
        if "expectedStart" in item:
            start = f"starts {_clock(item['expectedStart'], now)}: "
        return f"{place}{start}{item['message'] or item['reason']}"
    if phase == "Running" and "array" in item:
        return _short(str(item["message"]))
    if phase == "Running":
        done = f"{item['progress']:.0%} " if "progress" in item else ""
        end = f"ends ~{_clock(item['expectedEnd'], now)} " if "expectedEnd" in item else ""
        attempt = f"attempt {item['attempt']} " if item["attempt"] else ""
        nodes = item.get("nodes", [])
        where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes" if nodes else ""
        return (
            f"{done}{end}{attempt}on {where}".strip() if where else f"{done}{end}{attempt}".strip()
        )
    if phase == "Failed":
        return _short(": ".join(part for part in (item["reason"], item["message"]) if part))
    return _short(str(item["message"] or item["reason"]))


def _short(text: str) -> str:
    """The first line. Some messages are the output of a tool, pages long; `why` prints them all."""
    line = text.partition("\n")[0]
    return line if len(line) <= _LONGEST and line == text else f"{line[:_LONGEST].rstrip()} ..."


def _clock(moment: str, now: datetime.datetime) -> str:
    at = times.parse(moment)
    return at.strftime("%H:%M" if abs((at - now).total_seconds()) < 43200 else "%m-%d %H:%M")
