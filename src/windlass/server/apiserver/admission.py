"""Rules that need to know the caller: whose name a Run carries, and which objects a node makes.

Called by `server.objects` after authorisation and before the write. On Kubernetes a
ValidatingAdmissionPolicy says the same.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from windlass.control import engine, podrender
from windlass.kinds import queue, reasons, run
from windlass.kinds.resources import Resource
from windlass.server.identity import Attributes, Identity
from windlass.server.rights import refusal
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

_USER_PATHS: dict[str, tuple[str, ...]] = {
    "runs.windlass.dev": ("spec", "user"),
    "cronruns.windlass.dev": ("spec", "template", "spec", "user"),
}
"""Where a kind says in whose name it runs."""


def admit_create(identity: Identity, resource: Resource, body: dict[str, Any]) -> None:
    """Fills in the caller's name; refuses another's."""
    if identity.node:
        _only_own_name(identity, resource, body)
    path = _USER_PATHS.get(resource.key)
    if path is None:
        return
    holder = _holder(body, path)
    if holder is None:
        return  # not a Run at all: validation says so, and better
    user = holder.get(path[-1])
    if not user:
        holder[path[-1]] = identity.user
    elif user != identity.user and not identity.is_master:
        raise _foreign(identity, resource, body)


def admit_run(facts: engine.Engine, body: dict[str, Any]) -> None:
    """Refuses at once what this engine can never do."""
    try:
        wanted = msgspec.convert(body, run.Run, strict=False)
    except msgspec.ValidationError:
        return  # validation says so, and better
    problem = podrender.unsupported_by(facts, wanted.spec)
    if problem:
        field, _, words = problem.partition(": ")
        raise errors.Invalid(
            f'Run.windlass.dev "{wanted.name}" is invalid: {problem}',
            causes=(errors.Cause(field, words, "FieldValueNotSupported"),),
        )


def keep_for_ledger(body: dict[str, Any]) -> None:
    """From the beginning, so that the run controller need not write it later."""
    metadata = body.setdefault("metadata", {})
    if isinstance(metadata, dict):
        names = metadata.get("finalizers") or []
        if isinstance(names, list) and run.FINALIZER_LEDGER not in names:
            metadata["finalizers"] = [*names, run.FINALIZER_LEDGER]


_QUEUE_PATHS: dict[str, tuple[str, ...]] = {
    "runs.windlass.dev": ("spec", "queue"),
    "cronruns.windlass.dev": ("spec", "template", "spec", "queue"),
}


async def admit_queue(api: Api, resource: Resource, target: tuple[str, str], change: Any) -> None:
    """Refuses work that names a queue which is for others. One that does not exist yet may come:
    then the scheduler says so, as it does when a queue changes later."""
    path = _QUEUE_PATHS.get(resource.key)
    if path is None:
        return
    named = _values_in_json_patch(change, path) if isinstance(change, list) else [_at(change, path)]
    wanted = {each for each in named if each}
    if not wanted or wanted == {await _current(api, resource, target, path)}:
        return
    listed = (await EmbeddedStore(api).list(queue.Queue)).items
    namespace = target[0]
    for each in listed:
        allowed = each.spec.namespaces or []
        is_parent = any(other.spec.parent == each.name for other in listed)
        if each.name not in wanted or namespace in allowed or not (allowed or is_parent):
            continue
        whose = f"is for the namespaces {', '.join(sorted(allowed)[:5])}, not for {namespace}"
        whose = whose if allowed else "takes no runs, it only holds queues together"
        raise errors.Forbidden(
            f"{reasons.Reason.QUEUE_NOT_YOURS}: queue {each.name} {whose}; "
            f"leave {'.'.join(path)} out to use your team's own, or see `windlass queue tree`"
        )


_OVERRIDE = ("spec", "budget", "override")


async def sign_override(
    api: Api, identity: Identity, resource: Resource, target: tuple[str, str], change: Any
) -> None:
    """Whoever gives a queue leave to exceed its budget is named in it, whatever he wrote."""
    if resource.key != "queues.windlass.dev":
        return
    if isinstance(change, list):
        _sign_operations(identity, change)
        return
    override = _holder(change, (*_OVERRIDE, "by"))
    if override is None:
        return
    current: dict[str, Any] = {}
    with contextlib.suppress(errors.NotFound):
        found = msgspec.json.decode(await api.get(resource, *target)) if target[1] else {}
        current = _holder(found, (*_OVERRIDE, "by")) or {}
    same = all(override.get(name) == current.get(name) for name in ("until", "reason"))
    override["by"] = current.get("by") if same and current else identity.user


def _sign_operations(identity: Identity, change: list[Any]) -> None:
    """The same in a JSON patch: wherever it could put a name."""
    path = (*_OVERRIDE, "by")
    for operation in change:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            continue
        steps = tuple(operation["path"].split("/")[1:])
        if steps == path and "value" in operation and operation.get("op") != "test":
            operation["value"] = identity.user
        elif steps == path[: len(steps)]:
            holder = _holder(operation.get("value"), path[len(steps) :])
            if holder is not None:
                holder["by"] = identity.user


async def admit_replace(
    api: Api, identity: Identity, resource: Resource, target: tuple[str, str], body: dict[str, Any]
) -> None:
    """As `admit_patch`; a user who is left out stays who he was."""
    path = _USER_PATHS.get(resource.key)
    if path is None:
        return
    holder = _holder(body, path)
    if holder is None or holder.get(path[-1]):
        await admit_patch(api, identity, resource, target, body)
        return
    current = await _current(api, resource, target, path)
    if current:
        holder[path[-1]] = current


async def admit_patch(
    api: Api, identity: Identity, resource: Resource, target: tuple[str, str], change: Any
) -> None:
    """Refuses a change (any patch, or a whole object) that puts in another user's name."""
    path = _USER_PATHS.get(resource.key)
    if path is None or identity.is_master:
        return
    named = _values_in_json_patch(change, path) if isinstance(change, list) else [_at(change, path)]
    foreign = {user for user in named if user and user != identity.user}
    if foreign and foreign != {await _current(api, resource, target, path)}:
        raise _foreign(identity, resource, {"metadata": {"name": target[1]}})


async def _current(
    api: Api, resource: Resource, target: tuple[str, str], path: tuple[str, ...]
) -> str | None:
    """What is there now; None where there is nothing, which the write itself will say."""
    try:
        return _at(msgspec.json.decode(await api.get(resource, *target)), path)
    except errors.NotFound:
        return None


def _values_in_json_patch(change: list[Any], path: tuple[str, ...]) -> list[Any]:
    """Every value a JSON patch could put at the path: at it, or inside something above it."""
    found = []
    for operation in change:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            continue
        steps = tuple(operation["path"].split("/")[1:])
        if steps != path[: len(steps)]:
            continue
        if operation.get("op") in ("copy", "move"):
            # Where the value comes from is only known when it is applied: never a way round.
            found.append(operation.get("from") or "?")
        else:
            found.append(_at(operation.get("value"), path[len(steps) :]))
    return found


def _holder(body: Any, path: tuple[str, ...]) -> dict[str, Any] | None:
    """The object that holds the last field of the path."""
    for part in path[:-1]:
        body = body.get(part) if isinstance(body, dict) else None
    return body if isinstance(body, dict) else None


def _at(value: Any, path: tuple[str, ...]) -> str | None:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _only_own_name(identity: Identity, resource: Resource, body: dict[str, Any]) -> None:
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if resource.plural in ("nodes", "leases") and name != identity.node:
        wanted = Attributes("create", resource.group, resource.plural, name=str(name or ""))
        raise refusal(
            identity, wanted, f'node "{identity.node}" may only create the one of its own name'
        )


def _foreign(identity: Identity, resource: Resource, body: dict[str, Any]) -> errors.Forbidden:
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else ""
    field = ".".join(_USER_PATHS[resource.key])
    wanted = Attributes("create", resource.group, resource.plural, name=str(name or ""))
    return refusal(
        identity,
        wanted,
        f'{field} must be "{identity.user}", the caller; leave it out to have it filled in',
    )
