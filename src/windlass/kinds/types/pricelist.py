"""PriceList: what hardware costs from a moment on. A new price is a new list; none is edited.

Written by administrators; the ledger copies the rates into what it writes down.
"""

from __future__ import annotations

import dataclasses
import fractions
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from windlass.kinds import duration, fields
from windlass.kinds.meta import Object, Struct
from windlass.kinds.resources import Column, Resource

YEAR: Final = 365 * 86400
_HOUR: Final = 3600
MACHINE: Final = "machine"
"""The device that every node is besides its accelerators: its processors and its memory."""

Form = Literal["whole", "share", "ratio", "partition"]
Money = Annotated[
    str, fields.text(r"[0-9]{1,12}(\.[0-9]{1,9})?", 22, 'be an amount of money such as "2.50"')
]
"""Units of the list's currency."""
Factor = Annotated[str, fields.text(r"[0-9]{1,3}(\.[0-9]{1,6})?", 10, 'be a number such as "1.4"')]


class Rented(Struct):
    """A price by time."""

    per_hour: Money | None = None
    """For one hour; charged by the second."""
    per_second: Money | None = None
    """For one second."""


class Owned(Struct, kw_only=True):
    """What a device that was bought costs: purchase / life + power + support + space."""

    purchase: Money
    """What it cost to buy."""
    life: fields.Duration
    """Over how long that is spread: `1825d`."""
    watts: Annotated[int, Meta(ge=0, le=1000000)] = 0
    """What it draws."""
    power_usage_effectiveness: Factor = "1"
    """How much the building draws for each watt of it."""
    price_per_kilowatt_hour: Money = "0"
    """What power costs."""
    support_per_year: Money = "0"
    """What its support costs."""
    space_per_year: Money = "0"
    """What its place costs."""


class Price(Struct, kw_only=True):
    """What one device costs. The entry that says most about a device counts for it."""

    device: fields.ResourceName
    """Its kind: `gpu`; or `machine`, the processors and the memory of a node."""
    model: fields.ResourceName | None = None
    """Only of this model: `a100`."""
    node_class: fields.LabelValue | None = None
    """Only on nodes of this class: label `windlass.dev/node-class`, else the instance type."""
    form: Form | None = None
    """Only for whoever holds it in this form; the hardware itself costs what it costs whole."""
    rented: Rented | None = None
    """A price by time."""
    owned: Owned | None = None
    """A price made of what the device cost and costs."""


class PriceListSpec(Struct, kw_only=True):
    """What hardware costs."""

    currency: Annotated[str, Meta(max_length=16)] = "EUR"
    """For people; the same in all lists."""
    effective_from: fields.Time
    """From when on it counts, until the next list does; not before it was created: what is written
    down stays."""
    entries: Annotated[list[Price], Meta(min_length=1, max_length=1000)]
    """One price each."""


class PriceList(Object, kw_only=True):
    """What hardware costs from a moment on."""

    resource: ClassVar = Resource(
        "windlass.dev", "v1alpha1", "PriceList", "pricelists", namespaced=False,
        short_names=("wpl",), categories=("windlass",), subresources=(),
        columns=(
            Column("From", ".spec.effectiveFrom", description="From when on it counts"),
            Column("Currency", ".spec.currency"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )  # fmt: skip
    spec: PriceListSpec


# --- how a price is made --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a price, with the words that show how it was made."""

    amount: fractions.Fraction
    """Units a second."""
    words: str


def parts(price: Price) -> list[Part]:
    """How a price is made."""
    if price.rented is not None:
        hourly = price.rented.per_hour
        if hourly is not None:
            return [Part(_money(hourly) / _HOUR, f"{hourly} an hour")]
        secondly = price.rented.per_second or "0"
        return [Part(_money(secondly), f"{secondly} a second")]
    owned = price.owned
    if owned is None:
        return []
    life = fractions.Fraction(duration.milliseconds(owned.life), 1000)
    kilowatts = fractions.Fraction(owned.watts, 1000) * _money(owned.power_usage_effectiveness)
    found = [
        Part(_money(owned.purchase) / life, f"purchase {owned.purchase} / life {owned.life}"),
        Part(
            kilowatts * _money(owned.price_per_kilowatt_hour) / _HOUR,
            f"power {owned.watts} W x {owned.power_usage_effectiveness} x "
            f"{owned.price_per_kilowatt_hour} a kWh",
        ),
        Part(_money(owned.support_per_year) / YEAR, f"support {owned.support_per_year} a year"),
        Part(_money(owned.space_per_year) / YEAR, f"space {owned.space_per_year} a year"),
    ]
    return [part for part in found if part.amount]


def _money(text: str) -> fractions.Fraction:
    return fractions.Fraction(text)
