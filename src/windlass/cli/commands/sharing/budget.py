"""`windlass budget`: how much a queue may use over time, and how much it has used."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click

from windlass.cli import base, client, exits
from windlass.cli.output import Output
from windlass.kinds import queue as kind
from windlass.kinds import validation, wire

_PATIENCE = 10.0
"""Seconds that a command waits for the ledger."""
_POLL = 0.1
_name = click.argument("name", metavar="QUEUE")


@click.group(name="budget", cls=base.Group)
def budget() -> None:
    """Device hours or money over time, by queue."""


@base.command(examples=("windlass budget list",), name="list")
@base.target_options
def list_budgets(out: Output, target: base.Target) -> None:
    """List all budgets and how much of them is used."""
    found = client.call(target, _all)
    found = [each for each in found if each.spec.budget is not None]
    out.result([wire.to_dict(each) for each in found], names=[each.name for each in found])
    out.table(
        ["QUEUE", "PER", "USED", "STATE", "RUNS OUT", "PERIOD ENDS"],
        [
            [each.name, each.spec.budget.per if each.spec.budget else "",
             f"{_told(each).percent} %", _told(each).state, _told(each).runs_out or "-",
             _told(each).until or "-"]
            for each in found
        ],
    )  # fmt: skip
    if not found:
        out.hint("No queue has a budget. Give one: windlass budget set QUEUE --hours gpu=5000")


@base.command(examples=("windlass budget show vision",))
@_name
@base.target_options
def show(out: Output, name: str, target: base.Target) -> None:
    """Show the budget of one QUEUE."""
    found = client.call(target, lambda session: session.store.get(kind.Queue, name))
    out.result(wire.to_dict(found), names=[name])
    if found.spec.budget is None:
        out.say(f"queue/{name} has no budget")
        return
    told = _told(found)
    out.say(f"queue/{name}: {told.state}; {told.message or 'not looked at yet'}")
    out.say(f"  used up: {told.runs_out or 'not within the period'}")
    override = found.spec.budget.override
    if override is not None:
        out.say(f"  override until {override.until} by {override.by}: {override.reason}")


@base.command(
    examples=(
        "windlass budget set vision --hours gpu=5000 --per month --time-zone Europe/Berlin",
        "windlass budget set vision --money 12000 --at 80=warn --at 100=hold --at 120=stop",
    ),
    name="set",
)
@_name
@click.option("--hours", multiple=True, metavar="DEVICE=N", help="gpu=5000, gpu/h100=100.")
@click.option("--money", default=None, help="What all of it may cost.")
@click.option("--per", type=click.Choice(("day", "week", "month", "quarter", "year", "total")))
@click.option("--time-zone", default=None, help="Where the calendar hangs.")
@click.option("--at", "steps", multiple=True, metavar="PERCENT=warn|hold|stop")
@base.target_options
def change(
    out: Output, name: str, hours: tuple[str, ...], steps: tuple[str, ...], target: base.Target,
    **given: Any,
) -> None:  # fmt: skip
    """Give a QUEUE a budget, or change it; what is not named stays."""
    spec: dict[str, Any] = {
        "money": given["money"], "per": given["per"], "timeZone": given["time_zone"],
        "deviceHours": dict(_pair("--hours", each) for each in hours) or None,
        "at": [{"percent": _percent(p), "do": do} for p, do in (_pair("--at", s) for s in steps)],
    }  # fmt: skip
    patch = {key: value for key, value in spec.items() if value}
    if not patch:
        raise exits.CliError("Nothing was named.", "For example --hours gpu=5000.", exits.USAGE)
    made = _patched(out, target, name, patch)
    out.say(f"queue/{name} has a budget{_now(made)}")
    out.result(wire.to_dict(made), names=[f"queue/{name}"])


@base.command(
    examples=("windlass budget override vision --until 2026-12-01T00:00:00Z --reason 'deadline'",)
)
@_name
@click.option("--until", required=True, metavar="TIME", help="Until when it counts.")
@click.option("--reason", required=True, help="Why, for those who read it later.")
@base.target_options
def override(out: Output, name: str, until: str, reason: str, target: base.Target) -> None:
    """Let a QUEUE go on although its budget is used up. Who, when and why is kept."""
    patch = {"override": {"until": until, "reason": reason, "by": None}}
    made = _patched(out, target, name, patch)
    out.say(f"queue/{name} may go on until {until}{_now(made)}")
    out.result(wire.to_dict(made), names=[f"queue/{name}"])


@base.command(examples=("windlass budget remove vision",))
@_name
@base.target_options
def remove(out: Output, name: str, target: base.Target) -> None:
    """Take the budget of a QUEUE away."""
    patch = {"spec": {"budget": None}}
    made = client.call(target, lambda session: session.store.patch(kind.Queue, name, patch=patch))
    out.say(f"queue/{name} has no budget")
    out.result(wire.to_dict(made), names=[f"queue/{name}"])


def _patched(out: Output, target: base.Target, name: str, change: dict[str, Any]) -> kind.Queue:
    """The queue with its budget as changed, once that is in force."""

    async def work(session: client.Session) -> kind.Queue:
        found = await session.store.get(kind.Queue, name)
        value = wire.to_dict(found)
        value["spec"]["budget"] = {**(value["spec"].get("budget") or {}), **change}
        faults = validation.validate(kind.Queue, validation.defaulted(kind.Queue, value))
        if faults:
            listed = "\n".join(str(fault) for fault in faults)
            raise exits.CliError("The budget cannot be like this.", listed, exits.INVALID)
        patch = {"spec": {"budget": change}}
        made = await session.store.patch(kind.Queue, name, patch=patch)
        return await _in_force(session, made)

    with out.progress("Asking the ledger what is used"):
        made = client.call(target, work)
    if not _is_in_force(made):
        out.hint(
            "The ledger has not looked at it yet; it counts as soon as it has. "
            f"Look again: windlass budget show {name}"
        )
    return made


async def _in_force(session: client.Session, made: kind.Queue) -> kind.Queue:
    """As it is when the ledger has looked at it, or when patience ends: what is submitted after the
    command should meet the budget, and the ledger may be away."""
    deadline = time.monotonic() + _PATIENCE
    while not _is_in_force(made) and time.monotonic() < deadline:
        await asyncio.sleep(_POLL)
        made = await session.store.get(kind.Queue, made.name)
    return made


def _is_in_force(found: kind.Queue) -> bool:
    return _told(found).observed_generation >= found.metadata.generation


def _now(made: kind.Queue) -> str:
    told = _told(made)
    return f": {told.state}; {told.message}" if _is_in_force(made) else ""


async def _all(session: client.Session) -> list[kind.Queue]:
    return (await session.store.list(kind.Queue)).items


def _told(found: kind.Queue) -> kind.BudgetStatus:
    return found.status.budget or kind.BudgetStatus()


def _pair(flag: str, entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not equals or not name or not value:
        raise exits.CliError(
            f"{flag} {entry} cannot be used.", "Write gpu=5000, or 80=warn.", exits.USAGE
        )
    return name, value


def _percent(text: str) -> int:
    if not text.isdigit():
        raise exits.CliError(f"{text} is no percentage.", "Write --at 80=warn.", exits.USAGE)
    return int(text)


budget.add_command(list_budgets, "list")
budget.add_command(show, "show")
budget.add_command(change, "set")
budget.add_command(override, "override")
budget.add_command(remove, "remove")
