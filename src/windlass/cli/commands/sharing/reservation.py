"""`windlass reservation`: capacity that is set aside for a time, and maintenance windows."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli import amounts, base, client, exits
from windlass.cli.output import Output
from windlass.kinds import duration, wire
from windlass.kinds import reservation as kind
from windlass.store import errors

_name = click.argument("name", metavar="NAME")


@click.group(name="reservation", cls=base.Group)
def reservation() -> None:
    """Set capacity aside for a window of time, or close nodes for maintenance."""


@base.command(
    examples=(
        "windlass reservation create cooling --from 2026-12-01T20:00:00Z --duration 8h --node n7",
        "windlass reservation create course --from +2h --duration 90m --amount gpu=8 --team course",
        "windlass reservation create patches --schedule '0 2 * * 6' --time-zone Europe/Berlin "
        "--duration 4h --selector row=b --reason 'kernel updates'",
    )
)
@_name
@click.option("--from", "start", default=None, metavar="TIME", help="Begin: a time, now, or +2h.")
@click.option("--to", "end", default=None, metavar="TIME", help="End: a time, or +8h.")
@click.option("--duration", "lasts", default=None, metavar="TIME", help="How long: 8h.")
@click.option("--schedule", default=None, metavar="CRON", help="Begins again and again.")
@click.option("--time-zone", default=None, help="Of the schedule.  [default: UTC]")
@click.option("--node", "nodes", multiple=True, help="Reserve this whole node.")
@click.option("--selector", multiple=True, metavar="KEY=VALUE", help="Reserve nodes with a label.")
@click.option("--amount", multiple=True, metavar="RESOURCE=N", help="gpu=16, on any nodes.")
@click.option("--queue", "queues", multiple=True, help="For workloads of this queue and below it.")
@click.option("--team", "namespaces", multiple=True, help="For workloads of this namespace.")
@click.option("--user", "users", multiple=True, help="For workloads of this user.")
@click.option("--reason", default=None, help="Shown to those who wait because of it.")
@base.target_options
def create(
    out: Output,
    name: str,
    selector: tuple[str, ...],
    amount: tuple[str, ...],
    target: base.Target,
    **given: Any,
) -> None:
    """Reserve nodes or amounts. Without --queue, --team and --user: a maintenance window."""
    from windlass.sdk import reservations

    try:
        made = reservations.build(
            name,
            selector=amounts.pairs("selector", selector),
            amounts=amounts.pairs("amount", amount),
            **given,
        )
    except errors.Invalid as error:
        listed = "; ".join(f"{cause.field} {cause.message}" for cause in error.causes)
        raise exits.CliError(
            f"Reservation {name} cannot be made like this.", f"{listed}.", exits.INVALID
        ) from error
    except duration.Malformed as error:
        raise exits.CliError(
            f"--from or --to cannot be read: {error}.",
            "Write +2h, now, or 2026-12-01T20:00:00Z.",
            exits.USAGE,
        ) from error
    stored = client.call(target, lambda session: session.store.create(made))
    out.say(f"reservation/{name} created: {_when(stored)}")
    out.result(wire.to_dict(stored), names=[f"reservation/{name}"])


@base.command(examples=("windlass reservation list", "windlass reservation list --json | jq"),
              name="list")  # fmt: skip
@base.target_options
def list_reservations(out: Output, target: base.Target) -> None:
    """List all reservations: when, what, for whom, and how much of it is used."""

    async def work(session: client.Session) -> list[kind.Reservation]:
        return (await session.store.list(kind.Reservation)).items

    found = sorted(client.call(target, work), key=lambda each: (_begin(each), each.name))
    out.result([wire.to_dict(each) for each in found], names=[each.name for each in found])
    out.table(
        ["NAME", "STATE", "FROM", "TO", "WHAT", "FOR", "USED", "REASON"],
        [
            [each.name, each.status.state or "-", _begin(each) or "-", _end(each) or "-",
             _what(each), _whom(each), amounts.told(each.status.used), each.spec.reason or "-"]
            for each in found
        ],
    )  # fmt: skip
    for each in found:
        for trouble in _troubles(each):
            out.warn(f"reservation/{each.name}: {trouble}.")
    if not found:
        out.hint("No reservations. Make one: windlass reservation create --help")


@base.command(examples=("windlass reservation get cooling",))
@_name
@base.target_options
def get(out: Output, name: str, target: base.Target) -> None:
    """Show one reservation: its window, what it holds, and who is in its way."""
    found = client.call(target, lambda session: session.store.get(kind.Reservation, name))
    status = found.status
    out.result(wire.to_dict(found), names=[name])
    out.say(f"reservation/{name} is {status.state or 'not looked at yet'}: {_when(found)}")
    out.say(f"  reserves  {_what(found)}, for {_whom(found)}")
    if found.spec.reason:
        out.say(f"  reason    {found.spec.reason}")
    if status.nodes:
        more = f" and {status.node_count - len(status.nodes)} more"
        rest = more if status.node_count > len(status.nodes) else ""
        out.say(f"  nodes     {', '.join(status.nodes)}{rest}")
    out.say(f"  used      {amounts.told(status.used)} of {amounts.told(status.reserved)}")
    if status.staying:
        out.say(f"  staying   {status.staying} workloads of others that cannot be stopped")
    for trouble in _troubles(found):
        out.warn(f"{trouble}.")


@base.command(examples=("windlass reservation delete cooling",))
@_name
@base.target_options
def delete(out: Output, name: str, target: base.Target) -> None:
    """Delete a reservation: from now on it is as if it had never been."""
    client.call(target, lambda session: session.store.delete(kind.Reservation, name))
    out.say(f"reservation/{name} deleted")
    out.result({"deleted": [name]}, names=[f"reservation/{name}"])


# --- words --------------------------------------------------------------------------------------


def _when(each: kind.Reservation) -> str:
    spec = each.spec
    if spec.schedule is not None:
        recurs = f"{spec.schedule} in {spec.time_zone}, for {spec.duration} each time"
        window = each.status.window
        return recurs + (f"; from {window.start} to {window.end}" if window else "")
    return f"from {spec.start} " + (f"to {spec.end}" if spec.end else f"for {spec.duration}")


def _begin(each: kind.Reservation) -> str:
    return each.status.window.start if each.status.window else each.spec.start or ""


def _end(each: kind.Reservation) -> str:
    return each.status.window.end if each.status.window else each.spec.end or ""


def _what(each: kind.Reservation) -> str:
    nodes = each.spec.nodes
    if nodes is None:
        return amounts.told(each.spec.amounts)
    if nodes.selector:
        return "nodes " + amounts.told(nodes.selector)
    names = nodes.names or []
    return f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes"


def _whom(each: kind.Reservation) -> str:
    named = each.spec.beneficiaries
    if named is None:
        return "maintenance"
    parts = (("queue", named.queues), ("team", named.namespaces), ("user", named.users))
    return ", ".join(f"{word} {name}" for word, names in parts for name in names or ())


def _troubles(each: kind.Reservation) -> list[str]:
    bad = (("Satisfied", "False"), ("Conflicts", "True"))
    return [c.message for c in each.status.conditions or () if (c.type, c.status) in bad]


reservation.add_command(create, "create")
reservation.add_command(list_reservations, "list")
reservation.add_command(get, "get")
reservation.add_command(delete, "delete")
