"""Fragmentation-aware packing: its tables on instances worked out by hand, and its laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import packing_learned
from windlass.core.packing import cutting_stock, fragmentation_packer, potential
from windlass.core.packing.potential import UNIT, WHOLE, Demand, DemandShape, Fleet, Weights

MODELS = ("A", "B", "C")


def share(milli: int, cpu: int = 1000, models: tuple[str, ...] = ()) -> DemandShape:
    return DemandShape(cpu=cpu, count=1, milli=milli, models=models)


def whole(count: int, cpu: int = 1000, models: tuple[str, ...] = ()) -> DemandShape:
    return DemandShape(cpu=cpu, count=count, milli=WHOLE, models=models)


def only(**parts: float) -> Weights:
    """Weights of which only these parts count."""
    nothing = {"fragments": 0.0, "stranded": 0.0, "holes": 0.0, "scarcity": 0.0, "balance": 0.0}
    return Weights(**(nothing | parts))


def full(fleet: Fleet) -> fragmentation_packer.FreeCapacity:
    return fragmentation_packer.FreeCapacity(fleet.cpu, fleet.memory, fleet.devices, fleet.model)


shapes = st.one_of(
    st.builds(
        DemandShape,
        cpu=st.integers(0, 40_000),
        memory=st.integers(0, 64),
        count=st.just(1),
        milli=st.integers(1, WHOLE - 1),
        models=st.sampled_from([(), ("A",), ("A", "B"), ("elsewhere",)]),
    ),
    st.builds(
        DemandShape,
        cpu=st.integers(0, 40_000),
        memory=st.integers(0, 64),
        count=st.integers(1, 8),
        milli=st.just(WHOLE),
        models=st.sampled_from([(), ("B",), ("A", "C")]),
    ),
    st.builds(DemandShape, cpu=st.integers(0, 40_000), memory=st.integers(0, 64)),
)
demands = st.dictionaries(shapes, st.integers(1, 50).map(float), max_size=12)
fleets = st.lists(
    st.tuples(
        st.integers(0, 128_000), st.integers(0, 256), st.integers(0, 8), st.sampled_from(MODELS)
    ),
    min_size=1,
    max_size=8,
).map(Fleet.of)


# --- what a hole is worth


@pytest.mark.parametrize(
    ("asked", "worth"),
    [
        pytest.param({}, {0: 0, 500: 0, 999: 0, 1000: 1}, id="no shares: only whole devices"),
        pytest.param({500: 7}, {490: 0, 499: 0, 500: 1 / 2, 990: 1 / 2, 1000: 1}, id="halves"),
        pytest.param({600: 3}, {590: 0, 600: 1, 1000: 1}, id="one per device fills it"),
        pytest.param(
            {650: 1, 320: 4},
            {310: 0, 320: 1 / 3, 640: 2 / 3, 650: 2 / 3, 960: 1, 970: 1},
            id="a pair and triples",
        ),
        pytest.param(
            {550: 1, 230: 2, 220: 2},
            {210: 0, 220: 1 / 4, 450: 1 / 2, 550: 1 / 2, 770: 3 / 4, 780: 3 / 4, 880: 1},
            id="three that fill a device",
        ),
        pytest.param({995: 5}, {990: 0, 1000: 1}, id="rounded up to a whole device"),
    ],
)
def test_hole_is_worth_what_fits_in_it(asked: dict[int, float], worth: dict[int, float]) -> None:
    values = cutting_stock.hole_values(
        np.array(list(asked), np.int64), np.array(list(asked.values()))
    )
    assert {size: pytest.approx(values[size]) for size in worth} == worth


@given(st.dictionaries(st.integers(1, 999), st.integers(1, 999), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_prices_are_those_of_an_optimal_cut(asked: dict[int, int]) -> None:
    sizes = np.array(sorted(asked), np.int64)
    demand = np.array([float(asked[int(size)]) for size in sizes])
    values = cutting_stock.hole_values(sizes, demand)
    steps = values[:: cutting_stock.GRID]
    assert values[0] == 0.0
    assert values[WHOLE] == 1.0
    assert (np.diff(values) >= 0).all()
    for first in range(len(steps)):  # two holes in one device are worth no more than one
        apart = steps[first] + steps[: len(steps) - first]
        assert (apart <= steps[first:] + 1e-6).all()
    # Weak duality both ways: no fewer devices than the prices say, and greedy needs no fewer.
    priced = sum(values[-(-int(s) // 10) * 10] * n for s, n in zip(sizes, demand, strict=True))
    assert priced <= _first_fit_decreasing(asked) + 1e-6


def _first_fit_decreasing(asked: dict[int, int]) -> int:
    left: list[int] = []
    for size in sorted(asked, reverse=True):
        steps = -(-size // 10)
        for _ in range(asked[size]):
            for device, room in enumerate(left):
                if room >= steps:
                    left[device] -= steps
                    break
            else:
                left.append(100 - steps)
    return len(left)


# --- what is stranded


def test_devices_without_cpu_are_stranded() -> None:
    fleet = Fleet.of([(8000, 0, 4, "A")])
    tables = potential.build(Demand({whole(1): 1.0}), fleet, only(stranded=1.0))
    nothing = np.zeros(4, np.int64)
    capacity = fragmentation_packer.FreeCapacity(
        np.array([0, 2000, 4000, 2500]), nothing, np.full((4, 4), WHOLE), nothing
    )
    got = fragmentation_packer.potential(tables, capacity) / UNIT
    assert got == pytest.approx([4000, 2000, 0, 1500])


def test_devices_without_memory_are_stranded() -> None:
    fleet = Fleet.of([(8000, 512, 4, "A")])
    demand = Demand({DemandShape(cpu=1000, memory=128, count=1, milli=WHOLE): 1.0})
    tables = potential.build(demand, fleet, only(stranded=1.0))
    cpu, memory = np.array([8000, 8000, 1000]), np.array([0, 256, 512])
    capacity = fragmentation_packer.FreeCapacity(
        cpu, memory, np.full((3, 4), WHOLE), np.zeros(3, np.int64)
    )
    assert fragmentation_packer.potential(tables, capacity) / UNIT == pytest.approx(
        [4000, 2000, 3000]
    )


def test_filling_that_leaves_less_is_likelier() -> None:
    fleet = Fleet.of([(2000, 0, 1, "A")])
    demand = Demand({whole(1, cpu=1000): 1.0, DemandShape(cpu=2000): 1.0})
    tables = potential.build(demand, fleet, only(stranded=1.0, softness=700.0))
    unlikely = math.exp(-1000 / 700)
    found = fragmentation_packer.potential(tables, full(fleet))[0] / UNIT
    assert found == pytest.approx(1000 * unlikely / (1 + unlikely), abs=0.1)


# --- scarce models


@pytest.mark.parametrize(
    ("bound", "scarcity"),
    [
        pytest.param(0.0, 0.0, id="nobody needs it"),
        pytest.param(1 / 4, 0.0, id="half of it is asked for"),
        pytest.param(3 / 8, 0.5, id="three quarters of it"),
        pytest.param(1 / 2, 1.0, id="all of it"),
        pytest.param(3 / 4, 2.0, id="more than there is"),
    ],
)
def test_model_is_scarce_by_the_demand_bound_to_it(bound: float, scarcity: float) -> None:
    fleet = Fleet.of([(8000, 0, 2, "A"), (8000, 0, 2, "B")])
    demand = Demand({whole(1, models=("A",)): bound, whole(1): 1 - bound})
    tables = potential.build(demand, fleet, only(scarcity=1.0))
    assert (tables.scarcity / UNIT).tolist() == pytest.approx([scarcity, 0.0], abs=0.02)


def test_unbound_member_spares_the_scarce_model() -> None:
    fleet = Fleet.of([(8000, 0, 2, "A"), (8000, 0, 2, "B")])
    demand = Demand({whole(1, models=("A",)): 1.0, whole(1): 1.0})
    packer = fragmentation_packer.Packer(fleet, potential.build(demand, fleet))
    assert packer.choose(whole(1)) == (1, [0])
    assert packer.choose(whole(1, models=("A",))) == (0, [0])


# --- fragments


@given(demands, fleets, st.data())
@settings(max_examples=80, deadline=None)
def test_fragments_are_what_a_random_member_cannot_use(
    counts: dict[DemandShape, float], fleet: Fleet, data: st.DataObject
) -> None:
    tables = potential.build(Demand(counts), fleet, only(fragments=1.0))
    cpu = np.array([data.draw(st.integers(0, int(most))) for most in fleet.cpu])
    left = _some_left(fleet, data)
    # A hole is worth nothing here, whole or not: weight 0 leaves fragments alone.
    got = (
        fragmentation_packer.potential(
            tables, fragmentation_packer.FreeCapacity(cpu, fleet.memory, left, fleet.model)
        )
        / UNIT
    )
    total = sum(counts.values()) or 1.0
    for node in range(len(cpu)):
        model = fleet.models[fleet.model[node]]
        expected = float(left[node].sum()) if not counts else sum(
            count / total * _fragment(shape, int(cpu[node]), left[node], model)
            for shape, count in counts.items()
        )  # fmt: skip
        assert got[node] == pytest.approx(expected, abs=1.0)


def _fragment(shape: DemandShape, cpu: int, left: potential.Ints, model: str) -> float:
    fits = left >= shape.milli
    runs = shape.count and fits.sum() >= shape.count and cpu >= shape.cpu
    if runs and (not shape.models or model in shape.models):
        return float(left[~fits].sum())
    return float(left.sum())


def _some_left(fleet: Fleet, data: st.DataObject) -> potential.Ints:
    parts = st.sampled_from([0, 10, 250, 333, 500, 990, 1000])
    drawn = [[data.draw(parts) for _ in row] for row in fleet.devices]
    return np.minimum(np.array(drawn, np.int64), fleet.devices)


# --- choosing


@given(demands, fleets, st.lists(st.tuples(shapes, st.integers(0, 3)), max_size=40))
@settings(max_examples=80, deadline=None)
def test_choices_fit_and_kept_scores_equal_fresh_ones(
    counts: dict[DemandShape, float], fleet: Fleet, steps: list[tuple[DemandShape, int]]
) -> None:
    tables = potential.build(Demand(counts), fleet)
    packer = fragmentation_packer.Packer(fleet, tables)
    running: list[tuple[DemandShape, int, list[int]]] = []
    for shape, action in steps:
        if action == 0 and running:
            packer.release(*running.pop(len(running) // 2))
        choice = packer.choose(shape)
        scores, device = fragmentation_packer.score(tables, shape, packer.capacity)
        assert (packer.scores(shape)[0] == scores).all()
        if choice is None:
            assert (scores == fragmentation_packer.INFEASIBLE).all()
            continue
        node, devices = choice
        assert node == int(np.flatnonzero(scores == scores.max())[0])
        assert len(set(devices)) == shape.count
        assert not shape.shared or devices == [device[node]]
        assert (
            not shape.models or not shape.count or fleet.models[fleet.model[node]] in shape.models
        )
        packer.place(shape, node, devices)
        running.append((shape, node, devices))
        assert packer.capacity.cpu.min() >= 0
        assert packer.capacity.memory.min() >= 0
        assert packer.capacity.left.min() >= 0
    for shape, node, devices in running:
        packer.release(shape, node, devices)
    assert (packer.capacity.cpu == fleet.cpu).all()
    assert (packer.capacity.left == fleet.devices).all()


@given(demands, fleets, st.lists(shapes, max_size=20))
@settings(max_examples=30, deadline=None)
def test_same_arrivals_same_places(
    counts: dict[DemandShape, float], fleet: Fleet, arrivals: list[DemandShape]
) -> None:
    backwards = dict(reversed(list(counts.items())))
    first, second = (
        fragmentation_packer.Packer(fleet, potential.build(Demand(known), fleet))
        for known in (counts, backwards)
    )
    for shape in arrivals:
        choice = first.choose(shape)
        assert choice == second.choose(shape)
        if choice is not None:
            first.place(shape, *choice)
            second.place(shape, *choice)


def test_share_goes_where_it_fills_a_device() -> None:
    fleet = Fleet.of([(64_000, 0, 4, "A")])
    demand = Demand({share(650): 1.0, share(320): 1.0, share(500): 1.0})
    packer = fragmentation_packer.Packer(fleet, potential.build(demand, fleet))
    packer.place(share(500), 0, [1])
    packer.place(share(650), 0, [2])
    assert packer.choose(share(320)) == (0, [2])
    assert packer.choose(share(500)) == (0, [1])


def test_whole_devices_are_taken_lowest_first() -> None:
    fleet = Fleet.of([(64_000, 0, 4, "A")])
    packer = fragmentation_packer.Packer(fleet, potential.build(Demand({whole(2): 1.0}), fleet))
    packer.place(whole(1), 0, [1])
    assert packer.choose(whole(2)) == (0, [0, 2])
    assert packer.choose(whole(4)) is None


def test_cpu_only_member_leaves_devices_their_cpu() -> None:
    fleet = Fleet.of([(16_000, 0, 8, "A"), (64_000, 0, 8, "A")])
    demand = Demand({whole(1, cpu=2000): 3.0, DemandShape(cpu=16_000): 1.0})
    packer = fragmentation_packer.Packer(fleet, potential.build(demand, fleet))
    assert packer.choose(DemandShape(cpu=16_000)) == (1, [])


# --- learning


def test_learner_makes_tables_ever_more_seldom() -> None:
    fleet = Fleet.of([(64_000, 0, 4, "A")])
    learner = potential.Learner(fleet, half_life=None)
    made = [n for n in range(1, 2001) if learner.observe(share(500 if n % 2 else 300))]
    gaps = np.diff(made)
    assert made[0] == 16
    assert (np.diff(gaps) >= 0).all()
    assert gaps[-1] >= 2000 / 8


def test_learner_ends_where_known_demand_begins() -> None:
    fleet = Fleet.of([(64_000, 0, 4, "A"), (32_000, 0, 2, "B")])
    arrivals = [share(650), share(320), whole(2), DemandShape(cpu=3000)] * 50
    learner = potential.Learner(fleet, half_life=None)
    for shape in arrivals:
        learner.observe(shape)
    learner.refit(fleet)
    known = potential.build(Demand(dict.fromkeys(arrivals, 1.0)), fleet)
    assert (learner.tables.device == known.device).all()
    assert (learner.tables.stranded[0].table == known.stranded[0].table).all()


def test_old_demand_fades() -> None:
    demand = Demand(half_life=10)
    for _ in range(1000):
        demand.observe(share(500))
    for _ in range(20):
        demand.observe(share(300))
    ((first, now), (second, before)) = demand.heaviest(2)
    assert (first, second) == (share(300), share(500))
    assert now / before == pytest.approx(3.0, rel=0.01)


def test_what_is_long_gone_is_forgotten() -> None:
    demand = Demand(half_life=1)
    demand.observe(share(500))
    for _ in range(100):
        demand.observe(share(300))
    assert list(demand.counts) == [share(300)]


def test_tables_say_which_fleet_they_suit() -> None:
    fleet = Fleet.of([(64_000, 0, 4, "A"), (64_000, 0, 4, "B")])
    tables = potential.build(Demand({whole(1): 1.0}), fleet)
    assert tables.suits(fleet)
    assert tables.suits(Fleet.of([(8_000, 0, 4, "A"), (8_000, 0, 2, "B")]))
    assert not tables.suits(Fleet.of([(64_000, 0, 4, "A")]))
    assert not tables.suits(Fleet.of([(64_000, 0, 8, "A"), (64_000, 0, 4, "B")]))
    assert not tables.suits(Fleet.of([(96_000, 0, 4, "A"), (64_000, 0, 4, "B")]))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"cpu": -1}, "negative"),
        ({"cpu": 1, "count": 1, "milli": 0}, "1 to 1000"),
        ({"cpu": 1, "count": 1, "milli": 1001}, "1 to 1000"),
        ({"cpu": 1, "count": 2, "milli": 500}, "a share is of one"),
    ],
)
def test_impossible_shape_is_refused(fields: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DemandShape(**fields)


# --- when the demand history suffices


def informed(workloads: list[DemandShape], fleet: Fleet | None = None) -> bool:
    """Whether one whole device is placed by the rule after these."""
    learner = potential.Learner(fleet or Fleet.of([(64_000, 0, 8, "A")] * 4))
    for shape in workloads:
        learner.observe(shape)
        learner.add_workload(shape)
    return learner.is_informed(whole(1))


@pytest.mark.parametrize(
    ("workloads", "suffices"),
    [
        pytest.param([], False, id="nothing was seen"),
        pytest.param([whole(1), whole(8)] * 63, False, id="126 workloads of whole devices"),
        pytest.param([whole(1), whole(8)] * 64, True, id="128 workloads of two sizes"),
        pytest.param([whole(1)] * 400, False, id="one size, however often"),
        pytest.param([whole(1), share(500)], True, id="shares have to fill a device together"),
        pytest.param([whole(1, models=("A",))], True, id="some are bound to a model"),
        pytest.param([whole(1, 2000), whole(1, 12_000)] * 8, True, id="cpu may run out first"),
        pytest.param([whole(1, 2000), whole(1, 12_000)] * 7, False, id="too few to tell"),
        pytest.param([whole(1, 8000), whole(2, 16_000)] * 20, False, id="cpu runs out together"),
    ],
)
def test_whole_devices_are_placed_by_the_rule_when_it_knows_what_binpack_does_not(
    workloads: list[DemandShape], suffices: bool
) -> None:
    assert informed(workloads) is suffices


def test_learning_packer_fills_the_tightest_node_until_it_is_informed() -> None:
    packer = packing_learned.LearningPacker(Fleet.of([(64_000, 0, 8, "A"), (64_000, 0, 4, "A")]))
    chosen = [packer.choose(whole(2)), packer.choose(whole(5))]
    assert chosen == [(1, [0, 1]), (0, [0, 1, 2, 3, 4])]
    assert packer.choose(whole(9)) is None


@pytest.mark.parametrize(
    ("cpu_each", "weight"), [(4000, 0.0), (4600, 108.0), (5400, 240.0), (9000, 240.0)]
)
def test_cpu_that_cannot_run_out_is_not_balanced(cpu_each: int, weight: float) -> None:
    """The nodes have 8 cores for each device."""
    fleet = Fleet.of([(64_000, 0, 8, "A"), (64_000, 0, 0, "A")])
    demand = Demand({whole(1, cpu_each): 2.0, whole(2, 2 * cpu_each): 1.0})
    tables = potential.build(demand, fleet)
    assert tables.balance == pytest.approx(weight)
    scores, _ = fragmentation_packer.score(tables, whole(1, 0), full(fleet))
    assert scores[0] > fragmentation_packer.INFEASIBLE
