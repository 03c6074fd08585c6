import datetime

import pytest

from windlass.agent.pods import pod_status
from windlass.agent.runtime.containers import Observed
from windlass.kinds.types import core
from windlass.kinds.values import times

NOW = times.parse("2026-01-01T00:01:00Z")
THEN = "2026-01-01T00:00:00.500000Z"


def seen(state="running", code=0, restarts=0, name="c") -> Observed:
    finished = THEN if state == "ended" else ""
    return Observed(name, state, restarts, THEN, finished, code, None, "Error" if code else "")


def pod(policy="Never") -> core.Pod:
    container = core.Container(name="c", image="windlass.dev/host")
    return core.Pod(spec=core.PodSpec(restart_policy=policy, containers=[container]))


PHASES = {
    "all run": ("Never", [seen(), seen()], "Running"),
    "one still waits": ("Never", [seen(), seen("waiting")], "Pending"),
    "one ended": ("Never", [seen(), seen("ended")], "Running"),
    "all ended well": ("Never", [seen("ended"), seen("ended")], "Succeeded"),
    "one failed": ("Never", [seen("ended"), seen("ended", 1)], "Failed"),
    "failed, to be restarted": ("OnFailure", [seen("ended", 1)], "Running"),
    "well, not restarted on failure": ("OnFailure", [seen("ended")], "Succeeded"),
    "well, restarted always": ("Always", [seen("ended")], "Running"),
}


@pytest.mark.parametrize(("policy", "containers", "expected"), PHASES.values(), ids=PHASES)
def test_phase(policy, containers, expected):
    assert pod_status.phase(policy, containers) == expected


def test_restarts_wait_longer_each_time():
    waits = [pod_status.restart_after("Always", seen("ended", 1, n)) for n in (0, 1, 2, 9)]
    assert waits == [10, 20, 40, 300]


def test_the_status_tells_exit_code_times_and_address():
    status = pod_status.build(pod(), [seen("ended", 3)], "10.0.0.9", NOW)
    assert (status["phase"], status["podIP"]) == ("Failed", "10.0.0.9")
    (container,) = status["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == 3
    assert container["state"]["terminated"]["finishedAt"] == "2026-01-01T00:00:00Z"


def test_a_container_that_waits_for_its_restart_shows_how_it_ended():
    status = pod_status.build(pod("Always"), [seen("ended", 3, 2)], "10.0.0.9", NOW)
    (container,) = status["containerStatuses"]
    assert container["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert container["lastState"]["terminated"]["exitCode"] == 3
    assert container["restartCount"] == 2


def test_times_of_conditions_move_only_when_they_change():
    first = pod_status.build(pod(), [seen()], "10.0.0.9", NOW)
    known = core.Pod(spec=pod().spec)
    known.status.conditions = [
        core.Condition(
            type=c["type"], status=c["status"], last_transition_time=c["lastTransitionTime"]
        )
        for c in first["conditions"]
    ]
    later = NOW + datetime.timedelta(hours=1)
    ended = pod_status.build(known, [seen("ended")], "10.0.0.9", later)["conditions"]
    assert {c["type"]: c["lastTransitionTime"] for c in ended} == {
        "PodScheduled": "2026-01-01T00:01:00Z",
        "Initialized": "2026-01-01T00:01:00Z",
        "ContainersReady": "2026-01-01T01:01:00Z",
        "Ready": "2026-01-01T01:01:00Z",
    }
