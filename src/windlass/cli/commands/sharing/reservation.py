"""`windlass reservation`: capacity reserved for a time window, and maintenance windows."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes, quantities
from windlass.cli.lib.flags import field_flags
from windlass.cli.lib.output import Output
from windlass.kinds import codec
from windlass.kinds.types import reservation as kind
from windlass.kinds.values import duration
from windlass.store import errors

_name = click.argument("name", metavar="NAME")


@click.group(name="reservation", cls=base.Group)
def reservation() -> None:
    """Reserve capacity for a time window, or close nodes for maintenance."""


@base.command(
    examples=(
        "windlass reservation create cooling --from 2026-12-01T20:00:00Z --duration 8h --node n7",
        "windlass reservation create course --from +2h --duration 90m --amount gpu=8 --team course",
        "windlass reservation create patches --schedule '0 2 * * 6' --time-zone Europe/Berlin "
        "--duration 4h --selector row=b --reason 'kernel updates'",
    )
)
@_name
@click.option("--from", "start", default=None, metavar="TIME", help="Start: a time, now, or +2h.")
@click.option("--to", "end", default=None, metavar="TIME", help="End: a time, or +8h.")
@click.option("--duration", "lasts", default=None, metavar="TIME", help="Length of the window: 8h.")
@click.option(
    "--schedule", default=None, metavar="CRON", help="Cron schedule of a recurring window."
)
@click.option("--time-zone", default=None, help="Time zone of the schedule.  [default: UTC]")
@click.option("--node", "nodes", multiple=True, help="Reserve this whole node.")
@click.option("--selector", multiple=True, metavar="KEY=VALUE", help="Reserve nodes with a label.")
@click.option(
    "--amount", multiple=True, metavar="RESOURCE=N", help="Reserve an amount on any nodes: gpu=16."
)
@click.option(
    "--queue", "queues", multiple=True, help="For runs of this queue and the queues below it."
)
@click.option("--team", "namespaces", multiple=True, help="For runs of this namespace.")
@click.option("--user", "users", multiple=True, help="For runs of this user.")
@click.option("--reason", default=None, help="Shown to users whose runs wait because of it.")
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
    from windlass.sdk.admin import reservations

    for flag, moment in (("--from", given["start"]), ("--to", given["end"])):
        _refuse_unreadable(flag, moment)
    try:
        made = reservations.build(
            name,
            selector=quantities.labels("selector", selector),
            amounts=quantities.pairs("amount", amount),
            **given,
        )
    except errors.Invalid as error:
        causes = [(cause.field, cause.message) for cause in error.causes]
        raise field_flags.refusal(causes, f"Reservation {name} is not valid.") from error
    stored = client_session.call(target, lambda session: session.store.create(made))
    out.say(f"reservation/{name} created: {_when(stored)}")
    out.result(codec.to_dict(stored), names=[f"reservation/{name}"])


def _refuse_unreadable(flag: str, moment: str | None) -> None:
    from windlass.sdk.admin import reservations

    try:
        reservations.moment(moment or "now")
    except duration.Malformed:
        raise exit_codes.CliError(
            f"{flag} {moment} cannot be used.",
            "Write +2h, now, or 2026-12-01T20:00:00Z.",
            exit_codes.USAGE,
        ) from None


@base.command(examples=("windlass reservation list", "windlass reservation list --json | jq"),
              name="list")  # fmt: skip
@base.target_options
def list_reservations(out: Output, target: base.Target) -> None:
    """List all reservations: window, capacity, beneficiaries and usage."""

    async def work(session: client_session.Session) -> list[kind.Reservation]:
        return (await session.store.list(kind.Reservation)).items

    found = sorted(client_session.call(target, work), key=lambda each: (_begin(each), each.name))
    out.result([codec.to_dict(each) for each in found], names=[each.name for each in found])
    out.table(
        ["NAME", "STATE", "FROM", "TO", "WHAT", "FOR", "USED", "REASON"],
        [
            [each.name, each.status.state or "-", _begin(each) or "-", _end(each) or "-",
             _what(each), _beneficiaries(each), quantities.format_amounts(each.status.used),
             each.spec.reason or "-"]
            for each in found
        ],
    )  # fmt: skip
    for each in found:
        for trouble in _troubles(each):
            out.warn(f"reservation/{each.name}: {trouble}.")
    if not found:
        out.hint("No reservations. Create one: windlass reservation create --help")


@base.command(examples=("windlass reservation get cooling",))
@_name
@base.target_options
def get(out: Output, name: str, target: base.Target) -> None:
    """Show one reservation: its window, its capacity, its usage, and workloads that block it."""
    found = client_session.call(target, lambda session: session.store.get(kind.Reservation, name))
    status = found.status
    out.result(codec.to_dict(found), names=[name])
    out.say(f"reservation/{name} is {status.state or 'new'}: {_when(found)}")
    out.say(f"  reserves  {_what(found)}, for {_beneficiaries(found)}")
    if found.spec.reason:
        out.say(f"  reason    {found.spec.reason}")
    if status.nodes:
        more = f" and {status.node_count - len(status.nodes)} more"
        rest = more if status.node_count > len(status.nodes) else ""
        out.say(f"  nodes     {', '.join(status.nodes)}{rest}")
    used, reserved = map(quantities.format_amounts, (status.used, status.reserved))
    out.say(f"  used      {used} of {reserved}")
    if status.staying:
        out.say(f"  blocked   by {status.staying} workloads that cannot be preempted")
    for trouble in _troubles(found):
        out.warn(f"{trouble}.")


@base.command(examples=("windlass reservation delete cooling",))
@_name
@base.target_options
def delete(out: Output, name: str, target: base.Target) -> None:
    """Delete a reservation. Its capacity is free for all runs again."""
    client_session.call(target, lambda session: session.store.delete(kind.Reservation, name))
    out.say(f"reservation/{name} deleted")
    out.result({"deleted": [name]}, names=[f"reservation/{name}"])


# --- formatting ---------------------------------------------------------------------------------


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
        return quantities.format_amounts(each.spec.amounts)
    if nodes.selector:
        return "nodes " + quantities.format_amounts(nodes.selector)
    names = nodes.names or []
    return f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes"


def _beneficiaries(each: kind.Reservation) -> str:
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
