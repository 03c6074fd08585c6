"""PriceList: prices of hardware from a time on. A new price is a new list; no list is edited.

Written by administrators; the ledger copies the rates into its records.
"""

from __future__ import annotations

import dataclasses
import fractions
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from windlass.kinds.types import field_types
from windlass.kinds.types.meta import Object, Struct
from windlass.kinds.types.resource import Column, Resource
from windlass.kinds.values import duration

YEAR: Final = 365 * 86400
_HOUR: Final = 3600
MACHINE: Final = "machine"
"""The device that stands for a node without its accelerators: its processors and its memory."""

Form = Literal["whole", "share", "ratio", "partition"]
Money = Annotated[
    str, field_types.text(r"[0-9]{1,12}(\.[0-9]{1,9})?", 22, 'be an amount of money such as "2.50"')
]
"""Units of the list's currency."""
Factor = Annotated[
    str, field_types.text(r"[0-9]{1,3}(\.[0-9]{1,6})?", 10, 'be a number such as "1.4"')
]


class Rented(Struct):
    """A price by time."""

    per_hour: Money | None = None
    """For one hour; charged by the second."""
    per_second: Money | None = None
    """For one second."""


class Owned(Struct, kw_only=True):
    """Price of an owned device: purchase / life + power + support + space."""

    purchase: Money
    """Purchase price."""
    life: field_types.Duration
    """Depreciation time of the purchase price: `1825d`."""
    watts: Annotated[int, Meta(ge=0, le=1000000)] = 0
    """Power of the device."""
    power_usage_effectiveness: Factor = "1"
    """Power of the building per watt of the device (PUE)."""
    price_per_kilowatt_hour: Money = "0"
    """Price of power."""
    support_per_year: Money = "0"
    """Price of support."""
    space_per_year: Money = "0"
    """Price of space."""


class Price(Struct, kw_only=True):
    """The price of one device. The most specific entry applies."""

    device: field_types.ResourceName
    """Kind of device: `gpu`; or `machine`, the processors and the memory of a node."""
    model: field_types.ResourceName | None = None
    """Only for this model: `a100`."""
    node_class: field_types.LabelValue | None = None
    """Only on nodes of this class: label `windlass.dev/node-class`, else the instance type."""
    form: Form | None = None
    """Only for use in this form; the hardware itself always has the price of the whole device."""
    rented: Rented | None = None
    """A price by time."""
    owned: Owned | None = None
    """A price computed from the purchase and the running costs."""


class PriceListSpec(Struct, kw_only=True):
    """Prices of hardware."""

    currency: Annotated[str, Meta(max_length=16)] = "EUR"
    """Shown in reports; the same in all lists."""
    effective_from: field_types.Time
    """The time from which it is valid, until the next list is; not before its creation: recorded
    usage keeps its price."""
    entries: Annotated[list[Price], Meta(min_length=1, max_length=1000)]
    """The prices."""


class PriceList(Object, kw_only=True):
    """Prices of hardware from a time on."""

    resource: ClassVar = Resource(
        "windlass.dev", "v1alpha1", "PriceList", "pricelists", namespaced=False,
        short_names=("wpl",), categories=("windlass",), subresources=(),
        columns=(
            Column("From", ".spec.effectiveFrom", description="Valid from"),
            Column("Currency", ".spec.currency"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )  # fmt: skip
    spec: PriceListSpec


# --- computation of a price -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a price, with its formula as text."""

    amount: fractions.Fraction
    """Units of the currency per second."""
    formula: str


def parts(price: Price) -> list[Part]:
    """The parts of a price."""
    if price.rented is not None:
        hourly = price.rented.per_hour
        if hourly is not None:
            return [Part(_money(hourly) / _HOUR, f"{hourly} per hour")]
        secondly = price.rented.per_second or "0"
        return [Part(_money(secondly), f"{secondly} per second")]
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
            f"{owned.price_per_kilowatt_hour} per kWh",
        ),
        Part(_money(owned.support_per_year) / YEAR, f"support {owned.support_per_year} per year"),
        Part(_money(owned.space_per_year) / YEAR, f"space {owned.space_per_year} per year"),
    ]
    return [part for part in found if part.amount]


def _money(text: str) -> fractions.Fraction:
    return fractions.Fraction(text)
