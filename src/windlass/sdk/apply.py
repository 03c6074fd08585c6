"""Makes the server hold what a file says: create, or a three-way merge.

Three-way: a field that the last applied file had and this one has not is removed; a field that
this file has is set; a field that only the server has (defaults, status, other people's labels)
stays. Lists are replaced whole. The last applied file is kept in the annotation that kubectl uses
for the same thing, so the two can be mixed.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final, Literal

from windlass.kinds import wire
from windlass.kinds.meta import Object
from windlass.store import errors
from windlass.store.client import Store

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What applying one object did."""

    action: Literal["created", "configured", "unchanged"]
    object: dict[str, Any]


async def apply(
    store: Store,
    kind: type[Object],
    wanted: dict[str, Any],
    namespace: str = "",
    *,
    dry_run: bool = False,
) -> Outcome:
    """Creates the object, or changes the one of that name into what `wanted` says."""
    metadata = dict(wanted.get("metadata") or {})
    if kind.resource.namespaced:
        metadata["namespace"] = namespace
    wanted = _remembering({**wanted, "metadata": metadata})
    if "name" in metadata:
        try:
            return await _change(store, kind, wanted, namespace, dry_run)
        except errors.NotFound as missing:
            # A namespace that does not exist is not found either; creating then says so itself.
            del missing
    try:
        made = await store.create(wire.from_dict(kind, wanted), dry_run=dry_run)
    except errors.AlreadyExists:
        # Somebody created it between the two requests.
        return await _change(store, kind, wanted, namespace, dry_run)
    return Outcome("created", wire.to_dict(made))


def three_way(last: Any, current: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The merge-patch for `current`; empty when nothing has to change."""
    last = last if isinstance(last, dict) else {}
    patch: dict[str, Any] = {
        key: None for key in last if key not in wanted and current.get(key) is not None
    }
    for key, value in wanted.items():
        have = current.get(key)
        if isinstance(value, dict) and isinstance(have, dict):
            if inner := three_way(last.get(key), have, value):
                patch[key] = inner
        elif not _holds(last.get(key), have, value):
            patch[key] = value
    return patch


def _holds(last: Any, have: Any, wanted: Any) -> bool:
    """Whether nothing has to change. Elements of a list may have grown defaults on the server."""
    if isinstance(wanted, dict) and isinstance(have, dict):
        return not three_way(last, have, wanted)
    if isinstance(wanted, list) and isinstance(have, list):
        before = last if isinstance(last, list) and len(last) == len(wanted) else wanted
        return len(have) == len(wanted) and all(map(_holds, before, have, wanted))
    return have == wanted and type(have) is type(wanted)


async def _change(
    store: Store, kind: type[Object], wanted: dict[str, Any], namespace: str, dry_run: bool
) -> Outcome:
    name = wanted["metadata"]["name"]
    place = namespace if kind.resource.namespaced else ""
    current = wire.to_dict(await store.get(kind, name, place))
    patch = three_way(_last_applied(current), current, wanted)
    if not patch:
        return Outcome("unchanged", current)
    changed = await store.patch(kind, name, place, patch=patch, dry_run=dry_run)
    return Outcome("configured", wire.to_dict(changed))


def _remembering(wanted: dict[str, Any]) -> dict[str, Any]:
    """`wanted` with itself in the annotation; status is the platform's and never sent."""
    metadata = wanted["metadata"]
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key != LAST_APPLIED
    }
    bare = {key: value for key, value in wanted.items() if key != "status"}
    bare["metadata"] = {**metadata, "annotations": annotations}
    kept = json.dumps(bare, separators=(",", ":"), sort_keys=True) + "\n"
    return {**bare, "metadata": {**metadata, "annotations": {**annotations, LAST_APPLIED: kept}}}


def _last_applied(current: dict[str, Any]) -> Any:
    kept = (current["metadata"].get("annotations") or {}).get(LAST_APPLIED)
    try:
        return json.loads(kept) if kept else {}
    except ValueError:
        return {}
