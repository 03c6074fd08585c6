"""Ports of runs, where members of a node share its address: a block for each attempt.

What is written on pods is the record: `windlass.dev/ports`, first and last port, which the agent
reads, too, and `windlass.dev/port-layout`, whose they are. A block is laid out once: members that
join later get ports of their own in it, and existing ones stay. `Ports` chooses them: it also
remembers blocks whose pods have not come back through the cache yet.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping

from windlass import frameworks
from windlass.control.model import members
from windlass.kinds.annotations import PORTS
from windlass.kinds.types import core, run

LAYOUT = "windlass.dev/port-layout"
"""How many ports each member has, and for how many members of each role, in the order of the spec:
`3:head=1,worker=8`."""
A_FEW = 16
"""Members that a small role may grow to while it runs."""
_WRITTEN = re.compile(r"(\d+):([a-z0-9-]+=\d+(?:,[a-z0-9-]+=\d+)*)")


class NoPortsError(Exception):
    """No block is free; the message has the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """The ports of one attempt."""

    first: int
    stride: int
    """How many ports each member has."""
    roles: tuple[tuple[str, int], ...]
    """Each role, and for how many members of it there are ports."""

    @property
    def span(self) -> range:
        return range(self.first, self.first + self.stride * sum(count for _, count in self.roles))

    def size_for(self, role: str) -> int:
        """For how many members of a role there are ports."""
        return dict(self.roles).get(role, 0)

    def port(self, role: str, index: int) -> int:
        """The first of a member's own; 0 if it has none."""
        before = 0
        for name, count in self.roles:
            if name == role:
                return self.first + (before + index) * self.stride if index < count else 0
            before += count
        return 0

    def written(self) -> dict[str, str]:
        """As annotations."""
        counts = ",".join(f"{name}={count}" for name, count in self.roles)
        span = self.span
        return {
            PORTS: f"{span.start}-{span.stop - 1}",
            LAYOUT: f"{self.stride}:{counts}",
        }

    @staticmethod
    def read(annotations: Mapping[str, str] | None) -> Block | None:
        given = annotations or {}
        low, _, high = given.get(PORTS, "").partition("-")
        layout = _WRITTEN.fullmatch(given.get(LAYOUT, ""))
        if not (low.isdecimal() and high.isdecimal() and layout):
            return None
        counts = (each.partition("=") for each in layout[2].split(","))
        found = Block(int(low), int(layout[1]), tuple((name, int(n)) for name, _, n in counts))
        return found if found.span and found.span[-1] == int(high) <= 65535 else None


def layout(spec: run.RunSpec, *, spare: bool = False) -> Block | None:
    """What an attempt needs, at no place yet. A single plain process needs none. `spare`: roles
    that grow while they run get twice as much as they ask for today, or enough for a few."""
    own = max((len(role.ports or ()) for role in spec.roles), default=0)
    live = {role.name for role in spec.roles if members.resizes_live(spec, role)}
    alone = sum(role.replicas for role in spec.roles) == 1 and spec.framework == "process"
    if alone and not own and not live:
        return None
    return Block(
        first=0,
        stride=frameworks.BY_NAME[spec.framework].ports + own,
        roles=tuple(
            (
                role.name,
                max(2 * role.replicas, A_FEW) if spare and role.name in live else role.replicas,
            )
            for role in spec.roles
        ),
    )


def block_of(pod: core.Pod) -> Block | None:
    """What is written on a member's pod."""
    annotations = pod.metadata.annotations or {}
    if PORTS not in annotations or not members.owner_uid(pod):
        return None
    return Block.read(annotations)


class Ports:
    """Chooses blocks; one for each server that leads."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, int], Block] = {}
        """By Run and attempt, until one of its pods is seen."""

    def take(
        self,
        owner: run.Run,
        between: tuple[int, int],
        own: Iterable[core.Pod],
        everyone: Iterable[core.Pod],
    ) -> Block | None:
        """The current attempt's block; None if it needs none. The same attempt gets the same,
        whatever its size is by now: it is written on the Run's own pods. `everyone`: all pods
        there are, read only if ports of other pods matter."""
        key = owner.uid, owner.status.attempt
        for pod in own:
            member = members.key_of(pod)
            if member is not None and (member.run_uid, member.attempt) == key:
                return block_of(pod)
        wanted = layout(owner.spec)
        if wanted is None:
            return None
        if key not in self._given:
            self._given[key] = _free_block(owner, wanted, between, self._taken(everyone))
        return self._given[key]

    def _taken(self, everyone: Iterable[core.Pod]) -> list[range]:
        found: list[range] = []
        for pod in everyone:
            block, member = block_of(pod), members.key_of(pod)
            if block is None or member is None:
                continue
            self._given.pop((member.run_uid, member.attempt), None)
            if members.is_active(pod):
                found.append(block.span)
        return found + [block.span for block in self._given.values()]

    def forget(self, owner: run.Run) -> None:
        """The Run has ended or its attempt is over: what it has not written is free."""
        for key in [key for key in self._given if key[0] == owner.uid]:
            del self._given[key]


def _free_block(
    owner: run.Run, wanted: Block, between: tuple[int, int], taken: list[range]
) -> Block:
    """With spare ports to grow if there are enough, else without."""
    for each in (layout(owner.spec, spare=True) or wanted, wanted):
        first = _place(owner, len(each.span), between, taken)
        if first is not None:
            return dataclasses.replace(each, first=first)
    low, high = between
    raise NoPortsError(
        f"{len(wanted.span)} ports in a row are needed and none are free in {low}-{high}; wait "
        "until other runs end, or widen `ports` in the ConfigMap engine of windlass-system"
    )


def _place(owner: run.Run, size: int, between: tuple[int, int], taken: list[range]) -> int | None:
    """The search begins at a port that differs from attempt to attempt, so that a port of another
    process on the machine does not fail every attempt."""
    low, high = between
    span = high - low + 1 - size
    if span < 0:
        return None
    digest = hashlib.sha256(f"{owner.uid}/{owner.status.attempt}".encode()).digest()
    # In steps of its size, so that blocks of one size leave no gaps that fit none.
    start = low + int.from_bytes(digest[:4]) % (span // size + 1) * size
    for first in (start, low):
        found = _first_fit(first, high, size, taken)
        if found is not None:
            return found
    return None


def _first_fit(first: int, high: int, size: int, taken: list[range]) -> int | None:
    for block in sorted(taken, key=lambda each: each.start):
        if block.stop <= first:
            continue
        if block.start >= first + size:
            break
        first = block.stop
    return first if first + size - 1 <= high else None
