"""Compares what stands with what an installation would write: applies each object as a dry run.

So whatever an upgrade would repair is found: a component that was scaled to 0, a role or a
disruption budget that was deleted, an image that was edited. Fields that others own do not count.
"""

from __future__ import annotations

import dataclasses

from windlass.install import apply
from windlass.install.manifests.render import Part
from windlass.install.names import Object
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

_MADE_ONCE = ("Lease",)
"""Kinds whose content belongs to the components: only that they exist counts."""


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    missing: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed)


async def find(store: KubernetesStore, parts: list[Part]) -> Drift:
    """Raises Forbidden if the caller may not install: a dry run needs the same permissions."""
    missing, changed = [], []
    for part in parts:
        for obj in part.objects:
            outcome = await _outcome(store, obj)
            if outcome == "created":
                missing.append(apply.title(obj))
            elif outcome == "changed":
                changed.append(apply.title(obj))
    return Drift(tuple(missing), tuple(changed))


async def _outcome(store: KubernetesStore, obj: Object) -> str:
    if obj["kind"] in _MADE_ONCE:
        found = await apply.read(store, apply.path_of(obj))
        return "created" if found is None else "unchanged"
    try:
        return await apply.apply_one(store, obj, dry_run=True)
    except errors.NotFound:  # its namespace or its kind is not there
        return "created"
    except errors.Invalid:  # a field that cannot change differs: an upgrade makes the object anew
        return "changed"
