"""why, ps and plan: their answers, access, and that other teams' names stay hidden."""

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


async def test_why_names_the_shortage_its_holders_and_the_place_in_the_queue(
    served: Served,
) -> None:
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


async def test_names_of_another_teams_runs_are_not_shown(served: Served) -> None:
    await cluster(served)
    await hold(served, "blue", "bobs-secret", "4")
    await submit(served, "red", run("patient"))
    rita = await served.user("rita")
    told = await why(served, "red", "patient", rita)
    assert "bobs-secret" not in str(told)
    assert "a run of queue default holds 4 cpu" in " ".join(told["sentences"]).lower()
    assert "bobs-secret" in str(await why(served, "red", "patient"))  # the admin may see it


async def test_only_users_who_may_read_the_run_are_answered(served: Served) -> None:
    await cluster(served)
    await submit(served, "red", run("mine"))
    bob = await served.user("bob")
    for path in ("runs/mine/why", "runs/absent/why", "ps"):
        answer = await served.call("GET", f"{ROOT}/namespaces/red/{path}", token=bob)
        assert answer.code == 403, (path, answer.body)
    everywhere = await served.call("GET", f"{ROOT}/ps", token=bob)
    assert (everywhere.code, everywhere.body["items"]) == (200, [])
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
    assert told["sentences"][0].endswith("ago (exit code 3): ended by an error.")
    await hold(served, "red", "busy", "1")
    assert (await why(served, "red", "busy"))["sentences"][0].startswith("Running on ")
    missing = await served.call("GET", f"{ROOT}/namespaces/red/runs/none/why")
    assert missing.code == 404


async def test_an_impossible_run_is_reported_as_impossible(served: Served) -> None:
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
    assert "fits now" in (await why(served, "red", "next"))["sentences"][0]


async def test_the_group_is_discovered(served: Served) -> None:
    listed = await served.call("GET", ROOT)
    assert {"ps", "plan"} <= {each["name"] for each in listed.body["resources"]}


# --- external pods --------------------------------------------------------------------------------


def pod(name: str, cpu: str = "1", annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"schedulerName": "windlass", "containers": [container], **spec},
    }  # fmt: skip


async def test_why_and_ps_answer_for_external_pods_too(served: Served) -> None:
    await cluster(served)
    gang = {"windlass.dev/gang": "g", "windlass.dev/gang-size": "2"}
    listed = (
        pod("placed", "3", nodeName="n1"), pod("big", "2"), pod("half", annotations=gang),
        pod("held", schedulingGates=[{"name": "example.com/hold"}]),
        pod("theirs", schedulerName="other"),
    )  # fmt: skip
    for each in listed:
        made = await served.call("POST", "/api/v1/namespaces/red/pods", each)
        assert made.code == 201, made.body
    rita, bob = await served.user("rita"), await served.user("bob")
    path = f"{ROOT}/namespaces/red/externalpods"

    async def why_pod(name: str) -> dict[str, Any]:
        answer = await served.call("GET", f"{path}/{name}/why", token=rita)
        assert answer.code == 200, answer.body
        told: dict[str, Any] = answer.body
        return told

    told = await why_pod("big")
    assert (told["phase"], told["reason"]) == ("Queued", "WaitingForCapacity")
    text = " ".join(told["sentences"])
    assert "short of 2 cpu" in text
    assert "A pod of queue default holds 3 cpu" in text
    told = await why_pod("half")
    assert told["reason"] == "WaitingForMembers"
    assert "1 of the gang's 2 pods exist" in told["sentences"][0]
    assert told["holders"] == []
    assert "on n1" in (await why_pod("placed"))["sentences"][0]
    assert "example.com/hold" in (await why_pod("held"))["sentences"][0]
    assert "The scheduler other places it" in (await why_pod("theirs"))["sentences"][0]
    page = (await served.call("GET", path, token=rita)).body
    assert [(each["name"], each["phase"]) for each in page["items"][:1]] == [("placed", "Starting")]
    assert {each["name"] for each in page["items"][1:]} == {"big", "half", "held"}
    assert (page["placed"], page["waiting"]) == (1, 3)
    for denied in (path, f"{path}/big/why", f"{ROOT}/externalpods"):
        assert (await served.call("GET", denied, token=bob)).code == 403


# --- what only administrators of a team may ask for -----------------------------------------------


async def test_members_get_no_high_priority_and_are_preemptible(served: Served) -> None:
    await cluster(served)
    binding = {
        "metadata": {"name": "admins"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                    "name": "windlass-admin"},
        "subjects": [{"kind": "User", "name": "anna"}],
    }  # fmt: skip
    assert (await served.call("POST", ROLES.format("red"), binding)).code == 201
    rita, anna = await served.user("rita"), await served.user("anna")
    path = RUNS.format("red")
    for number, spec in enumerate(({"priority": 51}, {"preemptible": False})):
        wanted = run(f"first{number}", **spec)
        for refused in (path, f"{ROOT}/namespaces/red/plan"):
            answer = await served.call("POST", refused, wanted, token=rita)
            assert answer.code == 403, answer.body
            assert "only administrators of a team may" in answer.body["message"]
        assert (await served.call("POST", path, wanted, token=anna)).code == 201
    schedule = {"schedule": "@hourly", "template": {"spec": run("x", priority=90)["spec"]}}
    cron = {"apiVersion": "windlass.dev/v1alpha1", "kind": "CronRun", "metadata": {"name": "c"}}
    crons = path.replace("runs", "cronruns")
    refusal = await served.call("POST", crons, {**cron, "spec": schedule}, token=rita)
    assert refusal.code == 403, refusal.body
    assert (await served.call("POST", path, run("mine", priority=50), token=rita)).code == 201
    for media, change in (
        ("merge-patch", {"spec": {"priority": 60}}),
        ("json-patch", [{"op": "replace", "path": "/spec/priority", "value": 60}]),
        ("json-patch", [{"op": "copy", "from": "/metadata/generation", "path": "/spec/priority"}]),
    ):
        headers = {"Content-Type": f"application/{media}+json"}
        answer = await served.call("PATCH", f"{path}/mine", change, token=rita, headers=headers)
        assert answer.code == 403, (media, answer.body)
    headers = {"Content-Type": "application/merge-patch+json"}
    lower, higher = {"spec": {"priority": 40}}, {"spec": {"priority": 70}}
    for change, token in ((lower, rita), (higher, anna)):
        answer = await served.call("PATCH", f"{path}/mine", change, token=token, headers=headers)
        assert answer.code == 200, answer.body
    same = (await served.call("GET", f"{path}/mine", token=rita)).body
    assert (await served.call("PUT", f"{path}/mine", same, token=rita)).code == 200
