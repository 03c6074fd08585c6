"""Policies that a simulation compares: each is a small change of a scenario's queues and workloads.

`compare` asks for all combinations; a combination leaves everything else as in the scenario.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal, get_args

from windlass.core.model.types import Order, Pack, Policy, Queue, Workload

Backfill = Literal["none", "non-reserving", "reserving"]
ORDERS: tuple[str, ...] = get_args(Order)
BACKFILLS: tuple[str, ...] = get_args(Backfill)
PACKS: tuple[str, ...] = get_args(Pack)
_NAMES = {
    "none": "no backfill",
    "non-reserving": "non-reserving backfill",
    "reserving": "reserving backfill",
}
AS_IS = "as-is"
"""Stands for: as in the scenario."""


@dataclasses.dataclass(frozen=True, slots=True)
class Variant:
    order: Order | None = None
    backfill: Backfill | None = None
    preempt: bool | None = None
    pack: Pack | None = None

    @property
    def name(self) -> str:
        parts: list[str | None] = [self.order, _NAMES.get(self.backfill or ""), self.pack]
        if self.preempt is not None:
            parts.insert(2, "preempting" if self.preempt else "not preempting")
        return ", ".join(part for part in parts if part) or AS_IS

    def policy(self) -> Policy:
        if self.preempt is None:
            return Policy()
        return Policy(preempt=self.preempt, reclaim=self.preempt)

    def queue(self, queue: Queue) -> Queue:
        changed = queue if self.order is None else dataclasses.replace(queue, order=self.order)
        if self.backfill is None:
            return changed
        reserve = max(1, queue.max_reservations) if self.backfill == "reserving" else 0
        return dataclasses.replace(changed, strict=self.backfill == "none", reserve=reserve)

    def workload(self, workload: Workload) -> Workload:
        return workload if self.pack is None else dataclasses.replace(workload, pack=self.pack)


def combinations(
    orders: Sequence[str] = (),
    backfills: Sequence[str] = (),
    preemption: Sequence[str] = (),
    packs: Sequence[str] = (),
) -> list[Variant]:
    """Every combination of what was named, in the order in which it was named."""
    chosen = itertools.product(
        orders or (None,), backfills or (None,), preemption or (None,), packs or (None,)
    )
    return [
        Variant(order, backfill, None if preempt is None else preempt == "on", pack)  # type: ignore[arg-type]
        for order, backfill, preempt, pack in chosen
    ]
