"""why, ps and plan: what they tell, to whom, and that others' names stay theirs."""

from __future__ import annotations

from typing import Any

from tests.unit.server.conftest import Served

ROOT = "/apis/platform.windlass.dev/v1alpha1"
RUNS = "/apis/windlass.dev/v1alpha1/namespaces/{}/runs"
ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings"


def run(name: str, cpu: str = "1", **spec: Any) -> dict[str, Any]:
    role = {"name": "worker", "command": ["true"], "resources": {"cpu": cpu, "memory": "1Gi"}}
    return {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
        "spec": {"roles": [role | spec.pop("role", {})], **spec},
    }  # fmt: skip


async def cluster(served: Served, cpu: str = "4") -> None:
    """One node, a queue, two teams with a member each."""
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "110"}
    node = {"metadata": {"name": "n1"}}
    made = await served.call("POST", "/api/v1/nodes", node)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    made.body["status"] = {"allocatable": amounts, "capacity": amounts, **ready}
    await served.call("PUT", "/api/v1/nodes/n1/status", made.body)
    for team, user in (("red", "rita"), ("blue", "bob")):
        await served.team(team)
        binding = {
            "metadata": {"name": "members"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                        "name": "windlass-member"},
            "subjects": [{"kind": "User", "name": user}],
        }  # fmt: skip
        answer = await served.call("POST", ROLES.format(team), binding)
        assert answer.code == 201, answer.body


async def submit(served: Served, team: str, obj: dict[str, Any], **status: Any) -> None:
    made = await served.call("POST", RUNS.format(team), obj)
    assert made.code == 201, made.body
    name = obj["metadata"]["name"]
    if status:
        path = f"{RUNS.format(team)}/{name}/status"
        headers = {"Content-Type": "application/merge-patch+json"}
        done = await served.call("PATCH", path, {"status": status}, headers=headers)
        assert done.code == 200, done.body


async def hold(served: Served, team: str, name: str, cpu: str) -> None:
    members = {"worker": [{"node": "n1"}]}
    assignment = {"attempt": 0, "epoch": 1, "members": members}
    await submit(served, team, run(name, cpu), phase="Running", assignment=assignment)


async def why(served: Served, team: str, name: str, token: str | None = None) -> dict[str, Any]:
    answer = await served.call("GET", f"{ROOT}/namespaces/{team}/runs/{name}/why", token=token)
    assert answer.code == 200, answer.body
    told: dict[str, Any] = answer.body
    return told


async def test_why_names_what_is_short_who_holds_it_and_the_place_in_line(served: Served) -> None:
    await cluster(served)
    await hold(served, "red", "greedy", "4")
    await submit(served, "red", run("first", priority=60))
    await submit(served, "red", run("second"))
    told = await why(served, "red", "second")
    assert told["reason"] == "WaitingForCapacity"
    assert told["queue"] == {"name": "default", "position": 2, "of": 2}
    assert told["holders"][0]["run"] == "greedy"
    text = " ".join(told["sentences"])
    assert "short of 1 cpu" in text
    assert "Run greedy of admin holds 4 cpu" in text
    assert told["actor"] == "nobody"
    assert told["remedy"]


async def test_names_of_another_teams_runs_are_not_told(served: Served) -> None:
    await cluster(served)
    await hold(served, "blue", "bobs-secret", "4")
    await submit(served, "red", run("patient"))
    rita = await served.user("rita")
    told = await why(served, "red", "patient", rita)
    assert "bobs-secret" not in str(told)
    assert "a run of queue default holds 4 cpu" in " ".join(told["sentences"]).lower()
    assert "bobs-secret" in str(await why(served, "red", "patient"))  # the admin may see it


async def test_only_who_may_read_the_run_is_answered(served: Served) -> None:
    await cluster(served)
    await submit(served, "red", run("mine"))
    bob = await served.user("bob")
    for path in ("runs/mine/why", "runs/absent/why", "ps"):
        answer = await served.call("GET", f"{ROOT}/namespaces/red/{path}", token=bob)
        assert answer.code == 403, (path, answer.body)
    assert (await served.call("GET", f"{ROOT}/ps", token=bob)).code == 403
    planned = await served.call("POST", f"{ROOT}/namespaces/red/plan", run("p"), token=bob)
    assert planned.code == 403


async def test_why_of_runs_that_do_not_wait(served: Served) -> None:
    await cluster(served)
    step = {"at": "2026-01-01T00:00:00Z", "from": "Running", "to": "Failed"}
    await submit(
        served, "red", run("broken"), phase="Failed", reason="CodeFailed", exitCode=3,
        message="ended by an error with exit code 3.", history=[step],
    )  # fmt: skip
    told = await why(served, "red", "broken")
    assert told["exitCode"] == 3
    assert told["actor"] == "user"
    assert told["sentences"][0].endswith("ago: ended by an error with exit code 3.")
    await hold(served, "red", "busy", "1")
    assert "running" in (await why(served, "red", "busy"))["sentences"][0]
    missing = await served.call("GET", f"{ROOT}/namespaces/red/runs/none/why")
    assert missing.code == 404


async def test_an_impossible_run_is_told_so(served: Served) -> None:
    await cluster(served)
    await submit(served, "red", run("huge", "64"))
    told = await why(served, "red", "huge")
    assert told["reason"] == "Impossible"
    assert "64 cpu" in told["sentences"][0]


async def test_ps_shows_running_then_the_first_waiting_then_ended(served: Served) -> None:
    await cluster(served)
    await hold(served, "red", "greedy", "4")
    for number in range(5):
        await submit(served, "red", run(f"w{number}", priority=90 - number))
    await submit(served, "red", run("old"), phase="Succeeded")
    await submit(served, "blue", run("other"))
    answer = await served.call("GET", f"{ROOT}/namespaces/red/ps?limit=3")
    names = [row["name"] for row in answer.body["items"]]
    assert names == ["greedy", "w0", "w1", "w2", "old"]
    assert (answer.body["active"], answer.body["waiting"], answer.body["finished"]) == (1, 5, 1)
    first = answer.body["items"][1]
    assert (first["position"], first["reason"]) == (1, "WaitingForCapacity")
    assert first["of"] == 6
    everywhere = await served.call("GET", f"{ROOT}/ps")
    assert "other" in [row["name"] for row in everywhere.body["items"]]
    assert (await served.call("GET", f"{ROOT}/ps?limit=x")).code == 400


async def test_plan_tells_what_would_happen_and_stores_nothing(served: Served) -> None:
    await cluster(served)
    path = f"{ROOT}/namespaces/red/plan"
    planned = await served.call("POST", path, run("soon"))
    assert planned.body["nodes"] == ["n1"], planned.body
    assert planned.body["object"]["spec"]["priority"] == 50
    await hold(served, "red", "greedy", "4")
    later = await served.call("POST", path, run("later"))
    assert later.body["reason"] == "WaitingForCapacity"
    assert (await served.call("GET", RUNS.format("red") + "/soon")).code == 404
    wrong = await served.call("POST", path, run("bad", priority=-1))
    assert wrong.code == 422
    assert (await served.call("GET", path)).code == 405


async def test_answers_follow_what_changes(served: Served) -> None:
    await cluster(served)
    await hold(served, "red", "greedy", "4")
    await submit(served, "red", run("patient"))
    assert (await why(served, "red", "patient"))["reason"] == "WaitingForCapacity"
    await served.call("DELETE", RUNS.format("red") + "/greedy")
    await submit(served, "red", run("next"))
    assert "starts now" in (await why(served, "red", "next"))["sentences"][0]


async def test_the_group_is_discovered(served: Served) -> None:
    listed = await served.call("GET", ROOT)
    assert {"ps", "plan"} <= {each["name"] for each in listed.body["resources"]}
