"""Prices: from PriceLists to rates, and rates over time. Pure.

A rate is the cost of a whole device per second, in nano (billionths of the currency). It is rounded
once, here; everything after it (seconds, parts, sums) is exact.
"""

from __future__ import annotations

import bisect
import dataclasses
import fractions
from collections.abc import Iterable, Iterator

from windlass.kinds.types import pricelist
from windlass.ledger.model import Device

NANO = 10**9


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One price of a list."""

    kind: str
    model: str
    node_class: str
    form: str
    rate: int

    def fits(self, device: Device, form: str) -> bool:
        return (
            self.kind == device.kind
            and self.model in ("", device.model)
            and self.node_class in ("", device.node_class)
            and self.form in ("", form)
        )

    @property
    def weight(self) -> tuple[bool, bool, bool]:
        """The most specific entry counts: by form, then by model, then by class of the node."""
        return self.form != "", self.model != "", self.node_class != ""


@dataclasses.dataclass(frozen=True, slots=True)
class Version:
    """A price list and the time in which it is valid."""

    uid: str
    name: str
    currency: str
    since: int
    until: int | None
    """When it was deleted: the list before it is valid again."""
    entries: tuple[Entry, ...]


class Prices:
    """All price lists of all times."""

    def __init__(self, versions: Iterable[Version] = ()) -> None:
        self._versions = sorted(versions, key=lambda each: (each.since, each.name))
        moments = {each.since for each in self._versions}
        moments |= {each.until for each in self._versions if each.until is not None}
        self._moments = sorted(moments)
        self._rates: dict[tuple[int, Device, str], int] = {}

    @property
    def currency(self) -> str:
        return self._versions[-1].currency if self._versions else ""

    def rate(self, device: Device, form: str, at: int) -> int:
        """The cost per second of a whole device that is used in this form."""
        spell = bisect.bisect_right(self._moments, at)
        key = spell, device, form
        if key not in self._rates:
            self._rates[key] = self._found(device, form, at)
        return self._rates[key]

    def wall(self, device: Device, at: int) -> int:
        """The cost per second of the hardware itself."""
        return self.rate(device, "whole", at)

    def cuts(self, started: int, ended: int) -> Iterator[tuple[int, int]]:
        """The pieces of an interval without a price change."""
        first = bisect.bisect_right(self._moments, started)
        for moment in self._moments[first:]:
            if moment >= ended:
                break
            yield started, moment
            started = moment
        yield started, ended

    def version_at(self, at: int) -> Version | None:
        counting = [
            each
            for each in self._versions
            if each.since <= at and (each.until is None or at < each.until)
        ]
        return counting[-1] if counting else None

    def _found(self, device: Device, form: str, at: int) -> int:
        version = self.version_at(at)
        fitting = [e for e in version.entries if e.fits(device, form)] if version else []
        return max(fitting, key=lambda entry: entry.weight).rate if fitting else 0


def entry(price: pricelist.Price) -> Entry:
    return Entry(
        kind=price.device,
        model=price.model or "",
        node_class=price.node_class or "",
        form=price.form or "",
        rate=rate(price),
    )


def rate(price: pricelist.Price) -> int:
    """Nano per second, rounded to the nearest."""
    exact = sum((part.amount for part in pricelist.parts(price)), fractions.Fraction(0)) * NANO
    return int(exact + fractions.Fraction(1, 2))
