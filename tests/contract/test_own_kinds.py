"""Run, CronRun and Queue: the schema is enforced by the server, whichever it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.objects import (
    Json,
    causes,
    cron_run,
    ok,
    own,
    queue,
    refused,
    reservation,
    run,
)
from tests.harness.rest import Rest

_ROLE: Json = {"name": "worker", "command": ["true"]}


def role(**fields: Any) -> Json:
    return {"roles": [_ROLE | fields]}


# --- what is refused ----------------------------------------------------------------------------

_BAD_RUNS: dict[str, tuple[Json, str]] = {
    "priority-is-text": ({"priority": "high"}, "spec.priority"),
    "priority-too-high": ({"priority": 1001}, "spec.priority"),
    "priority-negative": ({"priority": -1}, "spec.priority"),
    "framework-unknown": ({"framework": "pytorch"}, "spec.framework"),
    "restart-unknown": ({"restart": "never"}, "spec.restart"),
    "suspend-is-text": ({"suspend": "yes"}, "spec.suspend"),
    "roles-empty": ({"roles": []}, "spec.roles"),
    "roles-is-a-map": ({"roles": {"worker": {}}}, "spec.roles"),
    "role-without-command": ({"roles": [{"name": "worker"}]}, "spec.roles[0].command"),
    "role-name-upper": (role(name="Worker"), "spec.roles[0].name"),
    "role-name-long": (role(name="w" * 21), "spec.roles[0].name"),
    "replicas-zero": (role(replicas=0), "spec.roles[0].replicas"),
    "replicas-too-many": (role(replicas=5000), "spec.roles[0].replicas"),
    "command-is-text": (role(command="python train.py"), "spec.roles[0].command"),
    "resize-unknown": (role(resize="maybe"), "spec.roles[0].resize"),
    "port-out-of-range": (
        role(ports=[{"name": "http", "port": 70000}]), "spec.roles[0].ports[0].port",
    ),
    "duration-without-unit": ({"duration": {"max": "12"}}, "spec.duration.max"),
    "code-digest": ({"code": {"digest": "md5:1"}}, "spec.code.digest"),
    "mount-path-relative": (
        {"mounts": [{"from": "claim:data", "path": "data"}]}, "spec.mounts[0].path",
    ),
    "signal-unknown": ({"checkpoint": {"signal": "SIGFOO"}}, "spec.checkpoint.signal"),
    "retry-cause-unknown": ({"retries": {"causes": ["Bored"]}}, "spec.retries.causes[0]"),
}  # fmt: skip


@pytest.mark.parametrize("case", _BAD_RUNS)
def test_run_that_breaks_the_schema_names_the_field(api: Rest, ns: str, case: str) -> None:
    spec, field = _BAD_RUNS[case]
    refused(api.post(own(ns, "runs"), run("a", spec)), 422, "Invalid", field=field)
    assert api.get(own(ns, "runs", "a")).status == 404


def test_run_without_a_spec_is_invalid(api: Rest, ns: str) -> None:
    body = run("a")
    del body["spec"]
    refused(api.post(own(ns, "runs"), body), 422, "Invalid", field="spec")


def test_run_with_a_long_name_is_invalid(api: Rest, ns: str) -> None:
    ok(api.post(own(ns, "runs"), run("a" * 40)), 201)
    assert api.post(own(ns, "runs"), run("a" * 41)).status == 422


def test_run_with_several_mistakes_names_them_all(api: Rest, ns: str) -> None:
    body = run("a", {"priority": 5000, "framework": "x", "roles": [_ROLE | {"replicas": 0}]})
    status = refused(api.post(own(ns, "runs"), body), 422, "Invalid")
    wanted = {"spec.priority", "spec.framework", "spec.roles[0].replicas"}
    assert wanted <= set(causes(status))


_BAD_QUEUES: dict[str, tuple[Json, str]] = {
    "order-unknown": ({"order": "random"}, "spec.order"),
    "weight-zero": ({"weight": 0}, "spec.weight"),
    "guarantee-is-a-list": ({"guarantee": ["gpu"]}, "spec.guarantee"),
    "strict-is-text": ({"strict": "no"}, "spec.strict"),
    "budget-of-nothing": ({"budget": {"per": "month"}}, "spec.budget"),
}


@pytest.mark.parametrize("case", _BAD_QUEUES)
def test_queue_that_breaks_the_schema_names_the_field(api: Rest, ns: str, case: str) -> None:
    spec, field = _BAD_QUEUES[case]
    refused(api.post(own("", "queues"), queue(f"{ns}-q", spec)), 422, "Invalid", field=field)


_BAD_RESERVATIONS: dict[str, tuple[Json, str]] = {
    "no-end": ({"duration": None}, "spec"),
    "ends-before-it-begins": ({"duration": None, "to": "2035-01-01T00:00:00Z"}, "spec.to"),
    "no-such-day": ({"from": "2036-02-31T00:00:00Z"}, ""),
    "nodes-and-amounts": ({"amounts": {"gpu": 1}}, "spec"),
    "for-nobody": ({"for": {}}, "spec.for"),
    "amount-is-negative": ({"nodes": None, "amounts": {"gpu": -1}}, "spec.amounts.gpu"),
}


@pytest.mark.parametrize("case", _BAD_RESERVATIONS)
def test_reservation_that_breaks_a_rule_names_the_field(api: Rest, ns: str, case: str) -> None:
    spec, field = _BAD_RESERVATIONS[case]
    body = reservation(f"{ns}-r", spec)
    refused(api.post(own("", "reservations"), body), 422, "Invalid", field=field)


def test_reservation_is_kept_as_written_and_its_status_is_written_apart(api: Rest, ns: str) -> None:
    name, spec = f"{ns}-r", {"for": {"queues": ["a"]}, "nodes": None, "amounts": {"gpu/h100": 8}}
    created = ok(api.post(own("", "reservations"), reservation(name, spec)), 201)
    assert created["spec"] == {
        "from": "2036-01-01T20:00:00Z", "duration": "8h", "timeZone": "UTC",
        "for": {"queues": ["a"]}, "amounts": {"gpu/h100": 8},
    }  # fmt: skip
    path = own("", "reservations", name)
    window = {"from": "2036-01-01T20:00:00Z", "to": "2036-01-02T04:00:00Z"}
    told = {"status": {"state": "Scheduled", "window": window, "used": {"gpu/h100": "2"}}}
    changed = ok(api.merge(f"{path}/status", told))
    assert changed["status"] == told["status"]
    again = ok(api.merge(path, {"spec": {"reason": "a course"}, "status": {"state": "Ended"}}))
    assert (again["status"]["state"], again["metadata"]["generation"]) == ("Scheduled", 2)


_BAD_CRON_RUNS: dict[str, tuple[Json, str]] = {
    "schedule-missing": ({"schedule": None}, "spec.schedule"),
    "schedule-too-short": ({"schedule": "* *"}, "spec.schedule"),
    "policy-unknown": ({"concurrencyPolicy": "Perhaps"}, "spec.concurrencyPolicy"),
    "template-without-spec": ({"template": {}}, "spec.template.spec"),
    "template-priority": (
        {"template": {"spec": {"roles": [_ROLE], "priority": -3}}}, "spec.template.spec.priority",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", _BAD_CRON_RUNS)
def test_cron_run_that_breaks_the_schema_names_the_field(api: Rest, ns: str, case: str) -> None:
    spec, field = _BAD_CRON_RUNS[case]
    body = cron_run("a", spec)
    if body["spec"]["schedule"] is None:
        del body["spec"]["schedule"]
    refused(api.post(own(ns, "cronruns"), body), 422, "Invalid", field=field)


# --- what is kept and filled in -----------------------------------------------------------------


def test_run_keeps_what_was_written(api: Rest, ns: str) -> None:
    spec = {
        "queue": "support",
        "priority": 70,
        "framework": "torch",
        "roles": [
            {
                "name": "worker", "replicas": 4, "minReplicas": 2, "command": ["python", "t.py"],
                "env": {"EPOCHS": "3"}, "resources": {"cpu": "8", "memory": "32Gi"},
                "devices": [{"kind": "gpu", "count": 1, "models": ["a100", "h100"]}],
            }
        ],
        "duration": {"expected": "2h", "max": "12h"},
    }  # fmt: skip
    created = ok(api.post(own(ns, "runs"), run("a", spec)), 201)["spec"]
    assert {key: created[key] for key in ("queue", "priority", "framework", "duration")} == {
        key: spec[key] for key in ("queue", "priority", "framework", "duration")
    }
    written: Json = spec["roles"][0]
    for key, value in written.items():
        if key != "resources":
            assert created["roles"][0][key] == value
    assert created["roles"][0]["resources"]["cpu"] == "8"


def test_run_is_filled_in_with_its_defaults(api: Rest, ns: str) -> None:
    spec = ok(api.post(own(ns, "runs"), run("a")), 201)["spec"]
    assert (spec["priority"], spec["framework"], spec["restart"]) == (50, "process", "run")
    assert spec["checkpoint"] == {"signal": "SIGTERM", "grace": "30s"}
    assert spec["retries"] == {
        "limit": 3, "causes": ["NodeLost", "Preempted"], "lostAfter": "5m",
    }  # fmt: skip
    assert spec["roles"][0]["replicas"] == 1
    assert spec["roles"][0]["resources"] == {"cpu": "1", "memory": "1Gi", "shm": "auto"}


def test_a_new_run_shows_its_phase_before_a_controller_has_written_one(api: Rest, ns: str) -> None:
    created = ok(api.post(own(ns, "runs"), run("a") | {"status": {"phase": "Running"}}), 201)
    (listed,) = ok(api.get(own(ns, "runs")))["items"]
    for shown in (created, ok(api.get(own(ns, "runs", "a"))), listed):
        assert shown["status"]["phase"] == "Queued"
    # Kept by a client that writes another part of the status first, and of the spec.
    part = {"status": {"reason": "WaitingForCapacity"}}
    written = ok(api.merge(own(ns, "runs", "a", "status"), part))
    assert written["status"] == {"phase": "Queued", "reason": "WaitingForCapacity"}
    changed = ok(api.merge(own(ns, "runs", "a"), {"spec": {"priority": 60}}))
    assert changed["status"] == written["status"]


def test_amounts_may_be_numbers_or_text(api: Rest, ns: str) -> None:
    spec = {"guarantee": {"gpu": 16, "memory": "1Ti", "gpu/h100": 8}}
    created = ok(api.post(own("", "queues"), queue(f"{ns}-q", spec)), 201)
    assert created["spec"]["guarantee"] == spec["guarantee"]


def test_same_run_twice_reads_the_same(api: Rest, ns: str) -> None:
    created = ok(api.post(own(ns, "runs"), run("a")), 201)
    assert ok(api.get(own(ns, "runs", "a"))) == created


# --- unknown fields -----------------------------------------------------------------------------


def test_unknown_field_is_dropped_and_warned_of(api: Rest, ns: str) -> None:
    answer = api.post(own(ns, "runs"), run("a", {"colour": "red"}), fieldValidation="Warn")
    assert "colour" not in ok(answer, 201)["spec"]
    assert "spec.colour" in (answer.headers.get("Warning") or "")


def test_unknown_field_is_warned_of_unless_asked_otherwise(api: Rest, ns: str) -> None:
    answer = api.post(own(ns, "runs"), run("a", {"colour": "red"}))
    assert "spec.colour" in (answer.headers.get("Warning") or "")


def test_unknown_field_is_dropped_silently_when_ignored(api: Rest, ns: str) -> None:
    answer = api.post(own(ns, "runs"), run("a", {"colour": "red"}), fieldValidation="Ignore")
    assert "colour" not in ok(answer, 201)["spec"]
    assert answer.headers.get("Warning") is None


def test_unknown_field_is_refused_when_strict(api: Rest, ns: str) -> None:
    answer = api.post(own(ns, "runs"), run("a", {"colour": "red"}), fieldValidation="Strict")
    status = refused(answer, 400, "BadRequest")
    assert 'unknown field "spec.colour"' in status["message"]
    assert api.get(own(ns, "runs", "a")).status == 404


def test_unknown_field_deep_inside_is_named_with_its_path(api: Rest, ns: str) -> None:
    body = run("a", {"roles": [_ROLE | {"comand": ["x"]}]})
    status = refused(api.post(own(ns, "runs"), body, fieldValidation="Strict"), 400, "BadRequest")
    assert "spec.roles[0].comand" in status["message"]


def test_strict_patch_refuses_an_unknown_field(api: Rest, ns: str) -> None:
    ok(api.post(own(ns, "runs"), run("a")), 201)
    answer = api.merge(own(ns, "runs", "a"), {"spec": {"colour": "red"}}, fieldValidation="Strict")
    assert answer.status in (400, 422), answer.summary
    assert "spec.colour" in answer.json["message"]


def test_strict_replace_refuses_an_unknown_field(api: Rest, ns: str) -> None:
    created = ok(api.post(own(ns, "runs"), run("a")), 201)
    created["spec"]["colour"] = "red"
    refused(api.put(own(ns, "runs", "a"), created, fieldValidation="Strict"), 400, "BadRequest")


def test_unknown_field_validation_is_refused(api: Rest, ns: str) -> None:
    answer = api.post(own(ns, "runs"), run("a"), fieldValidation="Perhaps")
    refused(answer, 422, "Invalid", field="fieldValidation")


# --- what may change ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"priority": 60},
        {"queue": "other"},
        {"suspend": True},
        {"duration": {"max": "1h"}},
        {"ttlAfterFinished": "1h"},
    ],
    ids=["priority", "queue", "suspend", "duration", "ttl"],
)
def test_live_run_may_change(api: Rest, ns: str, change: Json) -> None:
    ok(api.post(own(ns, "runs"), run("a", {"queue": "first", "duration": {"max": "2h"}})), 201)
    patched = ok(api.merge(own(ns, "runs", "a"), {"spec": change}))
    for key, value in change.items():
        assert patched["spec"][key] == value


def test_replicas_of_a_live_run_may_change(api: Rest, ns: str) -> None:
    ok(api.post(own(ns, "runs"), run("a")), 201)
    operation = {"op": "add", "path": "/spec/roles/0/replicas", "value": 3}
    patched = ok(api.json_patch(own(ns, "runs", "a"), [operation]))
    assert patched["spec"]["roles"][0]["replicas"] == 3


@pytest.mark.parametrize(
    "change",
    [
        {"framework": "torch"},
        {"preemptible": False},
        {"roles": [_ROLE | {"command": ["other"]}]},
        {"environment": {"python": "3.12"}},
    ],
    ids=["framework", "preemptible", "command", "environment"],
)
def test_rest_of_a_live_run_is_fixed(api: Rest, ns: str, change: Json) -> None:
    ok(api.post(own(ns, "runs"), run("a")), 201)
    before = ok(api.get(own(ns, "runs", "a")))
    refused(api.merge(own(ns, "runs", "a"), {"spec": change}), 422, "Invalid")
    assert ok(api.get(own(ns, "runs", "a"))) == before


def test_status_that_breaks_the_schema_is_invalid(api: Rest, ns: str) -> None:
    ok(api.post(own(ns, "runs"), run("a")), 201)
    path = own(ns, "runs", "a", "status")
    refused(
        api.merge(path, {"status": {"phase": "Thinking"}}), 422, "Invalid", field="status.phase"
    )
    answer = api.merge(path, {"status": {"attempt": "one"}})
    refused(answer, 422, "Invalid", field="status.attempt")


def test_status_of_a_cron_run(api: Rest, ns: str) -> None:
    ok(api.post(own(ns, "cronruns"), cron_run("a")), 201)
    body = {"status": {"lastScheduleTime": "2026-01-01T03:00:00Z"}}
    patched = ok(api.merge(own(ns, "cronruns", "a", "status"), body))
    assert patched["status"]["lastScheduleTime"] == "2026-01-01T03:00:00Z"
    assert patched["metadata"]["generation"] == 1
