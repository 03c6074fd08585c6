"""Reservations: from a calendar to windows, their status, and evictions that are taken back."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.control import build
from windlass.control.convert import reservations, run_workloads
from windlass.control.scheduler import assignment
from windlass.control.scheduler.status import reservation_status
from windlass.core.model import types
from windlass.core.snapshot import snapshot as snapshot_module
from windlass.kinds import codec
from windlass.kinds.types import reservation, run
from windlass.kinds.values import times

NOW = times.parse("2036-01-05T12:00:00Z").timestamp()
HOUR = 3600.0


def a_reservation(name: str = "res", **spec) -> reservation.Reservation:
    """Fields as users write them."""
    given = {"nodes": {"names": ["n0"]}, "duration": "2h", **spec}
    whole = {name: value for name, value in given.items() if value is not None}
    return codec.from_dict(
        reservation.Reservation,
        {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Reservation",
            "metadata": {"name": name, "generation": 3}, "spec": whole,
        },
    )  # fmt: skip


def spans(now: float = NOW, **spec) -> list[tuple[float, float]]:
    found = reservations.spans(a_reservation(**spec).spec, now)
    return [((each.start - NOW) / HOUR, (each.end - NOW) / HOUR) for each in found]


def test_a_date_is_one_window_until_it_is_over():
    begin = {"from": "2036-01-05T13:00:00Z"}
    assert spans(**begin) == [(1, 3)]
    assert spans(NOW + 2 * HOUR, **begin) == [(1, 3)]
    assert spans(NOW + 3 * HOUR, **begin) == []
    assert spans(duration=None, to="2036-01-05T15:30:00+01:00", **begin) == [(1, 2.5)]


def test_a_schedule_is_the_open_window_and_the_next_ones():
    daily = spans(schedule="0 11 * * *")
    assert daily[:2] == [(-1, 1), (23, 25)]
    assert len(daily) == reservations.MOST_WINDOWS
    assert spans(NOW + HOUR, schedule="0 11 * * *")[0] == (23, 25)


def test_a_schedule_follows_its_time_zone_through_daylight_saving():
    spec = a_reservation(schedule="0 20 * * *", timeZone="Europe/Berlin").spec
    summer = times.parse("2036-03-29T22:00:00Z").timestamp()
    starts = [times.from_unix(each.start).hour for each in reservations.spans(spec, summer)[:1]]
    winter = [times.from_unix(each.start).hour for each in reservations.spans(spec, NOW)[:1]]
    assert (starts, winter) == ([18], [19])


def test_windows_that_overlap_are_one():
    assert spans(schedule="0 * * * *", duration="90m")[0][0] == pytest.approx(-1)
    assert spans(schedule="0 * * * *", duration="90m")[0][1] > 100


def test_events_are_written_once_and_again_when_a_window_is_over():
    found = reservations.Reservations()
    each = a_reservation(schedule="0 11 * * *", **{"for": {"queues": ["q"], "users": ["u"]}})
    found.on_change("ADDED", None, each)
    (event,) = found.events(NOW)
    first = event.windows[0]
    assert (first.name, first.nodes, first.queues, first.users) == (
        "res", frozenset({"n0"}), frozenset({"q"}), frozenset({"u"}),
    )  # fmt: skip
    assert found.events(NOW + 60) == []
    (event,) = found.events(NOW + HOUR)
    assert event.windows[0].start == NOW + 23 * HOUR
    assert found.existing() == {"reservation/res"}
    found.on_change("DELETED", each, None)
    assert found.events(NOW + HOUR) == [snapshot_module.AdvancePut(())]
    assert found.events(NOW + HOUR) == []


# --- evictions


def test_an_eviction_names_its_reservation_and_is_taken_back_when_that_is_gone():
    owner = build.a_run("a", build.role())
    owner.status = run.RunStatus(
        phase="Running", attempt=1, members={"worker": 1},
        assignment=run.Assignment(attempt=1, epoch=1, members={"worker": [run.Member(node="n")]}),
    )  # fmt: skip
    reason = "reservation res begins"
    eviction = types.Eviction("u", (("worker", 0),), "", reason, reservation="res")
    patch = assignment.evict(owner, eviction, times.now())
    assert patch["eviction"]["by"] == "reservation/res"
    owner.status.eviction = run.Eviction(**_snake(patch["eviction"]))
    assert assignment.cancel_eviction(owner, {"reservation/res"}) is None
    assert assignment.cancel_eviction(owner, set()) == {"eviction": None}


def _snake(value: dict) -> dict:
    return {"keep_members" if k == "keepMembers" else k: v for k, v in value.items()}


# --- status


def a_node(name: str, gpus: int = 4) -> types.Node:
    devices = tuple(types.Device(f"g{i}", "gpu") for i in range(gpus))
    return types.Node(name, {"cpu": 8000, "memory": 1 << 30}, devices)


def running(key: str, node: str, gpus: int, first: int = 0, **more) -> types.Running:
    role = types.Role("w", 1, 1, {"cpu": 1000}, (types.DeviceRequest("gpu", gpus),))
    grants = tuple(types.Grant(f"g{i}") for i in range(first, first + gpus))
    pod = types.PodAssignment("w", 0, node, grants)
    return types.Running(types.Workload(key, "q", (role,), **more), (pod,), NOW - 10)


def status(each: reservation.Reservation, *others: reservation.Reservation, at=NOW, running=()):
    listed = (each, *others)
    windows = [w for r in listed for w in reservations.read(r, reservations.spans(r.spec, at))]
    snapshot = snapshot_module.build(
        types.ClusterFacts(
            (a_node("n0"), a_node("n1")), (types.Queue("q"),), tuple(running),
            advance=tuple(windows),
        )
    )  # fmt: skip
    return reservation_status.derive(snapshot, listed, at)[each.name]


def conditions(found: reservation.ReservationStatus) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status, each.message) for each in found.conditions or ()}


def test_status_follows_the_clock():
    each = a_reservation(**{"from": "2036-01-05T13:00:00Z"})
    assert status(each).state == "Scheduled"
    assert status(each, at=NOW + 2 * HOUR).state == "Active"
    over = status(each, at=NOW + 4 * HOUR)
    assert (over.state, over.window.start) == ("Ended", "2036-01-05T13:00:00Z")


def test_status_shows_what_it_holds_its_users_and_remaining_workloads():
    each = a_reservation(**{"from": "2036-01-05T11:00:00Z", "for": {"users": ["ann"]}})
    found = status(
        each,
        running=[
            running("mine", "n0", 1, user="ann"), running("firm", "n0", 1, 1, preemptible=False),
        ],
    )  # fmt: skip
    assert (found.nodes, found.node_count, found.staying) == (["n0"], 1, 1)
    assert found.reserved == {"cpu": "8", "memory": "1Gi", "gpu": "4"}
    assert found.used == {"cpu": "1", "gpu": "1"}


def test_status_says_how_much_of_an_amount_is_missing():
    each = a_reservation(**{"from": "2036-01-05T11:00:00Z", "nodes": None, "amounts": {"gpu": 6}})
    firm = [running("firm", "n0", 3, preemptible=False)]
    assert conditions(status(each))["Satisfied"] == ("True", "")
    told = conditions(status(each, running=firm))["Satisfied"]
    assert told[0] == "False"
    assert "1 gpu cannot be set aside" in told[1]


def test_status_says_what_is_not_there_and_what_conflicts():
    begin = {"from": "2036-01-05T11:00:00Z"}
    gone = conditions(status(a_reservation(**begin, nodes={"names": ["n0", "n7"]})))
    assert gone["Satisfied"] == ("False", "there is no node n7")
    labels = conditions(status(a_reservation(**begin, nodes={"selector": {"row": "b"}})))
    assert labels["Satisfied"][1] == "no node has these labels"
    one = a_reservation("one", **begin)
    other = a_reservation("other", **begin, **{"for": {"queues": ["q"]}})
    assert "reservation other holds the same" in conditions(status(one, other))["Conflicts"][1]
    later = a_reservation("later", **{"from": "2036-01-05T13:00:00Z", "for": {"queues": ["q"]}})
    assert conditions(status(one, later))["Conflicts"][0] == "False"


def test_only_what_differs_is_written():
    each = a_reservation(**{"from": "2036-01-05T11:00:00Z"})
    found, now = status(each), times.from_unix(NOW)
    patch = reservation_status.changes(each, found, now)
    assert patch["observedGeneration"] == 3
    written = msgspec.convert(
        {k: v for k, v in patch.items() if v is not None}, reservation.ReservationStatus
    )
    each.status = written
    assert reservation_status.changes(each, found, now) == {}
    ended = reservation_status.changes(each, reservation.ReservationStatus(state="Ended"), now)
    assert ended["nodes"] is None
    assert ended["reserved"] == {"cpu": None, "memory": None, "gpu": None}


# --- what Runs say


def test_a_runs_maximum_and_grace_are_known_to_the_core():
    owner = build.a_run(
        "a", build.role(), duration=run.Durations(max="2h"), checkpoint=run.Checkpoint(grace="90s")
    )
    workload = run_workloads.read_workload(owner, "q")
    assert (workload.max_runtime, workload.grace, workload.expected) == (7200.0, 90.0, None)
