"""Mailboxes: who may do what, what waits, what survives a restart."""

from __future__ import annotations

import asyncio
import base64
import os
import time
import types
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.conftest import Served, serving
from windlass.server.platform.handlers import mailboxes
from windlass.server.storage import interfaces, mailboxes_disk
from windlass.store.embedded.api import Api

ROOT = "/apis/platform.windlass.dev/v1alpha1/namespaces/default/mailboxes"


class Box:
    """A mailbox and both ways into it."""

    def __init__(self, served: Served, name: str, token: str) -> None:
        self.served, self.path, self.token = served, f"{ROOT}/{name}", token

    async def put(self, key: str, data: bytes) -> int:
        return (await self.served.call("PUT", f"{self.path}/calls/{key}", data=data)).code

    async def news(self, epoch: str = "", after: int = 0, wait: str = "") -> Any:
        query = f"epoch={epoch}&after={after}&wait={wait}"
        return (await self.served.call("GET", f"{self.path}/events?{query}")).body

    async def take(self, worker: str = "w") -> tuple[int, str, str]:
        path = f"{self.path}/worker/take?worker={worker}&python=3.11"
        answer = await self.served.call("POST", path, token=self.token)
        return answer.code, answer.headers.get("X-Windlass-Call", ""), answer.body

    async def tell(self, key: str, result: bytes, token: str | None = None) -> int:
        path = f"{self.path}/worker/results/{key}"
        chosen = self.token if token is None else token
        return (await self.served.call("PUT", path, data=result, token=chosen)).code


async def box_of(served: Served) -> Box:
    made = (await served.call("POST", ROOT)).body
    return Box(served, made["name"], made["token"])


async def test_a_call_goes_there_and_its_result_comes_back(served: Served) -> None:
    box = await box_of(served)
    assert await box.put("0", b"call") == 204
    assert await box.take() == (200, "0", "call")
    assert await box.tell("0", b"result") == 204
    told = await box.news()
    assert [item["type"] for item in told["events"]] == ["worker", "taken", "done"]
    assert base64.b64decode(told["events"][-1]["result"]) == b"result"
    assert (await served.call("GET", f"{box.path}/results/0")).body == "result"
    assert (await box.news(told["epoch"], told["after"]))["events"] == []


async def test_what_waits_is_woken(served: Served) -> None:
    box = await box_of(served)
    taking = asyncio.create_task(box.take())
    hearing = asyncio.create_task(box.news(wait="true"))
    assert (await hearing)["events"][0]["type"] == "worker"
    await box.put("0", b"late")
    assert await taking == (200, "0", "late")


async def test_a_call_is_for_one_worker_and_the_same_again_if_it_asks_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailboxes, "WAIT_SECONDS", 0.05)
    box = await box_of(served)
    await box.put("0", b"one")
    assert (await box.take("a"))[:2] == (200, "0")
    assert (await box.take("a"))[:2] == (200, "0")
    assert (await box.take("b"))[0] == 204
    await box.tell("0", b"x")
    assert (await box.take("a"))[0] == 204


async def test_the_token_opens_its_own_mailbox_and_nothing_else(served: Served) -> None:
    box, other = await box_of(served), await box_of(served)
    assert await box.tell("0", b"x", token=other.token) == 401
    assert await box.tell("0", b"x", token=served.token) == 401
    assert await box.tell("0", b"x", token="") == 401
    for path in (ROOT, box.path, f"{box.path}/events", "/api/v1/namespaces/default/pods"):
        assert (await served.call("GET", path, token=box.token)).code == 401
    elsewhere = box.path.replace("/default/", "/kube-system/") + "/worker/take?worker=w"
    assert (await served.call("POST", elsewhere, token=box.token)).code == 401


async def test_a_mailbox_is_its_owners(served: Served) -> None:
    box = await box_of(served)
    await box.tell("0", b"secret")
    stranger = await served.user("eve")
    assert (await served.call("POST", ROOT, token=stranger)).code == 403
    assert (await served.call("GET", f"{box.path}/results/0", token=stranger)).code == 403
    other_admin = await served.user("root2", "system:masters")
    for method, path in (("GET", "/results/0"), ("GET", "/events"), ("DELETE", "")):
        assert (await served.call(method, box.path + path, token=other_admin)).code == 404


async def test_a_heartbeat_is_read_with_its_age(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    clock = types.SimpleNamespace(monotonic=lambda: now, time=time.time)
    monkeypatch.setattr(mailboxes, "time", clock)
    box = await box_of(served)

    async def age() -> float:
        path = f"{box.path}/worker/calls/heartbeat"
        return float((await served.call("GET", path, token=box.token)).headers["X-Windlass-Age"])

    await box.put("heartbeat", b"1")
    assert await age() == 0
    now = 7.0
    assert await age() == 7
    await box.put("heartbeat", b"2")
    assert await age() == 0


async def test_closing_sends_workers_home_and_leaves_nothing(
    served: Served, tmp_path: Path
) -> None:
    box = await box_of(served)
    waiting = asyncio.create_task(box.take())
    await box.news(wait="true")
    assert (await served.call("DELETE", box.path)).code == 204
    assert (await waiting)[0] == 410
    assert await box.tell("0", b"x") == 401
    assert list((tmp_path / "mailboxes").iterdir()) == []


async def test_a_restart_forgets_nothing(api: Api, tmp_path: Path) -> None:
    async with serving(api, tmp_path) as served:
        box = await box_of(served)
        for key in ("0", "1", "2"):
            await box.put(key, f"call {key}".encode())
        await box.take("a")
        assert (await box.take("b"))[1] == "1"
        await box.tell("1", b"done")
        before = await box.news()
    async with serving(api, tmp_path) as served:
        box.served = served
        told = await box.news(before["epoch"], before["after"])
        assert told["epoch"] != before["epoch"]
        assert {(e["type"], e["call"]) for e in told["events"]} == {
            ("taken", "0"), ("taken", "1"), ("done", "1"),
        }  # fmt: skip
        assert (await box.take("a"))[1] == "0"
        assert (await box.take("c"))[1] == "2"


@pytest.mark.parametrize("path", ["/calls/../x", "/calls/A", "/calls/" + "a" * 41, "/nothing/0"])
async def test_no_name_leads_out_of_the_box(served: Served, path: str) -> None:
    box = await box_of(served)
    assert (await served.call("PUT", box.path + path, data=b"x")).code in (400, 404, 405)


async def test_what_is_too_large_is_refused_and_leaves_nothing(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailboxes, "MOST_BYTES", 10)
    box = await box_of(served)
    assert await box.put("0", b"x" * 11) == 413
    assert [path.name for path in (tmp_path / "mailboxes").glob("*/*")] == ["box.json"]


async def test_unused_mailboxes_are_swept(served: Served, tmp_path: Path) -> None:
    old, fresh = await box_of(served), await box_of(served)
    folder = tmp_path / "mailboxes" / old.path.rpartition("/")[2]
    long_ago = time.time() - interfaces.UNUSED_MAILBOX_SECONDS - 1
    for path in (folder / "box.json", folder):
        os.utime(path, (long_ago, long_ago))
    boxes = mailboxes_disk.DiskMailboxStore(tmp_path / "mailboxes")
    assert await boxes.sweep(time.time()) == [folder.name]
    assert await fresh.put("0", b"x") == 204
