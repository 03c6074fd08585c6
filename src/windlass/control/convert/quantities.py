"""Small helpers for facts and events, for `control.scheduler.cache`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from windlass.core.model import types
from windlass.core.snapshot import snapshot
from windlass.kinds.types import meta

T = TypeVar("T", bound=meta.Object)
K = TypeVar("K", str, tuple[str, str])
Fact = types.Workload | types.Running


def node_of(event: snapshot.Event) -> str:
    """The node of an event, or ""."""
    if isinstance(event, snapshot.NodePut):
        return event.node.name
    return event.name if isinstance(event, snapshot.NodeGone) else ""


def nodes_with_devices(fact: Fact | None) -> set[str]:
    pods = fact.pods if isinstance(fact, types.Running) else ()
    return {pod.node for pod in pods if pod.grants}


def grants(fact: Fact, node: str) -> Iterable[types.Grant]:
    pods = fact.pods if isinstance(fact, types.Running) else ()
    return (grant for pod in pods if pod.node == node for grant in pod.grants)


def put(objects: dict[K, T], before: T | None, after: T | None, key: Callable[[T], K]) -> K:
    """Stores an existing object, drops a deleted one; returns the key."""
    if after is not None:
        objects[key(after)] = after
        return key(after)
    assert before is not None, "a change has an object before or after it"  # noqa: S101
    objects.pop(key(before), None)
    return key(before)
