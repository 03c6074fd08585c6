"""Who is looked at in arrays gets what asking one by one gives it, also while others go and where
promises are out."""

import dataclasses

import pytest

from tests.unit.core.preempting import NOW, World, node, unit
from windlass.core import foresight
from windlass.core.facts import Queue, Topology


@pytest.fixture(params=[0, 1 << 30], ids=["at once", "one by one"], autouse=True)
def many(request, monkeypatch):
    monkeypatch.setattr(foresight, "MANY", request.param)


def test_who_was_in_vain_counts_on_what_victims_of_others_leave():
    world = World([node("n0"), node("n1")], [Queue("a", reserve=0)])
    world.run(unit("large", "a", gpus=8, priority=50), "n0")
    world.run(unit("tiny", "a", gpus=1, priority=10), "n1")
    world.run(unit("firm", "a", gpus=7, priority=90, preemptible=False), "n1")
    world.wait(unit("first", "a", gpus=2, priority=90), unit("then", "a", gpus=4, priority=40))
    decision = world.decide()
    assert world.evicted == {"large": 1}
    assert {each.unit for each in decision.nominations} == {"first", "then"}


def test_who_must_keep_out_of_promised_room_stops_those_it_may():
    world = World([node(f"n{i}") for i in range(3)], [Queue("a", weight=10), Queue("b", reserve=0)])
    world.run(unit("ends", "a", gpus=8, priority=90), "n1", expected_end=NOW + 100)
    world.run(unit("low", "b", gpus=8, priority=10), "n2")
    pair = unit("pair", "a", members=2, gpus=8, priority=50, submitted=1.0)
    early = unit("early", "b", gpus=0, priority=50, submitted=1.5)
    long = unit("long", "b", gpus=8, priority=50, submitted=2.0, expected=10_000.0)
    world.wait(pair, early, long)  # the promise is out when it is looked whether `long` must wait
    decision = world.decide()
    assert [each.unit for each in decision.reservations] == ["pair"]
    assert world.evicted == {"low": 1}


def test_who_finds_room_only_where_it_is_promised_is_told_until_when():
    world = World([node(f"n{i}") for i in range(3)], [Queue("a", weight=10), Queue("b", reserve=0)])
    world.run(unit("ends", "a", gpus=8, priority=90), "n1", expected_end=NOW + 100)
    world.run(unit("stays", "b", gpus=8, preemptible=False), "n2")
    world.wait(unit("pair", "a", members=2, gpus=8, priority=90, submitted=1.0))
    world.wait(unit("early", "b", gpus=0, submitted=1.5))
    long = unit("long", "b", gpus=8, submitted=2.0, expected=10_000.0)
    near = dataclasses.replace(long, key="near", topology=Topology("rack", required=True))
    world.wait(long, near)
    told = {each.unit: each for each in world.decide().verdicts}
    for key in ("long", "near"):
        assert told[key].reason == "ReservedUntil", told[key]
        assert "held from 1970-01-01T02:48:20Z on" in told[key].message


def test_of_several_roles_the_one_is_named_that_is_short():
    world = World([node("n0", gpus=2, cpu=4)], [Queue("a", reserve=0)])
    world.run(unit("there", "a", gpus=2, priority=90), "n0")
    both = unit("both", "a", gpus=1)
    driver = dataclasses.replace(both.roles[0], name="driver", devices=())
    world.wait(dataclasses.replace(both, roles=(driver, both.roles[0])))
    (verdict,) = world.decide().verdicts
    assert verdict.message == "needs 1 gpu, 1 cpu; room for 0 now, short of 1 gpu"
