"""The sharing tree over the API: numbers for all, names with read access, plans."""

from __future__ import annotations

from typing import Any

from tests.unit.server.conftest import Served
from tests.unit.server.test_platform import cluster, hold, run, submit

PATH = "/apis/platform.windlass.dev/v1alpha1/queues"
QUEUES = "/apis/windlass.dev/v1alpha1/queues"


async def teams(served: Served) -> tuple[str, str]:
    """Two teams with a queue each; red borrows, blue waits. Tokens of rita and bob."""
    await cluster(served)
    for name, guarantee in (("red", "1"), ("blue", "3")):
        spec = {"namespaces": [name], "guarantee": {"cpu": guarantee}}
        made = await served.call("POST", QUEUES, {"metadata": {"name": name}, "spec": spec})
        assert made.code == 201, made.body
    await hold(served, "red", "greedy", "2")
    await hold(served, "red", "modest", "1")
    await submit(served, "blue", run("eager", "3"))
    return await served.user("rita"), await served.user("bob")


def named(told: dict[str, Any], queue: str) -> dict[str, Any]:
    (found,) = [each for each in told["items"] if each["name"] == queue]
    return found


async def test_all_see_amounts_and_what_is_next_but_only_their_own_runs_names(
    served: Served,
) -> None:
    rita, bob = await teams(served)
    for token, seen, unseen in ((rita, "red/greedy", "blue/eager"), (bob, "blue/eager", "red/")):
        answer = await served.call("GET", PATH, token=token)
        assert answer.code == 200, answer.body
        red, blue = named(answer.body, "red"), named(answer.body, "blue")
        assert (red["used"]["cpu"], red["borrowed"], blue["lent"]) == (
            "3",
            {"cpu": "2"},
            {"cpu": "2"},
        )
        assert (blue["pending"]["cpu"], blue["waiting"]) == ("3", 1)
        assert red["next"]["stops"]["count"] == 1
        assert blue["next"]["takes over"]["count"] == 1
        assert seen in str(answer.body)
        assert unseen not in str(answer.body)


async def test_a_plan_is_for_users_who_may_change_queues_and_changes_nothing(
    served: Served,
) -> None:
    rita, _ = await teams(served)
    before = (await served.call("GET", QUEUES)).body["items"]
    wanted = [
        {"metadata": {"name": "red"}, "spec": {"namespaces": ["red"], "guarantee": {"cpu": "3"}}},
        {"metadata": {"name": "blue"}, "spec": {"namespaces": ["blue"], "guarantee": {"cpu": "1"}}},
    ]
    refused = await served.call("POST", f"{PATH}/plan", {"queues": wanted}, token=rita)
    assert refused.code == 403
    told = (await served.call("POST", f"{PATH}/plan", {"queues": wanted})).body
    red = next(row for row in told["queues"] if row["name"] == "red")
    assert red["guarantee"] == {"before": {"cpu": "1"}, "after": {"cpu": "3"}}
    assert told["stopped"] == []
    keep = (await served.call("POST", f"{PATH}/plan", {"queues": []})).body
    assert (keep["stopped"], keep["started"], keep["problems"]) == ([], [], [])
    assert (await served.call("GET", QUEUES)).body["items"] == before


async def test_a_bad_plan_is_reported_in_sentences(served: Served) -> None:
    loop = [{"metadata": {"name": a}, "spec": {"parent": b}} for a, b in ("ab", "ba")]
    told = (await served.call("POST", f"{PATH}/plan", {"queues": loop})).body
    assert "below itself" in told["problems"][0]
    for bad in ({}, {"queues": 3}, {"queues": [3]}, {"queues": [{}]}, {"queues": loop * 2}):
        answer = await served.call("POST", f"{PATH}/plan", bad)
        assert answer.code in (400, 422), answer.body


async def test_work_for_a_queue_of_others_is_refused_when_it_is_submitted(served: Served) -> None:
    await teams(served)
    top = {"metadata": {"name": "top"}, "spec": {}}
    below = {"metadata": {"name": "below"}, "spec": {"parent": "top", "namespaces": ["green"]}}
    for body in (top, below):
        assert (await served.call("POST", QUEUES, body)).code == 201
    runs = "/apis/windlass.dev/v1alpha1/namespaces/red/runs"

    def asking(name: str, queue: str) -> dict[str, Any]:
        made = run(name, "1")
        return {**made, "spec": {**made["spec"], "queue": queue}}

    for queue, words in (
        ("blue", "is for the namespaces blue"),
        ("top", "takes no runs, it only holds"),
    ):
        refused = await served.call("POST", runs, asking("thief", queue))
        assert refused.code == 403
        assert "QueueNotYours" in refused.body["message"]
        assert words in refused.body["message"]
    for name, queue in (("own", "red"), ("early", "comes-later"), ("free", "default")):
        assert (await served.call("POST", runs, asking(name, queue))).code == 201
    merge = {"Content-Type": "application/merge-patch+json"}

    async def patched(path: str, spec: dict[str, Any]) -> int:
        return (await served.call("PATCH", path, {"spec": spec}, headers=merge)).code

    assert await patched(f"{runs}/own", {"queue": "blue"}) == 403
    # What is as it was is not looked at again, though the queue has been closed to it since.
    assert await patched(f"{QUEUES}/red", {"namespaces": ["blue"]}) == 200
    assert await patched(f"{runs}/own", {"queue": "red", "priority": 7}) == 200
