"""Bounds in arrays give the answers of the search one by one, also while victims leave and where
reservations exist."""

import dataclasses

import pytest

from tests.unit.core.preempting import NOW, World, node, workload
from windlass.core.model.types import Queue, Topology
from windlass.core.preemption import batch_bounds


@pytest.fixture(params=[0, 1 << 30], ids=["at once", "one by one"], autouse=True)
def many(request, monkeypatch):
    monkeypatch.setattr(batch_bounds, "MANY", request.param)


def test_a_failed_preemptor_counts_on_what_victims_of_others_leave():
    world = World([node("n0"), node("n1")], [Queue("a", reserve=0)])
    world.run(workload("large", "a", gpus=8, priority=50), "n0")
    world.run(workload("tiny", "a", gpus=1, priority=10), "n1")
    world.run(workload("firm", "a", gpus=7, priority=90, preemptible=False), "n1")
    world.wait(
        workload("first", "a", gpus=2, priority=90), workload("then", "a", gpus=4, priority=40)
    )
    decision = world.decide()
    assert world.evicted == {"large": 1}
    assert {each.workload for each in decision.nominations} == {"first", "then"}


def test_a_workload_kept_out_of_reserved_capacity_preempts_where_it_may():
    world = World([node(f"n{i}") for i in range(3)], [Queue("a", weight=10), Queue("b", reserve=0)])
    world.run(workload("ends", "a", gpus=8, priority=90), "n1", expected_end=NOW + 100)
    world.run(workload("low", "b", gpus=8, priority=10), "n2")
    pair = workload("pair", "a", members=2, gpus=8, priority=50, submitted=1.0)
    early = workload("early", "b", gpus=0, priority=50, submitted=1.5)
    long = workload("long", "b", gpus=8, priority=50, submitted=2.0, expected=10_000.0)
    world.wait(
        pair, early, long
    )  # the reservation exists when it is decided whether `long` must wait
    decision = world.decide()
    assert [each.workload for each in decision.reservations] == ["pair"]
    assert world.evicted == {"low": 1}


def test_a_workload_that_fits_only_on_reserved_capacity_gets_the_time_of_the_reservation():
    world = World([node(f"n{i}") for i in range(3)], [Queue("a", weight=10), Queue("b", reserve=0)])
    world.run(workload("ends", "a", gpus=8, priority=90), "n1", expected_end=NOW + 100)
    world.run(workload("stays", "b", gpus=8, preemptible=False), "n2")
    world.wait(workload("pair", "a", members=2, gpus=8, priority=90, submitted=1.0))
    world.wait(workload("early", "b", gpus=0, submitted=1.5))
    long = workload("long", "b", gpus=8, submitted=2.0, expected=10_000.0)
    near = dataclasses.replace(long, key="near", topology=Topology("rack", required=True))
    world.wait(long, near)
    told = {each.workload: each for each in world.decide().verdicts}
    for key in ("long", "near"):
        assert told[key].reason == "ReservedUntil", told[key]
        assert "reserved from 1970-01-01T02:48:20Z on" in told[key].message


def test_of_several_roles_the_one_is_named_that_is_short():
    world = World([node("n0", gpus=2, cpu=4)], [Queue("a", reserve=0)])
    world.run(workload("there", "a", gpus=2, priority=90), "n0")
    both = workload("both", "a", gpus=1)
    driver = dataclasses.replace(both.roles[0], name="driver", devices=())
    world.wait(dataclasses.replace(both, roles=(driver, both.roles[0])))
    (verdict,) = world.decide().verdicts
    assert verdict.message == "needs 1 gpu, 1 cpu; 0 fit now, short of 1 gpu"
