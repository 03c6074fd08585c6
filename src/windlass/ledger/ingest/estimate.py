"""What a Run would cost, before it starts. Pure.

Where it will run is not known yet, so the cheapest and the dearest of the devices and machines that
are there and that it may use are told.
"""

from __future__ import annotations

import fractions
from collections.abc import Sequence
from typing import Any

from windlass.control import members
from windlass.kinds import duration, quantity, run
from windlass.ledger import money
from windlass.ledger.facts import MACHINE, WHOLE
from windlass.ledger.pricing import Prices
from windlass.ledger.reading import Node
from windlass.ledger.sharing import claim


def estimate(
    spec: run.RunSpec, nodes: Sequence[Node], prices: Prices, now: int
) -> dict[str, Any] | None:
    """Micro-units an hour, and for the time that is expected; None: nothing has a price."""
    if not prices.currency or not nodes:
        return None
    low = high = 0
    for role in spec.roles:
        rates = _member(role, nodes, prices, now)
        low += rates[0] * role.replicas
        high += rates[1] * role.replicas
    hourly = money.micros([low * 3600])[0], money.micros([high * 3600])[0]
    told: dict[str, Any] = {
        "currency": prices.currency,
        "perHourMicros": hourly[0],
        "perHourMicrosAtMost": hourly[1],
    }
    length = (spec.duration.expected or spec.duration.max) if spec.duration else None
    if length:
        seconds = fractions.Fraction(duration.milliseconds(length), 1000)
        told["seconds"] = int(seconds)
        told["totalMicros"] = int(low * seconds) // money.MICRO
        told["totalMicrosAtMost"] = int(high * seconds) // money.MICRO
    told["sentence"] = _sentence(told, length)
    return told


def _member(role: run.Role, nodes: Sequence[Node], prices: Prices, now: int) -> tuple[int, int]:
    """Nano-units a second of one member: on the cheapest node and on the dearest."""
    needs = members.needs(role)
    found = []
    for at in nodes:
        part = max(_part(needs["cpu"], at.cpu), _part(needs["memory"], at.memory))
        machine = at.devices[MACHINE]
        rate = claim(prices.rate(machine, "share", now), part)
        usable = True
        for asked in role.devices or ():
            fitting = [
                each
                for each in at.devices.values()
                if each.kind == asked.kind and (not asked.models or each.model in asked.models)
            ]
            usable = usable and bool(fitting)
            if fitting:
                memory = at.device_memory.get(asked.kind, 0)
                rate += (asked.count or 1) * _device(asked, fitting[0], memory, prices, now)
        if usable:
            found.append(rate)
    return (min(found), max(found)) if found else (0, 0)


def _device(asked: run.Device, device: Any, memory: int, prices: Prices, now: int) -> int:
    """`memory`: bytes that the device has, where its node says so."""
    if asked.share:
        part = int(fractions.Fraction(asked.share) * WHOLE)
        return claim(prices.rate(device, "ratio", now), part)
    if asked.compute or asked.memory:
        by_memory = _part(quantity.whole(asked.memory), memory) if asked.memory else 0
        part = max((asked.compute or 0) * WHOLE // 100, by_memory)
        return claim(prices.rate(device, "share", now), part)
    return prices.rate(device, "whole", now)


def _part(amount: int, of: int) -> int:
    return min(WHOLE, amount * WHOLE // of) if of > 0 else 0


def _sentence(told: dict[str, Any], length: str | None) -> str:
    words = f"It would cost {_range(told, 'perHourMicros')} an hour"
    if length:
        words += f", {_range(told, 'totalMicros')} if it runs for {length}"
    return words + "."


def _range(told: dict[str, Any], name: str) -> str:
    low, high = told[name], told[f"{name}AtMost"]
    if low == high:
        return money.text(low, told["currency"])
    return f"{money.text(low)} to {money.text(high, told['currency'])}"
