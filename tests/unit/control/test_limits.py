"""What of a cluster limits pods besides capacity: quotas of namespaces, volumes, nodes that refuse,
nodes that were closed after they were given."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.unit.control import build
from windlass.control.convert import resource_quotas, run_workloads
from windlass.control.model import attempts, members, retry, run_view
from windlass.control.runs import state_machine
from windlass.control.runtime import clock
from windlass.control.scheduler import assignment
from windlass.control.scheduler.cache import cache, kubelet_rejections
from windlass.core.model import types
from windlass.kinds.annotations import GRANTED
from windlass.kinds.reasons import Reason
from windlass.kinds.types import cluster, core, meta, run
from windlass.kinds.values import times

NOW = times.parse("2026-01-01T10:00:00Z").timestamp()
ZONE = "topology.kubernetes.io/zone"


# --- quotas ---------------------------------------------------------------------------------------


def quota(hard: dict[str, str], **spec: Any) -> cluster.ResourceQuota:
    return cluster.ResourceQuota(
        metadata=meta.ObjectMeta(name="q", namespace="team"),
        spec=cluster.ResourceQuotaSpec(hard=hard, **spec),
    )


@pytest.mark.parametrize(
    ("hard", "read"),
    [
        ({"requests.cpu": "4", "limits.cpu": "2"}, {"cpu": 2000}),
        ({"memory": "1Gi", "pods": "3"}, {"memory": 1 << 30, "pods": 3}),
        ({"requests.nvidia.com/gpu": "2"}, {"gpu": 2000}),
        ({"requests.windlass.dev/npu": "1"}, {"npu": 1000}),
        ({"count/pods": "3", "services": "1", "requests.storage": "1Gi"}, None),
    ],
)
def test_a_quota_is_read_as_far_as_it_is_about_members(hard, read):
    found = resource_quotas.read(quota(hard))
    assert found == (read and types.Quota("team", "q", read))


def test_a_quota_for_other_pods_says_nothing_of_runs():
    assert resource_quotas.read(quota({"pods": "1"}, scopes=["NotTerminating", "NotBestEffort"]))
    assert resource_quotas.read(quota({"pods": "1"}, scopes=["Terminating"])) is None
    chosen = cluster.ScopeRequirement(scope_name="PriorityClass", operator="Exists")
    selector = cluster.ScopeSelector(match_expressions=[chosen])
    assert resource_quotas.read(quota({"pods": "1"}, scope_selector=selector)) is None


# --- volumes --------------------------------------------------------------------------------------


def test_a_volume_out_of_reach_ends_the_attempt_for_free():
    owner = build.assigned(build.in_phase(build.a_run(), "Starting"))
    final = attempts.BlockedReason(Reason.WAITING_FOR_DATA, "out of reach", final=True)
    view = run_view.View(
        owner, [], 1, times.from_unix(NOW), context=attempts.AttemptContext(blocked=final)
    )
    move = state_machine.plan(view).move
    assert (move.to, move.next_attempt, move.cost) == ("Queued", True, 0)


# --- nodes that refuse ----------------------------------------------------------------------------


def refused(name: str, at: float, phase: str = "Failed", node: str = "n1") -> core.Pod:
    pod = build.pod(build.a_run(name), phase)
    pod.spec.node_name, pod.metadata.uid = node, f"{name}-{at}"
    pod.metadata.creation_timestamp = times.seconds(times.from_unix(at))
    pod.status.reason = "OutOfcpu" if phase == "Failed" else ""
    return pod


SHAPE = kubelet_rejections.shape_of(run_workloads.role_of(build.role(), build.a_run()))
OTHER = kubelet_rejections.shape_of(run_workloads.role_of(build.role(cpu="2"), build.a_run()))


def test_a_node_that_refused_is_held_back_for_that_shape_longer_each_time():
    known = kubelet_rejections.KubeletRejections()
    for number, at in enumerate((NOW, NOW + 100, NOW + 200), 1):
        assert known.record(refused("job", at), SHAPE)
        ends = at + retry.pause(number)
        assert known.avoided(SHAPE, ends - 0.1) == {"n1"}
        assert known.next_change(at) == ends
        assert not known.avoided(SHAPE, ends)
        assert not known.avoided(OTHER, at)


def test_members_of_one_gang_that_are_refused_at_once_are_one_refusal():
    known = kubelet_rejections.KubeletRejections()
    for name in ("a", "b", "c"):
        known.record(refused(name, NOW), SHAPE)
    assert known.next_change(NOW) == NOW + retry.pause(1)


def test_a_member_that_runs_there_since_ends_it():
    known = kubelet_rejections.KubeletRejections()
    known.record(refused("job", NOW), SHAPE)
    running = refused("later", NOW + 2, "Running")
    assert known.concerns(running)
    assert not known.concerns(refused("elsewhere", NOW + 2, "Running", node="n2"))
    assert known.record(running, SHAPE)
    assert not known.avoided(SHAPE, NOW + 3)


def test_a_run_that_was_refused_gets_the_message_and_the_time_of_the_next_attempt():
    owner = build.a_run()
    owner.status.history = [
        run.Transition(at=build.START, to_phase="Queued", reason=reason, message="no")
        for reason in (Reason.ADMISSION_REFUSED, Reason.NODE_REFUSED, Reason.ADMISSION_REFUSED)
    ]
    workload = run_workloads.read_workload(owner, "q")
    assert workload.lately == (Reason.ADMISSION_REFUSED, "no")
    assert workload.not_before == times.parse(build.START).timestamp() + retry.pause(3)


# --- nodes that were closed meanwhile -------------------------------------------------------------


def test_capacity_that_was_given_on_a_node_that_closed_is_taken_back_before_it_starts():
    owner = build.assigned(build.a_run())
    now = times.from_unix(NOW)
    assert assignment.reconcile(owner, 1, now, lambda *_: True, ()) is None
    assert assignment.reconcile(owner, 1, now, lambda *_: False, ()) == {"assignment": None}
    started = build.in_phase(owner, "Starting")
    assert assignment.reconcile(started, 1, now, lambda *_: False, ()) is None


def test_capacity_of_an_earlier_leader_is_confirmed_only_before_this_one_gives_any_away():
    """A write that was on its way when its leader's term ended may come late."""
    owner, now = build.assigned(build.a_run()), times.from_unix(NOW)
    kept = assignment.reconcile(owner, 2, now, lambda *_: True, ())
    assert kept["assignment"]["epoch"] == 2
    assert kept["assignment"]["members"] == {"worker": [{"node": "n1"}]}
    late = assignment.reconcile(owner, 2, now, lambda *_: True, (), first=False)
    assert late == {"assignment": None}


def test_growth_of_an_earlier_leader_is_confirmed_or_cut_and_not_taken_before():
    role = build.role(replicas=3, min_replicas=1, resize="live")
    owner = build.assigned(build.in_phase(build.a_run("job", role), "Running"))
    owner.status.members = {"worker": 1}
    pods = [build.pod(owner, index=index) for index in range(2)]  # the second is not noted yet
    keys = [members.key_of(pod) for pod in pods]
    now = times.from_unix(NOW)
    assert len(run_view.View(owner, pods, 1, now).wanted) == 3
    assert len(run_view.View(owner, pods, 2, now).wanted) == 2
    kept = assignment.reconcile(owner, 2, now, lambda *_: True, keys)["assignment"]
    assert (kept["epoch"], len(kept["members"]["worker"])) == (2, 3)
    cut = assignment.reconcile(owner, 2, now, lambda *_: True, keys, first=False)["assignment"]
    assert (cut["epoch"], len(cut["members"]["worker"])) == (2, 2)


def test_a_run_does_not_start_on_a_node_that_closed():
    owner = build.assigned(build.a_run())
    view = run_view.View(owner, [], 1, times.from_unix(NOW))
    assert state_machine.plan(view).move.to == "Starting"
    closed = state_machine.plan(dataclasses.replace(view, closed="n1"))
    assert closed.move is None
    assert closed.wake


# --- devices that nodes choose --------------------------------------------------------------------


def with_devices(*granted: str | None, **spec: Any) -> run_view.View:
    """A Run of two members with two devices each; what their pods say that they were given."""
    device = run.Device(kind="gpu", count=2)
    owner = build.a_run("job", build.role(replicas=2, devices=[device]), **spec)
    phase = "Running" if granted else "Starting"
    owner = build.assigned(build.in_phase(owner, phase), devices=["x.com/gpu/0", "x.com/gpu/1"])
    pods = [build.pod(owner, index=index) for index in range(2)]
    for pod, told in zip(pods, granted, strict=False):
        if told:
            pod.metadata.annotations[GRANTED] = told
    return run_view.View(owner, pods, 1, times.from_unix(NOW))


def test_devices_that_the_node_chose_are_noted_when_all_are_known():
    assert state_machine.plan(with_devices('{"x.com/gpu": ["A", "B"]}', None)).note is None
    view = with_devices('{"x.com/gpu": ["A", "B"]}', '{"x.com/gpu": ["C", "D"]}')
    granted = {
        "worker/0": ["x.com/gpu/A", "x.com/gpu/B"],
        "worker/1": ["x.com/gpu/C", "x.com/gpu/D"],
    }
    assert state_machine.plan(view).note == {"granted": granted}
    view.owner.status.granted = granted
    assert state_machine.plan(view).note is None
    assert members.granted_devices(with_devices("nonsense").pods[0]) == []


def test_where_links_matter_the_status_says_that_the_node_chose():
    move = state_machine.plan(with_devices()).move
    assert move.message == "2 running; the node of each replica chose its devices"


# --- clocks that are set --------------------------------------------------------------------------


@pytest.mark.parametrize("step", [7200.0, -7200.0, 600.0, 1.0, 0.0])
def test_a_clock_that_is_set_makes_nothing_older_or_younger(step):
    passed, moved = 0.0, 0.0
    elapsed = clock.Elapsed(lambda: times.from_unix(NOW + passed + moved), lambda: passed)
    began = times.seconds(times.from_unix(NOW))
    passed = 10.0
    assert elapsed.since(began) == pytest.approx(10)
    moved = step
    assert elapsed.since(began) == pytest.approx(10 + (step if abs(step) <= clock.LEAST else 0))
    passed = 30.0
    later = times.seconds(times.from_unix(NOW + passed + moved))
    passed = 40.0
    assert elapsed.since(later) == pytest.approx(10)


def test_a_clock_that_is_set_back_makes_no_run_wait_longer_than_the_limit():
    owner = build.a_run()
    owner.metadata.resource_version = "1"
    step = run.Transition(at=build.START, to_phase="Queued", reason=Reason.NODE_REFUSED)
    owner.status.history = [step]
    seen = cache.SchedulerCache()
    seen.on_run("ADDED", None, owner)
    seen.apply_changes(seen.drain_changes(NOW))
    assert seen.snapshot.waiting[owner.uid].not_before == NOW + retry.pause(1)
    seen.apply_changes(seen.drain_changes(NOW - 7200))
    assert seen.snapshot.waiting[owner.uid].not_before == NOW - 7200 + retry.pause(1)


def test_a_failure_with_a_time_in_the_future_is_waited_out_from_when_it_was_observed():
    """Scheduler and controllers run on machines whose clocks may be hours apart."""
    owner = build.a_run()
    owner.metadata.resource_version = "1"
    late = times.seconds(times.from_unix(NOW + 7200))
    owner.status.history = [run.Transition(at=late, to_phase="Queued", reason=Reason.NODE_REFUSED)]
    seen = cache.SchedulerCache()
    for passed in (0.0, 3.0):
        seen.on_run("MODIFIED", None, owner)
        seen.apply_changes(seen.drain_changes(NOW + passed))
        assert seen.snapshot.waiting[owner.uid].not_before == NOW + retry.pause(1)
