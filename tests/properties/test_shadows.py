"""What a decision keeps of the future is what counting everything again finds (I9).

Each reservation has a shadow: its nodes as they will be when it is due. What starts, is reserved
or is released changes those shadows, and reserved pods move to other devices for
each other. Devices here differ in model, size and form, so that another one is not as good; after
every turn the shadows are counted anew, from what runs, starts and is reserved.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tests.properties import carry, generators
from tests.properties.settings import CAMPAIGN, cases
from windlass.core.cluster.cluster import Cluster
from windlass.core.cycle import cycle
from windlass.core.cycle.cycle import Cycle
from windlass.core.decision import shadows
from windlass.core.decision.state import DecisionState
from windlass.core.model import pod_sets
from windlass.core.model.types import (
    ClusterFacts,
    Decision,
    Device,
    DeviceRequest,
    Node,
    PodAssignment,
    Policy,
    Queue,
    Role,
    Topology,
    Workload,
)
from windlass.core.placement import gang_placement
from windlass.core.reservation import commit
from windlass.core.snapshot.snapshot import Event, Snapshot, WaitingPut, WorkloadGone, apply, build

pytestmark = CAMPAIGN
HONEST = Policy(unknown_runtime="never", grow=False)
"""Guesses nothing for workloads without a stated duration."""
FORMS = frozenset(("whole", "share", "ratio", "partition"))


@cases(150, 6000)
@example(276, 13)  # a workload that reclaimed from new starts still had another reservation
@example(7, 13)  # a start that was withheld left its mark where it would have been
@example(274, 11)  # two that start together both moved, and one still saw the other where it was
@given(st.integers(0, 1 << 32), st.integers(3, 16))
def test_free_capacity_beside_reservations_equals_a_recount(seed: int, count: int) -> None:
    """Queues with guarantees and several priorities: reservations are passed, dropped and made
    anew."""
    throw = generators.dice(seed, "shadows")
    queues = tuple(
        Queue(
            name,
            guarantee=throw.choice(({}, {"gpu": 2000}, {"gpu": 4000})),
            order=throw.choice(("fifo", "lifo", "shortest", "priority")),
            reserve=throw.randint(1, 3),
        )
        for name in ("a", "b")
    )
    coming = [_workload(seed, number, ("a", "b"), (10, 50, 90)) for number in range(count)]
    policy = dataclasses.replace(HONEST, preempt=throw.one_in(2), reclaim=throw.one_in(2))
    if throw.one_in(2):  # one has all rights, which it reclaims from a start of this decision
        queues = (
            dataclasses.replace(queues[0], guarantee={"gpu": 4000, "cpu": 20_000}),
            dataclasses.replace(queues[1], guarantee={}, weight=100),
        )
        policy = dataclasses.replace(policy, reclaim=True)
        coming = [dataclasses.replace(workload, preemptible=throw.one_in(3)) for workload in coming]
        coming = [dataclasses.replace(u, submitted=u.submitted // 10 * 10) for u in coming]
    for _ in _history(ClusterFacts(_nodes(throw), queues, levels=("rack",)), coming, policy):
        pass


@cases(150, 6000)
@example(36, 11)  # a reservation moved for a passer to where another had a later start
@example(51, 12)  # a due reservation took another device than its own, and found that it may not
@example(405, 16)  # a reservation with a port took another device in the next decision
@example(517, 16)  # a port that passed from one reservation to the next was free in between
@example(
    2657, 14
)  # a workload that would have fitted on another device waited for the next decision
@given(st.integers(0, 1 << 32), st.integers(3, 16))
def test_among_equals_no_reservation_gets_later_or_lost_on_different_devices(
    seed: int, count: int
) -> None:
    throw = generators.dice(seed, "equals")
    queue = Queue(
        "a", order=throw.choice(("fifo", "lifo", "shortest")), reserve=throw.randint(1, 4)
    )
    coming = [_workload(seed, number, ("a",), (50,)) for number in range(count)]
    promised: dict[str, float] = {}
    for now, decision in _history(
        ClusterFacts(_nodes(throw), (queue,), levels=("rack",)), coming, HONEST
    ):
        started = {placement.workload for placement in decision.placements}
        found = {each.workload: each.start for each in decision.reservations}
        for key, due in promised.items():
            assert key in started or found.get(key, due + 1) <= due, f"{key}, promised {due}, {now}"
        promised = found


# --- what is played


def _nodes(throw: generators.Dice) -> tuple[Node, ...]:
    return tuple(
        Node(
            f"n{number}",
            {"cpu": 1000 * throw.choice((6, 10))},
            _devices(throw),
            path=(f"r{number}",),
        )
        for number in range(throw.choice((1, 1, 2)))
    )


def _devices(throw: generators.Dice) -> tuple[Device, ...]:
    return tuple(
        Device(
            f"g{i}", "gpu", throw.choice(("old", "new")), memory=throw.choice((1000, 2000)),
            numa=i // 2, switch=f"s{i // 2}", links=f"l{i // 2}", slices=8,
            profiles=generators.PROFILES, forms=FORMS,
        )
        for i in range(throw.choice((2, 3, 4)))
    )  # fmt: skip


_REQUESTS: tuple[tuple[DeviceRequest, ...], ...] = (
    (),
    (DeviceRequest("gpu"),),
    (DeviceRequest("gpu"),),
    (DeviceRequest("gpu", models=("new",)),),
    (DeviceRequest("gpu", models=("old",)),),
    (DeviceRequest("gpu", 2),),
    (DeviceRequest("gpu", 2, models=("new",)),),
    (DeviceRequest("gpu", compute=400, memory=1200),),
    (DeviceRequest("gpu", memory=600),),
    (DeviceRequest("gpu", ratio=2),),
    (DeviceRequest("gpu", profile="3g"),),
    (DeviceRequest("gpu", profile="1g"),),
)


def _workload(
    seed: int, number: int, queues: tuple[str, ...], priorities: tuple[int, ...]
) -> Workload:
    throw = generators.dice(seed, "unit", number)
    requests, members = throw.choice(_REQUESTS), throw.choice((1, 1, 1, 2))
    cpu = 1000 * throw.randint(0 if requests else 1, 6)
    worker = Role(
        "worker", members, members, {"cpu": cpu}, requests,
        bundle=throw.choice(("", "", "numa")) if requests else "",
        ports=(80,) if throw.one_in(12) else (),
    )  # fmt: skip
    helper = Role("helper", 1, 1, {"cpu": 1000}, throw.choice(_REQUESTS))
    return Workload(
        f"u{number:02}",
        throw.choice(queues),
        (worker, helper) if throw.one_in(6) else (worker,),
        submitted=float(throw.randint(0, 40)),
        priority=throw.choice(priorities),
        topology=Topology("rack", required=True) if throw.one_in(6) else None,
        expected=float(throw.choice((5, 10, 20, 40, 60, 100))),
        preemptible=not throw.one_in(6),
    )


def _history(
    facts: ClusterFacts, coming: list[Workload], policy: Policy
) -> Iterator[tuple[float, Decision]]:
    """Units come, start as told, and end when they said; who must go goes at once."""
    snapshot, ends = build(facts), dict[str, float]()
    while coming or ends:
        now = min([*(workload.submitted for workload in coming), *ends.values()])
        events: list[Event] = [WorkloadGone(key) for key, end in ends.items() if end <= now]
        events += [WaitingPut(workload) for workload in coming if workload.submitted <= now]
        coming = [workload for workload in coming if workload.submitted > now]
        apply(snapshot, events)
        with _counted_again():
            decision = cycle.decide(snapshot, now, policy)
        apply(snapshot, carry.steps(snapshot.facts(), decision, now))
        _nothing_due_waits(snapshot, decision, now)
        yield now, decision
        apply(snapshot, carry.members_left(snapshot.facts(), resubmit=False))
        ends = {key: running.expected_end or now for key, running in snapshot.running.items()}
        if decision.nominations:  # its capacity is free by now
            ends["nobody"] = now + 1


def _nothing_due_waits(snapshot: Snapshot, decision: Decision, now: float) -> None:
    """A reservation for this very moment, on free devices, would wait for no reason."""
    if decision.nominations:
        return
    for each in decision.reservations:
        workload, cluster = snapshot.waiting[each.workload], snapshot.cluster.fork()
        assert each.start > now or not gang_placement.allocate_exact(
            cluster, workload, each.pods
        ), each


# --- counting again


@contextmanager
def _counted_again() -> Iterator[None]:
    """Every turn of a decision, and every start that is retracted, is followed by a comparison of
    all shadows."""
    consider, retract = Cycle.consider, commit.retract

    def consider_and_compare(deciding: Cycle, workload: Workload) -> None:
        consider(deciding, workload)
        _compare_all(deciding.state)

    def retract_and_compare(state: DecisionState, key: str) -> None:
        retract(state, key)
        _compare_all(state)

    with (
        mock.patch.object(Cycle, "consider", consider_and_compare),
        mock.patch.object(commit, "retract", retract_and_compare),
    ):
        yield


def _compare_all(state: DecisionState) -> None:
    for held in state.reservations:
        _compare(state, held)
    everybody, context = tuple(state.reservations), state.context
    for workload in state.snapshot.waiting.values() if everybody else ():
        for request in pod_sets.minimum(workload):  # what is kept of it is what it is by now
            shape = context.shape(request.role)
            kept = state.cache(shadows.LimitCache).limits(context, everybody, (request,))[shape.id]
            for held in everybody:
                fits = held.shadow.pod_capacity_at(shape, held.nodes)
                assert (kept[held.nodes] <= fits).all(), held.record
                assert (held.free_beside(shape, context.cluster.cached_shapes()) == fits).all()


def _compare(state: DecisionState, held: shadows.Reservation) -> None:
    again, there = _shadow(state, held), held.nodes
    one, other = (_free(each, there) for each in (held.shadow, again))
    if state.evictions:  # victims are counted as staying: never more capacity
        assert all((a <= b).all() for a, b in zip(one, other, strict=True)), held.record
    else:
        assert all((a == b).all() for a, b in zip(one, other, strict=True)), held.record
        assert (held.shadow.device_table.used[there] == again.device_table.used[there]).all(), (
            held.record
        )
        assert (held.shadow.device_table.mode[there] == again.device_table.mode[there]).all(), (
            held.record
        )
        assert _ports(held.shadow, there) == _ports(again, there), held.record
    assert min((each.min(initial=0) for each in other), default=0) >= 0, "promised twice"


def _free(cluster: Cluster, nodes: np.ndarray) -> list[np.ndarray]:
    return [
        cluster.free[:, nodes],
        cluster.device_table.compute[nodes],
        cluster.device_table.memory[nodes],
    ]


def _ports(cluster: Cluster, nodes: np.ndarray) -> set[tuple[int, int]]:
    return {
        (port, node) for port, held in cluster.ports.items() for node in held & {*nodes.tolist()}
    }


def _shadow(state: DecisionState, held: shadows.Reservation) -> Cluster:
    """One member after another: which left by then, then which came."""
    cluster, coming = (
        state.context.cluster.fork(()),
        list[tuple[Workload, tuple[PodAssignment, ...]]](),
    )
    for key, nomination in state.nominations.items():
        workload = state.snapshot.waiting[key]
        _move(cluster, workload, nomination.pods, +1)
        if (state.expected_end(workload) or math.inf) > held.start:
            coming.append((workload, nomination.pods))
    for running in state.running.values():
        told = {*running.leaving}
        told |= {s for e in state.evictions if e.workload == running.workload.key for s in e.pods}
        over = (running.expected_end or math.inf) <= held.start
        gone = tuple(s for s in running.pods if over or (s.role, s.index) in told)
        _move(cluster, running.workload, gone, +1)
    coming += [
        (each.workload, tuple(each.pods))
        for each in state.reservations
        if each.start <= held.start < each.end
    ]
    for workload, pods in coming:
        _move(cluster, workload, pods, -1)
    return cluster


def _move(cluster: Cluster, workload: Workload, pods: tuple[PodAssignment, ...], sign: int) -> None:
    roles = {role.name: role for role in workload.roles}
    for pod in pods:
        (cluster.release if sign > 0 else cluster.occupy)(roles[pod.role], pod)
