"""A real App on a real store, served on a free port; clients with tokens of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.harness import objectstore, postgres, processes
from windlass.server import bootstrap
from windlass.server.apiserver.node_proxy import NodeGateway
from windlass.server.app import App, make_app, stop_app
from windlass.server.auth.bearer_tokens import create_token
from windlass.server.auth.identity import MASTERS
from windlass.server.http.audit import AuditLog
from windlass.store.embedded.api import Api


@dataclasses.dataclass
class Answer:
    code: int
    headers: Any
    body: Any


class Served:
    """The server under test, and requests to it."""

    def __init__(self, api: Api, app: App, url: str, session: aiohttp.ClientSession) -> None:
        self.api = api
        self.app = app
        self.url = url
        self.session = session
        self.token = ""

    async def call(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **options: Any
    ) -> Answer:
        headers = dict(options.pop("headers", {}))
        chosen = self.token if token is None else token
        if chosen:
            headers.setdefault("Authorization", f"Bearer {chosen}")
        if body is not None:
            options["json"] = body
        async with self.session.request(
            method, self.url + path, headers=headers, **options
        ) as response:
            is_json = response.content_type == "application/json"
            found = await response.json() if is_json else await response.text()
            return Answer(response.status, response.headers, found)

    async def team(self, name: str = "team") -> None:
        await self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    async def user(self, name: str, *groups: str) -> str:
        return await create_token(self.api, name, groups)


@pytest.fixture(scope="module")
def object_store() -> Iterator[objectstore.ObjectStore]:
    folder = Path(tempfile.mkdtemp(prefix="windlass-s3-"))
    processes.remove_at_exit(folder)
    try:
        made = objectstore.ObjectStore(folder)
    except objectstore.NoStoreError as problem:
        pytest.skip(str(problem))
    with made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[postgres.Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="windlass-pg-"))
    processes.remove_at_exit(folder)
    try:
        made = postgres.Postgres(folder)
        made.start()
    except postgres.NoPostgresError as problem:
        pytest.skip(str(problem))
    yield made
    made.stop()


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    opened = await Api.open(tmp_path / "store.db")
    try:
        await bootstrap.ensure_objects(opened)
        yield opened
    finally:
        await opened.close()


@pytest.fixture
async def served(api: Api, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(api, tmp_path) as server:
        yield server


@contextlib.asynccontextmanager
async def serving(
    api: Api, folder: Path, gateway: NodeGateway | None = None
) -> AsyncIterator[Served]:
    """The App of a store on a free port, with an admin's token."""
    audit = AuditLog(folder / "audit.log")
    app = await make_app(api, folder, audit=audit, gateway=gateway)
    runner = web.ServerRunner(app.server(), shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession() as session:
        server = Served(api, app, f"http://127.0.0.1:{runner.addresses[0][1]}", session)
        server.token = await create_token(api, "admin", (MASTERS,))
        yield server
    await app.stop()
    await runner.cleanup()
    await stop_app(app)
    audit.close()
