"""Advance reservations in a described scenario: `reservations:` into windows of time.

Times are seconds of the scenario, so a reservation recurs by a period and not by a calendar.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from windlass.core import facts_check
from windlass.core.facts import AdvanceReservation, Facts, Node, Queue, Unit
from windlass.sim.scenario import BadInput

Seconds = str | Annotated[float, Meta(ge=0, le=facts_check.MOST_SECONDS)]
MOST_TIMES = 64


class ReservationWords(
    msgspec.Struct, forbid_unknown_fields=True, rename={"start": "from", "whom": "for"}
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
    whom: Beneficiaries | None = None
    """Who may use it; absent: a maintenance window."""


class Beneficiaries(msgspec.Struct, forbid_unknown_fields=True):
    queues: list[str] = []
    users: list[str] = []


def read(
    words: Iterable[ReservationWords],
    nodes: Iterable[Node],
    queues: Iterable[Queue],
    *,
    seconds: Callable[[Any], float],
    amounts: Callable[[dict[str, Any]], dict[str, int]],
) -> tuple[AdvanceReservation, ...]:
    """`seconds` and `amounts` read what users write."""
    known, lines = {node.name for node in nodes}, {queue.name for queue in queues}
    found: list[AdvanceReservation] = []
    for each in words:
        _refuse_unknown(each, known, lines)
        found += _windows(each, seconds, amounts)
    try:
        facts_check.refuse_bad_advance(found)
    except facts_check.BadFacts as problem:
        raise BadInput(f"{problem}.") from problem
    return tuple(found)


def _windows(
    words: ReservationWords,
    seconds: Callable[[Any], float],
    amounts: Callable[[dict[str, Any]], dict[str, int]],
) -> Iterator[AdvanceReservation]:
    start, lasts = seconds(words.start), seconds(words.duration)
    period = 0.0 if words.every is None else seconds(words.every)
    if words.times > 1 and period < lasts:
        raise BadInput(
            f"Reservation {words.name} recurs after {period:g} s and lasts {lasts:g} s: say with "
            "`every` after how long it begins again, at least its duration."
        )
    whom = words.whom or Beneficiaries()
    for number in range(words.times):
        begin = start + number * period
        yield AdvanceReservation(
            words.name,
            begin,
            begin + lasts,
            nodes=frozenset(words.nodes) if words.nodes else None,
            selector=tuple(sorted(words.selector.items())),
            amounts=amounts(words.amounts),
            queues=frozenset(whom.queues),
            users=frozenset(whom.users),
        )


def _refuse_unknown(words: ReservationWords, nodes: set[str], queues: set[str]) -> None:
    for name in words.nodes:
        if name not in nodes:
            shown = ", ".join(sorted(nodes)[:3])
            raise BadInput(
                f"Reservation {words.name}: there is no node {name!r}: there are {shown}..."
            )
    for name in words.whom.queues if words.whom else ():
        if name not in queues:
            raise BadInput(f"Reservation {words.name}: there is no queue {name!r} in `queues`.")


def with_grace(unit: Unit, facts: Facts, grace: float) -> Unit:
    """A job of a scenario with windows: it must be told to leave so long before."""
    if not facts.advance or unit.grace:
        return unit
    return dataclasses.replace(unit, grace=grace)
