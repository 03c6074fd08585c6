"""What members may change in CronRuns and Runs of their team: the user and the finalizers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.server.conftest import Answer, Served
from tests.unit.server.test_app import RUNS, member, run

CRONS = "/apis/windlass.dev/v1alpha1/namespaces/default/cronruns"


def cron(**spec: Any) -> dict[str, Any]:
    template = {"spec": run("x", **spec)["spec"]}
    return {"metadata": {"name": "nightly"}, "spec": {"schedule": "@daily", "template": template}}


async def patched(served: Served, path: str, kind: str, patch: Any, token: str) -> Answer:
    headers = {"Content-Type": f"application/{kind}-patch+json"}
    return await served.call("PATCH", path, data=json.dumps(patch), headers=headers, token=token)


OTHER_JOB = [{"name": "worker", "command": ["false"]}]


@pytest.mark.parametrize(
    ("kind", "patch", "user"),
    [
        ("merge", {"spec": {"template": {"spec": {"roles": OTHER_JOB}}}}, "bob"),
        ("json", [{"op": "add", "path": "/spec/template/spec/roles", "value": OTHER_JOB}], "bob"),
        ("merge", {"spec": {"schedule": "* * * * *"}}, "bob"),
        ("merge", {"spec": {"template": {"spec": {"user": None}}}}, "bob"),
        ("json", [{"op": "remove", "path": "/spec/template/spec/user"}], "bob"),
        ("merge", {"spec": {"template": {"spec": {"user": "bob"}}}}, "bob"),
        ("merge", {"spec": {"suspend": True}}, "alice"),
        ("merge", {"spec": {"failedHistoryLimit": 7}}, "alice"),
        ("merge", {"metadata": {"labels": {"a": "b"}}}, "alice"),
    ],
)  # fmt: skip
async def test_an_editor_of_what_a_cronrun_starts_becomes_its_user(
    served: Served, kind: str, patch: Any, user: str
) -> None:
    alice, bob = await member(served, "alice"), await member(served, "bob")
    await served.call("POST", CRONS, cron(), token=alice)
    changed = await patched(served, f"{CRONS}/nightly", kind, patch, bob)
    assert changed.code == 200, changed.body
    stored = await served.call("GET", f"{CRONS}/nightly")
    assert stored.body["spec"]["template"]["spec"]["user"] == user


async def test_a_replaced_cronrun_counts_for_the_one_that_replaced_it(served: Served) -> None:
    alice, bob = await member(served, "alice"), await member(served, "bob")
    made = (await served.call("POST", CRONS, cron(), token=alice)).body
    job = made["spec"]["template"]["spec"]
    job["roles"] = OTHER_JOB
    answer = await served.call("PUT", f"{CRONS}/nightly", made, token=bob)
    assert answer.body["spec"]["template"]["spec"]["user"] == "bob"
    by_owner = await patched(
        served, f"{CRONS}/nightly", "merge", {"spec": {"schedule": "@hourly"}}, served.token
    )
    assert by_owner.body["spec"]["template"]["spec"]["user"] == "bob", "an administrator's choice"


@pytest.mark.parametrize("more", [{"priority": 90}, {"preemptible": False}])
async def test_a_changed_cronrun_keeps_no_privileges_that_its_editor_lacks(
    served: Served, more: dict[str, Any]
) -> None:
    bob = await member(served, "bob")
    assert (await served.call("POST", CRONS, cron(user="alice", **more))).code == 201
    job = {"spec": {"template": {"spec": {"roles": OTHER_JOB}}}}
    refused = await patched(served, f"{CRONS}/nightly", "merge", job, bob)
    assert refused.code == 403
    assert "administrators of a team" in refused.body["message"]
    paused = await patched(served, f"{CRONS}/nightly", "merge", {"spec": {"suspend": True}}, bob)
    assert paused.code == 200


LEDGER = "windlass.dev/ledger"


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("merge", {"metadata": {"finalizers": None}}),
        ("merge", {"metadata": {"finalizers": ["example.org/mine"]}}),
        ("json", [{"op": "remove", "path": "/metadata/finalizers/0"}]),
        ("json", [{"op": "replace", "path": "/metadata/finalizers", "value": []}]),
        (
            "json",
            [
                {"op": "copy", "from": "/metadata/finalizers/1", "path": "/metadata/finalizers/0"},
                {"op": "remove", "path": "/metadata/finalizers/1"},
            ],
        ),
    ],
)
async def test_no_member_removes_what_keeps_a_run_for_the_ledger(
    served: Served, kind: str, patch: Any
) -> None:
    token = await member(served, "alice")
    body = run("mine", suspend=True)
    body["metadata"]["finalizers"] = [LEDGER, "example.org/mine"]
    made = (await served.call("POST", RUNS, body)).body
    assert LEDGER in made["metadata"]["finalizers"]
    answer = await patched(served, f"{RUNS}/mine", kind, patch, token)
    assert answer.code == 403, answer.body
    assert "until its usage is recorded" in answer.body["message"]
    del made["metadata"]["finalizers"]
    replaced = await served.call("PUT", f"{RUNS}/mine", made, token=token)
    assert replaced.code == 403
    stays = await served.call("GET", f"{RUNS}/mine")
    assert stays.body["metadata"]["finalizers"] == [LEDGER, "example.org/mine"]


async def test_a_run_that_is_kept_for_the_ledger_is_changed_and_deleted(served: Served) -> None:
    token = await member(served, "alice")
    body = run("mine", suspend=True)
    body["metadata"]["finalizers"] = [LEDGER, "example.org/mine"]
    await served.call("POST", RUNS, body)
    path = f"{RUNS}/mine"
    for change in (
        {"spec": {"stop": True}},
        {"metadata": {"finalizers": [LEDGER]}},
        {"metadata": {"finalizers": [LEDGER, "example.org/other"]}},
        {"metadata": {"finalizers": [LEDGER]}},
    ):
        answer = await patched(served, path, "merge", change, token)
        assert answer.code == 200, answer.body
    for propagation in ("Foreground", "Background"):
        options = {"propagationPolicy": propagation}
        assert (await served.call("DELETE", path, options, token=token)).code == 200
    leaving = (await served.call("GET", path)).body["metadata"]
    assert leaving["finalizers"] == [LEDGER]
    assert leaving["deletionTimestamp"]
    assert (
        await patched(served, path, "merge", {"metadata": {"finalizers": []}}, token)
    ).code == 403
    by_owner = {"metadata": {"finalizers": []}}
    assert (await patched(served, path, "merge", by_owner, served.token)).code == 200
    assert (await served.call("GET", path)).code == 404


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("merge", {"spec": {"template": {"spec": {"user": "bob"}}}}),
        ("json", [{"op": "replace", "path": "/spec/template/spec/user", "value": "bob"}]),
        ("json", [{"op": "copy", "from": "/metadata/name", "path": "/spec/template/spec/user"}]),
        ("json", [{"op": "add", "path": "/spec/template", "value": {"spec": {"user": "bob"}}}]),
    ],
)
async def test_no_user_puts_the_name_of_another_into_a_cronrun(
    served: Served, kind: str, patch: Any
) -> None:
    token = await member(served, "alice")
    body = cron() | {"metadata": {"name": "bob"}}
    made = await served.call("POST", CRONS, body, token=token)
    assert made.body["spec"]["template"]["spec"]["user"] == "alice"
    answer = await patched(served, f"{CRONS}/bob", kind, patch, token)
    assert answer.code == 403
    unchanged = await served.call("PUT", f"{CRONS}/bob", made.body, token=token)
    assert unchanged.code == 200
    del made.body["spec"]["template"]["spec"]["user"]
    made.body["metadata"] = unchanged.body["metadata"]
    left_out = await served.call("PUT", f"{CRONS}/bob", made.body, token=token)
    assert left_out.body["spec"]["template"]["spec"]["user"] == "alice"
