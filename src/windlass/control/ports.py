"""Ports of runs, where members of a node share its address: a block for each attempt.

What is written on pods (annotation `windlass.dev/ports`) is the record. `Ports` is the one who
chooses: it also remembers blocks whose pods have not come back through the cache yet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from windlass import frameworks
from windlass.control import members
from windlass.kinds import kubernetes, run

ANNOTATION = "windlass.dev/ports"
"""First and last port of the attempt's block: `20000-20007`."""


class NoPortsError(Exception):
    """No block is free; the message has the remedy."""


def stride(spec: run.RunSpec) -> int:
    """How many ports each member has: the framework's, then those that roles name."""
    own = max((len(role.ports or ()) for role in spec.roles), default=0)
    return frameworks.BY_NAME[spec.framework].ports + own


def needed(spec: run.RunSpec) -> int:
    """How many ports an attempt takes. A single plain process needs none."""
    members_at_most = sum(role.replicas for role in spec.roles)
    alone = members_at_most == 1 and spec.framework == "process"
    if alone and not any(role.ports for role in spec.roles):
        return 0
    return members_at_most * stride(spec)


def written(first: int, spec: run.RunSpec) -> str:
    return f"{first}-{first + needed(spec) - 1}"


def block_of(pod: kubernetes.Pod) -> range:
    """The ports that are written on a pod."""
    text = (pod.metadata.annotations or {}).get(ANNOTATION, "")
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal()) or not members.owner_uid(pod):
        return range(0)
    return range(int(low), min(int(high), 65535) + 1)


class Ports:
    """Chooses blocks; one for each server that leads."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, int], range] = {}
        """By Run and attempt, until one of its pods is seen."""

    def take(self, owner: run.Run, between: tuple[int, int], pods: Iterable[kubernetes.Pod]) -> int:
        """The first port of the current attempt's block, 0 if it needs none. The same attempt gets
        the same block. `pods`: all there are."""
        size, key = needed(owner.spec), (owner.uid, owner.status.attempt)
        if not size:
            return 0
        taken: list[range] = []
        for pod in pods:
            block, member = block_of(pod), members.key_of(pod)
            if not block or member is None:
                continue
            if (member.run_uid, member.attempt) == key:
                return block.start
            self._given.pop((member.run_uid, member.attempt), None)
            if members.is_active(pod):
                taken.append(block)
        if key not in self._given:
            self._given[key] = _free_block(owner, size, between, [*taken, *self._given.values()])
        return self._given[key].start

    def forget(self, owner: run.Run) -> None:
        """The Run has ended or its attempt is over: what it has not written is free."""
        for key in [key for key in self._given if key[0] == owner.uid]:
            del self._given[key]


def _free_block(owner: run.Run, size: int, between: tuple[int, int], taken: list[range]) -> range:
    """Begins to look at a place that differs from attempt to attempt: ports that somebody else on
    the machine uses do not fail every attempt."""
    low, high = between
    span = high - low + 1 - size
    if span >= 0:
        digest = hashlib.sha256(f"{owner.uid}/{owner.status.attempt}".encode()).digest()
        # In steps of its size, so that blocks of one size leave no gaps that fit none.
        start = low + int.from_bytes(digest[:4]) % (span // size + 1) * size
        for first in (start, low):
            found = _first_fit(first, high, size, taken)
            if found is not None:
                return found
    raise NoPortsError(
        f"{size} ports in a row are needed and none are free in {low}-{high}; wait until other "
        "runs end, or widen `ports` in the ConfigMap engine of windlass-system"
    )


def _first_fit(first: int, high: int, size: int, taken: list[range]) -> range | None:
    for block in sorted(taken, key=lambda each: each.start):
        if block.stop <= first:
            continue
        if block.start >= first + size:
            break
        first = block.stop
    return range(first, first + size) if first + size - 1 <= high else None
