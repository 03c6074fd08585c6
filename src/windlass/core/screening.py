"""Who surely waits: seen at a glance, before anybody is asked.

Most who wait in front of a full cluster cannot be helped by anything that a decision does. There is
too little room for them even where it is promised to nobody, and too little if all went whom they
may stop. Both are sums that only shrink while a decision is made, so they are found once per shape
and queue, and whoever they refuse need not be asked in turn: `cycle.turns` passes over it and tells
it why. Who is not refused here is not said to start: it is asked like everybody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core import models, preempt, reserve, verdicts
from windlass.core.asked import Asked
from windlass.core.cluster import Cluster
from windlass.core.facts import Verdict
from windlass.core.place import Failure, Work
from windlass.core.shapes import Shape

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle


class Room:
    """How many members of a shape fit at most, as of when it was last too little."""

    def __init__(self, cluster: Cluster, work: Work) -> None:
        self._cluster, self._work = cluster, work
        self._known: dict[tuple[int, str], tuple[int, int]] = {}

    def in_all(self, shape: Shape, count: int) -> int:
        return self._most(shape, "", count)

    def in_one(self, shape: Shape, level: str, count: int) -> int:
        """In the best domain of a level."""
        return self._most(shape, level, count)

    def _most(self, shape: Shape, level: str, count: int) -> int:
        version, known = self._known.get((shape.id, level), (-1, 0))
        now = self._cluster.version
        if version >= 0 and (known < count or version == now):
            return known
        self._work.spend(len(self._cluster))
        found = self._cluster.caps(shape)
        if level in self._cluster.levels:
            found = self._cluster.by_domain(self._cluster.levels.index(level), found)
        most = int(found.max(initial=0)) if level else int(found.sum())
        self._known[shape.id, level] = (self._cluster.version, most)
        return most


def refusal(cycle: Cycle, told: Asked) -> Verdict | None:
    """What a unit is told if it surely waits, as long as nobody else is told to go."""
    tree, unit = cycle.tree, told.unit
    queue = tree.queues.get(unit.queue)
    if queue is None or queue.strict or queue.order == "attained" or unit.queue in tree.broken:
        return None
    failure = _too_little_room(cycle, told)
    if failure is None or reserve.may_promise(cycle, unit):
        return None
    if models.permitted(cycle.scene.cluster, tree, unit) is not unit:
        return None
    if cycle.over_space(unit) is not None:
        return None
    if tree.shortage(unit.queue, told.need, firm=not unit.preemptible) is not None:
        return None  # a quota is in the way: that is what it should be told
    if not preempt.in_vain(cycle, unit, told.need, failure):
        return None
    return verdicts.no_room(cycle, unit, failure, cycle.desk.why)


def _too_little_room(cycle: Cycle, told: Asked) -> Failure | None:
    """What is missing even if nothing had been promised to anybody."""
    wishes, crowd = told.wishes, cycle.scene.crowd
    if not wishes or told.terms:
        return None
    if crowd.repels and any(crowd.concerns(told.unit, wish.role) for wish in wishes):
        return None
    if len(wishes) > 1:
        return _short_of_one(cycle, told)
    if not told.exact:
        return None
    (wish,), (shape,) = wishes, told.shapes
    room = cycle.room.in_all(shape, wish.count)
    if room < wish.count:
        return Failure(wish.role, wish.count, room)
    if not told.level:
        return None
    room = cycle.room.in_one(shape, told.level, wish.count)
    return Failure(wish.role, wish.count, room, topology=True) if room < wish.count else None


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
