import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.control import build
from windlass.control.model import retry, run_view
from windlass.control.runs import controller, state_machine
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core, run
from windlass.kinds.values import times

NOW = times.parse(build.START)


def plan(owner: run.Run, *pods: core.Pod, epoch: int = 1, after: float = 0):
    now = NOW + datetime.timedelta(seconds=after)
    return state_machine.plan(run_view.View(owner, pods, epoch, now))


def moved(owner: run.Run, *pods: core.Pod, **more) -> tuple[str, str] | None:
    move = plan(owner, *pods, **more).move
    return (move.to, move.reason) if move else None


def queued(**spec) -> run.Run:
    return build.in_phase(build.a_run("job", **spec), "Queued")


def starting(*roles: run.Role, **spec) -> run.Run:
    return build.assigned(build.in_phase(build.a_run("job", *roles, **spec), "Starting"))


def running(*roles: run.Role, **spec) -> run.Run:
    return build.assigned(build.in_phase(build.a_run("job", *roles, **spec), "Running"))


def stopping(reason: Reason, **spec) -> run.Run:
    return build.assigned(build.in_phase(build.a_run("job", **spec), "Stopping", reason))


def deleted(owner: run.Run) -> run.Run:
    owner.metadata.deletion_timestamp = build.START
    return owner


def leaving(pod: core.Pod) -> core.Pod:
    pod.metadata.deletion_timestamp = build.START
    return pod


def test_a_new_run_waits_as_it_is_and_its_history_begins_with_its_first_step():
    owner = build.a_run()
    owner.metadata.creation_timestamp = "2026-01-01T09:00:00Z"
    assert plan(owner) == state_machine.Plan()
    patch = controller.status_patch(
        owner, state_machine.Move("Starting", "Assigned", "placed"), NOW
    )
    assert [(step["at"], step["to"]) for step in patch["history"]] == [
        ("2026-01-01T09:00:00Z", "Queued"),
        (build.START, "Starting"),
    ]


QUEUED = {
    "without room it waits": (queued(), None),
    "with room it starts": (build.assigned(queued()), ("Starting", Reason.ASSIGNED)),
    "held, it waits": (build.assigned(queued(suspend=True)), None),
    "room of an earlier leader is not used": (build.assigned(queued(), epoch=7), None),
    "deleted, it is stopped": (deleted(queued()), ("Stopped", Reason.USER_STOPPED)),
    "stopped by its user": (queued(stop=True), ("Stopped", Reason.USER_STOPPED)),
}


@pytest.mark.parametrize(("owner", "expected"), QUEUED.values(), ids=QUEUED)
def test_queued(owner, expected):
    assert moved(owner) == expected


def test_capacity_for_another_attempt_is_not_used():
    owner = build.assigned(queued())
    owner.status.attempt = 1
    assert moved(owner) is None


def test_starting_creates_what_is_missing_and_only_that():
    owner = starting(build.role(replicas=3))
    made = plan(owner, build.pod(owner, "Pending", index=1))
    assert [(p.metadata.labels[run.LABEL_INDEX], p.spec.node_name) for p in made.create] == [
        ("0", "n1"),
        ("2", "n1"),
    ]
    assert made.move is None


def test_starting_becomes_running_when_all_members_run_or_have_ended():
    owner = starting(build.role(replicas=2))
    pods = [build.pod(owner, "Running", 0), build.pod(owner, "Pending", 1)]
    assert moved(owner, *pods) is None
    for phases in (("Running", "Succeeded"), ("Succeeded", "Succeeded")):
        assert moved(owner, *both(owner, *phases)) == ("Running", Reason.MEMBERS_RUNNING)


def test_a_member_that_fails_while_others_wait_stops_the_start():
    owner = starting(build.role(replicas=2))
    assert moved(owner, *both(owner, "Failed", "Pending")) == ("Stopping", Reason.CODE_FAILED)


def test_not_starting_in_time_is_a_timeout():
    owner = starting(duration=run.Durations(start="10m"))
    waiting = build.pod(owner, "Pending")
    assert plan(owner, waiting, after=599).wake == pytest.approx(1.0)
    assert moved(owner, waiting, after=600) == ("Stopping", Reason.TIMEOUT)


def both(owner: run.Run, first: str, second: str) -> list[core.Pod]:
    codes = {"Succeeded": 0, "Failed": 3}
    return [
        build.pod(owner, phase, index, codes.get(phase))
        for index, phase in enumerate((first, second))
    ]


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (("Running", "Running"), None),
        (("Running", "Succeeded"), None),
        (("Succeeded", "Succeeded"), ("Succeeded", Reason.COMPLETED)),
        (("Running", "Failed"), ("Stopping", Reason.CODE_FAILED)),
        (("Succeeded", "Failed"), ("Failed", Reason.CODE_FAILED)),
    ],
)
def test_running_folds_the_members_states(phases, expected):
    owner = running(build.role(replicas=2))
    assert moved(owner, *both(owner, *phases)) == expected


def test_the_failing_members_exit_code_is_the_runs():
    owner = running(build.role(replicas=2))
    move = plan(owner, *both(owner, "Succeeded", "Failed")).move
    assert move is not None
    assert move.exit_code == 3


def test_when_the_deciding_role_ends_the_rest_is_stopped():
    roles = [build.role("launcher"), build.role("worker", 2)]
    owner = running(*roles, completion=run.Completion(role="launcher"))
    launcher = build.pod(owner, "Succeeded")
    workers = []
    for index in range(2):
        worker = build.pod(owner, "Running", index)
        worker.metadata.labels[run.LABEL_ROLE] = "worker"
        workers.append(worker)
    assert moved(owner, launcher, *workers) == ("Stopping", Reason.COMPLETED)


def test_a_member_that_vanished_means_its_node_was_lost():
    owner = running(build.role(replicas=2), retries=run.Retries(limit=0))
    assert moved(owner, build.pod(owner)) == ("Stopping", Reason.NODE_LOST)
    assert moved(owner) == ("Failed", Reason.NODE_LOST)


def test_a_member_that_ends_because_it_was_deleted_did_not_fail_by_itself():
    owner = running(retries=run.Retries(limit=0))
    assert moved(owner, leaving(build.pod(owner, "Failed", exit_code=143))) == (
        "Failed",
        Reason.NODE_LOST,
    )


def test_running_too_long_is_a_timeout():
    owner = running(duration=run.Durations(max="1h"))
    assert plan(owner, build.pod(owner), after=3000).wake == pytest.approx(600)
    assert moved(owner, build.pod(owner), after=3600) == ("Stopping", Reason.TIMEOUT)


@pytest.mark.parametrize("make", [starting, running])
@pytest.mark.parametrize(
    ("spec", "reason"), [("suspend", Reason.SUSPENDED), ("stop", Reason.USER_STOPPED)]
)
def test_its_user_holds_or_stops_it(make, spec, reason):
    owner = make(**{spec: True})
    assert moved(owner, build.pod(owner)) == ("Stopping", reason)


def test_stopping_deletes_each_active_pod_once_and_waits():
    owner = stopping(Reason.SUSPENDED)
    active, asked, ended = build.pod(owner), leaving(build.pod(owner, index=1)), build.pod(owner)
    ended.status.phase = "Succeeded"
    made = plan(owner, active, asked, ended)
    assert (made.delete, made.move) == ((active,), None)


ENDS = {
    "completed": (stopping(Reason.COMPLETED), ("Succeeded", False)),
    "stopped by its user": (stopping(Reason.USER_STOPPED), ("Stopped", False)),
    "held": (stopping(Reason.SUSPENDED), ("Queued", True)),
    "timeout is never retried": (stopping(Reason.TIMEOUT), ("Failed", False)),
    "unsupported": (stopping(Reason.UNSUPPORTED), ("Failed", False)),
    "node lost is retried by default": (stopping(Reason.NODE_LOST), ("Queued", True)),
    "preempted is retried by default": (stopping(Reason.PREEMPTED), ("Queued", True)),
    "a failure is not, by default": (stopping(Reason.CODE_FAILED), ("Failed", False)),
    "a failure is, if asked for": (
        stopping(Reason.CODE_FAILED, retries=run.Retries(causes=["Failed"])),
        ("Queued", True),
    ),
    "no retries left": (
        stopping(Reason.NODE_LOST, retries=run.Retries(limit=0)),
        ("Failed", False),
    ),
}


@pytest.mark.parametrize(("owner", "expected"), ENDS.values(), ids=ENDS)
def test_what_follows_stopping(owner, expected):
    move = plan(owner).move
    assert move is not None
    assert (move.to, move.next_attempt) == expected


FREE = (Reason.SUSPENDED, Reason.RESIZED, Reason.PREEMPTED, Reason.NODE_REFUSED)


@pytest.mark.parametrize("reason", FREE)
def test_what_is_not_its_fault_costs_no_retry(reason):
    owner = stopping(reason, retries=run.Retries(limit=0))
    move = plan(owner).move
    assert move is not None
    patch = controller.status_patch(owner, move, NOW)
    assert (patch["phase"], patch["attempt"], patch["retries"]) == ("Queued", 1, 0)


def test_without_the_cause_a_preempted_run_has_failed():
    owner = stopping(Reason.PREEMPTED, retries=run.Retries(causes=[]))
    assert moved(owner) == ("Failed", Reason.PREEMPTED)


def test_another_attempt_counts_and_forgets_the_last():
    owner = stopping(Reason.NODE_LOST)
    owner.status.retries, owner.status.restarts = 1, 2
    owner.status.restarted = {"worker": 2}
    move = plan(owner).move
    assert move is not None
    assert move.message.endswith("retry 2 of 3")
    patch = controller.status_patch(owner, move, NOW)
    assert (patch["retries"], patch["restarts"], patch["restarted"]) == (2, 0, None)
    assert patch["members"] is None


def test_retries_wait_longer_each_time_and_a_held_run_does_not_wait():
    owner = build.in_phase(build.a_run(), "Queued", Reason.NODE_LOST)
    waits = []
    for used in (1, 2, 3, 30):
        owner.status.retries = used
        waits.append(retry.retry_at(owner) - NOW.timestamp())
    assert waits == [5, 10, 20, 300]
    for reason in (Reason.SUSPENDED, Reason.PREEMPTED, Reason.RESIZED):
        assert retry.retry_at(build.in_phase(build.a_run(), "Queued", reason)) == 0


def test_a_node_that_refuses_again_and_again_is_asked_less_and_less_often():
    owner = build.a_run()
    waits = []
    for _ in range(3):
        build.in_phase(owner, "Queued", Reason.NODE_REFUSED)
        waits.append(retry.retry_at(owner) - NOW.timestamp())
        build.in_phase(owner, "Starting")
        build.in_phase(owner, "Stopping", Reason.NODE_REFUSED)
    assert waits == [5, 10, 20]


def test_a_finished_run_is_deleted_after_its_time_to_live():
    owner = build.in_phase(build.a_run("job", ttl_after_finished="1h"), "Succeeded")
    assert plan(owner, after=60).wake == pytest.approx(3540)
    assert plan(owner, after=3600).delete_run
    kept = build.in_phase(build.a_run("job"), "Succeeded")
    assert plan(kept, after=10**9) == state_machine.Plan()


def test_a_pod_that_outlived_its_run_is_stopped():
    owner = build.in_phase(build.a_run(), "Failed")
    stray = build.pod(owner)
    assert plan(owner, stray).delete == (stray,)


def test_the_history_keeps_the_last_fifty_steps():
    owner = build.a_run()
    for step in range(60):
        build.in_phase(owner, "Queued", f"step {step}")
    patch = controller.status_patch(
        owner, state_machine.Move("Starting", "Assigned", "placed"), NOW
    )
    assert len(patch["history"]) == 50
    assert patch["history"][-1] == {
        "at": build.START, "from": "Queued", "to": "Starting", "reason": "Assigned",
        "message": "placed", "by": "runs",
    }  # fmt: skip


PHASES = ["Queued", "Starting", "Running", "Stopping", "Succeeded", "Failed", "Stopped"]
POD_PHASES = ["Pending", "Running", "Succeeded", "Failed"]


@given(
    phase=st.sampled_from(PHASES),
    reason=st.sampled_from(list(Reason)),
    pods=st.lists(st.tuples(st.sampled_from(POD_PHASES), st.booleans()), max_size=3),
    has_room=st.booleans(),
    suspend=st.booleans(),
    gone=st.booleans(),
    attempt=st.integers(0, 5),
    epoch=st.integers(1, 2),
    seconds=st.integers(0, 10**6),
)
def test_every_situation_has_an_allowed_next_step(
    phase, reason, pods, has_room, suspend, gone, attempt, epoch, seconds
):
    limits = run.Durations(start="1h", max="1d")
    owner = build.a_run("job", build.role(replicas=3), suspend=suspend, duration=limits)
    owner.status.attempt = attempt
    build.in_phase(owner, phase, reason)
    if has_room:
        build.assigned(owner)
    if gone:
        deleted(owner)
    present = []
    for index, (pod_phase, terminating) in enumerate(pods):
        made = build.pod(owner, pod_phase, index, 1 if pod_phase == "Failed" else None)
        present.append(leaving(made) if terminating else made)
    made = plan(owner, *present, epoch=epoch, after=seconds)
    if made.move is not None:
        assert made.move.to in state_machine.ALLOWED[phase]
        assert made.move.reason
    if phase in run.FINISHED:
        assert made.move is None
    # A phase is left for good only when nothing runs any more.
    if made.move is not None and made.move.to in ("Succeeded", "Failed", "Stopped"):
        assert phase == "Queued" or not [p for p in present if p.status.phase in POD_PHASES[:2]]
    assert not made.create or (phase in ("Starting", "Running") and not suspend and not gone)


# --- messages while replicas do not start yet


def hindered(owner: run.Run, **state) -> core.Pod:
    pod = build.pod(owner, "Pending")
    status = core.ContainerStatus(name="worker", state=core.ContainerState(**state))
    pod.status.container_statuses = [status]
    return pod


def test_the_cause_that_keeps_a_member_from_starting_is_set_once_and_cleared():
    owner = starting()
    missing = core.ContainerStateWaiting("CreateContainerConfigError", "no Secret x")
    told = plan(owner, hindered(owner, waiting=missing)).note
    assert told is not None
    assert "no Secret x" in told["message"]
    owner.status.message = told["message"]
    assert plan(owner, hindered(owner, waiting=missing)).note is None
    assert plan(owner, build.pod(owner, "Pending")).note == {
        "message": owner.status.history[-1].message
    }


def test_a_slow_environment_build_is_reported():
    owner = starting()
    pod = build.pod(owner, "Pending")
    since = core.ContainerStateRunning(build.START)
    state = core.ContainerState(running=since)
    pod.status.init_container_statuses = [core.ContainerStatus(name="prepare", state=state)]
    early = plan(owner, pod, after=0.5)
    assert (early.note, early.wake) == (None, 0.5)
    late = plan(owner, pod, after=1.5).note
    assert late is not None
    assert late["message"] == "installing packages and unpacking code"


@pytest.mark.parametrize(("reason", "warns"), [("Completed", False), ("OOMKilled", True)])
def test_a_run_that_succeeded_without_some_of_its_processes_says_so(reason, warns):
    owner = running()
    pod = build.pod(owner, "Succeeded")
    terminated = core.ContainerStateTerminated(exit_code=0, reason=reason)
    state = core.ContainerState(terminated=terminated)
    pod.status.container_statuses = [core.ContainerStatus(name="c", state=state)]
    move = plan(owner, pod).move
    assert (move.to, move.reason) == ("Succeeded", Reason.COMPLETED)
    assert (f"processes in {pod.name} were killed" in move.message) == warns
    assert ("--memory" in move.message) == warns
