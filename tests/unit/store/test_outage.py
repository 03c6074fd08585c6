"""A server that cannot be reached for a while: which requests wait, and what is reported then."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

import pytest
from aiohttp import web

from windlass.kinds.types.core import ConfigMap
from windlass.store import engine_process, errors
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.config.model import Access, Cluster, User
from windlass.store.kubernetes.http.transport import HttpTransport

OBJECT = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "uid": "u"}}


class Outage:
    """A port that is closed; every pause of a client counts as time, and one may open it."""

    def __init__(self) -> None:
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as closed:
            self.port: int = closed.getsockname()[1]
        self.pauses = 0
        self.opens_after = 10**9
        self.runner: web.ServerRunner | None = None
        self.methods: list[str] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses += 1
        if self.pauses == self.opens_after:
            self.runner = web.ServerRunner(web.Server(self.answer))
            await self.runner.setup()
            await web.TCPSite(self.runner, "127.0.0.1", self.port).start()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.methods.append(request.method)
        return web.json_response(OBJECT)

    def store(self, engine: Path | None, outage_seconds: float = 15.0) -> KubernetesStore:
        access = Access(
            Cluster(server=f"http://127.0.0.1:{self.port}"), User(),
            engine="" if engine is None else str(engine),
        )  # fmt: skip
        transport = HttpTransport(access, sleep=self.sleep, outage_seconds=outage_seconds)
        transport._outage_timeout._now = lambda: self.pauses * 1.0
        return KubernetesStore(access, transport, outage_seconds=outage_seconds)


def record(folder: Path, *, supervisor: int) -> None:
    """up.json as a supervisor leaves it whose server was killed; pid 1 with a wrong start time is
    a supervisor that is gone."""
    started = engine_process.start_time(supervisor) if supervisor == os.getpid() else 1
    child = {"pid": 0, "restarts": 3, "lastExit": -9, "exitedAt": 1763490603.0}
    facts = {"pid": supervisor, "startTime": started, "children": {"server": child}}
    (folder / "up.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_any_request_waits_for_a_server_that_is_being_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    record(tmp_path, supervisor=os.getpid())
    outage = Outage()
    outage.opens_after = 9
    store = outage.store(tmp_path)
    status, _, _ = await store.raw(method, "/api/v1/namespaces/n/configmaps")
    assert (status, outage.methods, outage.pauses) == (200, [method], 9)
    assert [record.getMessage() for record in caplog.records] == [
        "the engine is restarting its server since 18:30:03 UTC (killed by signal 9); "
        "waiting up to 15 s for it"
    ]
    await store.close()
    assert outage.runner is not None
    await outage.runner.cleanup()


async def test_after_the_wait_the_error_says_what_the_supervisor_does(tmp_path: Path) -> None:
    record(tmp_path, supervisor=os.getpid())
    outage = Outage()
    store = outage.store(tmp_path)
    with pytest.raises(errors.Unavailable) as refused:
        await store.get(ConfigMap, "a", "n")
    assert outage.pauses == 15
    assert refused.value.message == (
        "the engine is restarting its server since 18:30:03 UTC (killed by signal 9), and it "
        f"did not answer within 15 s; its log is {tmp_path}/logs/server.log"
    )
    # The next request of the same outage does not wait again.
    with pytest.raises(errors.Unavailable):
        await store.get(ConfigMap, "a", "n")
    assert outage.pauses == 15


@pytest.mark.parametrize(
    ("engine", "outage_seconds", "pauses"),
    [("gone", 15.0, 0), ("unknown", 15.0, 5), ("supervised", 0.0, 0)],
)
async def test_without_a_supervisor_the_wait_is_short_or_none(
    tmp_path: Path, engine: str, outage_seconds: float, pauses: int
) -> None:
    record(tmp_path, supervisor=1 if engine == "gone" else os.getpid())
    outage = Outage()
    store = outage.store(None if engine == "unknown" else tmp_path, outage_seconds)
    with pytest.raises(errors.Unavailable, match="cannot reach the API server"):
        await store.get(ConfigMap, "a", "n")
    assert outage.pauses == pauses
