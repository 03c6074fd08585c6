"""The audit log: a line per write and refusal, rotation, nothing of what was written."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.unit.server.conftest import Served
from windlass.server.http.audit import AuditEntry, AuditLog, timestamp

SECRETS = "/api/v1/namespaces/default/secrets"


def record(name: str) -> AuditEntry:
    return AuditEntry(
        time=timestamp(), user="alice", verb="create", code=201, source="::1", resource="pods",
        name=name,
    )  # fmt: skip


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_lines_come_out_in_the_order_they_went_in(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    for number in range(25_000):  # more than may wait: some are written at once, the rest on close
        log.write(record(f"p{number}"))
    log.close()
    assert [line["name"] for line in read(tmp_path / "audit.log")] == [
        f"p{number}" for number in range(25_000)
    ]


async def test_files_rotate_by_size_and_the_oldest_goes(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log", max_bytes=200, keep=2)
    for number in range(12):
        log.write(record(f"p{number}"))
        log.flush()
    log.close()
    files = sorted(os.listdir(tmp_path))
    assert files == ["audit.log", "audit.log.1", "audit.log.2"]
    kept = [n["name"] for f in reversed(files) for n in read(tmp_path / f)]
    assert kept == [f"p{n}" for n in range(12 - len(kept), 12)]
    assert (tmp_path / "audit.log").stat().st_mode & 0o777 == 0o600


async def test_writes_and_refusals_are_audited_without_their_content(
    served: Served, tmp_path: Path
) -> None:
    body = {"metadata": {"generateName": "s-"}, "stringData": {"password": "hunter2"}}
    made = await served.call("POST", SECRETS, body)
    name = made.body["metadata"]["name"]
    await served.call("GET", f"{SECRETS}/{name}")
    await served.call("DELETE", f"{SECRETS}/{name}?dryRun=All")
    await served.call("GET", SECRETS, token="wl_no_no")
    await served.call("GET", SECRETS, token=await served.user("bob"))
    served.app._audit.flush()
    text = (tmp_path / "audit.log").read_text()
    assert "hunter2" not in text
    assert "wl_" not in text
    told = [
        (line["verb"], line["code"], line["user"], line.get("name", ""), line.get("dryRun", False))
        for line in map(json.loads, text.splitlines())
    ]
    assert told == [
        ("create", 201, "admin", name, False),
        ("get", 200, "admin", name, False),
        ("delete", 200, "admin", name, True),
        ("get", 401, "", "", False),
        ("list", 403, "bob", "", False),
    ]
