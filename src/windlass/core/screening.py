"""Who surely waits: seen at a glance, before anybody is asked.

Most who wait in front of a full cluster cannot be helped by anything that a decision does. There is
too little room for them even where it is promised to nobody, and too little if all went whom they
may stop. Both are sums that only shrink while a decision is made, so they are found once per shape
and queue, and whoever they refuse need not be asked in turn: `cycle.turns` passes over it and tells
it why. Who is not refused here is not said to start: it is asked like everybody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import allowance, models, passing, preempt, quota_forecast, shadows
from windlass.core.asked import Asked
from windlass.core.cluster import Cluster
from windlass.core.facts import Verdict
from windlass.core.place import Failure, Scene, Wish, Work
from windlass.core.shadows import Held
from windlass.core.shapes import Shape

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Ints = npt.NDArray[np.int64]


_FEW_CHANGES = 64
"""So many are cheaper to leave out than to count again."""


class Room:
    """How many members of a shape fit at most, as of when it was last too little."""

    def __init__(self, cluster: Cluster, work: Work) -> None:
        self._cluster, self._work = cluster, work
        self._known: dict[tuple[int, str], tuple[int, int, Ints]] = {}
        """(shape, level) -> as of which version of the cluster, how many, and on which nodes."""
        self._beside: dict[object, tuple[object, int, int]] = {}
        """(shape, level, promises) -> what fits beside them, as of which state of them and of the
        cluster."""
        self._outside: dict[object, tuple[int, int]] = {}
        self._promised: dict[tuple[Held, ...], Ints] = {}
        """Nodes of which anything is promised by these."""

    def in_all(self, shape: Shape, count: int) -> int:
        return self._most(shape, "", count)

    def in_one(self, shape: Shape, level: str, count: int) -> int:
        """In the best domain of a level."""
        return self._most(shape, level, count)

    def beside(
        self, scene: Scene, shape: Shape, level: str, wish: Wish, beside: tuple[Held, ...]
    ) -> int:
        """As it is, or was when it was last too little, for who must keep these promises."""
        key, at = (shape.id, level, beside), tuple([held.version for held in beside])
        then, version, known = self._beside.get(key, (None, -1, 0))
        if then == at and (known < wish.count or version == self._cluster.version):
            return known
        self._work.spend(len(self._cluster))
        limit = shadows.ceilings(scene, beside, (wish,))[shape.id]
        known = self._best(level, np.minimum(self._cluster.caps(shape), limit))
        self._beside[key] = (at, self._cluster.version, known)
        return known

    def outside(self, shape: Shape, count: int, beside: tuple[Held, ...]) -> int:
        """How many fit on nodes of which nothing is promised by these, or did when that was last
        too little."""
        key, version = (shape.id, beside), self._cluster.version
        at, known = self._outside.get(key, (-1, 0))
        if at < 0 or (known >= count and at < version):
            known = self._count_outside(shape, beside)
            self._outside[key] = (version, known)
        return known

    def _count_outside(self, shape: Shape, beside: tuple[Held, ...]) -> int:
        nodes = self._promised.get(beside)
        if nodes is None:
            nodes = self._promised[beside] = shadows.nodes_of(beside)
        caps = self._cluster.caps(shape)
        return int(caps.sum() - caps[nodes].sum())

    def _most(self, shape: Shape, level: str, count: int) -> int:
        found = self._known.get((shape.id, level))
        if found is not None:
            version, known, there = found
            if known < count:
                return known
            touched = self._cluster.touched_since(version)
            if not touched:
                return known
            if not level and len(touched) <= _FEW_CHANGES:
                untouched = known - int(there[touched].sum())
                if untouched >= count:
                    return untouched  # nothing need be counted again
        self._work.spend(len(self._cluster))
        caps = self._cluster.caps(shape)
        most = self._best(level, caps)
        self._known[shape.id, level] = (self._cluster.version, most, caps.copy())
        return most

    def _best(self, level: str, caps: Ints) -> int:
        """In the best domain of a level, or in all."""
        if level in self._cluster.levels:
            caps = self._cluster.by_domain(self._cluster.levels.index(level), caps)
        return int(caps.max(initial=0) if level else caps.sum())


def refusal(cycle: Cycle, told: Asked) -> tuple[Verdict | None, bool]:
    """What a unit is told if it surely waits, as long as nobody else is told to go; and whether
    that holds for all of its kind, or only beside the promises that it would run into."""
    unit, foreseen = told.unit, cycle.foresight.refusal(cycle, told)
    if foreseen is not None:
        asks = allowance.may_promise(cycle, unit) or _is_over_quota(cycle, told)
        return (None, False) if asks else (foreseen, True)
    if unit.queue not in cycle.foresight.plain:
        return None, False
    beside = passing.crossed(cycle, unit, cycle.expected_end(unit))
    failure = _missing(cycle, told, beside)
    if failure is None or allowance.may_promise(cycle, unit) or _is_over_quota(cycle, told):
        return None, False
    if quota_forecast.shortage_beside(cycle, unit, told.need, beside) is not None:
        return None, False
    in_vain, for_all = preempt.in_vain(cycle, told, failure, beside)
    if not in_vain:
        return None, False
    if failure.reserved_until is None:
        cycle.foresight.missed()
    return cycle.foresight.words(cycle, told, failure), for_all


def _is_over_quota(cycle: Cycle, told: Asked) -> bool:
    """Whether a quota is in the way: then that is what it should be told."""
    tree, unit = cycle.tree, told.unit
    if unit.namespace not in cycle.spaces.used and not tree.has_rules(unit.queue, unit.preemptible):
        return False
    return (
        models.permitted(cycle.scene.cluster, tree, unit) is not unit
        or cycle.over_space(unit) is not None
        or tree.shortage(unit.queue, told.need, firm=not unit.preemptible) is not None
    )


def _missing(cycle: Cycle, told: Asked, beside: tuple[Held, ...]) -> Failure | None:
    """Too little room, or too little that is promised to nobody."""
    if not is_counted(cycle, told):
        return None
    failure = _too_little_room(cycle, told)
    if failure is None and beside:
        failure = _too_little_beside(cycle, told, beside)
    return failure


def _too_little_room(cycle: Cycle, told: Asked) -> Failure | None:
    """What is missing even if nothing had been promised to anybody."""
    wishes = told.wishes
    if len(wishes) > 1:
        return _short_of_one(cycle, told)
    (wish,), (shape,) = wishes, told.shapes
    room = cycle.room.in_all(shape, wish.count)
    if room < wish.count:
        return Failure(wish.role, wish.count, room)
    if not told.level:
        return None
    room = cycle.room.in_one(shape, told.level, wish.count)
    return Failure(wish.role, wish.count, room, topology=True) if room < wish.count else None


def is_counted(cycle: Cycle, told: Asked) -> bool:
    """Whether sums tell what the unit finds, with those who are there."""
    crowd = cycle.scene.crowd
    return told.countable and not (
        crowd.repels and any(crowd.concerns(told.unit, wish.role) for wish in told.wishes)
    )


def _too_little_beside(cycle: Cycle, told: Asked, beside: tuple[Held, ...]) -> Failure | None:
    """What is missing where promises must be kept, for a unit that finds room otherwise."""
    due = min([held.start for held in beside])
    for wish, shape in zip(told.wishes, told.shapes, strict=True):
        levels = ("", told.level) if told.level and len(told.wishes) == 1 else ("",)
        if len(levels) == 1 and cycle.room.outside(shape, wish.count, beside) >= wish.count:
            continue  # without any promised place
        for level in levels:
            room = cycle.room.beside(cycle.scene, shape, level, wish, beside)
            if room < wish.count:
                near = bool(level)
                return Failure(wish.role, wish.count, room, topology=near, reserved_until=due)
    return None


def _short_of_one(cycle: Cycle, told: Asked) -> Failure | None:
    """Of several roles, the one that is shortest of room."""
    short = []
    for wish, shape in zip(told.wishes, told.shapes, strict=True):
        room = cycle.room.in_all(shape, wish.count)
        if room < wish.count:
            short.append((room / wish.count, wish.role.name, room, wish))
    if not short:
        return None
    _, _, room, wish = min(short)
    return Failure(wish.role, wish.count, room)
