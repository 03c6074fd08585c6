"""`windlass price`: price lists of hardware."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes
from windlass.cli.lib.flags import field_flags
from windlass.cli.lib.output import Output
from windlass.kinds import codec, validate
from windlass.kinds.types import meta, pricelist
from windlass.kinds.values import times


@click.group(name="price", cls=base.Group)
def price() -> None:
    """Manage price lists of hardware. A new price makes a new list; no list is edited."""


@base.command(examples=("windlass price list",), name="list")
@base.target_options
def list_prices(out: Output, target: base.Target) -> None:
    """List all price lists, and which is in effect."""
    found = client_session.call(target, _all)
    counting = _counting(found, times.seconds(times.now()))
    out.result([codec.to_dict(each) for each in found], names=[each.name for each in found])
    out.table(
        ["NAME", "FROM", "CURRENCY", "ENTRIES", "NOW"],
        [
            [each.name, _since(each), each.spec.currency, str(len(each.spec.entries)),
             "yes" if each is counting else ""]
            for each in found
        ],
    )  # fmt: skip
    if not found:
        out.hint("No prices. Set one: windlass price set gpu/a100 --per-hour 2.50")


@base.command(examples=("windlass price show", "windlass price show prices-2026"))
@click.argument("name", default="", metavar="[LIST]")
@base.target_options
def show(out: Output, name: str, target: base.Target) -> None:
    """Show a LIST, or the one in effect, and how each price is computed."""
    found = client_session.call(target, _all)
    chosen = _counting(found, times.seconds(times.now())) if not name else None
    chosen = next((each for each in found if each.name == name), chosen)
    if chosen is None:
        raise exit_codes.CliError(
            "The price list does not exist.", "List them: windlass price list", exit_codes.NOT_FOUND
        )
    out.result(codec.to_dict(chosen), names=[chosen.name])
    out.say(
        f"pricelist/{chosen.name} is in effect from {_since(chosen)}, in {chosen.spec.currency}:"
    )
    for entry in chosen.spec.entries:
        out.say(f"  {_what(entry)}: {formula(entry)}")


@base.command(
    examples=(
        "windlass price set gpu/a100 --per-hour 2.50",
        "windlass price set gpu/h100 --purchase 32000 --watts 700 --kwh 0.25 --pue 1.4",
        "windlass price set machine --per-hour 0.40 --from 2026-12-01T00:00:00Z",
    ),
    name="set",
)
@click.argument("device", metavar="KIND[/MODEL]")
@click.option("--per-hour", default=None, metavar="MONEY", help="Rented: price by time.")
@click.option("--per-second", default=None, metavar="MONEY", help="Rented: price by time.")
@click.option("--purchase", default=None, metavar="MONEY", help="Owned: purchase price.")
@click.option(
    "--life", default="1825d", metavar="TIME", show_default=True, help="Owned: depreciation time."
)
@click.option("--watts", type=int, default=0, help="Owned: power draw.")
@click.option("--pue", default="1", help="Owned: power usage effectiveness of the building.")
@click.option("--kwh", default="0", metavar="MONEY", help="Owned: price of a kWh.")
@click.option("--support", default="0", metavar="MONEY", help="Owned: support per year.")
@click.option("--space", default="0", metavar="MONEY", help="Owned: space per year.")
@click.option("--form", type=click.Choice(("whole", "share", "ratio", "partition")), default=None)
@click.option("--node-class", default=None, help="Price on nodes of this class.")
@click.option("--currency", default=None, help="[default: as before, or EUR]")
@click.option("--from", "since", default="", metavar="TIME", help="[default: now]")
@click.option("--force", is_flag=True, help="Also for a device that no node has yet.")
@base.target_options
def change(
    out: Output, device: str, since: str, force: bool, target: base.Target, **given: Any
) -> None:
    """Create a new price list: the one in effect, with this price."""
    entry = _entry(device, given)
    moment = since or times.seconds(times.now())

    async def work(session: client_session.Session) -> pricelist.PriceList:
        if not force:
            await _refuse_unused(session, entry)
        before = _counting(await _all(session), moment)
        kept = [e for e in before.spec.entries if _key(e) != _key(entry)] if before else []
        currency = given["currency"] or (before.spec.currency if before else "EUR")
        spec = pricelist.PriceListSpec(
            currency=currency, effective_from=moment, entries=[*kept, entry]
        )
        stamp = moment.lower().replace(":", "-").replace("+", "-")
        tail = times.micros(times.now())[-7:-1]
        made = pricelist.PriceList(
            metadata=meta.ObjectMeta(name=f"prices-{stamp}-{tail}"), spec=spec
        )
        faults = validate.validate(pricelist.PriceList, codec.to_dict(made))
        field_flags.checked(faults, "The price is not valid.")
        return await session.store.create(made)

    made = client_session.call(target, work)
    out.say(f"pricelist/{made.name} is in effect from {made.spec.effective_from}: {_what(entry)}: "
            f"{formula(entry)}")  # fmt: skip
    out.result(codec.to_dict(made), names=[f"pricelist/{made.name}"])


async def _all(session: client_session.Session) -> list[pricelist.PriceList]:
    found = (await session.store.list(pricelist.PriceList)).items
    return sorted(found, key=lambda each: (_since(each), each.name))


def _since(each: pricelist.PriceList) -> str:
    """When a list takes effect: at its time, but not before it was created."""
    moments = [each.spec.effective_from, each.metadata.creation_timestamp or ""]
    return times.seconds(max(times.parse(moment) for moment in moments if moment))


def _counting(found: list[pricelist.PriceList], at: str) -> pricelist.PriceList | None:
    moment = times.parse(at)
    counting = [each for each in found if times.parse(_since(each)) <= moment]
    return counting[-1] if counting else None


def _entry(device: str, given: dict[str, Any]) -> pricelist.Price:
    kind, _, model = device.partition("/")
    rented = owned = None
    if given["purchase"] is not None:
        owned = pricelist.Owned(
            purchase=given["purchase"], life=given["life"], watts=given["watts"],
            power_usage_effectiveness=given["pue"], price_per_kilowatt_hour=given["kwh"],
            support_per_year=given["support"], space_per_year=given["space"],
        )  # fmt: skip
    elif given["per_hour"] is not None or given["per_second"] is not None:
        rented = pricelist.Rented(per_hour=given["per_hour"], per_second=given["per_second"])
    else:
        raise exit_codes.CliError(
            "No price was given.", "Use --per-hour, --per-second or --purchase.", exit_codes.USAGE
        )
    return pricelist.Price(
        device=kind, model=model or None, node_class=given["node_class"], form=given["form"],
        rented=rented, owned=owned,
    )  # fmt: skip


async def _refuse_unused(session: client_session.Session, entry: pricelist.Price) -> None:
    """Raises if the ledger records no device of this kind: the price would apply to nothing."""
    from windlass.control.convert import node_facts
    from windlass.control.model import members
    from windlass.kinds.types import core

    if entry.device == pricelist.MACHINE or entry.device in members.VENDOR_KINDS:
        return
    nodes = (await session.store.list(core.Node)).items
    kinds = {each.kind for node in nodes for each in node_facts.read_node(node).devices}
    if entry.device in kinds:
        return
    if entry.device in ("cpu", "memory"):
        raise exit_codes.CliError(
            f"The ledger does not price {entry.device} by itself.",
            "Price processors and memory together: windlass price set machine --per-hour MONEY. "
            "A run pays the larger of its shares of both.",
            exit_codes.INVALID,
        )
    known = ", ".join(sorted({pricelist.MACHINE, *members.VENDOR_KINDS, *kinds}))
    raise exit_codes.CliError(
        f"No node has a device of kind {entry.device!r}; the price would apply to nothing.",
        f"Kinds: {known}. For devices that are added later, use --force.",
        exit_codes.INVALID,
    )


def _key(entry: pricelist.Price) -> tuple[str, str, str, str]:
    return entry.device, entry.model or "", entry.node_class or "", entry.form or ""


def _what(entry: pricelist.Price) -> str:
    text = f"{entry.device}/{entry.model}" if entry.model else entry.device
    text += f" as {entry.form}" if entry.form else ""
    return text + (f" on {entry.node_class}" if entry.node_class else "")


def formula(entry: pricelist.Price) -> str:
    """How a price is computed, and the price per hour."""
    parts = pricelist.parts(entry)
    hourly = sum(part.amount for part in parts) * 3600
    return f"{' + '.join(part.formula for part in parts)} = {float(hourly):.6f} per hour"


price.add_command(list_prices, "list")
price.add_command(show, "show")
price.add_command(change, "set")
