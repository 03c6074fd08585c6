"""Members that come and go: evictions, growth, restarts within an attempt, lost nodes."""

import datetime

import pytest

from tests.unit.control import build
from windlass.control.model import attempts, members, ports, run_view
from windlass.control.model.capabilities import Engine
from windlass.control.runs import controller, state_machine
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core, run
from windlass.kinds.values import times

NOW = times.parse(build.START)


def plan(owner: run.Run, *pods: core.Pod, after: float = 0, nodes=None) -> state_machine.Plan:
    now = NOW + datetime.timedelta(seconds=after)
    return state_machine.plan(run_view.View(owner, pods, 1, now, nodes or {}))


def moved(owner: run.Run, *pods: core.Pod, **more) -> tuple[str, str] | None:
    move = plan(owner, *pods, **more).move
    return (move.to, move.reason) if move else None


def running(replicas: int = 1, phase: str = "Running", resize: str = "live", **spec) -> run.Run:
    role = build.role(replicas=replicas, min_replicas=1, resize=resize)
    return build.assigned(build.in_phase(build.a_run("job", role, **spec), phase))


def all_pods(owner: run.Run, count: int, phase: str = "Running") -> list[core.Pod]:
    return [build.pod(owner, phase, index) for index in range(count)]


def indexes(pods) -> list[str]:
    return [pod.metadata.labels[run.LABEL_INDEX] for pod in pods]


def evicted(owner: run.Run, **keep: int) -> run.Run:
    owner.status.eviction = run.Eviction(
        by="uid-other", reason="queue a takes back", keep_members=keep or None, deadline=build.START
    )
    return owner


# --- evictions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["Starting", "Running"])
def test_an_eviction_of_all_stops_the_run_with_its_words(phase):
    owner = evicted(running(2, phase))
    move = plan(owner, *all_pods(owner, 2)).move
    assert move is not None
    assert (move.to, move.reason, move.message) == (
        "Stopping", Reason.PREEMPTED, "queue a takes back",
    )  # fmt: skip


@pytest.mark.parametrize("phase", ["Starting", "Running"])
def test_a_live_run_notes_that_it_shrinks_and_then_lets_the_highest_go(phase):
    owner = evicted(running(4, phase), worker=2)
    pods = all_pods(owner, 4, "Pending" if phase == "Starting" else "Running")
    first = plan(owner, *pods)
    assert (first.note, first.delete) == ({"members": {"worker": 2}}, ())
    owner.status.members = {"worker": 2}
    assert indexes(plan(owner, *pods).delete) == ["2", "3"]
    for pod in pods[2:]:
        pod.metadata.deletion_timestamp = build.START
        pod.status.phase = "Failed"
    assert plan(owner, *pods) == state_machine.Plan()


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("to make room for run high", "with 2 workers instead of 4 to make room for run high"),
        ("queue a takes back", "with 2 workers instead of 4, queue a takes back"),
    ],
)
def test_a_run_that_cannot_shrink_while_it_runs_starts_again(reason, message):
    owner = evicted(running(4, resize="restart"), worker=2)
    owner.status.eviction.reason = reason
    move = plan(owner, *all_pods(owner, 4)).move
    assert move is not None
    assert (move.to, move.reason, move.message) == ("Stopping", Reason.RESIZED, message)
    build.in_phase(owner, "Stopping", Reason.RESIZED)
    assert moved(owner) == ("Queued", Reason.RESIZED)


# --- growth ---------------------------------------------------------------------------------------


def test_more_capacity_makes_more_members_and_is_noted_when_they_are_there():
    owner = running(3)
    owner.status.members = {"worker": 1}
    made = plan(owner, *all_pods(owner, 1))
    assert indexes(made.create) == ["1", "2"]
    assert plan(owner, *all_pods(owner, 3)).note == {"members": {"worker": 3}}


def test_a_run_that_cannot_grow_while_it_runs_starts_again():
    owner = running(3, resize="restart")
    owner.status.members = {"worker": 1}
    assert moved(owner, *all_pods(owner, 1)) == ("Stopping", Reason.RESIZED)


def test_a_started_member_that_vanished_is_not_taken_for_one_that_joins():
    owner = running(3)
    assert moved(owner, *all_pods(owner, 2)) == ("Stopping", Reason.NODE_LOST)


def test_a_run_that_succeeds_although_processes_were_killed_for_memory_says_so():
    owner = running(2)
    ended = [build.pod(owner, "Succeeded", index, exit_code=0) for index in range(2)]
    move = plan(owner, *ended).move
    assert move is not None
    assert move.message == "ended with success"
    ended[1].status.container_statuses[0].state.terminated.reason = "OOMKilled"
    move = plan(owner, *ended).move
    assert move is not None
    assert move.reason == Reason.COMPLETED
    assert f"{ended[1].name} were killed for exceeding the memory limit" in move.message


def test_members_one_by_one_end_the_run_only_when_the_last_has_ended():
    owner = running(3, placement=run.Placement(gang=False))
    assert owner.status.assignment is not None
    owner.status.assignment.members["worker"].pop()
    owner.status.members = {"worker": 2}
    ended = all_pods(owner, 2, "Succeeded")
    assert moved(owner, *ended) is None
    owner.status.assignment.members["worker"].append(run.Member(node="n1"))
    assert indexes(plan(owner, *ended).create) == ["2"]
    assert moved(owner, *all_pods(owner, 3, "Succeeded")) == ("Succeeded", Reason.COMPLETED)


# --- restarts -------------------------------------------------------------------------------------


def restarting(restart: str, **more) -> tuple[run.Run, list[core.Pod]]:
    owner = running(2, restart=restart, **more)
    return owner, [build.pod(owner), build.pod(owner, "Failed", 1, exit_code=3)]


@pytest.mark.parametrize(("restart", "what"), [("pod", "worker/1"), ("role", "worker")])
def test_a_restart_is_noted_before_anything_is_deleted(restart, what):
    owner, pods = restarting(restart)
    made = plan(owner, *pods)
    assert (made.delete, made.move) == ((), None)
    assert made.note is not None
    assert (made.note["restarts"], made.note["restarted"]) == (1, {what: 1})
    assert "exit code 3" in made.note["message"]


@pytest.mark.parametrize(
    ("what", "gone"), [("worker/1", ["1"]), ("worker", ["0", "1"])]
)  # fmt: skip
def test_what_was_noted_is_made_anew_after_a_pause_and_only_once(what, gone):
    owner, pods = restarting("pod")
    owner.status.restarts, owner.status.restarted = 1, {what: 1}
    owner.status.restarted_at = build.START
    assert indexes(plan(owner, *pods).delete) == gone
    left = [pod for pod in pods if indexes([pod])[0] not in gone]
    assert plan(owner, *left, after=4).wake == pytest.approx(1)
    made = plan(owner, *left, after=5).create
    assert indexes(made) == gone
    assert [members.restart_of(pod) for pod in made] == [1] * len(gone)
    for pod in made:
        pod.status.phase = "Running"
    assert plan(owner, *left, *made, after=5) == state_machine.Plan()


def test_a_member_that_fails_too_often_fails_the_run():
    owner, pods = restarting("pod", retries=run.Retries(limit=2))
    owner.status.restarts = 2
    assert moved(owner, *pods) == ("Stopping", Reason.CODE_FAILED)


def test_a_lost_member_is_not_started_again_on_the_same_node():
    owner, pods = restarting("pod")
    pods[1].status.container_statuses, pods[1].status.reason = None, "Evicted"
    assert moved(owner, *pods) == ("Stopping", Reason.NODE_LOST)


# --- nodes ----------------------------------------------------------------------------------------

LOST = {"n1": run_view.Node("lost", 60.0)}
GONE = {"n1": run_view.Node("gone")}


@pytest.mark.parametrize("nodes", [LOST, GONE])
@pytest.mark.parametrize("phase", ["Starting", "Running"])
def test_a_run_on_a_lost_node_is_stopped_and_will_avoid_it(phase, nodes):
    owner = running(1, phase)
    move = plan(owner, build.pod(owner, "Pending"), nodes=nodes).move
    assert move is not None
    assert (move.to, move.reason, move.avoid) == ("Stopping", Reason.NODE_LOST, ("n1",))


def test_members_that_ended_on_a_node_do_not_miss_it():
    owner = running(2)
    pods = [build.pod(owner, "Succeeded"), build.pod(owner, "Running", 1)]
    pods[1].spec.node_name = "n2"
    assert owner.status.assignment is not None
    owner.status.assignment.members["worker"][1] = run.Member(node="n2")
    assert moved(owner, *pods, nodes=GONE) is None


def test_another_attempt_waits_until_pods_on_a_silent_node_are_given_up():
    owner = build.in_phase(running(), "Stopping", Reason.NODE_LOST)
    pod = build.pod(owner)
    waiting = plan(owner, pod, nodes={"n1": run_view.Node("lost", 299.0)})
    assert (waiting.move, waiting.delete, waiting.force) == (None, (pod,), ())
    assert waiting.wake == pytest.approx(1)
    given_up = plan(owner, pod, nodes={"n1": run_view.Node("lost", 300.0)})
    assert given_up.move is not None
    assert (given_up.move.to, given_up.force) == ("Queued", (pod,))
    assert "n1, which does not report, may have run twice" in given_up.move.message


def test_a_node_that_fell_silent_later_is_waited_for_from_then_on():
    owner = build.in_phase(running(), "Stopping", Reason.TIMEOUT)
    later = {"n1": run_view.Node("lost", 1.0)}
    assert plan(owner, build.pod(owner), nodes=later, after=601).wake == pytest.approx(299)


def test_pods_of_a_lost_node_block_no_run_and_did_not_run_twice():
    owner = build.in_phase(running(), "Stopping", Reason.NODE_LOST)
    pod = build.pod(owner)
    made = plan(owner, pod, nodes=GONE)
    assert made.move is not None
    assert (made.move.to, made.force) == ("Queued", (pod,))
    assert "twice" not in made.move.message


def test_pods_on_living_nodes_are_always_waited_for():
    owner = build.in_phase(running(2), "Stopping", Reason.NODE_LOST)
    pods = all_pods(owner, 2)
    pods[1].spec.node_name = "n2"
    assert plan(owner, *pods, nodes=LOST, after=10**6).move is None


def test_a_new_attempt_does_not_start_beside_a_pod_of_the_last():
    owner = build.in_phase(build.a_run(), "Queued", Reason.NODE_LOST)
    old = build.pod(owner)
    owner.status.attempt = 1
    build.assigned(owner)
    back, silent = plan(owner, old), plan(owner, old, nodes=LOST)
    assert (back.move, back.delete, back.force) == (None, (old,), ())
    assert (silent.move, silent.delete, silent.force) == (None, (), (old,))
    assert moved(owner) == ("Starting", Reason.ASSIGNED)


def test_a_node_that_refuses_a_member_is_avoided_and_it_costs_nothing():
    owner = running(1, "Starting")
    pod = build.pod(owner, "Failed")
    pod.status.reason, pod.status.message = "OutOfcpu", "not enough cpu"
    move = plan(owner, pod).move
    assert move is not None
    assert (move.to, move.reason, move.avoid, move.cost) == (
        "Queued", Reason.NODE_REFUSED, ("n1",), 0,
    )  # fmt: skip


# --- ports ----------------------------------------------------------------------------------------


def seen(owner: run.Run, *pods: core.Pod, **context) -> state_machine.Plan:
    engine = Engine(images=False, addresses="node")
    view = run_view.View(owner, pods, 1, NOW, {}, attempts.AttemptContext(engine, **context))
    return state_machine.plan(view)


@pytest.mark.parametrize("phase", ["Starting", "Running"])
@pytest.mark.parametrize(("room", "restarts"), [(3, False), (2, True)])
def test_a_run_that_grows_beyond_its_ports_starts_again(phase, room, restarts):
    owner = running(3, phase)
    owner.status.members = {"worker": 2}
    block = ports.Block(20000, 1, (("worker", room),))
    made = seen(owner, *all_pods(owner, 2), ports=block)
    if restarts:
        assert (made.move.to, made.move.reason) == ("Stopping", Reason.RESIZED)
        assert "it has ports for 2" in made.move.message
    else:
        assert indexes(made.create) == ["2"]


def test_without_ports_a_run_says_so_once_and_can_be_stopped():
    owner = running(2, "Starting")
    made = seen(owner, blocked=attempts.BlockedReason(message="no ports"))
    assert made.note == {"reason": Reason.WAITING_FOR_CAPACITY, "message": "no ports"}
    owner.status.reason, owner.status.message = Reason.WAITING_FOR_CAPACITY, "no ports"
    made = seen(owner, blocked=attempts.BlockedReason(message="no ports"))
    assert (made.note, tuple(made.create), made.wake) == (None, (), 5.0)
    block = ports.Block(20000, 1, (("worker", 2),))
    assert seen(owner, ports=block).note == {"reason": "", "message": ""}
    owner.spec.stop = True
    assert seen(owner, blocked=attempts.BlockedReason(message="no ports")).move.to == "Stopped"


# --- nodes that failed it -------------------------------------------------------------------------


@pytest.mark.parametrize(("after", "kept"), [(3599, ["n1", "n2"]), (3601, None)])
def test_nodes_that_failed_it_are_forgotten_after_an_hour(after, kept):
    owner = running(1, "Stopping")
    owner.status.history = [
        run.Transition(at=build.START, to_phase="Queued", reason=Reason.NODE_LOST),
        run.Transition(at="2026-01-01T10:59:00Z", to_phase="Running", reason="MembersRunning"),
    ]
    owner.status.avoid = ["n1", "n2"]
    now = NOW + datetime.timedelta(seconds=after)
    move = state_machine.Move("Queued", Reason.CODE_FAILED, "", next_attempt=True)
    assert controller.status_patch(owner, move, now).get("avoid", owner.status.avoid) == kept
    blamed = state_machine.Move("Queued", Reason.NODE_LOST, "", next_attempt=True, avoid=("n1",))
    assert controller.status_patch(owner, blamed, now)["avoid"] == [*(["n2"] if kept else []), "n1"]
