"""`windlass budget`: limits of a queue's usage over time, and how much is used."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes
from windlass.cli.lib.flags import field_flags
from windlass.cli.lib.output import Output
from windlass.kinds import codec, validate
from windlass.kinds.types import queue as kind

_LEDGER_TIMEOUT = 10.0
"""Seconds that a command waits for the ledger."""
_POLL = 0.1
_EXAMPLES = {"--hours": "gpu=5000 or gpu/h100=100", "--at": "80=warn"}
_name = click.argument("name", metavar="QUEUE")


@click.group(name="budget", cls=base.Group)
def budget() -> None:
    """Manage budgets of queues, in device hours or money per period."""


@base.command(examples=("windlass budget list",), name="list")
@base.target_options
def list_budgets(out: Output, target: base.Target) -> None:
    """List all budgets and their usage."""
    found = client_session.call(target, _all)
    found = [each for each in found if each.spec.budget is not None]
    out.result([codec.to_dict(each) for each in found], names=[each.name for each in found])
    out.table(
        ["QUEUE", "PER", "USED", "STATE", "RUNS OUT", "PERIOD ENDS"],
        [
            [each.name, each.spec.budget.per if each.spec.budget else "",
             f"{_status(each).percent} %", _status(each).state, _status(each).runs_out or "-",
             _status(each).until or "-"]
            for each in found
        ],
    )  # fmt: skip
    if not found:
        out.hint("No queue has a budget. Set one: windlass budget set QUEUE --hours gpu=5000")


@base.command(examples=("windlass budget show vision",))
@_name
@base.target_options
def show(out: Output, name: str, target: base.Target) -> None:
    """Show the budget of one QUEUE."""
    found = client_session.call(target, lambda session: session.store.get(kind.Queue, name))
    out.result(codec.to_dict(found), names=[name])
    if found.spec.budget is None:
        out.say(f"queue/{name} has no budget")
        return
    status = _status(found)
    out.say(
        f"queue/{name}: {status.state}; {status.message or 'the ledger has not computed it yet'}"
    )
    out.say(f"  runs out: {status.runs_out or 'not within the period'}")
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
@click.option(
    "--hours", multiple=True, metavar="DEVICE=N", help="Device hours: gpu=5000, gpu/h100=100."
)
@click.option("--money", default=None, help="Cost of all usage.")
@click.option("--per", type=click.Choice(("day", "week", "month", "quarter", "year", "total")))
@click.option("--time-zone", default=None, help="Time zone of the budget period.")
@click.option("--at", "steps", multiple=True, metavar="PERCENT=warn|hold|stop")
@base.target_options
def change(
    out: Output, name: str, hours: tuple[str, ...], steps: tuple[str, ...], target: base.Target,
    **given: Any,
) -> None:  # fmt: skip
    """Set or change the budget of a QUEUE; fields that are not given stay."""
    spec: dict[str, Any] = {
        "money": given["money"], "per": given["per"], "timeZone": given["time_zone"],
        "deviceHours": dict(_pair("--hours", each) for each in hours) or None,
        "at": [{"percent": _percent(s), "do": _pair("--at", s)[1]} for s in steps],
    }  # fmt: skip
    patch = {key: value for key, value in spec.items() if value}
    if not patch:
        raise exit_codes.CliError(
            "No change was given.", "For example: --hours gpu=5000.", exit_codes.USAGE
        )
    made = _patched(out, target, name, patch)
    out.say(f"queue/{name} has a budget{_now(made)}")
    out.result(codec.to_dict(made), names=[f"queue/{name}"])


@base.command(
    examples=("windlass budget override vision --until 2026-12-01T00:00:00Z --reason 'deadline'",)
)
@_name
@click.option("--until", required=True, metavar="TIME", help="End of the override.")
@click.option("--reason", required=True, help="Why; recorded with the override.")
@base.target_options
def override(out: Output, name: str, until: str, reason: str, target: base.Target) -> None:
    """Let a QUEUE exceed its budget. User, time and reason are recorded."""
    patch = {"override": {"until": until, "reason": reason, "by": None}}
    made = _patched(out, target, name, patch)
    out.say(f"queue/{name} may exceed its budget until {until}{_now(made)}")
    out.result(codec.to_dict(made), names=[f"queue/{name}"])


@base.command(examples=("windlass budget remove vision",))
@_name
@base.target_options
def remove(out: Output, name: str, target: base.Target) -> None:
    """Remove the budget of a QUEUE."""
    patch = {"spec": {"budget": None}}
    made = client_session.call(
        target, lambda session: session.store.patch(kind.Queue, name, patch=patch)
    )
    out.say(f"queue/{name} has no budget")
    out.result(codec.to_dict(made), names=[f"queue/{name}"])


def _patched(out: Output, target: base.Target, name: str, change: dict[str, Any]) -> kind.Queue:
    """Changes the budget, and returns the queue once the ledger has applied the change."""

    async def work(session: client_session.Session) -> kind.Queue:
        found = await session.store.get(kind.Queue, name)
        value = codec.to_dict(found)
        value["spec"]["budget"] = {**(value["spec"].get("budget") or {}), **change}
        faults = validate.validate(kind.Queue, validate.defaulted(kind.Queue, value))
        field_flags.checked(faults, "The budget is not valid.")
        patch = {"spec": {"budget": change}}
        made = await session.store.patch(kind.Queue, name, patch=patch)
        return await _in_force(session, made)

    with out.progress("Waiting for the ledger"):
        made = client_session.call(target, work)
    if not _is_in_force(made):
        out.hint(
            f"The ledger has not applied the budget yet. Check later: windlass budget show {name}"
        )
    return made


async def _in_force(session: client_session.Session, made: kind.Queue) -> kind.Queue:
    """The queue once the ledger has applied its budget, or after a timeout, because the ledger may
    be down. Runs that are submitted after the command should be subject to the budget."""
    deadline = time.monotonic() + _LEDGER_TIMEOUT
    while not _is_in_force(made) and time.monotonic() < deadline:
        await asyncio.sleep(_POLL)
        made = await session.store.get(kind.Queue, made.name)
    return made


def _is_in_force(found: kind.Queue) -> bool:
    return _status(found).observed_generation >= found.metadata.generation


def _now(made: kind.Queue) -> str:
    status = _status(made)
    return f": {status.state}; {status.message}" if _is_in_force(made) else ""


async def _all(session: client_session.Session) -> list[kind.Queue]:
    return (await session.store.list(kind.Queue)).items


def _status(found: kind.Queue) -> kind.BudgetStatus:
    return found.status.budget or kind.BudgetStatus()


def _pair(flag: str, entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not equals or not name or not value:
        raise exit_codes.CliError(
            f"{flag} {entry} cannot be used.", f"Write {_EXAMPLES[flag]}.", exit_codes.USAGE
        )
    return name, value


def _percent(entry: str) -> int:
    text, _ = _pair("--at", entry)
    if not text.isdigit():
        raise exit_codes.CliError(
            f"--at {entry} cannot be used.",
            f"{text} is not a percentage; write {_EXAMPLES['--at']}.",
            exit_codes.USAGE,
        )
    return int(text)


budget.add_command(list_budgets, "list")
budget.add_command(show, "show")
budget.add_command(change, "set")
budget.add_command(override, "override")
budget.add_command(remove, "remove")
