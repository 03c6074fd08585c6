"""States as files, and what-if changes of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.unit.sim.building import job, play, scenario
from windlass.core.model.types import (
    ClusterFacts,
    DeviceRequest,
    Grant,
    Nomination,
    PodAssignment,
    Queue,
    ReservationRecord,
    Role,
    Running,
    UserLimit,
    UserLimits,
    Workload,
)
from windlass.core.prediction import predictor
from windlass.core.snapshot import snapshot
from windlass.sim import engine, overrides
from windlass.sim.inputs import builders, state_export, synthetic
from windlass.sim.policy_grid import Variant
from windlass.sim.scenario import FOREVER, BadInput, Scenario, with_runtimes


def busy() -> ClusterFacts:
    """Some run, some wait, on racks, with shares and several roles."""
    facts = synthetic.busy_facts(12, 60, seed=4, queue_count=3)
    jobs = tuple(job(workload.key) for workload in facts.waiting)
    played = engine.Simulation(Scenario("busy", facts, jobs), Variant())
    played.step()
    found = played.snapshot.facts()
    waits = found.waiting[0].key
    return dataclasses.replace(
        found,
        nominations=(Nomination(waits, (PodAssignment("worker", 0, "n00000"),)),),
        reservations=(ReservationRecord(waits, 9.5, ()),),
    )


def test_facts_come_back_as_they_were_and_give_the_same_bytes() -> None:
    facts = busy()
    assert facts.running
    assert facts.waiting
    export = state_export.Export(12.5, facts, {"u": 3.5})
    text = state_export.dumps(export)
    read = state_export.loads(text)
    assert read == export
    assert state_export.dumps(read) == text
    snapshot.build(read.facts)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"not json", "is no JSON"),
        (b'{"at": 1}', "missing required field `facts`"),
        (b'{"at": 1, "facts": {}, "format": "windlass-state/9"}', "reads 'windlass-state/1'"),
        (b'{"at": 1, "facts": {"nodes": [{"name": 3}]}}', "nodes"),
        (
            b'{"at": 1, "facts": {"nodes": [{"name": "n", "allocatable": {"cpu": -1}}]}}',
            "node n: cpu is -1",
        ),
        (b'{"at": 1e999, "facts": {}}', "state.json"),
        (b'{"at": 1, "facts": {}, "durations": {"u": -1}}', "workload u would take -1"),
    ],
)
def test_a_file_that_is_no_state_is_refused_with_the_reason(text: bytes, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        state_export.loads(text, "state.json")


def test_a_state_goes_on_from_its_moment() -> None:
    first = engine.Simulation(scenario(job("a", 0, 100), job("b", 10, 50)), Variant())
    first.step()
    first.step()
    text = state_export.dumps(state_export.Export(30.0, first.snapshot.facts()))
    found = play(state_export.scenario(state_export.loads(text), "later"))
    assert (found["a"].end, found["b"].end, found["b"].waited) == (100, 150, 90)


def test_an_unknown_duration_takes_as_long_as_is_assumed() -> None:
    facts = dataclasses.replace(scenario().facts, waiting=(job("a", expected=None).workload,))
    export = state_export.Export(5.0, facts)
    assert play(state_export.scenario(export, "later", assumed=70))["a"].end == 75


def test_what_was_learned_says_how_long_workloads_take_that_do_not_say_it() -> None:
    """The half of those alike; unknown to the scheduler of the simulation."""
    history = predictor.History()
    for number in range(40):
        history.observe(job(f"past-{number}", expected=None, history_key="ann").workload, 600.0)
    waits = job("waits", expected=None, history_key="ann").workload
    runs = Running(job("runs", expected=None, history_key="ann").workload, (), 0.0)
    facts = dataclasses.replace(scenario().facts, waiting=(waits,), running=(runs,))
    export = state_export.taken(snapshot.build(facts, history), 200.0)
    assert 500 < export.durations["waits"] < 1000
    assert export.durations["runs"] == pytest.approx(export.durations["waits"] - 200)
    played = state_export.scenario(export, "later")
    assert {each.workload.key: each.duration for each in played.jobs} == export.durations
    assert played.facts.waiting[0].expected is None


def elsewhere(key: str = "pod/x", **more: Any) -> Running:
    """A pod that another scheduler put on the first node, with half of its GPUs."""
    role = Role("pod", 1, 1, {}, (DeviceRequest("gpu", 4),))
    name = scenario().facts.nodes[0].name
    grants = tuple(Grant(f"gpu{n}") for n in range(4))
    return Running(
        Workload(key, "", (role,), history_key=None),
        (PodAssignment("pod", 0, name, grants),),
        0.0,
        **more,
    )


def test_pods_of_others_stay_and_are_no_jobs() -> None:
    facts = dataclasses.replace(
        scenario().facts, running=(elsewhere(),), waiting=(job("a", lasts=50).workload,)
    )
    played = state_export.scenario(state_export.Export(5.0, facts), "later")
    outcome = engine.run(played, Variant())
    assert [(each.job.workload.key, each.end) for each in outcome.records] == [("a", None)]
    assert played.jobs[0].duration == FOREVER
    double = overrides.nodes_scaled(played, "2")
    assert [each.end for each in engine.run(double, Variant()).records] == [55]


def test_pods_of_others_go_with_their_node() -> None:
    facts = dataclasses.replace(scenario(nodes=2).facts, running=(elsewhere(),))
    whole = state_export.scenario(state_export.Export(5.0, facts), "later")
    others = overrides.nodes_scaled(whole, "0.5")
    assert (len(others.facts.nodes), len(others.facts.running), len(others.jobs)) == (1, 1, 1)
    [pod] = facts.running
    pods = (dataclasses.replace(pod.pods[0], node=facts.nodes[1].name),)
    facts = dataclasses.replace(facts, running=(dataclasses.replace(pod, pods=pods),))
    fewer = overrides.nodes_scaled(
        state_export.scenario(state_export.Export(5.0, facts), "later"), "0.5"
    )
    assert (fewer.facts.running, fewer.facts.waiting, fewer.jobs) == ((), (), ())


def test_a_workload_that_runs_says_how_long_it_still_takes() -> None:
    """It said an hour and ran half of it: stopped, it would need the other half again."""
    workload = job("a", lasts=3600).workload
    pods = (PodAssignment("worker", 0, "node-0000", tuple(Grant(f"gpu{n}") for n in range(8))),)
    facts = dataclasses.replace(scenario().facts, running=(Running(workload, pods, 0.0, 3600.0),))
    [found] = state_export.scenario(state_export.Export(1800.0, facts), "later").jobs
    assert (found.duration, found.workload.expected) == (1800, 1800)


def test_an_evicted_workload_ends_after_its_grace() -> None:
    facts = dataclasses.replace(
        scenario().facts,
        running=(elsewhere(leaving=(("pod", 0),)),),
        waiting=(job("a", lasts=50).workload,),
    )
    found = play(state_export.scenario(state_export.Export(0.0, facts), "later"))
    assert found["a"].waited == 30


def test_a_queue_is_given_more() -> None:
    tight = scenario(job("a", 0, 100), nodes=2, queues=(Queue("default", limit={"gpu": 4000}),))
    assert play(tight)["a"].end is None
    changes = ["queue.default.limit.gpu=8", "queue.default.order=lifo", "queue.default.strict=true"]
    wider = overrides.edited(tight, changes)
    assert play(wider)["a"].end == 100
    more = overrides.edited(tight, ["queue.default.limit.gpu=+4", "queue.default.limit.gpu=-1"])
    assert more.facts.queues[0].limit == {"gpu": 7000}
    [queue] = wider.facts.queues
    assert (queue.order, queue.strict) == ("lifo", True)
    changes = ["minRuntime=10m", "max_priority=7", "halfLife=7d", "userFair=true", "reserve=none"]
    [queue] = overrides.edited(tight, [f"queue.default.{each}" for each in changes]).facts.queues
    assert (queue.min_runtime, queue.max_priority, queue.half_life) == (600, 7, 7 * 86400)
    assert (queue.user_fair, queue.reserve) == (True, None)
    changes = ["running=4", "resources.gpu=8", "resources.gpu=+1", "users.ada.running=9"]
    limited = overrides.edited(tight, [f"queue.default.userLimits.{each}" for each in changes])
    [queue] = limited.facts.queues
    assert queue.user_limits == UserLimits({"gpu": 9000}, 4, None, {"ada": UserLimit({}, 9)})
    [queue] = overrides.edited(limited, ["queue.default.userLimits=none"]).facts.queues
    assert queue.user_limits is None


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("queue.default.limit.gpu", "is no change"),
        ("node.a.ready=false", "is no change"),
        ("queue.nobody.weight=2", "no queue 'nobody'; there are default"),
        ("queue.default.colour=red", "queues have .*guarantee.RESOURCE"),
        ("queue.default.wieght=3", "did you mean weight"),
        ("queue.default.limit=3", r"did you mean limit\.RESOURCE"),
        ("queue.default.name=other", "queues have .*guarantee.RESOURCE"),
        ("queue.default.userLimits=3", "'3' is no value for userLimits"),
        ("queue.default.userLimits.runing=3", "unknown field `runing`: did you mean `running`"),
        ("queue.default.weight.gpu=3", "did you mean weight"),
        ("queue.default.limit.gpu=lots", "'lots'"),
        ("queue.default.limit.gpu=+4", "names no gpu yet"),
        ("queue.default.weight=heavy", "'heavy' is no value for weight"),
        ("queue.default.order=random", "'random' is no value for order"),
        ("queue.default.strict=maybe", "'maybe' is no value for strict"),
    ],
)
def test_a_change_that_is_none(edit: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        overrides.edited(scenario(), [edit])


def test_fewer_and_more_nodes() -> None:
    facts = busy()
    whole = state_export.scenario(state_export.Export(1.0, facts), "whole")
    half = overrides.nodes_scaled(whole, "0.5")
    assert len(half.facts.nodes) == 6
    names = {node.name for node in half.facts.nodes}
    assert all(pod.node in names for r in half.facts.running for pod in r.pods)
    # No workload is lost: what ran on a node that is gone waits.
    assert half.present() == whole.present()
    double = overrides.nodes_scaled(whole, "2")
    assert len({node.name for node in double.facts.nodes}) == 24
    snapshot.build(double.facts)


@pytest.mark.parametrize(
    ("factor", "large", "small", "bare"),
    [("0.5", 2, 3, 1), ("1.5", 6, 9, 2), ("0.25", 1, 2, 0), ("3", 12, 18, 3)],
)
def test_every_kind_of_node_is_scaled_alike(factor: str, large: int, small: int, bare: int) -> None:
    kinds = [builders.NodeForm(8), builders.NodeForm(2), builders.NodeForm(0)]
    # As an export lists them: by name, whatever they are; no two have quite the same memory.
    forms = [kinds[at] for at in (1, 0, 1, 0, 2, 1, 0, 1, 0, 1, 1)]
    nodes = tuple(
        dataclasses.replace(form, memory=(512 << 30) - at).node(f"n{at:02}")
        for at, form in enumerate(forms)
    )
    played = scenario()
    played = dataclasses.replace(played, facts=dataclasses.replace(played.facts, nodes=nodes))
    for listed in (nodes, nodes[::-1]):
        facts = dataclasses.replace(played.facts, nodes=listed)
        scaled = overrides.nodes_scaled(
            dataclasses.replace(played, facts=facts), factor
        ).facts.nodes
        counted = [sum(len(node.devices) == gpus for node in scaled) for gpus in (8, 2, 0)]
        assert counted == [large, small, bare]
        assert len({node.name for node in scaled}) == len(scaled)


def test_a_cluster_may_be_scaled_to_nothing_but_not_beyond_bounds() -> None:
    assert overrides.nodes_scaled(scenario(nodes=4), "0.1").facts.nodes == ()
    with pytest.raises(BadInput, match=r"'999' makes 100899 nodes of 101: choose a factor"):
        overrides.nodes_scaled(scenario(nodes=101), "999")


def test_one_pool_is_scaled_alone() -> None:
    played = scenario(nodes=4)
    nodes = tuple(
        dataclasses.replace(node, labels={"pool": "a" if at else "b"})
        for at, node in enumerate(played.facts.nodes)
    )
    played = dataclasses.replace(played, facts=dataclasses.replace(played.facts, nodes=nodes))
    scaled = overrides.nodes_scaled(played, "pool=a:2")
    assert [node.labels["pool"] for node in scaled.facts.nodes] == ["b"] + ["a"] * 6
    for request, words in (("pool=z:2", "matches no node"), ("pool=a:x", "by how much")):
        with pytest.raises(BadInput, match=words):
            overrides.nodes_scaled(played, request)


def test_a_faster_load_and_a_shorter_one() -> None:
    played = scenario(job("a", 100), job("b", 300), job("c", 500))
    fast = overrides.load_scaled(played, 2.0)
    assert [each.workload.submitted for each in fast.jobs] == [100, 200, 300]
    assert [each.workload.key for each in overrides.first(played, 2).jobs] == ["a", "b"]
    with pytest.raises(BadInput, match="above 0"):
        overrides.load_scaled(played, 0.0)


@pytest.mark.parametrize(
    ("knowledge", "said", "honest"), [("known", 100, True), ("2", 200, False), ("0.5", 50, False)]
)
def test_what_jobs_say_about_their_duration(knowledge: str, said: float, honest: bool) -> None:
    found = with_runtimes(scenario(job("a", expected=7)), knowledge)
    assert (found.jobs[0].workload.expected, found.honest) == (said, honest)


def test_knowledge_that_is_none() -> None:
    with pytest.raises(BadInput, match="say known, unknown"):
        with_runtimes(scenario(), "somewhat")
