"""What is known about demand, boiled down to tables that make a placement cheap to judge.

`Demand` counts the shapes that were asked for; `Tables` holds, for one demand and one fleet, the
potential of every node state as sums of table entries (docs/design/packing.md derives them):

    potential = fragments + stranded - worth of the holes - scarcity

`packing` reads the tables; nothing here knows which node is in which state. All entries are
integers in `UNIT`ths of a thousandth of a device, so that sums are exact in any order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.packing import cutting_stock

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

WHOLE = 1000
HALF_LIFE = 20_000
"""Pods asked for after which an old one counts half."""
UNIT = 64
"""Table entries per thousandth of a device."""
FIRST = 16
"""Observations before the first tables are made."""
ENOUGH_WORKLOADS = 128
"""Workloads before the rule is used for a demand of whole devices. With fewer, a size that one
workload in ten requests is missing or misjudged often enough that the rule loses to `binpack`."""
ENOUGH_REQUESTS = 2
"""Different requests among them. A demand of one request can use every node equally well, so it
says nothing about what to keep in one place."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class DemandShape:
    """What one pod asks of a node, as far as packing minds it."""

    cpu: int
    """Thousandths of a core."""
    memory: int = 0
    """In the workload of the node's memory."""
    count: int = 0
    """Devices; 0: none."""
    milli: int = 0
    """Thousandths of each: below 1000 for a share of one device, else 1000."""
    models: tuple[str, ...] = ()
    """Acceptable models; empty: any."""

    def __post_init__(self) -> None:
        if min(self.cpu, self.memory, self.count, self.milli) < 0:
            raise ValueError("it asks for a negative amount: amounts are 0 or more.")
        if self.count and not 0 < self.milli <= WHOLE:
            raise ValueError(f"it asks for {self.milli} thousandths of a device: 1 to 1000.")
        if self.count > 1 and self.milli < WHOLE:
            raise ValueError("it asks for shares of several devices: a share is of one.")

    @property
    def total(self) -> int:
        """Thousandths of devices altogether."""
        return self.count * self.milli

    @property
    def shared(self) -> bool:
        return self.count == 1 and self.milli < WHOLE


@dataclasses.dataclass(frozen=True, slots=True)
class Weights:
    """How much each part of the score counts, in thousandths of a device."""

    fragments: float = 1.0
    """Idle milli-devices that typical demand cannot use."""
    stranded: float = 3.0
    """Milli-devices that will be left when cpu runs out."""
    holes: float = 8000.0
    """A device's worth of holes that pair well with demanded shares."""
    scarcity: float = 1.2
    """Each milli-device of a model that demand is bound to."""
    balance: float = 240.0
    """Each e-fold between the node's cpu per device and the shape's."""
    band: float = 200.0
    """Gains closer than this are equal: the rank of the node decides."""
    softness: float = 700.0
    """How much worse a filling may be and still be expected (stranded)."""


class Demand:
    """How often each shape was asked for; the past fades with `half_life` observations."""

    def __init__(
        self, counts: Mapping[DemandShape, float] | None = None, half_life: float | None = None
    ) -> None:
        self.counts: dict[DemandShape, float] = {}
        self.observed = 0
        self._weight = 1.0
        self._growth = 1.0 if half_life is None else 2.0 ** (1.0 / half_life)
        for shape, count in (counts or {}).items():
            self.counts[shape] = self.counts.get(shape, 0.0) + count

    def observe(self, shape: DemandShape) -> None:
        """One more pod of this shape was asked for."""
        self.counts[shape] = self.counts.get(shape, 0.0) + self._weight
        self.observed += 1
        self._weight *= self._growth
        if self._weight > _RENORMALISE:
            self._fade()

    def heaviest(self, most: int) -> list[tuple[DemandShape, float]]:
        """The most frequent shapes with their counts, in an order that is always the same."""
        ranked = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))
        return ranked[:most]

    @property
    def remembered(self) -> float:
        """How many observations of today's weight all counts amount to."""
        return sum(self.counts.values()) / self._weight

    def _fade(self) -> None:
        """Scales back before numbers grow too large, and forgets what is long gone."""
        scaled = {shape: count / self._weight for shape, count in self.counts.items()}
        self.counts = {shape: count for shape, count in scaled.items() if count > _FORGOTTEN}
        self._weight = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet:
    """What the nodes have when nothing runs: one row per node."""

    cpu: Ints
    memory: Ints
    devices: Ints
    """Thousandths of each device, [node, device]; 0 where a node has fewer."""
    model: Ints
    """Index into `models`."""
    models: tuple[str, ...]

    @staticmethod
    def of(nodes: Iterable[tuple[int, int, int, str]]) -> Fleet:
        """From (cpu, memory, number of devices, model) of each node."""
        rows = list(nodes)
        models = tuple(sorted({row[3] for row in rows}))
        count = np.array([row[2] for row in rows], dtype=np.int64)
        slots = np.arange(max(1, int(count.max(initial=0))))
        return Fleet(
            cpu=np.array([row[0] for row in rows], dtype=np.int64),
            memory=np.array([row[1] for row in rows], dtype=np.int64),
            devices=np.where(slots < count[:, None], WHOLE, 0).astype(np.int64),
            model=np.array([models.index(row[3]) for row in rows], dtype=np.int64),
            models=models,
        )

    def capacity(self) -> Floats:
        """Milli-devices of each model."""
        totals = np.zeros(len(self.models))
        np.add.at(totals, self.model, self.devices.sum(axis=1))
        return totals


@dataclasses.dataclass(frozen=True, slots=True)
class Stranded:
    """What will be left of a node's devices when one of its other resources is used up."""

    step: int
    """Amount of the resource between two rows."""
    table: Ints
    """[class, steps of the resource, steps of devices]."""

    def covers(self, amounts: Ints, idle: Ints) -> bool:
        _, rows, columns = self.table.shape
        return bool(_steps(amounts, self.step) <= rows and _steps(idle, DEVICE_STEP) <= columns)


@dataclasses.dataclass(frozen=True, slots=True)
class Tables:
    """Potentials for one demand on one fleet. `packing.potential` adds them up."""

    weights: Weights
    models: tuple[str, ...]
    model_class: Ints
    """Model -> class: models that the same shapes accept share tables."""
    cpu_levels: Ints
    """Different cpu requests, ascending: what a node can still take changes only at these."""
    device: Ints
    """[class, cpu level, milli left]: fragments and worth of one device."""
    whole: Ints
    """[class, cpu level, free devices]: what whole-device demand makes of the free ones."""
    stranded: tuple[Stranded, Stranded]
    """When cpu, and when memory, runs out first."""
    scarcity: Ints
    """Model -> cost of each milli-device taken."""
    balance: float
    """Cost of each e-fold between the node's cpu per device and the shape's; 0 where the demand
    cannot use up the cpu before the devices."""

    def suits(self, fleet: Fleet) -> bool:
        """Whether the fleet's nodes are within what the tables were built for."""
        idle = fleet.devices.sum(axis=1)
        by_cpu, by_memory = self.stranded
        known = fleet.models == self.models and fleet.devices.shape[1] < self.whole.shape[2]
        return bool(
            known and by_cpu.covers(fleet.cpu, idle) and by_memory.covers(fleet.memory, idle)
        )


class Evidence:
    """Whether the demand that was seen suffices to place better than `binpack` does.

    The rule gains by what `binpack` does not see: shares that fill a device together, cpu that runs
    out before the devices, models that part of the demand is bound to. A demand of whole devices
    that shows none of these is placed well by `binpack`, and by the rule only when it knows how
    often large requests come: one that was not seen yet has no weight. docs/design/packing.md has
    the measurements behind the numbers.
    """

    def __init__(self) -> None:
        self._workloads = 0
        self._requests: set[tuple[int, int, tuple[str, ...]]] = set()
        """Different requests: devices, thousandths of each, and models."""
        self._partial = False
        """Whether shares, or only some of the models, were requested."""
        self._cpu_ratios: set[float] = set()
        """Different amounts of cpu per device. With one, cpu and devices run out together."""

    def add(self, shape: DemandShape) -> None:
        """One more workload requested devices. Its pods count once: they say nothing new."""
        self._workloads += 1
        self._partial |= shape.shared or bool(shape.models)
        if len(self._requests) < ENOUGH_REQUESTS:
            self._requests.add((shape.count, shape.milli, shape.models))
        if len(self._cpu_ratios) < 2:
            self._cpu_ratios.add(shape.cpu / shape.total)

    def suffices(self, tables: Tables) -> bool:
        """Whether whole devices are placed better by the rule than by `binpack`."""
        cpu_runs_out = tables.balance > 0.0 and len(self._cpu_ratios) > 1
        if self._partial or (cpu_runs_out and self._workloads >= FIRST):
            return True
        return self._workloads >= ENOUGH_WORKLOADS and len(self._requests) >= ENOUGH_REQUESTS


class Learner:
    """Tables that follow the demand as it comes.

    Made anew when a quarter more is known than when they were last made: the first time soon, then
    ever more seldom, so that the cost per observation falls. With a half-life the past fades, and
    tables are made again after a quarter of what is remembered was replaced.
    """

    def __init__(
        self,
        fleet: Fleet,
        half_life: float | None = HALF_LIFE,
        weights: Weights | None = None,
    ) -> None:
        self.demand = Demand(half_life=half_life)
        self._evidence = Evidence()
        self._weights = weights
        self.refit(fleet)

    def observe(self, shape: DemandShape) -> bool:
        """One more pod was asked for. True if `tables` are new ones."""
        self.demand.observe(shape)
        if self.demand.observed < self._next:
            return False
        self.refit(self._fleet)
        return True

    def add_workload(self, shape: DemandShape) -> None:
        """One more workload requested devices, whatever the number of its pods."""
        self._evidence.add(shape)

    def is_informed(self, shape: DemandShape) -> bool:
        """Whether the tables place the shape better than `binpack`: whole devices only where the
        evidence suffices."""
        return shape.milli != WHOLE or self._evidence.suffices(self.tables)

    def adopt(self, fleet: Fleet) -> None:
        """The fleet changed. Tables are made anew at once only if it is beyond them."""
        self._fleet = fleet
        if not self.tables.suits(fleet):
            self.refit(fleet)

    def refit(self, fleet: Fleet) -> None:
        """Tables for this fleet from what is known of demand by now."""
        self._fleet = fleet
        self.tables = build(self.demand, fleet, self._weights)
        self._next = self.demand.observed + max(FIRST, int(self.demand.remembered * _MORE))


def build(demand: Demand, fleet: Fleet, weights: Weights | None = None) -> Tables:
    """The tables for this demand on this fleet."""
    chosen = weights or Weights()
    shapes = _Shapes(demand.heaviest(_MOST_SHAPES), fleet.models)
    levels = np.unique(shapes.cpu)
    most = fleet.devices.shape[1]
    device, whole = _fragments(shapes, levels, most, chosen)
    holes = cutting_stock.hole_values(shapes.milli[shapes.shared], shapes.weight[shapes.shared])
    return Tables(
        weights=chosen,
        models=fleet.models,
        model_class=shapes.model_class,
        cpu_levels=levels,
        device=_rounded(device - chosen.holes * holes),
        whole=_rounded(whole),
        stranded=(
            _stranded(shapes, shapes.cpu, fleet, fleet.cpu, CPU_STEP, chosen),
            _stranded(shapes, shapes.memory, fleet, fleet.memory, 1, chosen),
        ),
        scarcity=_rounded(chosen.scarcity * scarcity(shapes, fleet)),
        balance=chosen.balance * cpu_pressure(shapes, fleet),
    )


CPU_STEP = 1000
DEVICE_STEP = 100

_MOST_STEPS = 256
_MOST_SHAPES = 4096
"""Bounds the cost of making tables; rarer shapes do not change a score."""
_MORE = 0.25
_TINY = 1e-9
_RENORMALISE = 1e12
_FORGOTTEN = 1e-6


def _rounded(values: Floats) -> Ints:
    return np.rint(values * UNIT).astype(np.int64)


class _Shapes:
    """Columns of the demanded shapes, and which class of models accepts which."""

    def __init__(
        self, counts: Sequence[tuple[DemandShape, float]], models: tuple[str, ...]
    ) -> None:
        shapes = [shape for shape, _ in counts]
        total = sum(count for _, count in counts)
        self.cpu = np.array([s.cpu for s in shapes], dtype=np.int64)
        self.memory = np.array([s.memory for s in shapes], dtype=np.int64)
        self.count = np.array([s.count for s in shapes], dtype=np.int64)
        self.milli = np.array([s.milli for s in shapes], dtype=np.int64)
        self.total = self.count * self.milli
        self.weight = np.array([count / total for _, count in counts], dtype=np.float64)
        self.shared = (self.count == 1) & (self.milli < WHOLE)
        self.bound = np.array([bool(s.models) for s in shapes], dtype=bool)
        accepted = np.array(
            [[not s.models or not s.count or model in s.models for s in shapes]
             for model in models], dtype=bool,
        ).reshape(len(models), len(shapes))  # fmt: skip
        self.by_model = accepted
        self.accepted, model_class = np.unique(accepted, axis=0, return_inverse=True)
        self.model_class = model_class.astype(np.int64).reshape(-1)


def _fragments(shapes: _Shapes, levels: Ints, most: int, weights: Weights) -> tuple[Floats, Floats]:
    """Idle milli-devices that a random demanded shape cannot use, as sums over devices.

    A share can use every device with enough left, so its part adds up over devices; a whole-device
    shape can use the free ones if there are enough. Everything else is a fragment to it.
    """
    classes = len(shapes.accepted)
    level = np.searchsorted(levels, shapes.cpu) + 1
    usable = np.zeros((classes, len(levels) + 1, WHOLE + 1))
    takes = np.zeros((classes, len(levels) + 1, most + 1))
    for which in range(classes):
        share = shapes.accepted[which] & shapes.shared
        np.add.at(usable[which], (level[share], shapes.milli[share]), shapes.weight[share])
        fits = shapes.accepted[which] & (shapes.milli == WHOLE) & (shapes.count <= most)
        np.add.at(takes[which], (level[fits], shapes.count[fits]), shapes.weight[fits])
    left = np.arange(WHOLE + 1)
    device = left * (1.0 - usable.cumsum(axis=1).cumsum(axis=2))
    whole = -WHOLE * np.arange(most + 1) * takes.cumsum(axis=1).cumsum(axis=2)
    return weights.fragments * device, weights.fragments * whole


def _stranded(
    shapes: _Shapes, needs: Ints, fleet: Fleet, amounts: Ints, least_step: int, weights: Weights
) -> Stranded:
    """Milli-devices left when a node is filled until one resource of it is used up.

    Random shapes of the demand fill it, those that leave less being likelier, until none fits. A
    resource without demand is never used up.
    """
    step = max(least_step, -(-int(amounts.max(initial=0)) // _MOST_STEPS))
    idle = fleet.devices.sum(axis=1)
    table = np.zeros((len(shapes.accepted), _steps(amounts, step), _steps(idle, DEVICE_STEP)))
    if not needs.any():
        return Stranded(step, _rounded(table))
    # Rows are filled from the ones below: a request for almost nothing still takes one step.
    taken = np.maximum(1, np.rint(needs / step)).astype(np.int64)
    for which, accepted in enumerate(shapes.accepted):
        mine = shapes.model_class[fleet.model] == which
        rows, columns = _steps(amounts[mine], step), _steps(idle[mine], DEVICE_STEP)
        table[which, :rows, :columns] = _filled(
            taken[accepted],
            shapes.total[accepted],
            shapes.weight[accepted],
            (rows, columns),
            weights.softness,
        )
    return Stranded(step, _rounded(weights.stranded * table))


def _steps(amounts: Ints, step: int) -> int:
    """Entries from 0 to one above the largest amount, between which a lookup lies."""
    return int(amounts.max(initial=0)) // step + 2


def _filled(
    taken: Ints, total: Ints, weights: Floats, size: tuple[int, int], soft: float
) -> Floats:
    """One class of `_stranded`, from none of the resource upwards."""
    rows, width = size
    device = np.rint(total / DEVICE_STEP).astype(np.int64)
    pairs, inverse = np.unique(np.stack([taken, device], axis=1), axis=0, return_inverse=True)
    weight = np.bincount(inverse.reshape(-1), weights=weights)
    pad = int(pairs[:, 1].max(initial=0))
    # Left of `pad` lies what would be less than nothing: no filling leads there.
    left = np.full((rows, pad + width), np.inf)
    columns = pad + np.arange(width) - pairs[:, 1:]
    nothing_fits = np.arange(width) * float(DEVICE_STEP)
    fitting = np.searchsorted(pairs[:, 0], np.arange(rows), side="right")
    for step, fit in enumerate(fitting.tolist()):
        if not fit:
            left[step, pad:] = nothing_fits
            continue
        after = left[(step - pairs[:fit, 0])[:, None], columns[:fit]]
        least = after.min(axis=0)
        some = np.isfinite(least)
        likely = weight[:fit, None] * np.exp((np.where(some, least, 0.0) - after) / soft)
        after[np.isinf(after)] = 0.0
        mean = (likely * after).sum(axis=0) / np.where(some, likely.sum(axis=0), 1.0)
        left[step, pad:] = np.where(some, mean, nothing_fits)
    return left[:, pad:]


def cpu_pressure(shapes: _Shapes, fleet: Fleet) -> float:
    """How far the demand can use up the cpu before the devices: 0 where it asks for at most half
    of the cpu that goes with its devices, 1 from two thirds. In between lies what uneven nodes and
    uneven shapes make of it. 1 where no devices were requested yet: nothing is known."""
    devices = float((shapes.weight * shapes.total).sum())
    if not devices:
        return 1.0
    asked = float((shapes.weight * shapes.cpu).sum()) / devices
    beside = fleet.cpu[fleet.devices.any(axis=1)]
    there = float(beside.sum()) / max(1.0, float(fleet.devices.sum()))
    return min(1.0, max(0.0, (asked / max(there, _TINY) - 1 / 2) * 6))


def scarcity(shapes: _Shapes, fleet: Fleet) -> Floats:
    """How much demand is bound to each model: 0 up to half of what there is of it, 1 at all."""
    capacity = fleet.capacity()
    asked = shapes.weight * shapes.total
    everything = float(asked.sum())
    bound = np.zeros(len(fleet.models))
    for which in np.flatnonzero(shapes.bound & (shapes.total > 0)):
        free = np.where(shapes.by_model[:, which], capacity, 0.0)
        if free.sum() > 0:
            bound += asked[which] * free / free.sum()
    if everything <= 0:
        return bound
    pressure: Floats = bound * capacity.sum() / everything / np.maximum(capacity, 1.0)
    return np.maximum(0.0, (pressure - 0.5) / 0.5)
