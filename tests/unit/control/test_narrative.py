"""The wording of explanations: what happened, on what a start rests, what to do."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from tests.unit.control import build
from windlass.control.explain import external_pods, narrative
from windlass.control.explain.service import Place, Waiting
from windlass.core.explain import explain
from windlass.core.model.types import Verdict
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core, run
from windlass.kinds.values import times

NOW = datetime.datetime(2026, 11, 1, 10, 0, tzinfo=datetime.UTC)


def waiting(verdict: Verdict, start: explain.Start, expected: float | None = None) -> Waiting:
    explained = explain.Explanation("me", verdict, 1, 1, 0, (), start, ())
    return Waiting(Place("q", 1, 1), explained, expected)


def told(found: Waiting, seen: bool = True) -> dict[str, Any]:
    holder = build.a_run("greedy")
    return narrative.of_waiting(found, NOW, lambda _key: holder, lambda _namespace: seen)


UNKNOWN = explain.Start(None, "unknown", "no end is stated")
SOON = NOW.timestamp() + 600


@pytest.mark.parametrize(
    ("basis", "seen", "sentence"),
    [
        ("stated", True, "if run greedy ends by its stated time."),
        ("similar", True, "if run greedy ends as similar runs did."),
        ("stated", False, "if a run of others ends by its stated time."),
    ],
)
def test_a_reserved_start_says_on_which_run_it_rests(
    basis: explain.Basis, seen: bool, sentence: str
) -> None:
    start = explain.Start(SOON, "reserved", "", ("greedy",), basis)
    found = waiting(Verdict("me", Reason.WAITING_FOR_CAPACITY, "needs 1 cpu"), start)
    expected = f"It is reserved to start by 10:10:00 UTC (in 10 min), {sentence}"
    assert expected in told(found, seen)["sentences"]


def test_a_predicted_start_may_be_passed_by_other_runs() -> None:
    start = explain.Start(SOON, "predicted", "", ("greedy",), "similar")
    found = waiting(Verdict("me", Reason.WAITING_FOR_CAPACITY, "needs 1 cpu"), start)
    assert told(found)["start"]["restsOn"] == (
        "run greedy ends as similar runs did, and no other run passes it"
    )


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (Reason.SUSPENDED, "It stays suspended until it is resumed."),
        (Reason.QUEUE_PAUSED, "It waits until the queue is resumed."),
        (Reason.BUDGET_EXHAUSTED, "It waits until the next period of the budget begins"),
        (Reason.WAITING_FOR_DATA, "It waits until the data is ready."),
        (Reason.UNSUPPORTED, "It does not start as it is."),
    ],
)
def test_a_known_reason_says_until_when_and_not_that_the_start_is_unknown(
    reason: Reason, sentence: str
) -> None:
    text = " ".join(told(waiting(Verdict("me", reason, "why"), UNKNOWN))["sentences"])
    assert sentence in text
    assert "not known" not in text


def test_an_unknown_start_says_why_it_is_unknown() -> None:
    found = waiting(Verdict("me", Reason.WAITING_FOR_CAPACITY, "needs 1 cpu"), UNKNOWN)
    assert "When it starts is not known: no end is stated." in told(found)["sentences"]


@pytest.mark.parametrize(
    ("resource", "possible", "remedy"),
    [
        ("cpu", 2000, "Ask for 2 CPUs or fewer (--cpus), or have a larger node added."),
        ("cpu", 1000, "Ask for 1 CPU or fewer (--cpus), or have a larger node added."),
        ("memory", 24 << 30, "Ask for 24Gi of memory or less (--memory), or have a larger node "
         "added."),
        ("members", 2, "Ask for 2 workers or fewer (--workers), or have more nodes added."),
        ("gpu", 8000, "Ask for 8 GPUs or fewer per worker (--gpus), or have a larger node added."),
        ("gpu", 0, "Leave GPUs out, which no node has (--gpus), or have a larger node added."),
    ],
)  # fmt: skip
def test_an_impossible_request_names_what_is_possible(
    resource: str, possible: int, remedy: str
) -> None:
    verdict = Verdict("me", Reason.IMPOSSIBLE, "too much", resource, 1, possible=possible)
    assert told(waiting(verdict, UNKNOWN))["remedy"] == remedy


def ended(phase: str, reason: str, message: str, code: int | None = None, **more: Any) -> list[str]:
    owner = build.a_run("r")
    at = times.seconds(NOW - datetime.timedelta(seconds=1))
    history = [
        *more.pop("history", []),
        run.Transition(at=at, from_phase="Running", to_phase=phase, reason=reason, message=message),
    ]
    owner.status = run.RunStatus(
        phase=phase, reason=reason, message=message, exit_code=code, history=history, **more
    )
    found: list[str] = narrative.of_other(owner, None, "", NOW)["sentences"]
    return found


def test_a_failure_has_its_time_and_exit_code_once() -> None:
    assert ended("Failed", "CodeFailed", "r-0: ended by an error with exit code 1", 1) == [
        "Failed 1 s ago (exit code 1): r-0: ended by an error."
    ]
    assert ended("Failed", "Timeout", "exceeded --timeout 3s (spec.duration.max)") == [
        "Failed 1 s ago: exceeded --timeout 3s (spec.duration.max)."
    ]
    assert ended("Stopped", "UserStopped", "stopped by its user") == [
        "Stopped 1 s ago by its user."
    ]


def test_a_restart_at_another_size_is_one_sentence() -> None:
    at = times.seconds(NOW - datetime.timedelta(minutes=5))
    step = run.Transition(
        at=at, from_phase="Stopping", to_phase="Queued", reason="Resized",
        message="with 2 workers instead of 4",
    )  # fmt: skip
    sentences = ended("Succeeded", "Completed", "ended with success", history=[step], attempt=1)
    assert sentences == ["Succeeded 1 s ago.", "Restarted 5 min ago with 2 workers instead of 4."]


def test_a_success_without_some_processes_says_so() -> None:
    (sentence,) = ended("Succeeded", "Completed", "ended with success, but a process was killed")
    assert sentence == "Succeeded 1 s ago, but a process was killed."


def pod(phase: str, reason: str = "", message: str = "", code: int | None = None) -> core.Pod:
    made = build.pod(build.a_run("r"), phase, exit_code=code)
    made.metadata.labels = made.metadata.owner_references = None
    made.status.reason, made.status.message = reason, message
    return made


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (pod("Succeeded", code=0), "It has succeeded."),
        (
            pod("Failed", "ImageNotSupported", "this node runs processes, not images (nginx)"),
            "It has failed: ImageNotSupported: this node runs processes, not images (nginx).",
        ),
        (
            pod("Failed", code=3),
            "It has failed: CodeFailed (exit code 3): ended by an error with exit code 3.",
        ),
    ],
)
def test_a_pod_that_has_ended_says_how(made: core.Pod, sentence: str) -> None:
    assert external_pods.describe(made, NOW) == [sentence]


def test_an_estimated_end_says_its_source() -> None:
    owner = build.a_run("r")
    owner.status = run.RunStatus(phase="Running", history=[])
    for basis, source in (("similar", "from similar runs"), ("stated", "as stated with it")):
        sentences = narrative.of_other(owner, SOON, basis, NOW)["sentences"]
        assert f"Estimated end 10:10:00 UTC (in 10 min), {source}." in sentences
