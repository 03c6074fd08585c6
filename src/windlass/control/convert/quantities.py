"""Small questions about facts and events, as `control.picture` asks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from windlass.core import facts, state
from windlass.kinds import meta

T = TypeVar("T", bound=meta.Object)
K = TypeVar("K", str, tuple[str, str])
Fact = facts.Unit | facts.Running


def node_of(event: state.Event) -> str:
    """The node that an event is about, or ""."""
    if isinstance(event, state.NodePut):
        return event.node.name
    return event.name if isinstance(event, state.NodeGone) else ""


def nodes_with_devices(fact: Fact | None) -> set[str]:
    seats = fact.seats if isinstance(fact, facts.Running) else ()
    return {seat.node for seat in seats if seat.grants}


def grants(fact: Fact, node: str) -> Iterable[facts.Grant]:
    seats = fact.seats if isinstance(fact, facts.Running) else ()
    return (grant for seat in seats if seat.node == node for grant in seat.grants)


def put(objects: dict[K, T], before: T | None, after: T | None, key: Callable[[T], K]) -> K:
    """Keeps what is there, drops what is gone; the key of either."""
    if after is not None:
        objects[key(after)] = after
        return key(after)
    assert before is not None, "a change has an object before or after it"  # noqa: S101
    objects.pop(key(before), None)
    return key(before)
