"""Verdicts in words: which dimension is short, and by how much. Only `core.decide` calls it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from windlass.core.snapshot import Amounts, Group, Node


def amount(dimension: str, value: int) -> str:
    """`1.5 cpu`, `32Gi memory`, `2 gpu`: never more than there is, so rounded down."""
    if dimension == "memory":
        return f"{_bytes(value)} memory"
    return f"{_decimal(value, 1000)} {dimension}"


def no_such_queue(name: str, queues: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(queues), n=1)
    hint = f"; did you mean {near[0]}?" if near else "; have it created or name another one"
    return f"queue {name} does not exist{hint}"


def behind(queue: str) -> str:
    return f"queue {queue} is strict and its head waits"


def over_limit(dimension: str, needed: int, queue: str, left: int) -> str:
    return f"needs {amount(dimension, needed)}; queue {queue} may use {_of(dimension, left)} more"


def impossible(group: Group, allowed: Sequence[Node]) -> str:
    """No node could ever hold a member of the group."""
    if not allowed:
        return "no node has the labels and taints that spec.placement.nodes asks for"
    short = _short(group.needs, [node.capacity for node in allowed])
    if not short:
        return f"needs {_all(group.needs)} on one node; no node has all of it"
    dimension = short[0]
    largest = max(allowed, key=lambda node: (node.capacity.get(dimension, 0), node.name))
    has = largest.capacity.get(dimension, 0)
    return (
        f"needs {amount(dimension, group.needs[dimension])} on one node; "
        f"the largest, {largest.name}, has {_of(dimension, has)}"
    )


def no_room(group: Group, placed: int, free: Sequence[Amounts]) -> str:
    """Nodes could hold the group, but not now; `free` is what is left beside the placed."""
    many = f"{group.least} x " if group.least > 1 else ""
    there = f"; room for {placed} of {group.least} now" if placed else ""
    short = _short(group.needs, free)
    if not free:
        return f"needs {many}{_all(group.needs)}; no node that may run it is ready"
    if not short:
        return f"needs {many}{_all(group.needs)}{there}; no node has all of it free"
    dimension = short[0]
    most = max(amounts.get(dimension, 0) for amounts in free)
    return (
        f"needs {many}{amount(dimension, group.needs[dimension])}{there}; "
        f"{_of(dimension, max(0, most))} free on the roomiest node"
    )


def _short(needs: Amounts, offers: Sequence[Amounts]) -> list[str]:
    """Dimensions that no offer has enough of, the one that lacks the largest part first."""

    def part(dimension: str) -> float:
        best = max((offer.get(dimension, 0) for offer in offers), default=0)
        return best / needs[dimension]

    return sorted((d for d, n in needs.items() if n and part(d) < 1), key=lambda d: (part(d), d))


def _all(needs: Mapping[str, int]) -> str:
    return " and ".join(amount(d, n) for d, n in sorted(needs.items()) if n)


def _of(dimension: str, value: int) -> str:
    return _bytes(value) if dimension == "memory" else _decimal(value, 1000)


def _bytes(value: int) -> str:
    for suffix, bits in (("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if value >= 1 << bits:
            return f"{_decimal(value, 1 << bits)}{suffix}"
    return str(value)


def _decimal(value: int, unit: int) -> str:
    tenths = value * 10 // unit
    if tenths == 0 and value:
        return f"{value}m" if unit == 1000 else "0"
    return str(tenths // 10) if tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10}"
