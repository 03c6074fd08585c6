"""Logs of members that are gone, over the API: which there are, one as text, and access."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.conftest import Served, serving
from tests.unit.server.test_platform import ROOT, cluster, run, submit
from windlass.store import errors
from windlass.store.embedded.api import Api

LOGS = f"{ROOT}/namespaces/red/runs/train/logs"


class Gateway:
    """Keeps one log of each Run."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def list_logs(self, namespace: str, run_uid: str) -> list[dict[str, Any]]:
        self.asked.append((namespace, run_uid))
        return [{"name": "0-worker-0-u", "attempt": 0}]

    async def read_log(
        self, namespace: str, run_uid: str, name: str, options: Any
    ) -> AsyncIterator[bytes]:
        if name != "0-worker-0-u":
            raise errors.NotFound("no such log")
        self.asked.append((namespace, run_uid, options.tail_lines, options.since_time))
        yield b"one\n"
        yield b"two\n"


@pytest.fixture
async def kept(api: Api, tmp_path: Path) -> AsyncIterator[tuple[Served, Gateway]]:
    gateway = Gateway()
    async with serving(api, tmp_path) as served:
        served.app._platform.services.logs._logs = gateway
        await cluster(served)
        await submit(served, "red", run("train"))
        yield served, gateway


async def test_listed_and_read(kept: tuple[Served, Gateway]) -> None:
    served, gateway = kept
    found = await served.call("GET", "/apis/windlass.dev/v1alpha1/namespaces/red/runs/train")
    uid = found.body["metadata"]["uid"]
    listed = await served.call("GET", LOGS)
    assert (listed.code, listed.body["kind"]) == (200, "KeptLogs")
    assert [item["name"] for item in listed.body["items"]] == ["0-worker-0-u"]
    query = "tailLines=5&sinceTime=2026-01-01T00:00:00Z"
    read = await served.call("GET", f"{LOGS}/0-worker-0-u?{query}")
    assert (read.code, read.body) == (200, "one\ntwo\n")
    assert gateway.asked == [("red", uid), ("red", uid, 5, "2026-01-01T00:00:00Z")]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", f"{LOGS}/other", 404),
        ("GET", LOGS.replace("train", "absent"), 404),
        ("GET", f"{LOGS}/0-worker-0-u?tailLines=-1", 400),
        ("POST", LOGS, 405),
        ("GET", f"{LOGS}/0-worker-0-u/more", 404),
    ],
)
async def test_what_is_refused(
    kept: tuple[Served, Gateway], method: str, path: str, code: int
) -> None:
    assert (await kept[0].call(method, path)).code == code


async def test_only_users_who_may_read_logs_there_read_them(kept: tuple[Served, Gateway]) -> None:
    served, gateway = kept
    rita, bob = await served.user("rita"), await served.user("bob")
    for path in (LOGS, f"{LOGS}/0-worker-0-u"):
        assert (await served.call("GET", path, token=bob)).code == 403
        assert (await served.call("GET", path, token="")).code == 401
    assert not gateway.asked
    assert (await served.call("GET", LOGS, token=rita)).code == 200


async def test_a_server_without_nodes_keeps_none(served: Served) -> None:
    await cluster(served)
    await submit(served, "red", run("train"))
    assert (await served.call("GET", LOGS)).body["items"] == []
    assert (await served.call("GET", f"{LOGS}/x")).code == 404
