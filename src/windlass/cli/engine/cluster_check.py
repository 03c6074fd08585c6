"""One line of the doctor: whether a Kubernetes API can be reached, and what we may do there."""

from __future__ import annotations

import json
from typing import Any

from windlass.cli import base, client, exits
from windlass.cli.machine import Check
from windlass.kinds import run
from windlass.store import errors

_NAME = "kubernetes"


def check(target: base.Target) -> Check:
    """Tries the server that other commands would use."""
    try:
        return client.call(target, _look)
    except exits.CliError as problem:
        if problem.code != exits.NO_SERVER:
            return Check(_NAME, "limited", problem.message, "Commands will fail.", problem.remedy)
        return Check(
            _NAME, "missing", problem.message, "Fine for one machine: `windlass up` needs none.",
            problem.remedy,
        )  # fmt: skip


async def _look(session: client.Session) -> Check:
    access = session.store.access
    version = await _get(session, "/version")
    found = f"{version.get('gitVersion', 'unknown version')} at {access.address}"
    groups = {group["name"] for group in (await _get(session, "/apis")).get("groups", [])}
    if run.Run.resource.group not in groups:
        return Check(
            _NAME, "limited", found, "Windlass is not installed there: it has no Runs.",
            "Install the resource definitions in deploy/, or use `windlass up`.",
        )  # fmt: skip
    if not await _may_create_runs(session):
        return Check(
            _NAME, "limited", f"{found}, but no right to create runs in {session.namespace}",
            "You can look at jobs at most.", "Ask an administrator for the role windlass-member.",
        )  # fmt: skip
    return Check(_NAME, "ok", f"{found}, runs may be created in {session.namespace}")


async def _may_create_runs(session: client.Session) -> bool:
    """Asks by a dry run: works with any authoriser, and changes nothing."""
    resource = run.Run.resource
    probe = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"generateName": "windlass-doctor-"},
        "spec": {"roles": [{"name": "worker", "command": ["true"]}]},
    }
    status, _, _ = await session.store.raw(
        "POST",
        resource.path(session.namespace),
        body=json.dumps(probe).encode(),
        query=[("dryRun", "All")],
    )
    return status < 300


async def _get(session: client.Session, path: str) -> dict[str, Any]:
    try:
        return await session.read(path)
    except (errors.Forbidden, errors.NotFound):
        return {}
