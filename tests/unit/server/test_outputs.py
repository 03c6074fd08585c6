"""Outputs of a run: a replica publishes its own files, whole, within the quota; what no run names
is thrown away."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from typing import Any

import pytest

from tests.unit.server.conftest import Answer, Served
from tests.unit.server.test_pod_tokens import RUNS, a_token
from tests.unit.server.test_rendezvous import a_gang, a_member
from windlass.kinds.annotations import OUTPUTS_QUOTA
from windlass.server.fairness.settings import DEFAULTS
from windlass.server.platform.handlers import outputs as outputs_handler
from windlass.server.storage import interfaces

BASE = "/apis/platform.windlass.dev/v1alpha1/namespaces/default/runs/{}/outputs"
CONTENT = b"weights" * 1000


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def send(served: Served, token: str, data: bytes, run: str = "job") -> str:
    headers = {"Upload-Offset": "0", "Upload-Length": str(len(data))}
    path = f"{BASE.format(run)}/blobs/{digest_of(data)}"
    answer = await served.call("PATCH", path, data=data, headers=headers, token=token)
    assert answer.code == 204, answer
    return digest_of(data)


def manifest(*files: dict[str, Any]) -> bytes:
    return json.dumps({"files": list(files)}).encode()


def a_file(path: str = "model.pt", data: bytes = CONTENT) -> dict[str, Any]:
    return {"path": path, "digest": digest_of(data), "size": len(data), "modified": 5, "mode": 420}


async def publish(served: Served, token: str, run: str = "job", **body: Any) -> Answer:
    return await served.call(
        "POST", f"{BASE.format(run)}/publish", {"moment": "end", **body}, token=token
    )


async def outputs(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = (await served.call("GET", f"{RUNS}/job")).body["status"].get("outputs")
    return found or {}


async def test_a_replica_publishes_its_files_once(served: Served) -> None:
    pods = await a_gang(served)
    token = await a_token(served, pods[1])
    await send(served, token, CONTENT)
    listed = await send(served, token, manifest(a_file()))
    assert await outputs(served) == {}
    assert (await publish(served, token, manifest=listed)).code == 204
    first = await outputs(served)
    assert first["worker-1"]["manifest"] == listed
    assert (first["worker-1"]["files"], first["worker-1"]["bytes"]) == (1, len(CONTENT))
    version = (await served.call("GET", f"{RUNS}/job")).body["metadata"]["resourceVersion"]
    assert (await publish(served, token, manifest=listed)).code == 204
    again = (await served.call("GET", f"{RUNS}/job")).body["metadata"]["resourceVersion"]
    assert again == version, "a repetition changes nothing"
    shown = await served.call("GET", BASE.format("job"))
    (item,) = shown.body["items"]
    assert (item["replica"], item["files"][0]["path"]) == ("worker-1", "model.pt")
    content = await served.call("GET", f"{BASE.format('job')}/blobs/{digest_of(CONTENT)}")
    assert content.body == CONTENT.decode()


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([a_file("never", b"never sent")], "was not sent"),
        ([a_file() | {"size": 3}], "was not sent"),
        ([{"path": "x", "extra": 1}], "not valid"),
        ([a_file() | {"digest": "sha256:x"}], "not valid"),
        ([{"path": "x", "size": 4096}], "was not sent"),
        ([a_file("a/../../b")], "not a path of a file"),
        ([a_file("/a//b")], "not a path of a file"),
        ([a_file("x" * 256)], "not a path of a file"),
    ],
)
async def test_a_list_of_files_that_is_not_whole_is_not_published(
    served: Served, files: list[dict[str, Any]], why: str
) -> None:
    token = await a_token(served, (await a_gang(served))[0])
    await send(served, token, CONTENT)
    listed = await send(served, token, manifest(*files))
    answer = await publish(served, token, manifest=listed)
    assert answer.code == 400
    assert why in answer.body["message"]
    assert await outputs(served) == {}


async def test_only_replicas_of_the_run_publish(served: Served) -> None:
    await a_gang(served)
    others = await a_gang(served, "other")
    token = await a_token(served, others[0])
    assert (await publish(served, token)).code == 403
    path = f"{BASE.format('job')}/blobs/{digest_of(CONTENT)}"
    assert (await served.call("HEAD", path, token=token)).code == 403
    assert (await served.call("GET", BASE.format("job"), token=token)).code == 200, "of its team"
    elsewhere = BASE.format("job").replace("/default/", "/kube-system/")
    assert (await served.call("GET", elsewhere, token=token)).code == 403
    assert (await publish(served, served.token)).code == 403, "a user is no replica"


async def test_an_earlier_attempt_does_not_replace_a_later_one(served: Served) -> None:
    pods = await a_gang(served)
    owner = (await served.call("GET", f"{RUNS}/job")).body
    later = await a_member(served, owner, 0, attempt=1)
    listed = await send(served, await a_token(served, later), manifest())
    assert (await publish(served, await a_token(served, later), manifest=listed)).code == 204
    assert (await publish(served, await a_token(served, pods[0]), manifest=listed)).code == 409
    assert (await outputs(served))["worker-0"]["attempt"] == 1


async def test_a_reason_keeps_what_was_collected_before(served: Served) -> None:
    token = await a_token(served, (await a_gang(served))[0])
    await send(served, token, CONTENT)
    listed = await send(served, token, manifest(a_file()))
    await publish(served, token, moment="checkpoint", manifest=listed)
    await publish(served, token, moment="failure", message="it is full")
    found = (await outputs(served))["worker-0"]
    assert (found["manifest"], found["message"], found["files"]) == (listed, "it is full", 1)
    why = await served.call("GET", BASE.format("job").replace("/outputs", "/why"))
    assert "Outputs of worker-0: it is full." in why.body["sentences"]


async def test_the_quota_counts_all_runs_of_the_team(served: Served) -> None:
    pods = await a_gang(served)
    merge = {"Content-Type": "application/merge-patch+json"}
    patch = {"metadata": {"annotations": {OUTPUTS_QUOTA: "10k"}}}
    await served.call("PATCH", "/api/v1/namespaces/default", patch, headers=merge)
    tokens = [await a_token(served, pod) for pod in pods]
    await send(served, tokens[0], CONTENT)
    listed = await send(served, tokens[0], manifest(a_file()))
    assert (await publish(served, tokens[0], manifest=listed)).code == 204
    assert (await publish(served, tokens[0], manifest=listed)).code == 204, "its own do not count"
    refused = await publish(served, tokens[1], manifest=listed)
    assert refused.code == 403
    assert "quota" in refused.body["message"]
    check = f"{BASE.format('job')}/check"
    sizes = {amount: (await served.call("POST", check, {"bytes": amount}, token=tokens[1])).code
             for amount in (10_000, 2_000)}  # fmt: skip
    assert sizes == {10_000: 403, 2_000: 204}
    usage = await served.call("GET", BASE.partition("/runs")[0] + "/outputs")
    assert (usage.body["bytes"], usage.body["quota"]) == (len(CONTENT), 10_000)


async def test_content_that_is_never_published_is_bounded_by_the_quota(served: Served) -> None:
    token = await a_token(served, (await a_gang(served))[0])
    merge = {"Content-Type": "application/merge-patch+json"}
    patch = {"metadata": {"annotations": {OUTPUTS_QUOTA: "1k"}}}
    await served.call("PATCH", "/api/v1/namespaces/default", patch, headers=merge)
    for number in range(4):
        await send(served, token, b"%d" % number * 1000)
    headers = {"Upload-Offset": "0", "Upload-Length": "1000"}
    path = f"{BASE.format('job')}/blobs/{digest_of(b'x' * 1000)}"
    refused = await served.call("PATCH", path, data=b"x" * 1000, headers=headers, token=token)
    assert refused.code == 403
    assert "windlass outputs quota SIZE -N default" in refused.body["message"]


async def test_a_list_of_very_many_files_is_read_by_replica(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs_handler, "_MOST_LISTED", 3)
    for pod in await a_gang(served):
        token = await a_token(served, pod)
        await send(served, token, CONTENT)
        listed = await send(served, token, manifest(a_file("a"), a_file("b")))
        assert (await publish(served, token, manifest=listed)).code == 204
    refused = await served.call("GET", BASE.format("job"))
    assert refused.code == 413
    assert "windlass cp --list job/worker-0:" in refused.body["message"]
    (item,) = (await served.call("GET", f"{BASE.format('job')}?replica=worker-1")).body["items"]
    assert (item["replica"], len(item["files"])) == ("worker-1", 2)


async def test_a_list_of_many_files_is_checked_whole(served: Served) -> None:
    token = await a_token(served, (await a_gang(served))[0])
    await send(served, token, CONTENT)
    files = [a_file(f"d/{number}") for number in range(120)]
    listed = await send(served, token, manifest(*files))
    assert (await publish(served, token, manifest=listed)).code == 204
    assert (await outputs(served))["worker-0"]["bytes"] == 120 * len(CONTENT)
    listed = await send(served, token, manifest(*files, a_file("last", b"never sent")))
    assert "'last' was not sent" in (await publish(served, token, manifest=listed)).body["message"]


async def test_the_limit_of_uploads_of_code_is_not_that_of_outputs(served: Served) -> None:
    token = await a_token(served, (await a_gang(served))[0])
    service = served.app._platform.services.outputs
    few = dataclasses.replace(DEFAULTS.namespace, uploads=1)
    service._content.limits = few
    for content in (b"one", b"two", b"three"):
        await send(served, token, content)


async def test_what_no_run_names_is_removed(served: Served) -> None:
    token = await a_token(served, (await a_gang(served))[0])
    await send(served, token, CONTENT)
    unused = await send(served, token, b"nobody names this")
    listed = await send(served, token, manifest(a_file()))
    await publish(served, token, manifest=listed)
    service = served.app._platform.services.outputs
    store, in_use = service._blobs, await service._in_use(service._objects)
    later = time.time() + interfaces.UNUSED_OUTPUT_SECONDS + 60
    assert await store.sweep(*in_use, later) == 1
    for digest, left in ((digest_of(CONTENT), 200), (listed, 200), (unused, 404)):
        path = f"{BASE.format('job')}/blobs/{digest}"
        assert (await served.call("HEAD", path, token=token)).code == left
    await served.call("DELETE", f"{RUNS}/job")
    spaces, _ = in_use
    assert await store.sweep(spaces, set(), later + interfaces.UNUSED_OUTPUT_SECONDS) == 2
