"""Times, amounts and pod requests in messages. Amounts are rounded so that a message never names
more than there is."""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Mapping

from windlass.core.model.types import Role
from windlass.kinds.values import quantity

WITHIN = {"numa": "on one NUMA node", "pcie": "under one PCIe switch"}


@functools.lru_cache(maxsize=256)
def moment(seconds: float) -> str:
    """A time in UTC, rounded up to the second: a message never names an earlier moment."""
    last = datetime.datetime.max.replace(microsecond=0, tzinfo=datetime.UTC).timestamp()
    moment = datetime.datetime.fromtimestamp(math.ceil(min(seconds, last)), datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def amount(resource: str, value: int) -> str:
    """`1.5 cpu`, `0.25 gpu`, exact; `32Gi memory`: rounded down to tenths."""
    if resource == "memory":
        return f"{quantity.shortened(value)} memory"
    if resource == "ephemeral-storage":
        return f"{quantity.shortened(value)} disk"
    if resource == "members":
        return f"{value} pods"
    if resource in ("pods", "nodes") or resource.startswith("attach:"):
        return f"{value} {resource}"
    return f"{_thousandths(value)} {resource}"


def count(number: int, noun: str) -> str:
    """`2 workers`"""
    return f"{number} {noun}{'s' * (number != 1 and not noun.endswith('s'))}"


def smaller_request(resource: str, possible: int) -> str:
    """What to ask for at most, as a person would say it: `Ask for 2 CPUs or fewer`."""
    if resource == "memory":
        return f"Ask for {quantity.shortened(possible)} of memory or less"
    if resource == "ephemeral-storage":
        return f"Ask for {quantity.shortened(possible)} of disk or less"
    number = possible if resource == "members" else possible / 1000
    if resource == "cpu":
        return f"Ask for {_thousandths(possible)} CPU{'s' * (number != 1)} or fewer"
    noun = {"members": "worker", "gpu": "GPU"}.get(resource, resource)
    if number < 1:
        return f"Leave {noun}s out, which no node has"
    plural = "s" * (number != 1 and noun != resource)
    per_worker = "" if resource == "members" else " per worker"
    return f"Ask for {number:g} {noun}{plural} or fewer{per_worker}"


def pod_resources(role: Role) -> str:
    """What one pod asks for."""
    parts = []
    for request in role.devices:
        model = f" ({' or '.join(request.models)})" if request.models else ""
        if request.form == "whole":
            parts.append(f"{request.count} {request.kind}{model}")
        elif request.form == "ratio":
            parts.append(f"1/{request.ratio} {request.kind}{model}")
        elif request.form == "partition":
            parts.append(f"{request.profile} of a {request.kind}{model}")
        else:
            size = [f"{request.memory}Mi"] if request.memory else []
            size += [f"{request.compute / 10:g}%"] if request.compute else []
            parts.append(f"{' and '.join(size)} of a {request.kind}{model}")
    parts += [amount(name, value) for name, value in sorted(_shown(role.needs).items())]
    within = f" {WITHIN[role.bundle]}" if role.bundle else ""
    return (", ".join(parts) or "a place") + overhead(role) + within


def overhead(role: Role, only: str = "") -> str:
    """The part of the needs that its RuntimeClass adds; `only` of one resource."""
    if role.runtime is None:
        return ""
    shown = _shown(dict(role.runtime.overhead))
    parts = [amount(n, value) for n, value in sorted(shown.items()) if only in ("", n)]
    return f" ({', '.join(parts)} of it for RuntimeClass {role.runtime.name})" if parts else ""


def _shown(needs: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in needs.items() if amount and name != "pods"}


def _thousandths(value: int) -> str:
    if 0 < value < 100:
        return f"{value}m"
    whole, rest = divmod(value, 1000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)
