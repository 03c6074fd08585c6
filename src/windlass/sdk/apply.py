"""Applies an object: creates it, or changes it by a three-way merge.

Three-way: a field of the last applied file that is missing in this one is removed; a field of this
file is set; a field that only the server has (defaults, status, labels of other clients) stays.
Lists are replaced whole. The last applied file is kept in kubectl's annotation, so that `kubectl
apply` and `windlass apply` can be mixed.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final, Literal

from windlass.kinds import codec, validate
from windlass.kinds.types.meta import Object
from windlass.store import errors
from windlass.store.interface import Store

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"

_BOOKKEEPING = ("resourceVersion", "generation", "managedFields")


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The result of applying one object."""

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
    """Creates the object, or changes the existing one to match `wanted`."""
    metadata = dict(wanted.get("metadata") or {})
    if kind.resource.namespaced:
        metadata["namespace"] = namespace
    wanted = _remembering({**wanted, "metadata": metadata})
    if "name" in metadata:
        try:
            return await _change(store, kind, wanted, namespace, dry_run)
        except errors.NotFound as missing:
            # NotFound may also mean a missing namespace; the creation then reports it.
            del missing
    try:
        made = await store.create(codec.from_dict(kind, wanted), dry_run=dry_run)
    except errors.AlreadyExists:
        # Another client created it between the two requests.
        return await _change(store, kind, wanted, namespace, dry_run)
    return Outcome("created", codec.to_dict(made))


def three_way(last: Any, current: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """The merge patch for `current`; empty if nothing has to change."""
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
    """Whether nothing has to change. Elements of a list may have defaults of the server."""
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
    current = codec.to_dict(await store.get(kind, name, place))
    # With the defaults, which the structs leave out: a file may name one.
    patch = three_way(_last_applied(current), validate.defaulted(kind, current), wanted)
    if not patch:
        return Outcome("unchanged", current)
    changed = codec.to_dict(await store.patch(kind, name, place, patch=patch, dry_run=dry_run))
    # A server may keep another form of the same, such as `data` for a Secret's `stringData`.
    same = _without_bookkeeping(changed) == _without_bookkeeping(current)
    return Outcome("unchanged" if same else "configured", changed)


def _without_bookkeeping(value: dict[str, Any]) -> dict[str, Any]:
    """Without what a server changes by itself."""
    metadata = {key: each for key, each in value["metadata"].items() if key not in _BOOKKEEPING}
    return {key: each for key, each in value.items() if key != "status"} | {"metadata": metadata}


def _remembering(wanted: dict[str, Any]) -> dict[str, Any]:
    """`wanted` with itself in the annotation, without status, which only the platform writes."""
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
