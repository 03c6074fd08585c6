"""Admission rules that depend on the caller: the user of a Run, and the objects of a node.

Called by `server.apiserver.handlers` after authorisation and before the write. On Kubernetes a
ValidatingAdmissionPolicy has the same rules.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import msgspec

from windlass.control.model import capabilities, unsupported
from windlass.kinds import reasons
from windlass.kinds.types import cronrun, queue, run
from windlass.kinds.types.resource import Resource
from windlass.server.auth import ownership, privileges
from windlass.server.auth.authorization import Rights, refusal
from windlass.server.auth.identity import Attributes, Identity
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore
from windlass.store.embedded.options import Json, Review

_USER_PATHS: dict[str, tuple[str, ...]] = {
    "runs.windlass.dev": ("spec", "user"),
    "cronruns.windlass.dev": ("spec", "template", "spec", "user"),
}
"""The field with the user of a Run, by kind."""


def admit_create(identity: Identity, resource: Resource, body: dict[str, Any]) -> None:
    """Fills in the name of the caller; refuses the name of another user."""
    if identity.node:
        _only_own_name(identity, resource, body)
    path = _USER_PATHS.get(resource.key)
    if path is None:
        return
    holder = _holder(body, path)
    if holder is None:
        return  # not a Run: validation refuses it with a better message
    user = holder.get(path[-1])
    if not user:
        holder[path[-1]] = identity.user
    elif user != identity.user and not identity.is_master:
        raise _other_user(identity, resource, body)


def admit_run(facts: capabilities.Engine, body: dict[str, Any]) -> None:
    """Refuses a Run that this engine can never run."""
    try:
        wanted = msgspec.convert(body, run.Run, strict=False)
    except msgspec.ValidationError:
        return  # validation refuses it with a better message
    problem = unsupported.unsupported_by(facts, wanted.spec)
    if problem:
        field, _, message = problem.partition(": ")
        raise errors.Invalid(
            f'Run.windlass.dev "{wanted.name}" is invalid: {problem}',
            causes=(errors.Cause(field, message, "FieldValueNotSupported"),),
        )


def keep_for_ledger(body: dict[str, Any]) -> None:
    """Adds the finalizer at creation, so that the run controller need not write it later."""
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
    """Refuses a Run in a queue of other teams. A queue that does not exist may be created later:
    then the scheduler reports it, as it does when a queue changes later."""
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
        access = f"is for the namespaces {', '.join(sorted(allowed)[:5])}, not for {namespace}"
        access = access if allowed else "takes no runs, it only holds queues together"
        raise errors.Forbidden(
            f"{reasons.Reason.QUEUE_NOT_YOURS}: queue {each.name} {access}; "
            f"leave {'.'.join(path)} out to use your team's own, or see `windlass queue tree`"
        )


_OVERRIDE = ("spec", "budget", "override")


async def sign_override(
    api: Api, identity: Identity, resource: Resource, target: tuple[str, str], change: Any
) -> None:
    """Sets the author of a budget override to the caller, whatever the request has."""
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
    """The same for a JSON patch: at every path that could set the name."""
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
    """As `admit_patch`; a user that is left out keeps its value."""
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
    """Refuses a change (any patch, or a whole object) that sets the name of another user."""
    path = _USER_PATHS.get(resource.key)
    if path is None or identity.is_master:
        return
    named = _values_in_json_patch(change, path) if isinstance(change, list) else [_at(change, path)]
    others = {user for user in named if user and user != identity.user}
    if others and others != {await _current(api, resource, target, path)}:
        raise _other_user(identity, resource, {"metadata": {"name": target[1]}})


async def reviewer(
    rights: Rights, identity: Identity, resource: Resource, target: tuple[str, str]
) -> Review | None:
    """The rules for an update that compare the objects before and after it."""
    if identity.is_master:
        return None
    if resource.key == run.Run.resource.key:
        wanted = ownership.removing_finalizers(*target)
        if not await rights.allowed(identity, wanted):
            return functools.partial(_keep_finalizer, identity, wanted)
    if resource.key == cronrun.CronRun.resource.key:
        runs = run.Run.resource
        wanted = Attributes(privileges.VERB, runs.group, runs.plural, "", *target)
        may = await rights.allowed(identity, wanted)
        return functools.partial(_follow_editor, identity, None if may else wanted)
    return None


def _keep_finalizer(identity: Identity, wanted: Attributes, old: Json, new: Json) -> Json:
    before, after = (each["metadata"].get("finalizers") or () for each in (old, new))
    if run.FINALIZER_LEDGER in before and run.FINALIZER_LEDGER not in after:
        raise refusal(identity, wanted, ownership.KEPT_FOR_LEDGER)
    return new


def _follow_editor(identity: Identity, refused: Attributes | None, old: Json, new: Json) -> Json:
    """The CronRun with the caller as its user, if the caller changes what it starts or when.
    `refused`: the right to a priority above the default, if the caller lacks it."""
    before, after = old["spec"], new["spec"]
    if all(before.get(name) == after.get(name) for name in ownership.OF_THE_USER):
        return new
    template = after["template"]
    spec = template["spec"]
    if refused is not None:
        _check_privileges(identity, refused, spec)
    if spec.get("user") == identity.user:
        return new
    # Names of others were refused before: this is the user of the last change, or none.
    template = {**template, "spec": {**spec, "user": identity.user}}
    return {**new, "spec": {**after, "template": template}}


def _check_privileges(identity: Identity, refused: Attributes, spec: Json) -> None:
    """Also for what stays as it was: the command beside it may be another one."""
    if spec.get("priority", privileges.HIGHEST) > privileges.HIGHEST:
        raise refusal(identity, refused, privileges.TOO_HIGH)
    if spec.get("preemptible") is False:
        raise refusal(identity, refused, privileges.NOT_PREEMPTIBLE)


async def _current(
    api: Api, resource: Resource, target: tuple[str, str], path: tuple[str, ...]
) -> str | None:
    """The present value; None without an object: then the write itself answers NotFound."""
    try:
        return _at(msgspec.json.decode(await api.get(resource, *target)), path)
    except errors.NotFound:
        return None


def _values_in_json_patch(change: list[Any], path: tuple[str, ...]) -> list[Any]:
    """Every value that a JSON patch could set at the path: at it, or inside a value above it."""
    found = []
    for operation in change:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            continue
        steps = tuple(operation["path"].split("/")[1:])
        if steps != path[: len(steps)]:
            continue
        if operation.get("op") in ("copy", "move"):
            # The source of the value is known only when the patch is applied: refuse it always.
            found.append(operation.get("from") or "?")
        else:
            found.append(_at(operation.get("value"), path[len(steps) :]))
    return found


def _holder(body: Any, path: tuple[str, ...]) -> dict[str, Any] | None:
    """The object that contains the last field of the path."""
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


def _other_user(identity: Identity, resource: Resource, body: dict[str, Any]) -> errors.Forbidden:
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else ""
    field = ".".join(_USER_PATHS[resource.key])
    wanted = Attributes("create", resource.group, resource.plural, name=str(name or ""))
    return refusal(
        identity,
        wanted,
        f'{field} must be "{identity.user}", the caller; leave it out to have it filled in',
    )
