"""One server for the fuzz tests, examined after each module: alive, whole, collecting, no trace."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator

import pytest

from tests.faults.driver import Door
from tests.fuzz import samples
from tests.fuzz.wire import Wire, judge
from tests.harness.embedded import EmbeddedServer
from tests.harness.waiting import until


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start(tmp_path_factory.mktemp("fuzz") / "state") as server:
        pid = server.process.pid
        wire = Wire(Door.to(server))
        body = json.dumps({"metadata": {"name": samples.NAMESPACE}}).encode()
        assert wire.request(b"POST", b"/api/v1/namespaces", body).status == 201
        yield server
        assert server.process.alive, server.process.log_tail()
        assert server.process.pid == pid
        _examine(server)


@pytest.fixture(scope="module")
def wire(fuzzed: EmbeddedServer) -> Iterator[Wire]:
    connection = Wire(Door.to(fuzzed))
    yield connection
    connection.close()


def _examine(server: EmbeddedServer) -> None:
    """Everything can still be listed, the file is sound, deletions still cascade."""
    wire = Wire(Door.to(server))
    for resource in samples.RESOURCES:
        root = f"/apis/{resource.api_version}" if resource.group else "/api/v1"
        target = f"{root}/{resource.plural}".encode()
        for accept in (b"application/json", b"application/json;as=Table;v=v1;g=meta.k8s.io"):
            answer = judge(wire.request(b"GET", target, headers={b"Accept": accept}))
            assert answer.status == 200, answer.summary
            json.loads(answer.body)
    with contextlib.closing(sqlite3.connect(server.state / "store.db")) as store:
        assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    _collects(wire)
    log = server.process.log.read_text(errors="replace")
    assert "Traceback" not in log, log[-6000:]


def _collects(wire: Wire) -> None:
    target = b"/api/v1/namespaces/default/configmaps"
    owner = json.loads(wire.request(b"POST", target, b'{"metadata":{"name":"owner"}}').body)
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner"}
    reference["uid"] = owner["metadata"]["uid"]
    owned = {"metadata": {"name": "owned", "ownerReferences": [reference]}}
    assert wire.request(b"POST", target, json.dumps(owned).encode()).status == 201
    assert wire.request(b"DELETE", target + b"/owner").status == 200
    until(
        lambda: wire.request(b"GET", target + b"/owned").status == 404,
        "the owned object is collected",
    )
