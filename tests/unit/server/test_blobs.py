"""Uploads in pieces, whole or not at all; access to them; what is removed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.conftest import Answer, Served
from windlass.server.platform.handlers import blobs
from windlass.server.storage import blobs_disk
from windlass.store.embedded.client import EmbeddedStore

CONTENT = b"the code of a run" * 1000
DIGEST = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
RUNS = "/apis/windlass.dev/v1alpha1/namespaces/{}/runs"


async def upload(
    served: Served, data: bytes, offset: int = 0, digest: str = DIGEST, **more: Any
) -> Answer:
    headers = {"Upload-Offset": str(offset), "Upload-Length": str(more.pop("length", len(CONTENT)))}
    path = blobs.path_of(more.pop("namespace", "default"), digest)
    return await served.call("PATCH", path, data=data, headers=headers, **more)


async def head(served: Served, namespace: str = "default", **more: Any) -> tuple[int, str]:
    answer = await served.call("HEAD", blobs.path_of(namespace, DIGEST), **more)
    return answer.code, answer.headers.get("Upload-Offset", "")


async def test_a_blob_comes_in_pieces_and_is_there_when_it_is_whole(served: Served) -> None:
    assert await head(served) == (404, "0")
    assert (await upload(served, CONTENT[:100])).code == 204
    assert await head(served) == (404, "100")
    last = await upload(served, CONTENT[100:], 100)
    assert (last.code, last.headers["Upload-Offset"]) == (204, str(len(CONTENT)))
    assert await head(served) == (200, str(len(CONTENT)))
    path = served.url + blobs.path_of("default", DIGEST)
    async with served.session.get(
        path, headers={"Authorization": f"Bearer {served.token}"}
    ) as answer:
        assert await answer.read() == CONTENT


async def test_a_piece_that_does_not_fit_is_refused_with_where_to_go_on(served: Served) -> None:
    await upload(served, CONTENT[:100])
    wrong = await upload(served, CONTENT[50:], 50)
    assert wrong.code == 409
    assert "begins at 100" in wrong.body["message"]


async def test_a_blob_that_is_not_what_its_name_says_leaves_nothing(served: Served) -> None:
    bad = await upload(served, b"x" * len(CONTENT))
    assert bad.code == 400
    assert "is not sha256:" in bad.body["message"]
    assert await head(served) == (404, "0")


@pytest.mark.parametrize(
    ("data", "options", "code"),
    [
        (CONTENT + b"more", {}, 400),
        (CONTENT, {"length": blobs.MOST_BYTES + 1}, 413),
        (CONTENT, {"length": 10**16}, 400),
        (CONTENT, {"namespace": "nowhere"}, 404),
    ],
)
async def test_what_cannot_be_stored_is_refused(
    served: Served, data: bytes, options: dict[str, Any], code: int
) -> None:
    assert (await upload(served, data, **options)).code == code


async def test_a_blob_belongs_to_the_namespace_it_was_uploaded_to(served: Served) -> None:
    await served.team("other")
    await upload(served, CONTENT)
    assert (await head(served))[0] == 200
    assert (await head(served, "other"))[0] == 404
    assert (await served.call("GET", blobs.path_of("other", DIGEST))).code == 404


@pytest.mark.parametrize("method", ["HEAD", "GET", "PATCH"])
async def test_a_user_who_may_not_create_runs_sees_no_blobs(served: Served, method: str) -> None:
    stranger = await served.user("eve")
    answer = await served.call(method, blobs.path_of("default", DIGEST), token=stranger)
    assert answer.code == 403


async def test_a_full_disk_is_said_clearly(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=blobs_disk.SPARE_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    full = await upload(served, CONTENT)
    assert (full.code, full.body["reason"]) == (507, "InsufficientStorage")
    assert "free some space" in full.body["message"]


async def test_a_second_upload_of_the_same_waits(served: Served) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slowly() -> Any:
        yield CONTENT[:10]
        begun.set()
        await go.wait()
        yield CONTENT[10:]

    first = asyncio.create_task(upload(served, slowly()))
    await begun.wait()
    while (await head(served))[1] == "0":
        await asyncio.sleep(0)
    busy = await upload(served, CONTENT[10:], 10)
    assert (busy.code, busy.headers["Retry-After"]) == (409, "1")
    go.set()
    assert (await first).code == 204
    assert (await head(served))[0] == 200


def test_only_blobs_that_are_unused_for_long_are_swept(tmp_path: Path) -> None:
    store = blobs_disk.DiskBlobStore(tmp_path)
    now = 1e9
    ages = {"a/old": 40, "a/young": 20, "a/named": 400, "a/half.part": 10, "gone/any": 0}
    for name, days in ages.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.utime(path, (now - days * 86400,) * 2)
    asyncio.run(store.sweep({"a"}, {("a", "sha256:named")}, now))
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"a/young", "a/named"}
    assert (tmp_path / "a/named").stat().st_mtime > now, "its days begin when no run names it"


async def test_runs_and_cronruns_name_what_is_in_use(served: Served) -> None:
    spec = {"roles": [{"command": ["true"]}], "code": {"digest": DIGEST}}
    made = await served.call(
        "POST", RUNS.format("default"), {"metadata": {"name": "a"}, "spec": spec}
    )
    assert made.code == 201
    cron = {
        "schedule": "@daily",
        "template": {"spec": spec | {"code": {"digest": DIGEST[:-1] + "0"}}},
    }
    path = RUNS.format("default").replace("/runs", "/cronruns")
    assert (await served.call("POST", path, {"metadata": {"name": "b"}, "spec": cron})).code == 201
    namespaces, named = await blobs.code_in_use(EmbeddedStore(served.api))
    assert "default" in namespaces
    assert named == {("default", DIGEST), ("default", DIGEST[:-1] + "0")}
