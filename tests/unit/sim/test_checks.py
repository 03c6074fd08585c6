"""The checker finds what it is there to find: each rule, broken on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.unit.sim.building import job, scenario
from windlass.core import cycle, invariants, state
from windlass.core.facts import (
    Decision,
    Device,
    Eviction,
    Facts,
    Grant,
    Nomination,
    Placement,
    Policy,
    Profile,
    Queue,
    Reservation,
    Running,
    Seat,
    Topology,
)
from windlass.sim import checks
from windlass.sim.live import Record
from windlass.sim.scenario import Job

NOTHING = Decision()


def seat(number: int, node: str = "node-0000", *devices: int) -> Seat:
    return Seat("worker", number, node, tuple(Grant(f"gpu{n}") for n in devices))


def snapshot(*holders: tuple[Job, tuple[Seat, ...]], limit: int = 10**9) -> state.Snapshot:
    played = scenario(nodes=2, rack=1, queues=(Queue("default", limit={"gpu": limit}),))
    running = tuple(Running(each.unit, seats, 0.0) for each, seats in holders)
    return state.build(dataclasses.replace(played.facts, running=running))


def after(found: state.Snapshot, *placed: str) -> None:
    decision = Decision(placements=tuple(Placement(unit, ()) for unit in placed))
    checks.Checker(Policy(), again=0).after(found, decision, 7.0)


def test_two_units_on_one_device() -> None:
    a, b = job("a", gpus=1), job("b", gpus=1)
    with pytest.raises(
        invariants.Broken, match=r"I1 at 7.0: device gpu0 of node-0000.*whole 2 times"
    ):
        after(snapshot((a, (seat(0, "node-0000", 0),)), (b, (seat(0, "node-0000", 0),))))
    after(snapshot((a, (seat(0, "node-0000", 0),)), (b, (seat(0, "node-0000", 1),))))


def test_more_cpu_than_there_is() -> None:
    many = job("many", gpus=0, members=129)
    with pytest.raises(invariants.Broken, match=r"I1 .* node-0000 has 128000 cpu, 129000 are held"):
        after(snapshot((many, tuple(seat(n) for n in range(129)))))


def test_a_gang_with_too_few_members() -> None:
    gang = job("gang", gpus=1, members=2)
    with pytest.raises(invariants.Broken, match=r"I2 .* gang has 1 of worker"):
        after(snapshot((gang, (seat(0, "node-0000", 0),))), "gang")


def test_a_unit_in_two_racks() -> None:
    near = job("near", gpus=1, members=2, topology=Topology("rack", required=True))
    with pytest.raises(invariants.Broken, match=r"I3 .* near must be in one rack"):
        after(snapshot((near, (seat(0, "node-0000", 0), seat(1, "node-0001", 0)))), "near")


def test_a_queue_beyond_its_limit() -> None:
    held = job("a", gpus=2)
    with pytest.raises(invariants.Broken, match=r"I4 .* queue default holds 2000 gpu"):
        after(snapshot((held, (seat(0, "node-0000", 0, 1),)), limit=1000))


def test_units_that_cannot_be_preempted_where_others_are_guaranteed_the_rest() -> None:
    firm = job("firm", gpus=2, preemptible=False)
    queues = (Queue("default", guarantee={"gpu": 1000}), Queue("other", guarantee={"gpu": 15_000}))
    facts = dataclasses.replace(
        scenario(nodes=2, queues=queues).facts,
        running=(Running(firm.unit, (seat(0, "node-0000", 0, 1),), 0.0),),
    )
    with pytest.raises(invariants.Broken, match=r"I4 .* come to 17000 gpu, there is 16000"):
        after(state.build(facts), "firm")


@pytest.mark.parametrize(
    ("victims", "words"),
    [
        (["b0"], ""),
        (["b0", "b1"], "queue b is left below its guarantee by b0, b1"),
        (["wide"], ""),
        (["b0", "wide"], "queue b is left below its guarantee by b0, wide"),
        (["young"], "queue b is left below its guarantee by young"),
    ],
)
def test_what_is_taken_from_a_queue_below_its_guarantee(victims: list[str], words: str) -> None:
    """Queue b holds one more than the seven it is guaranteed: a run of three may go as a whole, if
    it ran long enough and nothing goes besides."""
    queues = (Queue("a", guarantee={"gpu": 1000}), Queue("b", guarantee={"gpu": 7000}))
    held = [(f"b{n}", 1, 0.0) for n in range(2)] + [("wide", 3, 0.0), ("young", 3, 900.0)]
    devices, running = iter(range(8)), []
    for key, count, started in held:
        own = job(key, gpus=count, queue="b").unit
        mine = tuple(next(devices) for _ in range(count))
        running.append(Running(own, (seat(0, "node-0000", *mine),), started))
    facts = dataclasses.replace(
        scenario(nodes=1, queues=queues).facts,
        running=tuple(running),
        waiting=(job("mine", gpus=1, queue="a").unit,),
    )
    decision = Decision(
        evictions=tuple(Eviction(key, (("worker", 0),), "mine", "") for key in victims),
        nominations=(Nomination("mine", (seat(0, "node-0000", 0),)),),
    )
    found = dict(invariants.broken(state.build(facts), decision, 1000.0))
    assert found.get("I8", "").endswith(words)
    assert ("I8" in found) is bool(words)


def test_who_takes_beyond_its_own_guarantee() -> None:
    queues = (Queue("a", guarantee={"gpu": 1000}), Queue("b"))
    busy = Running(job("b", gpus=8, queue="b").unit, (seat(0, "node-0000", *range(8)),), 0.0)
    mine = job("mine", gpus=2, queue="a").unit
    facts = dataclasses.replace(
        scenario(nodes=1, queues=queues).facts, running=(busy,), waiting=(mine,)
    )
    decision = Decision(
        evictions=(Eviction("b", (("worker", 0),), "mine", ""),),
        nominations=(Nomination("mine", (seat(0, "node-0000", 0, 1),)),),
    )
    found = dict(invariants.broken(state.build(facts), decision, 1000.0))
    assert found["I8"].endswith(
        "mine takes from other queues, and queue a would use 2000 of 1000 gpu"
    )


def test_nominated_room_that_another_took() -> None:
    a, b = job("a", gpus=1), job("b", gpus=1)
    found = snapshot((a, (seat(0, "node-0000", 0),)))
    nomination = Nomination("b", (seat(0, "node-0000", 0),))
    state.apply(found, [state.Waits(b.unit), state.Nominated(nomination)])
    with pytest.raises(invariants.Broken, match=r"I5 .nominated room. at 7.0: device gpu0"):
        after(found)


@pytest.mark.parametrize(
    ("eviction", "words"),
    [
        (Eviction("a", (("worker", 0),), "b", ""), "which gets nothing"),
        (Eviction("ghost", (("worker", 0),), "c", ""), "does not run"),
    ],
)
def test_evictions_for_nothing(eviction: Eviction, words: str) -> None:
    found = snapshot((job("a", gpus=1), (seat(0, "node-0000", 0),)))
    decision = Decision(evictions=(eviction,), nominations=(Nomination("c", ()),))
    with pytest.raises(invariants.Broken, match=f"I5 .*{words}"):
        invariants.no_orphan_evictions(found, decision, 7.0)


def test_a_start_after_its_promise() -> None:
    checker = checks.Checker(Policy(), again=0, promises=True)
    promised = Decision(reservations=(Reservation("a", 10.0, ()),))
    checker.before(state.build(Facts()), promised, 0.0)
    late = Record(job("a"))
    checker.started(late, 10.0)
    checker.before(state.build(Facts()), promised, 0.0)
    with pytest.raises(invariants.Broken, match=r"I9 .* promised 10.0 and starts 0.500 s later"):
        checker.started(late, 10.5)


def test_an_answer_that_differs_from_that_of_a_fresh_snapshot() -> None:
    found = snapshot()
    state.apply(found, [state.Waits(job("a").unit)])
    decision = cycle.decide(found, 0.0)
    checks.same_answer(found, decision, 0.0, Policy())
    with pytest.raises(invariants.Broken, match=r"I10 at 0.0: placements"):
        checks.same_answer(found, dataclasses.replace(decision, placements=()), 0.0, Policy())


PARTS = Device(
    "g", "gpu", memory=8000, slices=8, profiles=(Profile("1g", 1, (0, 1)), Profile("3g", 4, (0, 4)))
)


@pytest.mark.parametrize(
    ("grants", "sound"),
    [
        ([Grant("g", "share", 600, 4000), Grant("g", "share", 400, 4000)], True),
        ([Grant("g", "share", 600, 10), Grant("g", "share", 401, 10)], False),
        ([Grant("g", "share", 1, 8000), Grant("g", "share", 1, 1)], False),
        ([Grant("g", "ratio", 500, 0, 2)] * 2, True),
        ([Grant("g", "ratio", 500, 0, 2)] * 3, False),
        ([Grant("g", "ratio", 500, 0, 2), Grant("g", "ratio", 250, 0, 4)], False),
        ([Grant("g"), Grant("g", "share", 1, 1)], False),
        ([Grant("g", "partition", profile="3g"), Grant("g", "partition", profile="3g", start=4)],
         True),
        ([Grant("g", "partition", profile="3g"), Grant("g", "partition", profile="1g", start=1)],
         False),
        ([Grant("g", "partition", profile="3g", start=6)], False),
    ],
)  # fmt: skip
def test_parts_of_a_device(grants: list[Grant], sound: bool) -> None:
    assert (invariants.overdrawn(PARTS, grants) is None) == sound


def test_a_sound_state_passes() -> None:
    build: Callable[[], state.Snapshot] = lambda: snapshot(  # noqa: E731
        (job("a", gpus=2, members=2), (seat(0, "node-0000", 0, 1), seat(1, "node-0001", 0, 1)))
    )
    after(build(), "a")
    checks.Checker(Policy()).before(build(), cycle.decide(build(), 0.0), 0.0)


# --- the rules that the live scheduler watches ----------------------------------------------------


def waits(played: Job, *holders: tuple[Job, tuple[Seat, ...]], limit: int = 10**9):
    found = snapshot(*holders, limit=limit)
    state.apply(found, [state.Waits(played.unit)])
    return found


def gives(unit: str, *seats: Seat, **more: object) -> Decision:
    return Decision(placements=(Placement(unit, seats),), **more)  # type: ignore[arg-type]


def rules(found: state.Snapshot, decision: Decision) -> list[str]:
    return [rule for rule, _ in invariants.broken(found, decision, 7.0)]


@pytest.mark.parametrize(
    ("played", "seats", "limit", "rule"),
    [
        (job("a", gpus=1), (seat(0, "node-0000", 0),), 8000, []),
        (job("a", gpus=1), (seat(0, "node-0000", 7),), 8000, ["I1"]),
        (job("a", gpus=1, members=2), (seat(0, "node-0000", 0),), 8000, ["I2"]),
        (
            job("a", gpus=1, members=2, topology=Topology("rack", required=True)),
            (seat(0, "node-0000", 0), seat(1, "node-0001", 0)), 8000, ["I3"],
        ),
        (job("a", gpus=1), (seat(0, "node-0000", 0),), 1500, ["I4"]),
    ],
)  # fmt: skip
def test_a_decision_that_breaks_a_rule_is_seen_before_it_is_carried_out(
    played: Job, seats: tuple[Seat, ...], limit: int, rule: list[str]
) -> None:
    found = waits(played, (job("other", gpus=1), (seat(0, "node-0000", 7),)), limit=limit)
    assert rules(found, gives("a", *seats)) == rule


def test_evictions_without_a_gainer_and_half_a_gang_are_seen() -> None:
    other = job("other", gpus=1, members=2), (seat(0, "node-0000", 7), seat(1, "node-0000", 6))
    found = waits(job("a"), other)
    whole = Eviction("other", (("worker", 0), ("worker", 1)), "a", "why")
    half = Eviction("other", (("worker", 0),), "a", "why")
    assert rules(found, Decision(evictions=(whole,))) == ["I5"]
    held = Decision(evictions=(half,), nominations=(Nomination("a", ()),))
    assert rules(found, held) == ["I2"]


def test_a_node_that_shrank_under_those_who_are_there_breaks_no_rule() -> None:
    big = job("other", gpus=0), tuple(seat(n) for n in range(200))
    found = waits(job("a", gpus=1), big)
    role = job("a").unit.roles[0]
    thrifty = dataclasses.replace(job("a").unit, roles=(dataclasses.replace(role, needs={}),))
    state.apply(found, [state.Waits(thrifty)])
    assert rules(found, gives("a", seat(0, "node-0000", 0))) == []
