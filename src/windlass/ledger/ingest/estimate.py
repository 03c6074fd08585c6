"""The expected cost of a Run, before it starts. Pure.

The nodes are not known yet, so the result is a range: from the cheapest to the most expensive of
the devices and machines that the Run may use.
"""

from __future__ import annotations

import fractions
from collections.abc import Sequence
from typing import Any

from windlass.control.model import members
from windlass.kinds.types import run
from windlass.kinds.values import duration, quantity
from windlass.ledger.ingest.extract import Node
from windlass.ledger.model import MACHINE, WHOLE
from windlass.ledger.pricing import money
from windlass.ledger.pricing.cost_allocation import claim
from windlass.ledger.pricing.price_list import Prices


def estimate(
    spec: run.RunSpec, nodes: Sequence[Node], prices: Prices, now: int
) -> dict[str, Any] | None:
    """Micros per hour, and for the expected duration; None if there are no prices."""
    if not prices.currency or not nodes:
        return None
    low = high = 0
    for role in spec.roles:
        rates = _member(role, nodes, prices, now)
        low += rates[0] * role.replicas
        high += rates[1] * role.replicas
    hourly = money.micros([low * 3600])[0], money.micros([high * 3600])[0]
    result: dict[str, Any] = {
        "currency": prices.currency,
        "perHourMicros": hourly[0],
        "perHourMicrosAtMost": hourly[1],
    }
    length = (spec.duration.expected or spec.duration.max) if spec.duration else None
    if length:
        seconds = fractions.Fraction(duration.milliseconds(length), 1000)
        result["seconds"] = int(seconds)
        result["totalMicros"] = int(low * seconds) // money.MICRO
        result["totalMicrosAtMost"] = int(high * seconds) // money.MICRO
    subject = "Each index" if spec.array is not None else "It"
    result["sentence"] = _sentence(subject, result, length)
    return result


def _member(role: run.Role, nodes: Sequence[Node], prices: Prices, now: int) -> tuple[int, int]:
    """Nano per second of one replica: on the cheapest node and on the most expensive."""
    needs = members.needs(role)
    found = []
    for at in nodes:
        part = max(_part(needs["cpu"], at.cpu), _part(needs["memory"], at.memory))
        machine = at.devices[MACHINE]
        rate = claim(prices.rate(machine, "share", now), part)
        usable = True
        for request in role.devices or ():
            fitting = [
                each
                for each in at.devices.values()
                if each.kind == request.kind
                and (not request.models or each.model in request.models)
            ]
            usable = usable and bool(fitting)
            if fitting:
                memory = at.device_memory.get(request.kind, 0)
                rate += (request.count or 1) * _device(request, fitting[0], memory, prices, now)
        if usable:
            found.append(rate)
    return (min(found), max(found)) if found else (0, 0)


def _device(request: run.Device, device: Any, memory: int, prices: Prices, now: int) -> int:
    """`memory`: bytes of the device, if its node reports them."""
    if request.share:
        part = int(fractions.Fraction(request.share) * WHOLE)
        return claim(prices.rate(device, "ratio", now), part)
    if request.compute or request.memory:
        by_memory = _part(quantity.whole(request.memory), memory) if request.memory else 0
        part = max((request.compute or 0) * WHOLE // 100, by_memory)
        return claim(prices.rate(device, "share", now), part)
    return prices.rate(device, "whole", now)


def _part(amount: int, of: int) -> int:
    return min(WHOLE, amount * WHOLE // of) if of > 0 else 0


def _sentence(subject: str, result: dict[str, Any], length: str | None) -> str:
    sentence = f"{subject} would cost {_range(result, 'perHourMicros')} an hour"
    if length:
        sentence += f", {_range(result, 'totalMicros')} if it runs for {length}"
    return sentence + "."


def _range(result: dict[str, Any], name: str) -> str:
    low, high = result[name], result[f"{name}AtMost"]
    if low == high:
        return money.text(low, result["currency"])
    return f"{money.text(low)} to {money.text(high, result['currency'])}"
