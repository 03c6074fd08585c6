"""`windlass price`: what hardware costs, and from when on."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli import base, client, exits
from windlass.cli.output import Output
from windlass.kinds import meta, pricelist, times, validation, wire


@click.group(name="price", cls=base.Group)
def price() -> None:
    """What hardware costs. A new price is a new list; none is edited."""


@base.command(examples=("windlass price list",), name="list")
@base.target_options
def list_prices(out: Output, target: base.Target) -> None:
    """List all price lists, and which counts now."""
    found = client.call(target, _all)
    counting = _counting(found, times.seconds(times.now()))
    out.result([wire.to_dict(each) for each in found], names=[each.name for each in found])
    out.table(
        ["NAME", "FROM", "CURRENCY", "ENTRIES", "NOW"],
        [
            [each.name, _since(each), each.spec.currency, str(len(each.spec.entries)),
             "yes" if each is counting else ""]
            for each in found
        ],
    )  # fmt: skip
    if not found:
        out.hint("No prices. Make one: windlass price set gpu/a100 --per-hour 2.50")


@base.command(examples=("windlass price show", "windlass price show prices-2026"))
@click.argument("name", default="", metavar="[LIST]")
@base.target_options
def show(out: Output, name: str, target: base.Target) -> None:
    """Show a LIST, or the one that counts now, with how each price is made."""
    found = client.call(target, _all)
    chosen = _counting(found, times.seconds(times.now())) if not name else None
    chosen = next((each for each in found if each.name == name), chosen)
    if chosen is None:
        raise exits.CliError(
            "There is no such price list.", "See `windlass price list`.", exits.NOT_FOUND
        )
    out.result(wire.to_dict(chosen), names=[chosen.name])
    out.say(f"pricelist/{chosen.name} counts from {_since(chosen)}, in {chosen.spec.currency}:")
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
@click.option("--per-hour", default=None, metavar="MONEY", help="Rented by time.")
@click.option("--per-second", default=None, metavar="MONEY", help="Rented by time.")
@click.option("--purchase", default=None, metavar="MONEY", help="Owned: what it cost.")
@click.option("--life", default="1825d", metavar="TIME", show_default=True, help="Spread over.")
@click.option("--watts", type=int, default=0, help="Owned: what it draws.")
@click.option("--pue", default="1", help="Owned: what the building draws for each watt.")
@click.option("--kwh", default="0", metavar="MONEY", help="Owned: what power costs.")
@click.option("--support", default="0", metavar="MONEY", help="Owned: support a year.")
@click.option("--space", default="0", metavar="MONEY", help="Owned: its place a year.")
@click.option("--form", type=click.Choice(("whole", "share", "ratio", "partition")), default=None)
@click.option("--node-class", default=None, help="Only on nodes of this class.")
@click.option("--currency", default=None, help="[default: as before, or EUR]")
@click.option("--from", "since", default="", metavar="TIME", help="[default: now]")
@base.target_options
def change(out: Output, device: str, since: str, target: base.Target, **given: Any) -> None:
    """Make a new price list: the one that counts, with this price in it."""
    entry = _entry(device, given)
    moment = since or times.seconds(times.now())

    async def work(session: client.Session) -> pricelist.PriceList:
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
        faults = validation.validate(pricelist.PriceList, wire.to_dict(made))
        if faults:
            listed = "\n".join(str(fault) for fault in faults)
            raise exits.CliError("The price cannot be set like this.", listed, exits.INVALID)
        return await session.store.create(made)

    made = client.call(target, work)
    out.say(f"pricelist/{made.name} counts from {made.spec.effective_from}: {_what(entry)}: "
            f"{formula(entry)}")  # fmt: skip
    out.result(wire.to_dict(made), names=[f"pricelist/{made.name}"])


async def _all(session: client.Session) -> list[pricelist.PriceList]:
    found = (await session.store.list(pricelist.PriceList)).items
    return sorted(found, key=lambda each: (_since(each), each.name))


def _since(each: pricelist.PriceList) -> str:
    """A list counts from its time on, but not from before it was created."""
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
        raise exits.CliError(
            "No price was named.", "Give --per-hour, --per-second or --purchase.", exits.USAGE
        )
    return pricelist.Price(
        device=kind, model=model or None, node_class=given["node_class"], form=given["form"],
        rented=rented, owned=owned,
    )  # fmt: skip


def _key(entry: pricelist.Price) -> tuple[str, str, str, str]:
    return entry.device, entry.model or "", entry.node_class or "", entry.form or ""


def _what(entry: pricelist.Price) -> str:
    words = f"{entry.device}/{entry.model}" if entry.model else entry.device
    words += f" as {entry.form}" if entry.form else ""
    return words + (f" on {entry.node_class}" if entry.node_class else "")


def formula(entry: pricelist.Price) -> str:
    """How a price is made, and what it comes to in an hour."""
    parts = pricelist.parts(entry)
    hourly = sum(part.amount for part in parts) * 3600
    return f"{' + '.join(part.words for part in parts)} = {float(hourly):.6f} an hour"


price.add_command(list_prices, "list")
price.add_command(show, "show")
price.add_command(change, "set")
