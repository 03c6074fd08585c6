"""What a RuntimeClass adds to the members of a Run is decided with, not found out by their node."""

from __future__ import annotations

from tests.unit.control import build
from windlass.control.convert import run_workloads, runtime_classes
from windlass.control.model import members
from windlass.control.runs import start_gate
from windlass.control.scheduler.cache import cache
from windlass.core.cycle import cycle
from windlass.core.model import types
from windlass.core.snapshot import snapshot
from windlass.kinds.reasons import Reason
from windlass.kinds.types import cluster, core, meta, run

NOW = 1767261600.0
MI, GI = 1 << 20, 1 << 30


def a_class(name: str = "kata", overhead: dict[str, str] | None = None, **where):
    return cluster.RuntimeClass(
        metadata=meta.ObjectMeta(name=name),
        overhead=cluster.RuntimeOverhead(pod_fixed=overhead) if overhead else None,
        scheduling=cluster.RuntimeScheduling(**where) if where else None,
    )


def in_kata(name: str = "job", cpu: str = "1", **spec) -> run.Run:
    overrides = run.Overrides(runtime_class_name="kata")
    return build.a_run(name, build.role(cpu=cpu), overrides=overrides, **spec)


class World:
    def __init__(self, *nodes: core.Node, classes=()) -> None:
        self.seen = cache.SchedulerCache()
        self.seen.runtimes.watched = True
        for node in nodes:
            self.seen.on_node("ADDED", None, node)
        self.seen.on_queue("ADDED", None, build.a_queue())
        for each in classes:
            self.seen.on_runtime_class("ADDED", None, each)

    def submit(self, *owners: run.Run) -> None:
        for owner in owners:
            self.seen.on_run("ADDED", None, owner)

    def decide(self) -> types.Decision:
        self.seen.drain_changes(NOW)
        return cycle.decide(snapshot.build(self.seen.facts()), NOW)


def nodes_of(decision: types.Decision) -> dict[str, list[str]]:
    return {each.workload: [pod.node for pod in each.pods] for each in decision.placements}


HEAVY = a_class(overhead={"cpu": "250m", "memory": "120Mi"})


def test_overhead_is_part_of_what_each_member_needs():
    world = World(build.node(cpu="4"), classes=[HEAVY])
    world.submit(in_kata())
    world.decide()
    (workload,) = world.seen.facts().waiting
    assert workload.roles[0].needs == {"cpu": 1250, "memory": GI + 120 * MI}
    assert workload.roles[0].runtime == types.Runtime("kata", (("cpu", 250), ("memory", 120 * MI)))


def test_a_node_is_not_filled_beyond_what_its_kubelet_admits():
    world = World(build.node(cpu="4"), classes=[HEAVY])
    world.submit(*(in_kata(f"r{i}") for i in range(4)))
    decision = world.decide()
    assert len(decision.placements) == 3, "4 x 1.25 cores are more than 4"
    (verdict,) = decision.verdicts
    assert verdict.reason == Reason.WAITING_FOR_CAPACITY
    assert "1.25 cpu" in verdict.message
    assert "(0.25 cpu, 120Mi memory of it for RuntimeClass kata)" in verdict.message


def test_a_run_that_runs_holds_its_overhead_too():
    world = World(build.node(cpu="4"), classes=[HEAVY])
    holds = build.assigned(build.in_phase(in_kata("holds", cpu="2"), "Running"))
    world.submit(holds, build.a_run("fits", build.role(cpu="1750m")))
    assert list(nodes_of(world.decide())) == ["uid-fits"]
    world.submit(build.a_run("not", build.role(cpu="1751m")))
    assert "uid-not" not in nodes_of(world.decide())


def test_what_no_node_can_hold_with_its_overhead_is_impossible_and_says_whose_it_is():
    world = World(build.node(cpu="4"), classes=[HEAVY])
    world.submit(in_kata(cpu="4"))
    (verdict,) = world.decide().verdicts
    assert verdict.reason == Reason.IMPOSSIBLE
    assert verdict.message == (
        "needs 4.25 cpu on one node (0.25 cpu of it for RuntimeClass kata); the largest has 4 cpu"
    )


def test_members_go_only_where_their_runtime_is():
    there = a_class(node_selector={"kata": "yes"})
    world = World(build.node("n1"), build.node("n2", labels={"kata": "yes"}), classes=[there])
    world.submit(in_kata())
    assert nodes_of(world.decide()) == {"uid-job": ["n2"]}
    elsewhere = World(build.node("n1"), classes=[there])
    elsewhere.submit(in_kata())
    (verdict,) = elsewhere.decide().verdicts
    assert verdict.message == (
        "no node has the labels and taints it asks for, with those of RuntimeClass kata"
    )


def test_labels_of_the_run_and_of_its_runtime_must_both_hold():
    there = a_class(node_selector={"disk": "ssd"})
    world = World(build.node("n1", labels={"disk": "ssd"}), classes=[there])
    nodes = run.NodeChoice(selector={"disk": "tape"})
    world.submit(in_kata(placement=run.Placement(nodes=nodes)))
    assert nodes_of(world.decide()) == {}


def tainted(name: str = "n1") -> core.Node:
    node = build.node(name)
    node.spec.taints = [core.Taint(key="kata", value="only", effect="NoSchedule")]
    return node


TOLERANT = a_class(tolerations=[core.Toleration(key="kata", value="only")])


def test_what_the_runtime_tolerates_its_members_do():
    world = World(tainted(), classes=[TOLERANT])
    world.submit(in_kata(), build.a_run("plain"))
    assert nodes_of(world.decide()) == {"uid-job": ["n1"]}
    assert world.seen.takes(in_kata(), "n1")
    assert not world.seen.takes(build.a_run("plain"), "n1")


class Seen(dict):
    """What an informer shows."""

    def add_handler(self, handler) -> None:
        for each in self.values():
            handler("ADDED", None, each)


def test_before_pods_are_made_their_nodes_are_looked_at_with_the_runtimes_eyes():
    nodes = Seen(n1=tainted())
    owner = build.assigned(in_kata())
    assert start_gate.StartGate(None, nodes, runtimes=Seen(kata=TOLERANT)).closed(owner) == ""
    assert start_gate.StartGate(None, nodes, runtimes=Seen(kata=HEAVY)).closed(owner) == "n1"
    away = a_class(node_selector={"kata": "yes"})
    plain = Seen(n1=build.node())
    assert start_gate.StartGate(None, plain, runtimes=Seen(kata=away)).closed(owner) == "n1"
    assert start_gate.StartGate(None, plain, runtimes=Seen(kata=HEAVY)).closed(owner) == ""


def test_a_class_that_is_not_there_holds_the_run_until_it_is():
    world = World(build.node())
    world.submit(in_kata())
    (verdict,) = world.decide().verdicts
    assert verdict.reason == Reason.ADMISSION_REFUSED
    assert "there is no RuntimeClass kata" in verdict.message
    world.seen.on_runtime_class("ADDED", None, HEAVY)
    assert nodes_of(world.decide()) == {"uid-job": ["n1"]}
    world.seen.on_runtime_class("DELETED", HEAVY, None)
    assert nodes_of(world.decide()) == {}


def test_a_class_that_changes_is_counted_anew():
    world = World(build.node(cpu="4"), classes=[HEAVY])
    world.submit(in_kata(cpu="4"))
    assert nodes_of(world.decide()) == {}
    world.seen.on_runtime_class("MODIFIED", HEAVY, a_class())
    assert nodes_of(world.decide()) == {"uid-job": ["n1"]}


def test_without_an_informer_for_classes_none_is_missing():
    found = runtime_classes.RuntimeClasses().of(in_kata())
    assert found == runtime_classes.NOTHING
    assert run_workloads.read_workload(in_kata(), "q", runtime=found).hold_reason is None


def test_two_with_equal_needs_for_different_reasons_get_their_own_message():
    world = World(build.node(cpu="1"), classes=[a_class(overhead={"cpu": "250m"})])
    world.submit(in_kata("own"), build.a_run("asked", build.role(cpu="1250m")))
    told = {each.workload: each.message for each in world.decide().verdicts}
    assert "RuntimeClass kata" in told["uid-own"]
    assert "RuntimeClass" not in told["uid-asked"]


def test_a_node_that_refused_such_a_member_is_held_back_for_the_next():
    """The shape that refusals are remembered by counts the overhead, too."""
    world = World(build.node(cpu="4"), classes=[HEAVY])
    owner = build.in_phase(in_kata("refused"), "Queued")
    refused = build.pod(owner, "Failed")
    refused.status.reason = "OutOfcpu"
    refused.metadata.creation_timestamp = "2026-01-01T10:00:00Z"
    assert members.failure(refused)[0] is Reason.NODE_REFUSED
    owner.status.attempt = 1
    world.submit(owner)
    world.seen.on_pod("ADDED", None, refused)
    assert nodes_of(world.decide()) == {}
    assert world.seen.rejected_until() is not None
