"""What `decide` looks at and what it answers: plain values, amounts in integers.

`control.snapshots` makes them from objects, the simulator from traces. cpu is counted in
thousandths of a core, memory in bytes, devices in thousandths of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from windlass.kinds.reasons import Reason

Amounts = Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str
    effect: str


@dataclasses.dataclass(frozen=True, slots=True)
class Toleration:
    key: str
    operator: str
    value: str
    effect: str

    def accepts(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.operator == "Exists":
            return self.key in ("", taint.key)
        return (self.key, self.value) == (taint.key, taint.value)


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A machine: what it has, and what is not held by anyone."""

    name: str
    capacity: Amounts
    free: Amounts
    open: bool = True
    """Ready and not cordoned: may take new members."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Members of a unit that are alike."""

    name: str
    least: int
    """How many must start together with the least of every other group."""
    most: int
    needs: Amounts
    """Of each member."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """Something that waits to be placed as a whole: a run, or a gang of pods."""

    key: str
    queue: str
    priority: int
    submitted: float
    groups: tuple[Group, ...]
    selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    not_before: float = 0.0
    """A unit that failed waits until then; before it, it is neither placed nor judged."""
    unsupported: str = ""
    """Why this engine can never run it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Queue:
    """A node of the sharing tree."""

    name: str
    parent: str = ""
    limit: Amounts = dataclasses.field(default_factory=dict)
    used: Amounts = dataclasses.field(default_factory=dict)
    """By its own units, not by those of the queues below it."""
    strict: bool = False
    max_priority: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    nodes: tuple[Node, ...]
    units: tuple[Unit, ...]
    """Those that wait; what already holds room is in `Node.free` and `Queue.used`."""
    queues: tuple[Queue, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
    most_placements: int = 500
    """Units placed in one decision: bounds how long a cycle takes and how many writes follow."""


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Where each member goes: group -> node per member, by index."""

    unit: str
    members: Mapping[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Why a unit waits."""

    unit: str
    reason: Reason
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    placements: tuple[Placement, ...]
    verdicts: tuple[Verdict, ...]
    wake_at: float | None
    """When to decide again even if nothing changes."""
