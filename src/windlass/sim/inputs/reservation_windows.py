"""Advance reservations in a described scenario: `reservations:` into windows of time.

Times are seconds of the scenario, so a reservation recurs by a period and not by a calendar.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from windlass.core.model import validation
from windlass.core.model.types import AdvanceReservation, ClusterFacts, Node, Queue, Workload
from windlass.sim.scenario import BadInput

Seconds = str | Annotated[float, Meta(ge=0, le=validation.MOST_SECONDS)]
MOST_TIMES = 64


class ReservationFields(
    msgspec.Struct, forbid_unknown_fields=True, rename={"start": "from", "beneficiaries": "for"}
):
    name: str
    start: Seconds
    """When it begins."""
    duration: Seconds
    every: Seconds | None = None
    """It begins again after so long, `times` times in all."""
    times: Annotated[int, Meta(ge=1, le=MOST_TIMES)] = 1
    nodes: list[str] = []
    selector: dict[str, str] = {}
    amounts: dict[str, str | float] = {}
    beneficiaries: Beneficiaries | None = None
    """The users and queues that may use it; absent: a maintenance window."""


class Beneficiaries(msgspec.Struct, forbid_unknown_fields=True):
    queues: list[str] = []
    users: list[str] = []


def read(
    spec: Iterable[ReservationFields],
    nodes: Iterable[Node],
    queues: Iterable[Queue],
    *,
    seconds: Callable[[Any], float],
    amounts: Callable[[dict[str, Any]], dict[str, int]],
) -> tuple[AdvanceReservation, ...]:
    """`seconds` and `amounts` read what users write."""
    known, lines = {node.name for node in nodes}, {queue.name for queue in queues}
    found: list[AdvanceReservation] = []
    for each in spec:
        _refuse_unknown(each, known, lines)
        found += _windows(each, seconds, amounts)
    try:
        validation.refuse_bad_advance(found)
    except validation.BadFacts as problem:
        raise BadInput(f"{problem}.") from problem
    return tuple(found)


def _windows(
    spec: ReservationFields,
    seconds: Callable[[Any], float],
    amounts: Callable[[dict[str, Any]], dict[str, int]],
) -> Iterator[AdvanceReservation]:
    start, lasts = seconds(spec.start), seconds(spec.duration)
    period = 0.0 if spec.every is None else seconds(spec.every)
    if spec.times > 1 and period < lasts:
        raise BadInput(
            f"Reservation {spec.name} recurs after {period:g} s and lasts {lasts:g} s: say with "
            "`every` after how long it begins again, at least its duration."
        )
    beneficiaries = spec.beneficiaries or Beneficiaries()
    for number in range(spec.times):
        begin = start + number * period
        yield AdvanceReservation(
            spec.name,
            begin,
            begin + lasts,
            nodes=frozenset(spec.nodes) if spec.nodes else None,
            selector=tuple(sorted(spec.selector.items())),
            amounts=amounts(spec.amounts),
            queues=frozenset(beneficiaries.queues),
            users=frozenset(beneficiaries.users),
        )


def _refuse_unknown(spec: ReservationFields, nodes: set[str], queues: set[str]) -> None:
    for name in spec.nodes:
        if name not in nodes:
            shown = ", ".join(sorted(nodes)[:3])
            raise BadInput(
                f"Reservation {spec.name}: there is no node {name!r}: there are {shown}..."
            )
    for name in spec.beneficiaries.queues if spec.beneficiaries else ():
        if name not in queues:
            raise BadInput(f"Reservation {spec.name}: there is no queue {name!r} in `queues`.")


def with_grace(workload: Workload, facts: ClusterFacts, grace: float) -> Workload:
    """A job of a scenario with windows: its grace period must be known in advance."""
    if not facts.advance or workload.grace:
        return workload
    return dataclasses.replace(workload, grace=grace)
