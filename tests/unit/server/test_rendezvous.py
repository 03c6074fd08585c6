"""The address book: access, when it is complete, and that waiting for it ends."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.server.conftest import Served
from tests.unit.server.test_pod_tokens import PODS, RUNS, a_token

BOOK = "/apis/platform.windlass.dev/v1alpha1/namespaces/default/runs/job/addresses"


async def a_gang(served: Served, name: str = "job", attempt: int = 0) -> list[dict[str, Any]]:
    """A run of two workers with an assignment, and its pods without addresses."""
    spec = {"roles": [{"command": ["true"], "replicas": 2}]}
    owner = await served.call("POST", RUNS, {"metadata": {"name": name}, "spec": spec})
    members = {"worker": [{"node": "n1"}, {"node": "n2"}]}
    room = {"attempt": attempt, "epoch": 1, "members": members}
    status = {"status": {"attempt": attempt, "assignment": room}}
    merge = {"Content-Type": "application/merge-patch+json"}
    answer = await served.call("PATCH", f"{RUNS}/{name}/status", status, headers=merge)
    assert answer.code == 200, answer
    return [await a_member(served, owner.body, index, attempt) for index in range(2)]


async def a_member(
    served: Served, owner: dict[str, Any], index: int, attempt: int = 0
) -> dict[str, Any]:
    name = owner["metadata"]["name"]
    reference = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "name": name,
        "uid": owner["metadata"]["uid"], "controller": True,
    }  # fmt: skip
    labels = {
        "windlass.dev/run": name, "windlass.dev/attempt": str(attempt),
        "windlass.dev/role": "worker", "windlass.dev/index": str(index),
    }  # fmt: skip
    body = {
        "metadata": {
            "name": f"{name}-{attempt}-{index}", "labels": labels, "ownerReferences": [reference],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
    }  # fmt: skip
    made = await served.call("POST", PODS, body)
    assert made.code == 201, made
    pod: dict[str, Any] = made.body
    return pod


async def gets_an_address(served: Served, pod: dict[str, Any], address: str) -> None:
    path = f"{PODS}/{pod['metadata']['name']}/status"
    merge = {"Content-Type": "application/merge-patch+json"}
    answer = await served.call("PATCH", path, {"status": {"podIP": address}}, headers=merge)
    assert answer.code == 200, answer


async def test_it_lists_members_in_order_and_names_missing_ones(served: Served) -> None:
    _, second = await a_gang(served)
    await gets_an_address(served, second, "10.1.0.2")
    book = await served.call("GET", f"{BOOK}?attempt=0")
    while book.body["members"]["worker"] == ["", ""]:
        book = await served.call("GET", f"{BOOK}?attempt=0")
    assert book.body == {"complete": False, "members": {"worker": ["", "10.1.0.2"]}}


async def test_a_waiting_member_is_answered_when_the_last_address_is_known(served: Served) -> None:
    pods = await a_gang(served)
    token = await a_token(served, pods[0])
    waiting = asyncio.create_task(served.call("GET", f"{BOOK}?attempt=0&wait=25", token=token))
    for index, pod in enumerate(pods):
        await gets_an_address(served, pod, f"10.1.0.{index}")
    book = await waiting
    assert book.body == {"complete": True, "members": {"worker": ["10.1.0.0", "10.1.0.1"]}}


async def test_a_server_that_stops_answers_waiting_requests(served: Served) -> None:
    await a_gang(served)
    await served.call("GET", BOOK)
    waiting = asyncio.create_task(served.call("GET", f"{BOOK}?attempt=0&wait=25"))
    while not served.app._platform.services.rendezvous._waiting:
        await asyncio.sleep(0)
    await served.app.stop()
    assert (await waiting).body["complete"] is False


async def test_an_attempt_that_has_no_capacity_is_gone(served: Served) -> None:
    await a_gang(served, attempt=2)
    for attempt in (1, 3):
        assert (await served.call("GET", f"{BOOK}?attempt={attempt}")).code == 410


async def test_only_members_and_readers_of_the_run_may_read_it(served: Served) -> None:
    await a_gang(served)
    (stranger, _) = await a_gang(served, "other")
    token = await a_token(served, stranger)
    assert (await served.call("GET", BOOK, token=token)).code == 403
    assert (await served.call("GET", BOOK, token=await served.user("nobody"))).code == 403
    assert (await served.call("PUT", BOOK, {})).code == 405
    assert (await served.call("GET", f"{BOOK}?attempt=first")).code == 400
