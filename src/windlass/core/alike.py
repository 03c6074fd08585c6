"""Units that would be told the same need not be asked twice.

Thousands wait, in tens of kinds. In one decision room and quota only shrink, so what did not fit
once does not fit again, and as long as nothing moved whoever is alike gets the same answer. Here
is what `cycle.consider` remembers of answers, and for whom each of them holds. Nothing is taken
over from one decision to the next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import allowance, order, passing, preempt, screening, shadows, verdicts
from windlass.core.facts import Unit, Verdict
from windlass.core.place import Scene
from windlass.core.shapes import OWN
from windlass.kinds.reasons import Reason

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

_FOR_ANYBODY = (Reason.WAITING_FOR_CAPACITY, Reason.WAITING_FOR_TOPOLOGY, Reason.IMPOSSIBLE)


@dataclasses.dataclass(slots=True)
class Memory:
    """Of one decision."""

    moves: int = 0
    """Counts what changes answers: starts, held room, promises that come and go."""
    hopeless: dict[int, Verdict] = dataclasses.field(default_factory=dict)
    """Kinds of which nobody starts any more in this decision, whatever was promised to others."""
    refused: dict[int, Verdict] = dataclasses.field(default_factory=dict)
    """Kinds of which nobody starts as long as nobody else is told to go."""
    short: dict[object, Verdict] = dataclasses.field(default_factory=dict)
    """(kind, the promises it must not delay) that a quota keeps waiting, as long as nobody else is
    told to go: in one decision quotas only fill up."""
    now: dict[object, Verdict] = dataclasses.field(default_factory=dict)
    """(kind, the promises it must not delay, ...) -> what it was told since the last move."""
    moved: int = 0
    """When `now` was begun."""
    promised: set[str] = dataclasses.field(default_factory=set)
    """Units that have a promise."""
    rest: list[tuple[Iterator[Unit], dict[int, Verdict]]] = dataclasses.field(default_factory=list)
    """Lines of which everybody else surely waits, and why, by kind: told on demand."""
    heads: dict[str, int] = dataclasses.field(default_factory=dict)
    """Strict queue -> priority of the last head that waits there: who comes with a higher one does
    not stand behind it."""
    reserved: dict[str, int] = dataclasses.field(default_factory=dict)
    """Queue -> how many reservations it has; not those that have none."""
    searched: dict[str, int] = dataclasses.field(default_factory=dict)
    """Queue -> searches for a start that found none; kept by `allowance`."""
    yields: dict[str, shadows.Held | None] = dataclasses.field(default_factory=dict)
    """Queue -> the reservation that its first one would take the place of, as of `yields_at`; kept
    by `allowance`."""
    yields_at: int = -1
    in_vain: bool = False
    """Whether any search found no start."""
    no_start: dict[int, float] = dataclasses.field(default_factory=dict)
    """Kind -> the shortest runtime for which no start was found; kept by `allowance`."""
    final: tuple[int, Scene] | None = None
    """The cluster when all workloads with a known end have ended, after so many evictions; kept by
    `earliest`."""
    passed: dict[int, frozenset[str]] = dataclasses.field(default_factory=dict)
    """Kind -> reservations that it may delay, as of `passed_at`; kept by `reserve`."""
    passed_at: int = -1
    wanted: dict[str, npt.NDArray[np.bool_]] = dataclasses.field(default_factory=dict)
    """Parent queue -> nodes that its children below their claim could use; kept by `sharing`."""
    inside: dict[str, tuple[int, bool]] = dataclasses.field(default_factory=dict)
    """Reserved workload -> whether it would stay within its queue's guarantee, as of which move of
    its queue; kept by `passing`."""
    by_share: dict[tuple[str, str], tuple[tuple[int, int], bool]] = dataclasses.field(
        default_factory=dict
    )
    """(Queue, other) -> whether its workloads pass tentative reservations of the other, as of which
    moves of both; kept by `passing`."""
    waited: dict[str, bool] = dataclasses.field(default_factory=dict)
    """Queue -> whether anybody waits there since long; kept by `reserve`."""


def pass_over(cycle: Cycle, unit: Unit) -> bool:
    """Whether the unit surely waits; then it is told why, and has no turn."""
    memory, key = cycle.memory, unit.key
    if key in memory.promised or key in cycle.placements or key in cycle.nominations:
        return False
    if cycle.barred(unit) is not None:
        return False
    told = cycle.asked(unit)
    kind = told.kind
    verdict = memory.hopeless.get(kind)
    if verdict is None and memory.short and kind != OWN:
        verdict = memory.short.get((kind, _beside(cycle, unit)))
        if verdict is not None:
            preempt.treat_alike(cycle, verdict.unit, unit)
    if verdict is None:
        verdict = memory.refused.get(kind)
        if verdict is None:
            verdict, for_all = screening.refusal(cycle, told) if kind != OWN else (None, False)
            if verdict is None:
                return False
            if for_all:
                for_good = _whatever_comes(cycle, unit)
                (memory.hopeless if for_good else memory.refused)[kind] = verdict
        elif allowance.may_promise(cycle, unit):
            return False
    cycle.turn.append(key)
    cycle.verdicts[key] = verdict
    return True


def told(cycle: Cycle, unit: Unit) -> Verdict | None:
    """What the unit would be told, if that is known already; it names another unit."""
    memory = cycle.memory
    kind = cycle.asked(unit).kind
    found = memory.hopeless.get(kind)
    if found is None and memory.now and memory.moved == memory.moves and kind != OWN:
        found = memory.now.get(_standing(cycle, unit, kind))
    if found is None or unit.key in memory.promised:
        return None  # not known, or what was promised to it must be looked at
    return found


def remember(cycle: Cycle, unit: Unit, verdict: Verdict) -> None:
    """The unit was told this, and nothing moved for it."""
    memory = cycle.memory
    kind = cycle.asked(unit).kind
    if kind == OWN or unit.queue not in cycle.tree.queues:
        return
    if cycle.queue_of(unit).strict or allowance.may_promise(cycle, unit):
        return  # the next of its kind is behind it, or may be promised something
    if verdict.reason in _FOR_ANYBODY and verdict.resolved and _whatever_comes(cycle, unit):
        memory.hopeless[kind] = verdict
        return
    if memory.moved != memory.moves:
        memory.moved, memory.now = memory.moves, {}
    memory.now[_standing(cycle, unit, kind)] = verdict


def over_quota(cycle: Cycle, unit: Unit, verdict: Verdict) -> None:
    """A quota keeps the unit waiting, and nobody can be stopped for it."""
    queue = cycle.queue_of(unit)
    kind = cycle.scene.cluster.shapes.kind_of(unit, cycle.scene.cluster.resources)
    if kind != OWN and not queue.strict and queue.order != "attained":
        cycle.memory.short[kind, _beside(cycle, unit)] = verdict


def block(cycle: Cycle, head: Unit) -> None:
    """The head of a strict queue waits: so do all behind it that want the same resources."""
    memory, shapes = cycle.memory, cycle.scene.cluster.shapes
    resource_class = cycle.asked(head).resource_class
    memory.heads[head.queue] = order.priority(cycle.queue_of(head), head)
    for kind in cycle.snapshot.kinds(head.queue):
        if kind != OWN and shapes.classes[kind] == resource_class:
            memory.hopeless.setdefault(kind, verdicts.behind(shapes.examples[kind]))


def joins(cycle: Cycle, unit: Unit, now: float) -> bool:
    """Whether a unit that comes after a decision, to its queue's end, waits as others like it do,
    so that nothing need be decided for it."""
    queue = cycle.tree.queues.get(unit.queue)
    if queue is None or queue.order not in ("fifo", "priority") or not order.is_steady(queue):
        return False
    if unit.submitted != now or cycle.evictions or cycle.nominations:
        return False
    head = cycle.memory.heads.get(unit.queue)
    if head is not None and order.priority(queue, unit) > head:
        return False
    cluster = cycle.scene.cluster
    return cluster.shapes.kind_of(unit, cluster.resources) in cycle.memory.hopeless


def is_over(cycle: Cycle, queue: str, line: Iterator[Unit]) -> bool:
    """Whether all who wait in a queue surely wait: nobody else of its line need be considered. As
    long as a promise of an earlier decision has not had its turn, it may go and leave room."""
    if cycle.user_quotas.bind(queue):
        return False  # what a workload is told depends on its user, which no kind names
    memory, kinds = cycle.memory, cycle.snapshot.kinds(queue)
    if len(kinds) > len(memory.hopeless) + len(memory.short):
        return False
    if not all(held.fresh for held in cycle.reservations):
        return False
    why: dict[int, Verdict] = {}
    for kind in kinds:
        found = memory.hopeless.get(kind)
        if found is None and not cycle.reservations:
            found = memory.short.get((kind, ()))
            if found is not None and found.unit in cycle.desk.entitled:
                return False  # each of them may look twice
        if found is None:
            return False
        why[kind] = found
    memory.rest.append((line, why))
    return True


def tell_the_rest(cycle: Cycle) -> None:
    """Verdicts on those who were not considered one by one."""
    lines, cycle.memory.rest = cycle.memory.rest, []
    cluster = cycle.scene.cluster
    for line, why in lines:
        for unit in line:
            cycle.turn.append(unit.key)
            if unit.key not in cycle.nominations and unit.key not in cycle.placements:
                kind = cluster.shapes.kind_of(unit, cluster.resources)
                cycle.verdicts.setdefault(unit.key, why[kind])


def forget(cycle: Cycle) -> None:
    """Somebody's promise is gone: there may be hope again."""
    tell_the_rest(cycle)
    cycle.memory.moves += 1
    cycle.memory.hopeless.clear()
    cycle.memory.refused.clear()
    cycle.memory.short.clear()
    cycle.memory.no_start.clear()
    cycle.foresight.forget()


def somebody_goes(cycle: Cycle, queues: Iterable[str]) -> None:
    """Of these queues. Others may count on what is left: who was in vain before may have hope."""
    cycle.memory.refused.clear()
    cycle.memory.short.clear()
    cycle.memory.no_start.clear()
    cycle.foresight.somebody_goes(queues)


def _whatever_comes(cycle: Cycle, unit: Unit) -> bool:
    """Whether "no room" holds for its kind until the end of the decision: there is nobody whom it
    could stop if only it did not have to keep out of promised places, and who waits since longer
    gets no promise either."""
    return (
        not cycle.desk.why
        and unit.key not in cycle.desk.entitled
        and cycle.queue_of(unit).order != "attained"
        and not cycle.evictions
        and not cycle.snapshot.roster.leaving
        and not allowance.may_promise_others(cycle, unit)
    )


def _standing(cycle: Cycle, unit: Unit, kind: int) -> object:
    """Everything besides its kind that the answer may depend on."""
    index = 0.0
    if cycle.queue_of(unit).order == "attained":
        index = cycle.standing.predictor.index(unit, unit.attained)
    return kind, _beside(cycle, unit), index, allowance.may_promise(cycle, unit)


def _beside(cycle: Cycle, unit: Unit) -> tuple[shadows.Held, ...]:
    """The promises that it must not delay; how long it runs counts only if there are any."""
    if not cycle.reservations:
        return ()
    return passing.crossed(cycle, unit, cycle.expected_end(unit))
