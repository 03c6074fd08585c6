"""Whether a write asks for a priority or a protection that the caller may not ask for.

The rule is that of `server.auth.privileges`. Called by `server.apiserver.handlers` before a write.
"""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.kinds.types.resource import Resource
from windlass.server.auth import privileges
from windlass.server.auth.authorization import Rights
from windlass.server.auth.identity import Identity
from windlass.store import errors
from windlass.store.embedded.api import Api


async def admit(
    api: Api, rights: Rights, identity: Identity, resource: Resource, target: tuple[str, str],
    change: Any,
) -> None:  # fmt: skip
    """`change`: a new object, a whole object or any patch. Forbidden if it asks for more than the
    caller may, and the object at `target` has not had it before."""
    path = privileges.SPECS.get(resource.key)
    if path is None or identity.is_master:
        return
    priorities, kept = values(change, (*path, "priority")), values(change, (*path, "preemptible"))
    high = [
        each for each in priorities if not (isinstance(each, int) and each <= privileges.HIGHEST)
    ]
    firm = [each for each in kept if each is not True]
    if not high and not firm:
        return
    spec = await _current(api, resource, target, path)
    if all(each == spec.get("priority") for each in high) and all(
        each == spec.get("preemptible") for each in firm
    ):
        return
    await privileges.check(rights, identity, target[0], target[1], high=bool(high), firm=bool(firm))


def values(change: Any, path: tuple[str, ...]) -> list[Any]:
    """Every value that the change could set at the path. Null keeps or restores the default."""
    if not isinstance(change, list):
        return [each for each in (_at(change, path),) if each is not None]
    found = []
    for operation in change:
        if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
            continue
        steps = tuple(operation["path"].split("/")[1:])
        if steps != path[: len(steps)] or operation.get("op") in ("test", "remove"):
            continue
        if operation.get("op") in ("copy", "move"):
            found.append("?")  # what it copies is known only when the patch is applied
        else:
            found.append(_at(operation.get("value"), path[len(steps) :]))
    return [each for each in found if each is not None]


async def _current(
    api: Api, resource: Resource, target: tuple[str, str], path: tuple[str, ...]
) -> dict[str, Any]:
    if not target[1]:
        return {}
    try:
        found = _at(msgspec.json.decode(await api.get(resource, *target)), path)
    except errors.NotFound:
        return {}
    return found if isinstance(found, dict) else {}


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value
