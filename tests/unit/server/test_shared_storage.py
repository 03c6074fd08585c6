"""Two servers that share storage and a database: what one stores, the other one has.

The storage and the database are real ones. Which server is asked is drawn by lot."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import importlib.util
import itertools
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.objectstore import ObjectStore
from tests.harness.postgres import Postgres
from tests.unit.server.conftest import Answer, Served, serving
from windlass.podlogs import archive
from windlass.podlogs.options import LogOptions
from windlass.server.platform.handlers import mailboxes
from windlass.server.storage import backends, interfaces, postgres
from windlass.server.storage.bucket import blobs_bucket
from windlass.server.storage.bucket.logs_bucket import BucketLogStore
from windlass.server.storage.interfaces import BlobRef
from windlass.server.storage.mailboxes_postgres import PostgresMailboxStore
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

ROOT = "/apis/platform.windlass.dev/v1alpha1/namespaces/default"
CONTENT = random.Random(7).randbytes(300_000)
DIGEST = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
_numbers = itertools.count()


@contextlib.asynccontextmanager
async def shared(
    store: ObjectStore, database: str, prefix: str
) -> AsyncIterator[backends.StorageBackends]:
    made = await backends.shared(store.url(prefix), store.keys, database)
    try:
        yield made
    finally:
        await made.mailboxes.stop()
        await made.close()


class Pair:
    """Two servers; `call` asks one of them."""

    def __init__(self, *servers: Served) -> None:
        self.servers = list(servers)
        self.lot = random.Random(3)

    async def call(self, method: str, path: str, **options: Any) -> Answer:
        return await self.lot.choice(self.servers).call(method, path, **options)

    async def both(self, method: str, path: str, **options: Any) -> Answer:
        """The same answer of both."""
        first, second = [await each.call(method, path, **options) for each in self.servers]
        assert (first.code, first.body) == (second.code, second.body)
        return first


@pytest.fixture
def database(postgres_server: Postgres) -> str:
    return postgres_server.url(f"places_{next(_numbers)}")


@pytest.fixture
async def pair(
    api: Api, tmp_path: Path, object_store: ObjectStore, database: str
) -> AsyncIterator[Pair]:
    async with contextlib.AsyncExitStack() as stack:
        servers = []
        for name in ("one", "two"):
            own = await stack.enter_async_context(shared(object_store, database, tmp_path.name))
            (tmp_path / name).mkdir()
            served = await stack.enter_async_context(serving(api, tmp_path / name))
            platform = served.app._platform
            platform.services.blobs._blobs = own.blobs
            platform.services.mailboxes._mailboxes = own.mailboxes
            servers.append(served)
        token = servers[0].token
        for each in servers:
            each.token = token
        yield Pair(*servers)


# --- code


async def send(pair: Pair, data: bytes, offset: int) -> Answer:
    told = {"Upload-Offset": str(offset), "Upload-Length": str(len(CONTENT))}
    return await pair.call("PATCH", f"{ROOT}/blobs/{DIGEST}", data=data, headers=told)


async def test_code_comes_in_pieces_to_either_server_and_is_whole_at_both(pair: Pair) -> None:
    path = f"{ROOT}/blobs/{DIGEST}"
    for offset in range(0, len(CONTENT), 70_000):
        there = await pair.both("HEAD", path)
        assert (there.code, there.headers["Upload-Offset"]) == (404, str(offset))
        assert (await send(pair, CONTENT[offset : offset + 70_000], offset)).code == 204
    assert (await pair.both("HEAD", path)).code == 200
    for each in pair.servers:
        headers = {"Authorization": f"Bearer {each.token}"}
        async with each.session.get(each.url + path, headers=headers) as answer:
            assert await answer.read() == CONTENT
    assert (await send(pair, b"", 0)).headers["Upload-Offset"] == str(len(CONTENT))


async def test_two_uploads_of_the_same_blob_do_not_disturb_each_other(pair: Pair) -> None:
    path = f"{ROOT}/blobs/{DIGEST}"

    async def upload(server: Served, step: int) -> None:
        while (asked := await server.call("HEAD", path)).code != 200:
            offset = int(asked.headers["Upload-Offset"])
            told = {"Upload-Offset": str(offset), "Upload-Length": str(len(CONTENT))}
            data = CONTENT[offset : offset + step]
            sent = await server.call("PATCH", path, data=data, headers=told)
            assert sent.code in (204, 409), sent.body

    await asyncio.gather(upload(pair.servers[0], 50_000), upload(pair.servers[1], 90_000))
    async with pair.servers[0].session.get(
        pair.servers[0].url + path, headers={"Authorization": f"Bearer {pair.servers[0].token}"}
    ) as answer:
        assert await answer.read() == CONTENT


async def test_code_that_is_not_what_its_name_says_leaves_nothing(pair: Pair) -> None:
    assert (await send(pair, b"x" * 100_000, 0)).code == 204
    bad = await send(pair, b"x" * 200_000, 100_000)
    assert bad.code == 400
    assert "is not sha256:" in bad.body["message"]
    there = await pair.both("HEAD", f"{ROOT}/blobs/{DIGEST}")
    assert (there.code, there.headers["Upload-Offset"]) == (404, "0")
    assert (await send(pair, CONTENT + b"more", 0)).code == 400


async def test_only_code_that_is_unused_for_long_is_deleted(
    object_store: ObjectStore, database: str, tmp_path: Path
) -> None:
    async with shared(object_store, database, tmp_path.name) as place:
        targets = {}
        for name in ("old", "named", "elsewhere"):
            target = BlobRef(
                "gone" if name == "elsewhere" else "a", hashlib.sha256(name.encode()).hexdigest()
            )
            targets[name] = target
            await place.blobs.append(target, 0, len(name), _pieces(name.encode()))
        half = BlobRef("a", "0" * 64)
        await place.blobs.append(half, 0, 10, _pieces(b"12345"))
        named = {("a", targets["named"].digest)}
        await place.blobs.sweep({"a"}, named, time.time())
        assert await place.blobs.size(targets["elsewhere"]) is None
        assert await place.blobs.size(targets["old"]) == 3
        assert await place.blobs.received(half) == 5
        later = time.time() + interfaces.UNUSED_BLOB_SECONDS + 60
        await place.blobs.sweep({"a"}, named, later)
        assert await place.blobs.size(targets["old"]) is None
        assert await place.blobs.size(targets["named"]) == 5
        assert await place.blobs.received(half) == 0
        left = {path.name for path in (object_store.data / "platform").rglob("*") if path.is_file()}
        assert targets["old"].hex not in left


async def test_a_list_that_is_needed_is_written_again_when_it_is_old(
    object_store: ObjectStore, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs_bucket, "TOUCH_SECONDS", 0.0)
    async with shared(object_store, database, tmp_path.name) as place:
        target = BlobRef("a", hashlib.sha256(b"x").hexdigest())
        await place.blobs.append(target, 0, 1, _pieces(b"x"))
        (path,) = (object_store.data / "platform" / tmp_path.name / "blobs").rglob(target.hex)
        os.utime(path, (1e9, 1e9))
        assert await place.blobs.size(target) == 1
        assert path.stat().st_mtime > 1e9 + 1


# --- mailboxes


class Box:
    def __init__(self, pair: Pair, made: dict[str, Any]) -> None:
        self.pair, self.token = pair, made["token"]
        self.path = f"{ROOT}/mailboxes/{made['name']}"

    async def take(self, worker: str) -> tuple[int, str]:
        path = f"{self.path}/worker/take?worker={worker}&python=3.11"
        answer = await self.pair.call("POST", path, token=self.token)
        return answer.code, answer.headers.get("X-Windlass-Call", "")


async def box_of(pair: Pair) -> Box:
    return Box(pair, (await pair.call("POST", f"{ROOT}/mailboxes")).body)


@pytest.mark.parametrize(
    "size", [10, interfaces.INLINE_BYTES, interfaces.INLINE_BYTES + 1, 9 << 20]
)
async def test_a_call_goes_through_one_server_and_its_result_through_the_other(
    pair: Pair, size: int
) -> None:
    box = await box_of(pair)
    one, two = pair.servers
    call, result = b"c" * size, b"r" * size
    assert (await one.call("PUT", f"{box.path}/calls/0", data=call)).code == 204
    path = f"{box.path}/worker/take?worker=w.0&python=3.11"
    taken = await two.call("POST", path, token=box.token)
    assert (taken.code, taken.headers["X-Windlass-Call"]) == (200, "0")
    assert taken.body == call.decode()
    put = f"{box.path}/worker/results/0"
    assert (await two.call("PUT", put, data=result, token=box.token)).code == 204
    told = (await pair.both("GET", f"{box.path}/events")).body
    assert [item["type"] for item in told["events"]] == ["worker", "taken", "done"]
    if size <= interfaces.INLINE_BYTES:
        assert base64.b64decode(told["events"][-1]["result"]) == result
    assert (await pair.both("GET", f"{box.path}/results/0")).body == result.decode()
    query = f"epoch={told['epoch']}&after={told['after']}"
    assert (await pair.both("GET", f"{box.path}/events?{query}")).body["events"] == []
    assert (await one.call("DELETE", f"{box.path}/calls/0")).code == 204
    assert (await pair.both("GET", f"{box.path}/results/0")).code == 404


async def test_a_request_that_waits_at_one_server_is_woken_by_a_message_at_the_other(
    pair: Pair,
) -> None:
    box = await box_of(pair)
    one, two = pair.servers
    path = f"{box.path}/worker/take?worker=w.0&python=3.11"
    taking = asyncio.create_task(one.call("POST", path, token=box.token))
    heard = await two.call("GET", f"{box.path}/events?wait=true")
    assert heard.body["events"][0]["type"] == "worker"
    await two.call("PUT", f"{box.path}/calls/0", data=b"late")
    assert (await taking).headers["X-Windlass-Call"] == "0"


async def test_many_workers_at_two_servers_never_get_one_call_twice(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailboxes, "WAIT_SECONDS", 0.2)
    box = await box_of(pair)
    for key in range(40):
        put = await pair.call("PUT", f"{box.path}/calls/{key}", data=b"x")
        assert put.code == 204
    taken: list[str] = []

    async def work(worker: str) -> None:
        while True:
            code, key = await box.take(worker)
            if code != 200:
                return
            taken.append(key)
            again, same = await box.take(worker)
            assert (again, same) == (200, key), "the same again until there is a result"
            done = f"{box.path}/worker/results/{key}"
            assert (await pair.call("PUT", done, data=b"r", token=box.token)).code == 204

    await asyncio.gather(*(work(f"w{number}.0") for number in range(8)))
    assert sorted(taken, key=int) == [str(key) for key in range(40)]
    told = (await pair.both("GET", f"{box.path}/events")).body["events"]
    done = [item["call"] for item in told if item["type"] == "done"]
    assert sorted(done, key=int) == sorted(taken, key=int)


async def test_closing_at_one_server_sends_workers_of_the_other_home(
    pair: Pair, object_store: ObjectStore, tmp_path: Path
) -> None:
    box = await box_of(pair)
    one, two = pair.servers
    await one.call("PUT", f"{box.path}/calls/function", data=b"x" * (interfaces.INLINE_BYTES + 1))
    path = f"{box.path}/worker/take?worker=w.0&python=3.11"
    waiting = asyncio.create_task(two.call("POST", path, token=box.token))
    await one.call("GET", f"{box.path}/events?wait=true")
    assert (await one.call("DELETE", box.path)).code == 204
    assert (await waiting).code == 410
    assert (await pair.both("POST", path, token=box.token)).code == 401
    mail = object_store.data / "platform" / tmp_path.name / "mail"
    assert [path for path in mail.rglob("*") if path.is_file()] == []


async def test_a_mailbox_is_its_owners_at_both(pair: Pair) -> None:
    box = await box_of(pair)
    stranger = await pair.servers[0].user("eve")
    other = await pair.servers[0].user("root2", "system:masters")
    assert (await pair.both("GET", f"{box.path}/events", token=stranger)).code == 403
    assert (await pair.both("GET", f"{box.path}/events", token=other)).code == 404
    assert (await pair.both("DELETE", box.path, token=other)).code == 404
    take = f"{box.path}/worker/take?worker=w"
    assert (await pair.both("POST", take, token="guessed")).code == 401


async def test_a_database_that_was_away_has_forgotten_nothing(
    pair: Pair, postgres_server: Postgres
) -> None:
    box = await box_of(pair)
    await pair.call("PUT", f"{box.path}/calls/0", data=b"x")
    assert (await box.take("w.0"))[0] == 200
    path = f"{box.path}/worker/take?worker=v.0&python=3.11"
    waiting = asyncio.create_task(pair.servers[0].call("POST", path, token=box.token))
    await pair.call("GET", f"{box.path}/events?wait=true")
    await asyncio.to_thread(postgres_server.restart)
    assert await box.take("w.0") == (200, "0")
    await pair.servers[1].call("PUT", f"{box.path}/calls/1", data=b"x")
    assert (await waiting).headers["X-Windlass-Call"] == "1"


async def test_unused_mailboxes_are_deleted_with_their_messages(
    pair: Pair, object_store: ObjectStore, database: str, tmp_path: Path
) -> None:
    box = await box_of(pair)
    large = b"x" * (interfaces.INLINE_BYTES + 1)
    await pair.call("PUT", f"{box.path}/calls/0", data=large)
    async with shared(object_store, database, tmp_path.name) as place:
        assert isinstance(place.mailboxes, PostgresMailboxStore)
        assert await place.mailboxes.sweep(time.time()) == []
        later = time.time() + interfaces.UNUSED_MAILBOX_SECONDS + 60
        assert await place.mailboxes.sweep(later) == [box.path.rpartition("/")[2]]
    mail = object_store.data / "platform" / tmp_path.name / "mail"
    assert [path for path in mail.rglob("*") if path.is_file()] == []


# --- kept logs


LINES = b"2026-01-01T00:00:00.0Z stdout F one\n2026-01-01T00:00:01.0Z stdout F two\n"


def record(uid: str) -> bytes:
    return (
        b'{"run":"%s","attempt":0,"role":"worker","index":0,"container":"main","pod":"p",'
        b'"uid":"u","keptAt":"2026-01-01T00:00:02.0Z","bytes":72}' % uid.encode()
    )


async def test_a_log_that_one_server_took_is_read_at_the_other(
    object_store: ObjectStore, database: str, tmp_path: Path
) -> None:
    async with (
        shared(object_store, database, tmp_path.name) as one,
        shared(object_store, database, tmp_path.name) as two,
    ):
        with pytest.raises(ValueError, match="nothing of"):
            await one.logs.put_record("red", "u1", "0-worker-0-u", record("u1"))
        await one.logs.put_segment(archive.Segment("red", "u1", "0-worker-0-u", "main", 0), LINES)
        assert await two.logs.list_logs("red", "u1") == []
        await two.logs.put_record("red", "u1", "0-worker-0-u", record("u1"))
        for place in (one, two):
            (listed,) = await place.logs.list_logs("red", "u1")
            assert (listed["name"], listed["run"]) == ("0-worker-0-u", "u1")
            asked = LogOptions(tail_lines=1)
            pieces = place.logs.read_log("red", "u1", "0-worker-0-u", asked)
            assert b"".join([piece async for piece in pieces]) == b"two\n"
        for bad in ("..", "a/b", ""):
            with pytest.raises(ValueError):  # noqa: PT011
                await one.logs.put_segment(archive.Segment("red", "u1", bad, "main", 0), LINES)


async def test_logs_go_with_their_run_and_the_oldest_when_there_is_too_much(
    api: Api, object_store: ObjectStore, database: str, tmp_path: Path
) -> None:
    async with (
        serving(api, tmp_path) as served,
        shared(object_store, database, tmp_path.name) as place,
    ):
        spec = {"metadata": {"name": "a"}, "spec": {"roles": [{"command": ["true"]}]}}
        path = "/apis/windlass.dev/v1alpha1/namespaces/default/runs"
        uid = (await served.call("POST", path, spec)).body["metadata"]["uid"]
        assert isinstance(place.logs, BucketLogStore)
        for run, log in ((uid, "0-worker-0-old"), ("gone", "x"), (uid, "0-worker-0-new")):
            await place.logs.put_segment(archive.Segment("default", run, log, "main", 0), LINES)
            await place.logs.put_record("default", run, log, record(run))
        base = object_store.data / "platform" / tmp_path.name / "logs" / "default" / uid
        for each in (base / "0-worker-0-old").rglob("*"):
            os.utime(each, (1e9, 1e9))
        await place.logs.sweep(EmbeddedStore(api))
        assert len(await place.logs.list_logs("default", uid)) == 2
        assert await place.logs.list_logs("default", "gone") == []
        place.logs._most = 300
        await place.logs.sweep(EmbeddedStore(api))
        assert [each["name"] for each in await place.logs.list_logs("default", uid)] == [
            "0-worker-0-new"
        ]


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.parametrize("content", ["node metrics", "mailboxes"])
async def test_a_database_that_does_not_answer_is_named_by_its_content(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "WAIT_SECONDS", 0.5)
    away = postgres.Database(f"postgresql:///none?host={tmp_path}", content, "SELECT 1", 1)

    async def work(connection: postgres.Connection) -> None:
        await connection.execute("SELECT 1")

    with pytest.raises(errors.Unavailable, match=f"the database of {content} does not answer"):
        await away.do(work)
    await away.close()


async def test_storage_without_its_packages_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = importlib.util.find_spec

    def without_obstore(name: str, package: str | None = None) -> Any:
        return None if name == "obstore" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_obstore)
    with pytest.raises(errors.BadRequest, match=r"install windlass-platform\[objectstore\]"):
        await backends.shared("s3://code", tmp_path, "postgresql://books")
