"""The picture that follows changes decides as one that is made anew from the same objects."""

import copy
import dataclasses
import random
from unittest import mock

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.control import build
from windlass.control.convert import run_workloads
from windlass.control.scheduler import assignment
from windlass.control.scheduler.cache import cache
from windlass.core.cycle import cycle
from windlass.core.model import types
from windlass.core.snapshot import snapshot
from windlass.kinds.types import core, meta, run
from windlass.kinds.values import times
from windlass.store import patches

NOW = 1767261600.0 + 3600
POLICY = types.Policy()
PHASES = ["Starting", "Running", "Stopping", "Succeeded", "Failed"]
CHECK_EVERY = 3


class World:
    """Objects that change at random, seen by one picture as they change."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.nodes: dict[str, core.Node] = {}
        self.queues: dict[str, meta.Object] = {}
        self.runs: dict[str, run.Run] = {}
        self.pods: dict[str, core.Pod] = {}
        self.seen = cache.SchedulerCache()
        self.snapshot: snapshot.Snapshot | None = None
        self.version = 0

    def put(self, objects, see, key, obj) -> None:
        self.version += 1
        obj.metadata.resource_version = str(self.version)
        before = objects.get(key)
        objects[key] = obj
        see("MODIFIED" if before else "ADDED", before, obj)

    def drop(self, objects, see) -> None:
        if objects:
            before = objects.pop(self.dice.choice(sorted(objects)))
            see("DELETED", before, None)

    # --- what may happen

    def node_changes(self) -> None:
        name, extra = self.dice.choice("abc"), {"pods": "4"}
        if self.dice.random() < 0.7:
            extra[self.dice.choice(["windlass.dev/gpu", "nvidia.com/gpu"])] = "3"
        labels = {"windlass.dev/rack": self.dice.choice("xy"), "windlass.dev/gpu-model": "a100"}
        ready, cpu = self.dice.random() < 0.8, self.dice.choice(["2", "4"])
        made = build.node(name, cpu=cpu, ready=ready, extra=extra, labels=labels)
        self.put(self.nodes, self.seen.on_node, name, made)

    def node_goes(self) -> None:
        self.drop(self.nodes, self.seen.on_node)

    def queue_changes(self) -> None:
        name = self.dice.choice(["default", "own"])
        spec = {"limit": {"cpu": self.dice.choice(["3", "20"])}} if self.dice.random() < 0.5 else {}
        if name == "own" and self.dice.random() < 0.7:
            spec["namespaces"] = [build.NAMESPACE]
        if self.dice.random() < 0.3:
            spec["min_runtime"] = "30m"
        order = self.dice.choice(["fifo", "fair", "shortest", "priority"])
        made = build.a_queue(name, order=order, strict=self.dice.random() < 0.3, **spec)
        self.put(self.queues, self.seen.on_queue, name, made)

    def queue_goes(self) -> None:
        self.drop(self.queues, self.seen.on_queue)

    def run_comes(self) -> None:
        name = f"run-{self.version}"
        gpus = self.dice.choice([0, 0, 1, 2])
        devices = [run.Device(kind="gpu", count=gpus)] if gpus else None
        replicas = self.dice.choice([1, 2, 3])
        spec = {
            "priority": self.dice.choice([10, 50]),
            "user": self.dice.choice(["ann", "bob"]),
            "duration": run.Durations(expected=self.dice.choice(["1h", "5h"])),
        }
        if self.dice.random() < 0.2:
            spec["placement"] = run.Placement(gang=False)
        role = build.role(replicas=replicas, min_replicas=1, devices=devices)
        owner = build.in_phase(build.a_run(name, role, **spec), "Queued")
        self.put(self.runs, self.seen.on_run, owner.uid, owner)

    def run_changes(self) -> None:
        if not self.runs:
            return
        owner = copy.deepcopy(self.runs[self.dice.choice(sorted(self.runs))])
        if owner.finished or self.dice.random() < 0.2:
            owner.spec.suspend = not owner.spec.suspend
        elif owner.status.phase == "Stopping" and self.dice.random() < 0.5:
            owner.status.attempt += 1
            build.in_phase(owner, "Queued", owner.status.reason)
        elif owner.status.assignment is not None:
            after = PHASES.index(owner.status.phase) + 1 if owner.status.phase in PHASES else 0
            at = f"2026-01-01T10:{len(owner.status.history):02}:00Z"
            phase = self.dice.choice(PHASES[after:])
            build.in_phase(owner, phase, "Resized" if self.dice.random() < 0.5 else "", at=at)
        self.put(self.runs, self.seen.on_run, owner.uid, owner)

    def run_goes(self) -> None:
        self.drop(self.runs, self.seen.on_run)

    def member_starts(self) -> None:
        owners = [o for o in self.runs.values() if run_workloads.holds_assignment(o)]
        if owners:
            owner = self.dice.choice(owners)
            index = self.dice.randrange(len(owner.status.assignment.members["worker"]))
            member = owner.status.assignment.members["worker"][index]
            made = build.pod(owner, index=index, devices=member.devices)
            made.spec.node_name = member.node
            self.put(self.pods, self.seen.on_pod, made.uid, made)

    def foreign_pod_comes(self) -> None:
        requests = {"cpu": "500m"} | ({"gpu": "1"} if self.dice.random() < 0.6 else {})
        made = build.external_pod(f"x-{self.version}", self.dice.choice("abc"), **requests)
        self.put(self.pods, self.seen.on_pod, made.uid, made)

    def pod_goes(self) -> None:
        self.drop(self.pods, self.seen.on_pod)

    def pod_ends(self) -> None:
        if self.pods:
            made = copy.deepcopy(self.pods[self.dice.choice(sorted(self.pods))])
            made.status.phase = "Succeeded"
            self.put(self.pods, self.seen.on_pod, made.uid, made)

    # --- deciding

    def decide(self) -> types.Decision:
        self.snapshot = self.seen.apply_changes(self.seen.drain_changes(NOW))
        return cycle.decide(self.snapshot, NOW, POLICY)

    def anew(self) -> types.ClusterFacts:
        fresh = cache.SchedulerCache()
        for objects, see in (
            (self.pods, fresh.on_pod), (self.runs, fresh.on_run),
            (self.queues, fresh.on_queue), (self.nodes, fresh.on_node),
        ):  # fmt: skip
            for key in sorted(objects, reverse=True):
                see("ADDED", None, objects[key])
        fresh.drain_changes(NOW)
        return dataclasses.replace(fresh.facts(), reservations=self.snapshot.reservations)

    def carry_out(self, decision: types.Decision) -> None:
        snapshot.apply(self.snapshot, [snapshot.ReservationsPut(decision.reservations)])
        for placement in decision.placements:
            owner = self.runs[placement.workload]
            write = assignment.grow if run_workloads.holds_assignment(owner) else assignment.start
            self.write(owner, write(owner, placement.pods, 1))
        for nomination in decision.nominations:
            owner = self.runs[nomination.workload]
            self.write(owner, assignment.nominate(owner, nomination.pods, 1) or {})
        for eviction in decision.evictions:
            owner = self.runs[eviction.workload]
            self.write(owner, assignment.evict(owner, eviction, times.from_unix(NOW)))

    def write(self, before: run.Run, patch: dict) -> None:
        """A merge patch of the status."""
        owner = copy.deepcopy(before)
        status = patches.merge(msgspec.to_builtins(owner.status), patch)
        owner.status = msgspec.convert(status, run.RunStatus)
        self.version += 1
        owner.metadata.resource_version = str(self.version)
        self.runs[owner.uid] = owner
        self.seen.assume(owner)


HAPPENINGS = [
    World.node_changes, World.node_changes, World.node_goes, World.queue_changes,
    World.queue_changes, World.queue_goes, World.run_comes, World.run_comes, World.run_comes,
    World.run_changes, World.run_changes, World.run_changes, World.run_goes, World.member_starts,
    World.member_starts, World.foreign_pod_comes, World.pod_goes, World.pod_ends,
]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 150))
@example(1, 150)
@example(2, 150)
def test_the_picture_knows_and_decides_as_one_made_anew(seed, steps):
    world = World(seed)
    for name in "ab":
        world.put(world.nodes, world.seen.on_node, name, build.node(name, extra={"pods": "4"}))
    world.put(world.queues, world.seen.on_queue, "default", build.a_queue())
    for number in range(steps):
        world.dice.choice(HAPPENINGS)(world)
        if number % CHECK_EVERY == 0 or number == steps - 1:
            decision, anew = world.decide(), world.anew()
            assert by_key(world.snapshot.facts()) == by_key(anew)
            fresh = snapshot.build(anew, world.snapshot.history)
            assert decision == cycle.decide(fresh, NOW, POLICY)
            world.carry_out(decision)


def by_key(told: types.ClusterFacts) -> dict[str, object]:
    return {
        **{f"node {node.name}": node for node in told.nodes},
        **{f"queue {queue.name}": queue for queue in told.queues},
        **{f"waiting {workload.key}": workload for workload in told.waiting},
        **{f"running {running.workload.key}": running for running in told.running},
        **{f"nominated {each.workload}": each for each in told.nominations},
    }


def test_what_changes_no_decision_is_no_event():
    world = World(0)
    owner = build.in_phase(build.a_run(), "Queued")
    world.put(world.nodes, world.seen.on_node, "a", build.node("a"))
    world.put(world.queues, world.seen.on_queue, "default", build.a_queue())
    world.put(world.runs, world.seen.on_run, owner.uid, owner)
    assert len(world.seen.drain_changes(NOW).events) == 3
    heartbeat, told = build.node("a"), copy.deepcopy(owner)
    heartbeat.status.conditions[0].last_transition_time = build.START
    told.status.message = "it waits"
    world.put(world.nodes, world.seen.on_node, "a", heartbeat)
    world.put(world.runs, world.seen.on_run, told.uid, told)
    assert world.seen.drain_changes(NOW) == cache.Changes((), frozenset({owner.uid}), NOW)


def test_our_own_write_is_shown_until_the_informer_has_caught_up():
    world = World(0)
    first = build.in_phase(build.a_run(), "Queued")
    world.put(world.runs, world.seen.on_run, first.uid, first)
    ours = build.assigned(copy.deepcopy(first))
    ours.metadata.resource_version = "9"
    world.seen.assume(ours)
    late = copy.deepcopy(first)
    late.metadata.resource_version = "8"
    world.seen.on_run("MODIFIED", first, late)
    assert world.seen.run(first.uid) is ours
    after = copy.deepcopy(ours)
    after.metadata.resource_version = "10"
    world.seen.on_run("MODIFIED", late, after)
    assert world.seen.run(first.uid) is after


def test_several_new_nodes_are_laid_out_at_once_and_reservations_stay():
    world = World(0)
    world.put(world.nodes, world.seen.on_node, "a", build.node("a"))
    world.decide()
    promised = (types.ReservationRecord("u", NOW + 60, ()),)
    snapshot.apply(world.snapshot, [snapshot.ReservationsPut(promised)])
    for name in "bc":
        world.put(world.nodes, world.seen.on_node, name, build.node(name))
    with mock.patch.object(snapshot, "Cluster", wraps=snapshot.Cluster) as laid_out:
        world.decide()
    assert laid_out.call_count == 1
    assert len(world.snapshot.cluster) == 3
    assert world.snapshot.reservations == promised


def test_predictions_learn_from_all_workloads_however_many_nodes_came_with_them():
    at_once, one_by_one = World(0), World(0)
    for world in (at_once, one_by_one):
        there = build.in_phase(build.a_run("there", user="ann"), "Queued")
        world.put(world.runs, world.seen.on_run, there.uid, there)
        world.decide()
        for name in "ab":
            world.put(world.nodes, world.seen.on_node, name, build.node(name))
            if world is one_by_one:
                world.decide()
        owner = build.in_phase(build.a_run("new", user="ann"), "Queued")
        world.put(world.runs, world.seen.on_run, owner.uid, owner)
        world.drop({there.uid: there}, world.seen.on_run)
        world.decide()
    known = at_once.snapshot.history.to_state()
    assert known == one_by_one.snapshot.history.to_state()
    assert "uid-new" in str(known)


def test_runs_that_ended_well_tell_how_long_such_runs_take():
    world = World(0)
    world.put(world.nodes, world.seen.on_node, "a", build.node("a"))
    for number in range(40):
        owner = build.in_phase(build.a_run(f"r{number}", user="ann"), "Running")
        build.in_phase(owner, "Succeeded", at="2026-01-01T10:10:00Z")
        world.put(world.runs, world.seen.on_run, owner.uid, owner)
    world.decide()
    workload = run_workloads.read_workload(build.a_run("next", user="ann"), "default")
    assert 300 < world.snapshot.history.expected(workload) < 3000


def test_pods_that_no_run_owns_teach_nothing_about_runs():
    """A service that another scheduler placed runs for months: Runs of its size do not."""
    taught, plain = World(0), World(0)
    for world in (taught, plain):
        world.put(world.nodes, world.seen.on_node, "n1", build.node("n1"))
        world.decide()
        owner = build.in_phase(build.a_run("mine", user="ann"), "Queued")
        world.put(world.runs, world.seen.on_run, owner.uid, owner)
        world.decide()
    for number in range(3):
        pod = build.external_pod(f"web-{number}", cpu="100m")
        taught.put(taught.pods, taught.seen.on_pod, pod.uid, pod)
    taught.decide()
    assert len(taught.snapshot.running) == 3
    fresh = snapshot.build(taught.snapshot.facts()).history.to_state()
    assert fresh == plain.snapshot.history.to_state()
    taught.drop({pod.uid: pod}, taught.seen.on_pod)
    taught.decide()
    assert taught.snapshot.history.to_state() == plain.snapshot.history.to_state()


def test_an_answer_that_comes_after_the_watch_showed_more_changes_nothing():
    """Otherwise the next write would name an old version, be refused, and wait for a change that
    has long been seen."""
    seen = cache.SchedulerCache()
    first = build.a_run("job")
    first.metadata.resource_version = "5"
    seen.on_run("ADDED", None, first)
    newer, answer = copy.deepcopy(first), copy.deepcopy(first)
    answer.metadata.resource_version, newer.metadata.resource_version = "6", "7"
    seen.on_run("MODIFIED", first, newer)
    seen.assume(answer)
    assert seen.run(first.uid).metadata.resource_version == "7"
    latest = copy.deepcopy(newer)
    latest.metadata.resource_version = "8"
    seen.on_run("MODIFIED", newer, latest)
    assert seen.run(first.uid).metadata.resource_version == "8"
