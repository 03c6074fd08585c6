"""A check of the doctor: whether a Kubernetes API can be reached, and the user's permissions."""

from __future__ import annotations

import json
from typing import Any

from windlass.cli.engine.host_checks import Check
from windlass.cli.lib import base, client_session, exit_codes
from windlass.kinds.types import run
from windlass.store import errors

_NAME = "kubernetes"


def check(target: base.Target) -> Check:
    """Checks the server that other commands use."""
    try:
        return client_session.call(target, _check)
    except exit_codes.CliError as problem:
        if problem.code != exit_codes.NO_SERVER:
            return Check(_NAME, "limited", problem.message, "Commands will fail.", problem.remedy)
        return Check(
            _NAME, "missing", problem.message, "One machine needs no cluster: windlass up",
            problem.remedy,
        )  # fmt: skip


async def _check(session: client_session.Session) -> Check:
    access = session.store.access
    version = await _get(session, "/version")
    found = f"{version.get('gitVersion', 'unknown version')} at {access.address}"
    groups = {group["name"] for group in (await _get(session, "/apis")).get("groups", [])}
    if run.Run.resource.group not in groups:
        return Check(
            _NAME, "limited", found, "Windlass is not installed there: the kind Run is missing.",
            "Install it with `windlass install`, or use `windlass up`.",
        )  # fmt: skip
    if not await _may_create_runs(session):
        return Check(
            _NAME, "limited", f"{found}, but no permission to create runs in {session.namespace}",
            "You can only read runs.", "Ask an administrator for the role windlass-member.",
        )  # fmt: skip
    return Check(_NAME, "ok", f"{found}, you may create runs in {session.namespace}")


async def _may_create_runs(session: client_session.Session) -> bool:
    """Whether a dry run creates a Run; works with any authorizer, and changes nothing."""
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


async def _get(session: client_session.Session, path: str) -> dict[str, Any]:
    try:
        return await session.read(path)
    except (errors.Forbidden, errors.NotFound):
        return {}
