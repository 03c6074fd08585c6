"""What of a cluster binds members besides room: quotas of namespaces, volumes, nodes that refuse,
nodes that were closed after they were given."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.unit.control import build
from windlass.control import (
    durations,
    members,
    picture,
    podrender,
    quotas,
    records,
    refusals,
    retrying,
    runmachine,
    runview,
    snapshots,
)
from windlass.core import facts
from windlass.kinds import clusterkinds, hostpods, kubernetes, meta, run, times
from windlass.kinds.reasons import Reason

NOW = times.parse("2026-01-01T10:00:00Z").timestamp()
ZONE = "topology.kubernetes.io/zone"


# --- quotas ---------------------------------------------------------------------------------------


def quota(hard: dict[str, str], **spec: Any) -> clusterkinds.ResourceQuota:
    return clusterkinds.ResourceQuota(
        metadata=meta.ObjectMeta(name="q", namespace="team"),
        spec=clusterkinds.ResourceQuotaSpec(hard=hard, **spec),
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
    found = quotas.read(quota(hard))
    assert found == (read and facts.Quota("team", "q", read))


def test_a_quota_for_other_pods_says_nothing_of_runs():
    assert quotas.read(quota({"pods": "1"}, scopes=["NotTerminating", "NotBestEffort"]))
    assert quotas.read(quota({"pods": "1"}, scopes=["Terminating"])) is None
    chosen = clusterkinds.ScopeRequirement(scope_name="PriorityClass", operator="Exists")
    selector = clusterkinds.ScopeSelector(match_expressions=[chosen])
    assert quotas.read(quota({"pods": "1"}, scope_selector=selector)) is None


# --- volumes --------------------------------------------------------------------------------------


def test_a_volume_out_of_reach_ends_the_attempt_for_free():
    owner = build.assigned(build.in_phase(build.a_run(), "Starting"))
    final = podrender.Hindrance(Reason.WAITING_FOR_DATA, "out of reach", final=True)
    view = runview.View(
        owner, [], 1, times.from_unix(NOW), setting=podrender.Setting(hindrance=final)
    )
    move = runmachine.plan(view).move
    assert (move.to, move.next_attempt, move.cost) == ("Queued", True, 0)


# --- nodes that refuse ----------------------------------------------------------------------------


def refused(name: str, at: float, phase: str = "Failed", node: str = "n1") -> kubernetes.Pod:
    pod = build.pod(build.a_run(name), phase)
    pod.spec.node_name, pod.metadata.uid = node, f"{name}-{at}"
    pod.metadata.creation_timestamp = times.seconds(times.from_unix(at))
    pod.status.reason = "OutOfcpu" if phase == "Failed" else ""
    return pod


SHAPE = refusals.shape_of(snapshots.role_of(build.role(), build.a_run()))
OTHER = refusals.shape_of(snapshots.role_of(build.role(cpu="2"), build.a_run()))


def test_a_node_that_refused_is_held_back_for_that_shape_longer_each_time():
    known = refusals.Refusals()
    for number, at in enumerate((NOW, NOW + 100, NOW + 200), 1):
        assert known.see(refused("job", at), SHAPE)
        ends = at + retrying.pause(number)
        assert known.held_back(SHAPE, ends - 0.1) == {"n1"}
        assert known.next_change(at) == ends
        assert not known.held_back(SHAPE, ends)
        assert not known.held_back(OTHER, at)


def test_members_of_one_gang_that_are_refused_at_once_are_one_refusal():
    known = refusals.Refusals()
    for name in ("a", "b", "c"):
        known.see(refused(name, NOW), SHAPE)
    assert known.next_change(NOW) == NOW + retrying.pause(1)


def test_a_member_that_runs_there_since_ends_it():
    known = refusals.Refusals()
    known.see(refused("job", NOW), SHAPE)
    running = refused("later", NOW + 2, "Running")
    assert known.concerns(running)
    assert not known.concerns(refused("elsewhere", NOW + 2, "Running", node="n2"))
    assert known.see(running, SHAPE)
    assert not known.held_back(SHAPE, NOW + 3)


def test_a_run_that_was_refused_is_told_the_words_and_when_it_is_tried_again():
    owner = build.a_run()
    owner.status.history = [
        run.Transition(at=build.START, to_phase="Queued", reason=reason, message="no")
        for reason in (Reason.ADMISSION_REFUSED, Reason.NODE_REFUSED, Reason.ADMISSION_REFUSED)
    ]
    unit = snapshots.read_unit(owner, "q")
    assert unit.lately == (Reason.ADMISSION_REFUSED, "no")
    assert unit.not_before == times.parse(build.START).timestamp() + retrying.pause(3)


# --- nodes that were closed meanwhile -------------------------------------------------------------


def test_room_that_was_given_on_a_node_that_closed_is_taken_back_before_it_starts():
    owner = build.assigned(build.a_run())
    now = times.from_unix(NOW)
    assert records.settle(owner, 1, now, lambda *_: True, ()) is None
    assert records.settle(owner, 1, now, lambda *_: False, ()) == {"assignment": None}
    started = build.in_phase(owner, "Starting")
    assert records.settle(started, 1, now, lambda *_: False, ()) is None


def test_room_of_an_earlier_leader_is_confirmed_only_before_this_one_gives_any_away():
    """A write that was on its way when its leader's term ended may come late."""
    owner, now = build.assigned(build.a_run()), times.from_unix(NOW)
    kept = records.settle(owner, 2, now, lambda *_: True, ())
    assert kept["assignment"]["epoch"] == 2
    assert kept["assignment"]["members"] == {"worker": [{"node": "n1"}]}
    late = records.settle(owner, 2, now, lambda *_: True, (), first=False)
    assert late == {"assignment": None}


def test_growth_of_an_earlier_leader_is_confirmed_or_cut_and_not_taken_before():
    role = build.role(replicas=3, min_replicas=1, resize="live")
    owner = build.assigned(build.in_phase(build.a_run("job", role), "Running"))
    owner.status.members = {"worker": 1}
    pods = [build.pod(owner, index=index) for index in range(2)]  # the second is not noted yet
    keys = [members.key_of(pod) for pod in pods]
    now = times.from_unix(NOW)
    assert len(runview.View(owner, pods, 1, now).wanted) == 3
    assert len(runview.View(owner, pods, 2, now).wanted) == 2
    kept = records.settle(owner, 2, now, lambda *_: True, keys)["assignment"]
    assert (kept["epoch"], len(kept["members"]["worker"])) == (2, 3)
    cut = records.settle(owner, 2, now, lambda *_: True, keys, first=False)["assignment"]
    assert (cut["epoch"], len(cut["members"]["worker"])) == (2, 2)


def test_a_run_does_not_start_on_a_node_that_closed():
    owner = build.assigned(build.a_run())
    view = runview.View(owner, [], 1, times.from_unix(NOW))
    assert runmachine.plan(view).move.to == "Starting"
    closed = runmachine.plan(dataclasses.replace(view, closed="n1"))
    assert closed.move is None
    assert closed.wake


# --- devices that nodes choose --------------------------------------------------------------------


def with_devices(*granted: str | None, **spec: Any) -> runview.View:
    """A Run of two members with two devices each; what their pods say that they were given."""
    device = run.Device(kind="gpu", count=2)
    owner = build.a_run("job", build.role(replicas=2, devices=[device]), **spec)
    phase = "Running" if granted else "Starting"
    owner = build.assigned(build.in_phase(owner, phase), devices=["x.com/gpu/0", "x.com/gpu/1"])
    pods = [build.pod(owner, index=index) for index in range(2)]
    for pod, told in zip(pods, granted, strict=False):
        if told:
            pod.metadata.annotations[hostpods.GRANTED] = told
    return runview.View(owner, pods, 1, times.from_unix(NOW))


def test_devices_that_the_node_chose_are_noted_when_all_are_known():
    assert runmachine.plan(with_devices('{"x.com/gpu": ["A", "B"]}', None)).note is None
    view = with_devices('{"x.com/gpu": ["A", "B"]}', '{"x.com/gpu": ["C", "D"]}')
    granted = {
        "worker/0": ["x.com/gpu/A", "x.com/gpu/B"],
        "worker/1": ["x.com/gpu/C", "x.com/gpu/D"],
    }
    assert runmachine.plan(view).note == {"granted": granted}
    view.owner.status.granted = granted
    assert runmachine.plan(view).note is None
    assert members.granted_devices(with_devices("nonsense").pods[0]) == []


def test_where_links_matter_the_status_says_that_the_node_chose():
    move = runmachine.plan(with_devices()).move
    assert move.message == "2 running; which devices each member got is its node's choice"


# --- clocks that are set --------------------------------------------------------------------------


@pytest.mark.parametrize("step", [7200.0, -7200.0, 600.0, 1.0, 0.0])
def test_a_clock_that_is_set_makes_nothing_older_or_younger(step):
    passed, moved = 0.0, 0.0
    elapsed = durations.Elapsed(lambda: times.from_unix(NOW + passed + moved), lambda: passed)
    began = times.seconds(times.from_unix(NOW))
    passed = 10.0
    assert elapsed.since(began) == pytest.approx(10)
    moved = step
    assert elapsed.since(began) == pytest.approx(10 + (step if abs(step) <= durations.LEAST else 0))
    passed = 30.0
    later = times.seconds(times.from_unix(NOW + passed + moved))
    passed = 40.0
    assert elapsed.since(later) == pytest.approx(10)


def test_a_clock_that_is_set_back_makes_nobody_wait_for_longer_than_ever():
    owner = build.a_run()
    owner.metadata.resource_version = "1"
    step = run.Transition(at=build.START, to_phase="Queued", reason=Reason.NODE_REFUSED)
    owner.status.history = [step]
    seen = picture.Picture()
    seen.see_run("ADDED", None, owner)
    seen.bring_up(seen.collect(NOW))
    assert seen.snapshot.waiting[owner.uid].not_before == NOW + retrying.pause(1)
    seen.bring_up(seen.collect(NOW - 7200))
    assert seen.snapshot.waiting[owner.uid].not_before == NOW - 7200 + retrying.pause(1)


def test_a_failure_that_another_clock_told_for_later_is_waited_out_from_when_it_was_seen():
    """Scheduler and controllers run on machines whose clocks may be hours apart."""
    owner = build.a_run()
    owner.metadata.resource_version = "1"
    late = times.seconds(times.from_unix(NOW + 7200))
    owner.status.history = [run.Transition(at=late, to_phase="Queued", reason=Reason.NODE_REFUSED)]
    seen = picture.Picture()
    for passed in (0.0, 3.0):
        seen.see_run("MODIFIED", None, owner)
        seen.bring_up(seen.collect(NOW + passed))
        assert seen.snapshot.waiting[owner.uid].not_before == NOW + retrying.pause(1)
