"""What a waiting unit asks for, told once: in members, shapes and quota.

The same units stand in line decision after decision. What follows from a unit and the devices of
the cluster alone is found when it is first looked at and kept as long as both are there.
"""

from __future__ import annotations

import dataclasses

from windlass.core import amounts, place
from windlass.core.cluster import Cluster
from windlass.core.facts import Unit
from windlass.core.place import Wish
from windlass.core.queues import Sums
from windlass.core.shapes import OWN, Shape


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Asked:
    unit: Unit
    key: str
    rank: tuple[str, int]
    """Its queue and priority, as it says itself."""
    preempts: bool
    kind: int
    """As `Shapes.kind_of` numbers them."""
    wishes: list[Wish]
    """Its least."""
    shapes: tuple[Shape, ...]
    """One per wish."""
    first: int
    """The number of its first shape, and of that so many; -1: it asks for nobody."""
    count: int
    need: Sums
    """What its least counts for in quotas."""
    members: int
    level: str
    """All of them in one domain of this level; empty: anywhere."""
    exact: bool
    """Whether "how many fit" is the true number for each of its shapes."""
    resource_class: str
    """What it competes for."""
    terms: bool
    """Whether its members must be placed one by one, looking at who is where."""
    countable: bool
    """Whether sums tell what it finds, and what they tell of it holds for all of its kind."""


def tell(cluster: Cluster, unit: Unit) -> Asked:
    wishes = place.least_of(unit)
    shapes = tuple(cluster.shape_of(wish.role) for wish in wishes)
    topology, kind = unit.topology, cluster.shapes.kind_of(unit, cluster.resources)
    exact = all(shape.is_counted_exactly for shape in shapes)
    terms = any(wish.role.affinities or wish.role.spreads for wish in wishes)
    return Asked(
        unit,
        unit.key,
        (unit.queue, unit.priority),
        unit.preempts,
        kind,
        wishes,
        shapes,
        shapes[0].id if shapes else -1,
        wishes[0].count if wishes else 0,
        amounts.of_wishes(cluster, wishes),
        sum(wish.count for wish in wishes),
        topology.level if topology is not None and topology.required else "",
        exact,
        cluster.shapes.class_of(unit, cluster.resources),
        terms,
        bool(wishes) and kind != OWN and not terms and (exact or len(wishes) > 1),
    )
